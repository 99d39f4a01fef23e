"""The LSTM baseline of natural language inference: no pre-training, trained on the partitions of the transformers.

Laverghetta et al. (2021, appendix A) draw 57 LSTMs from PyTorch's example for SNLI, with GloVe vectors. Here they are
crowds of :mod:`psychlm.crowds` (an LSTM a text, three tanh layers, softmax) without GloVe: words are learned too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import matthews_corrcoef

from psychlm.crowds import (
    Encoded,
    Member,
    TrainedCrowd,
    Vocabulary,
    encode_pairs,
    encode_texts,
    logprobs,
    respond,
    train,
)
from psychlm.frames import FrameError
from psychlm.lm.finetune_data import check_trainable, hold_out, labels_of, targets_of
from psychlm.lm.regimes import RegimeResponses


def lstm_baseline(
    items: pd.DataFrame,
    partitions: Mapping[str, pd.DataFrame],
    *,
    development: Mapping[str, pd.DataFrame] | pd.DataFrame | float = 0.1,
    seeds: Iterable[int] = (0,),
    **training: Any,
) -> RegimeResponses:
    """Train LSTMs on every partition, one a seed, and let them take the test.

    Parameters
    ----------
    items : DataFrame
        The test: an items frame with the labels of the training data.
    partitions, development, seeds
        As :func:`psychlm.lm.regimes.regimes` takes them; the LSTMs of a partition are trained as one.
    **training
        Of :func:`psychlm.crowds.train`: ``epochs``, ``learning_rate``, ``patience``, ``size``, ``hidden``, ...

    Returns
    -------
    RegimeResponses
        ``responses`` are NaN for an LSTM whose training diverged.

    Raises
    ------
    FrameError
        If items cannot be learned from, are multiple choice, or differ in their labels.
    """
    members = [Member(seed) for seed in seeds]
    answered, described = [], []
    for partition, given in partitions.items():
        stop = development[partition] if isinstance(development, Mapping) else development
        train_items, task = check_trainable(given)
        if task == "multiple-choice":
            raise FrameError(
                "the LSTM reads pairs or single texts with labels, and these items are multiple choice"
            )
        train_items, held = hold_out(train_items, stop, task, members[0].seed)
        if held is None:
            raise FrameError(
                "the LSTMs stop by development items, and there are none; give a frame or a share"
            )
        labels = labels_of(train_items)
        inputs = _encoded(train_items, None)
        reading = (_encoded(held, inputs.vocabulary), targets_of(held, labels))
        trained = train(
            "nli-lstm" if task == "pair" else "lstm",
            inputs,
            targets_of(train_items, labels),
            members=members,
            development=reading,
            classes=len(labels),
            **training,
        )
        names = [f"lstm-nopretrain-finetune-{partition}-seed{member.seed}" for member in members]
        key = pd.Series(targets_of(items, labels), index=items["item_id"])
        answered.append(respond(trained, _encoded(items, inputs.vocabulary), key).set_axis(names))
        described.append(_who(trained, reading, partition).set_axis(names))
    return RegimeResponses(
        pd.concat(answered).rename_axis(index="person", columns="item"),
        pd.concat(described).rename_axis("person"),
    )


def _encoded(items: pd.DataFrame, vocabulary: Vocabulary | None) -> Encoded:
    if "hypothesis" in items:
        return encode_pairs(items["prompt"].tolist(), items["hypothesis"].tolist(), vocabulary)
    return encode_texts(items["prompt"].tolist(), vocabulary)


def _who(
    trained: TrainedCrowd, reading: tuple[Encoded, np.ndarray], partition: str
) -> pd.DataFrame:
    """Describe the LSTMs of a partition, with their Matthews correlation on the development items."""
    predicted = logprobs(trained, reading[0]).argmax(axis=2)
    return pd.DataFrame(
        {
            "architecture": "lstm",
            "regime": "fine-tune only",
            "pretrained": False,
            "finetuned": partition,
            "seed": [member.seed for member in trained.members],
            "mcc": np.where(
                trained.diverged, np.nan, [matthews_corrcoef(reading[1], own) for own in predicted]
            ),
            "best_epoch": trained.best_epoch.astype(float),
        }
    )
