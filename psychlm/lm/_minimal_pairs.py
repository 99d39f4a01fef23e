"""Minimal pairs: does a model find the grammatical sentence of two the likelier one?

Each sentence is read by itself, and its score is the sum of its tokens' log-probabilities, as in
BLiMP (Warstadt et al. 2020, section 3.2).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from psychlm.corpora.item_banks import read_records
from psychlm.frames import FrameError, format_names
from psychlm.lm._errors import ModelError, check_option
from psychlm.lm._load import named_models
from psychlm.lm._surprisal import surprisal
from psychlm.lm.tokens import TOKENLESS, UNKNOWN


@dataclass(frozen=True, eq=False)
class MinimalPairs:
    """What models prefer in minimal pairs."""

    # the pairs given, once for each model: model, good_bits and bad_bits (sums over a sentence, or
    # divided by its length), and correct: 1 where the good sentence has fewer bits, 0.5 for a tie
    pairs: pd.DataFrame
    # by model and phenomenon: accuracy with Wilson's 95 % interval (low, high), and n; the row
    # "all" holds all pairs of a model
    accuracy: pd.DataFrame
    normalise: str  # by what the bits of a sentence are divided

    def __repr__(self) -> str:
        table = self.accuracy.to_string(float_format="{:.3f}".format)
        return table if self.normalise == "sum" else f"bits by {self.normalise}\n{table}"


def read_blimp(source: str | Path) -> pd.DataFrame:
    """Read minimal pairs in BLiMP's layout, a JSONL file or a folder of them, into columns
    ``pair_id``, ``good``, ``bad``, ``phenomenon`` and ``paradigm``.

    Each record has ``sentence_good`` and ``sentence_bad``; ``linguistics_term`` names the
    phenomenon and ``UID`` the paradigm, else the file's name does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "agreement.jsonl"
    ...     _ = file.write_text('{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."}')
    ...     read_blimp(file)[["good", "phenomenon"]].values.tolist()
    [['Cats sleep.', 'agreement']]
    """
    path = Path(source)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise FrameError(f"the folder {path} holds no .jsonl file; give BLiMP's folder `data`")
    parts = []
    for file in files:
        table = pd.DataFrame(read_records(file))
        if table.reindex(columns=["sentence_good", "sentence_bad"]).isna().any(axis=None):
            raise FrameError(f"{file} has records without sentence_good or sentence_bad; give both")
        part = pd.DataFrame({"pair_id": [f"{file.stem}-{i}" for i in range(len(table))]})
        part = part.assign(good=table["sentence_good"], bad=table["sentence_bad"])
        part["phenomenon"] = table.get("linguistics_term", file.stem)
        part["paradigm"] = table.get("UID", file.stem)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def minimal_pairs(
    pairs: pd.DataFrame | str | Path,
    models: Any = "default",
    *,
    by: str = "phenomenon",
    normalise: Literal["sum", "token", "character", "byte"] = "sum",
    **options: Any,
) -> MinimalPairs:
    """Compare the log-probabilities of the two sentences of minimal pairs, by model.

    Parameters
    ----------
    pairs : DataFrame, str or Path
        Columns ``good`` and ``bad``; or what :func:`read_blimp` reads.
    models : model, or iterable or mapping of models
        As :func:`psychlm.lm.surprisals` takes them.
    by : str
        Column of ``pairs`` by which accuracies are given.
    normalise : {"sum", "token", "character", "byte"}
        What of a sentence is compared: its bits, or these by its tokens, characters or UTF-8 bytes.
    **options
        Of :func:`psychlm.lm.surprisal`.

    Raises
    ------
    ModelError
        If a sentence has no score: a model that reads no start token, for instance.

    Examples
    --------
    >>> pairs = pd.DataFrame({"good": ["The cats sleep."], "bad": ["The cats sleeps."]})
    >>> minimal_pairs(pairs.assign(phenomenon="agreement"), cache=False).accuracy.index.tolist()
    [('default', 'agreement'), ('default', 'all')]
    """
    from statsmodels.stats.proportion import proportion_confint

    table = pairs if isinstance(pairs, pd.DataFrame) else read_blimp(pairs)
    if table.empty or not {"good", "bad", by} <= set(table):
        raise FrameError(
            f"minimal pairs have columns good, bad and {by}; these {len(table)} have {list(table)}"
        )
    if table[by].eq("all").any():
        raise FrameError(f"{by} is 'all' for some pairs, which names the row of all pairs; rename")
    check_option("normalise", normalise, ("sum", "token", "character", "byte"))
    models = named_models(models)
    # Score the good and the bad sentences of all pairs in one call for each model.
    texts = {f"{side}-{i}": text for side in ("good", "bad") for i, text in enumerate(table[side])}
    parts = []
    for name, model in models.items():
        scored = surprisal(texts, model, unit="sentence", correction=None, **options)
        rows = scored.set_index("text_id").loc[list(texts)]
        bits = rows["surprisal_bits"].to_numpy()
        if normalise == "token":
            bits = bits / rows["n_tokens"].to_numpy()
        elif normalise != "sum":
            read = [t.encode() if normalise == "byte" else t for t in texts.values()]
            bits = bits / np.array([len(text) for text in read])
        if np.isnan(bits).any():
            lost = scored.loc[scored["surprisal_bits"].isna()]
            names = format_names(lost["text_id"])
            raise ModelError(f"{name} gives sentences {names} no score: {lost['reason'].iloc[0]}")
        strange = scored.loc[scored["reason"].isin([TOKENLESS, UNKNOWN]), "text_id"]
        if len(strange):
            said = f"sentences {format_names(strange)} hold characters that the tokenizer of {name}"
            said += " does not know; they are scored as it reads them"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        good, bad = np.split(bits, 2)
        correct = (good < bad) + 0.5 * (good == bad)
        parts.append(table.assign(model=name, good_bits=good, bad_bits=bad, correct=correct))
    graded = pd.concat(parts, ignore_index=True)
    # Accuracy by group, and over all pairs.
    both = pd.concat([graded.assign(group=graded[by]), graded.assign(group="all")])
    groups = both.groupby(["model", "group"], sort=False)["correct"]
    accuracy = groups.agg(accuracy="mean", n="size").rename_axis(["model", by])
    low, high = proportion_confint(groups.sum(), accuracy["n"], method="wilson")
    accuracy = accuracy.assign(low=low, high=high)[["accuracy", "low", "high", "n"]]
    return MinimalPairs(graded, accuracy.loc[list(models)], normalise)
