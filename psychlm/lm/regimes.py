"""One architecture as many persons: pre-trained or not, fine-tuned or not, on more and more training data.

Laverghetta et al. (2021, section 3) make 183 transformers out of a dozen architectures that way: four regimes, and four
partitions of the training data for the two of them that are fine-tuned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm.frames import FrameError, check_items
from psychlm.lm.finetune import FineTuned, finetune
from psychlm.lm.responses import answers

REGIMES = {  # Laverghetta et al. 2021, section 3: whether pre-trained, whether fine-tuned
    "zero shot": (False, False),
    "pre-train only": (True, False),
    "fine-tune only": (False, True),
    "both": (True, True),
}


@dataclass(frozen=True, eq=False)
class RegimeResponses:
    """What the models of all regimes answered, and who they are."""

    responses: pd.DataFrame  # persons x items
    persons: (
        pd.DataFrame
    )  # by person: architecture, regime, pretrained, finetuned (the partition), seed, mcc, ...


def training_partitions(banks: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the partitions of the training data: the first two banks alone, then each bank with those before it.

    Parameters
    ----------
    banks : mapping of str to DataFrame
        Items frames, in order: ``snli``, ``mnli`` and ``anli`` give the paper's ``snli``, ``mnli``, ``snli+mnli`` and
        ``snli+mnli+anli`` (Laverghetta et al. 2021, section 3). Development items are partitioned alike.

    Returns
    -------
    dict of str to DataFrame
        Items frames; an ``item_id`` is preceded by the name of its bank.
    """
    if not banks:
        raise FrameError("there is no bank of items to train on; give banks={'snli': items, ...}")
    named = {
        bank: check_items(items).assign(item_id=_within(bank, items))
        for bank, items in banks.items()
    }
    alone = {bank: named[bank] for bank in list(named)[:2]}
    together = list(accumulate(named, lambda before, bank: f"{before}+{bank}"))[1:]
    return alone | {
        name: pd.concat([named[bank] for bank in name.split("+")], ignore_index=True)
        for name in together
    }


def _within(bank: str, items: pd.DataFrame) -> pd.Series:
    return bank + ":" + items["item_id"].astype(str)


def regimes(
    items: pd.DataFrame,
    partitions: Mapping[str, pd.DataFrame],
    encoders: str | Path | Iterable[str | Path] | Mapping[str, str | Path] = "bundled",
    *,
    development: Mapping[str, pd.DataFrame] | pd.DataFrame | float = 0.1,
    seeds: Iterable[int] = (0,),
    which: Iterable[str] = tuple(REGIMES),
    out: str | Path | None = None,
    device: str = "auto",
    **recipe: Any,
) -> RegimeResponses:
    """Train an architecture in the four regimes and let every model take the test.

    *Zero shot* has random weights and is not trained; *pre-train only* has the encoder's weights and a new head;
    *fine-tune only* begins at random weights; *both* at the encoder's (Laverghetta et al. 2021, section 3).

    Parameters
    ----------
    items : DataFrame
        The test: an items frame with the labels of the training data.
    partitions : mapping of str to DataFrame
        Training items by name, as :func:`training_partitions` makes them.
    encoders : str, Path, or iterable or mapping of them
        Architectures, as :func:`~psychlm.lm.finetune.finetune` takes them; the keys of a mapping name them.
    development : mapping of str to DataFrame, DataFrame, or float
        Items on which training is stopped, by partition, or one frame for all, or the share to hold out of each.
    seeds : iterable of int
        Each gives one model of each regime and partition.
    which : iterable of str
        Some of :data:`REGIMES`.
    out : str or Path, optional
        The models are kept there, a folder a person (the cache folder unless given): a run that is interrupted resumes.
    **recipe
        As of :func:`~psychlm.lm.finetune.finetune`, such as ``epochs``, ``learning_rate``, ``trainable_layers``.

    Returns
    -------
    RegimeResponses

    Raises
    ------
    FrameError
        If a regime is unknown, there is no partition, or a partition has no development items.
    """
    plan = _plan(partitions, encoders, list(seeds), list(which))
    if isinstance(development, Mapping) and (lacking := set(partitions) - set(development)):
        raise FrameError(
            f"there are no development items for the partitions {sorted(lacking)}; add them"
        )
    answered, described = [], {}
    for person, who, source in plan:
        partition = who["finetuned"]
        train, stop = partitions[partition or next(iter(partitions))], development
        options = recipe | {"seed": who["seed"], "pretrained": who["pretrained"]}
        if partition is None:
            stop, options = None, options | {"epochs": 0}
        elif isinstance(development, Mapping):
            stop = development[partition]
        folder = None if out is None else Path(out) / person
        done = finetune(train, source, development=stop, out=folder, device=device, **options)
        answered.append(answers(items, {person: done.folder}, device=device).responses)
        described[person] = who | _outcome(done)
    persons = pd.DataFrame.from_dict(described, orient="index").rename_axis("person")
    return RegimeResponses(pd.concat(answered), persons)


def _outcome(done: FineTuned) -> dict[str, Any]:
    return {
        "mcc": done.mcc,
        "best_epoch": done.best_epoch,
        "seconds": done.seconds,
        "folder": str(done.folder),
    }


def _plan(
    partitions: Mapping[str, pd.DataFrame],
    encoders: str | Path | Iterable[str | Path] | Mapping[str, str | Path],
    seeds: list[int],
    which: list[str],
) -> list[tuple[str, dict[str, Any], str | Path]]:
    """Return who is to be trained, and from which encoder; named as the models of Laverghetta et al. (2021) are."""
    if strange := [name for name in which if name not in REGIMES]:
        raise FrameError(f"regimes {strange} are unknown; choose among {list(REGIMES)}")
    if not partitions:
        raise FrameError("there is no partition to train on; give partitions={'snli': items, ...}")
    if isinstance(encoders, (str, Path)):
        encoders = [encoders]
    named = (
        encoders
        if isinstance(encoders, Mapping)
        else {Path(encoder).name: encoder for encoder in encoders}
    )
    found = []
    for (name, encoder), regime, seed in product(named.items(), which, seeds):
        pretrained, tuned = REGIMES[regime]
        for partition in partitions if tuned else [None]:
            said = f"{'' if pretrained else 'no'}pretrain-{f'finetune-{partition}' if tuned else 'nofinetune'}"
            who = {
                "architecture": name,
                "regime": regime,
                "pretrained": pretrained,
                "finetuned": partition,
            }
            found.append((f"{name}-{said}-seed{seed}", who | {"seed": seed}, encoder))
    return found
