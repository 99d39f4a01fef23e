"""What crowds of Turkers said of NLI pairs and phrases (Lalor et al. 2016, 2018): their labels, and these graded.

As in :mod:`psychlm.corpora.response_sets`, each reader returns real data or raises
:class:`psychlm.data.DataMissingError`; with ``simulate_if_absent`` a stand-in of the same form is drawn instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm import data, frames, simulate
from psychlm.corpora.response_sets import NLI_LABELS
from psychlm.report import DataKind

_SPELLED = {label[0]: label for label in NLI_LABELS}


@dataclass(frozen=True)
class CrowdLabels:
    """The labels that a crowd gave to items, and the same graded against a key.

    Attributes
    ----------
    labels : DataFrame, persons x items
        What each person said; NaN where nothing was said ("na" in the released files).
    key : Series, item -> label
        The right answer: the gold label of the corpus, or the crowd's majority where no gold label was released.
    graded : DataFrame, persons x items
        A responses frame: 1 where label and key agree. A missing label counts as wrong, as its authors coded it.
    kind : "real" or "simulated"
    """

    labels: pd.DataFrame
    key: pd.Series
    graded: pd.DataFrame
    kind: DataKind

    def items_keyed(self, label: str) -> pd.DataFrame:
        """Return the graded answers to the items whose right answer is this label, in the file's order."""
        return self.graded.loc[:, self.key[self.graded.columns] == label]


def lalor2016(group: int, *, simulate_if_absent: int | None = None) -> CrowdLabels:
    """Read the labels that about 1,000 Turkers gave to 90 SNLI pairs.

    Parameters
    ----------
    group : 4 or 5
        How many of SNLI's five annotators agreed on the gold label of these pairs (4GS and 5GS).
    simulate_if_absent : int, optional
        A seed for a stand-in, where the data cannot be had.
    """
    if group not in (4, 5):
        raise ValueError(
            f"group {group!r} does not exist; Lalor et al. (2016) asked about groups 4 and 5"
        )
    try:
        said, gold = (data.path(f"lalor2016/{name}_{group}") for name in ("irt_file", "group"))
    except data.DataMissingError:
        if simulate_if_absent is None:
            raise
        return _simulated(np.random.default_rng([simulate_if_absent, group]))
    labels = pd.read_csv(said, index_col="userid", dtype=str, keep_default_na=False)
    key = pd.read_csv(gold, sep=" ", header=None, index_col=0, dtype=str)[1]
    labels = labels.apply(lambda said: said.map(_SPELLED))
    return _graded(labels, key.reindex(labels.columns), "real")


def lalor2018(*, simulate_if_absent: int | None = None) -> CrowdLabels:
    """Read what about 1,000 Turkers said of 131 SST phrases: "positive" for ratings 3 to 5, else "negative".

    Neutral counts as positive, as the dissertation bins it (Lalor 2020, section 2.3). The phrases' gold labels were
    not released with the ratings: the key is the crowd's majority.
    """
    try:
        file = data.path("lalor2018/response_patterns")
    except data.DataMissingError:
        if simulate_if_absent is None:
            raise
        stand_in = _simulated(np.random.default_rng([simulate_if_absent, 2018]))
        labels = stand_in.graded.replace({1.0: "positive", 0.0: "negative"})
        return _graded(labels, labels.mode().iloc[0], "simulated")
    ratings = pd.read_csv(file, index_col="uuid")
    labels = pd.DataFrame(
        np.where(ratings > 2, "positive", "negative"), ratings.index, ratings.columns
    )
    return _graded(labels, labels.mode().iloc[0], "real")


def _graded(labels: pd.DataFrame, key: pd.Series, kind: DataKind) -> CrowdLabels:
    graded = (labels == key[labels.columns].to_numpy()).astype(float)
    return CrowdLabels(labels, key.rename("label"), frames.check_responses(graded), kind)


def _simulated(rng: np.random.Generator, n_persons: int = 980, per_label: int = 30) -> CrowdLabels:
    """Draw a stand-in: one ability, easy 2PL items, and wrong answers spread over the other labels."""
    names = [f"pair-{i + 1:02d}{label[0]}" for label in NLI_LABELS for i in range(per_label)]
    key = pd.Series(np.repeat(NLI_LABELS, per_label), index=names)
    parameters = simulate.items(len(names), rng, names=names)
    # the ranges of Lalor's scales: no item so easy and steep that a handful of errors leave its slope without a maximum
    parameters["a"], parameters["b"] = (
        rng.uniform(0.8, 2.5, len(names)),
        rng.uniform(-2.0, 0.5, len(names)),
    )
    right = simulate.responses(rng.normal(size=n_persons), parameters, rng)
    wrong = key.map(lambda label: [other for other in NLI_LABELS if other != label])
    other = rng.integers(0, 2, size=right.shape)
    said = np.where(
        right == 1, key.to_numpy(dtype=str), np.array(wrong.tolist())[np.arange(len(key)), other]
    )
    return _graded(pd.DataFrame(said, right.index, right.columns), key, "simulated")
