"""Baselines that should fail: what a probe gives away without its question, or without knowledge.

A probe is built by rules, and rules leave traces. A model that sees only the choices must not beat chance; nor should
one that reads questions and choices but brings no knowledge do well (Richardson & Sabharwal 2020, section 4.1). Each
baseline is trained on the probe itself, on questions about other concepts, and its accuracy comes with an interval that
respects clusters; where the whole interval lies above chance by a margin, or below it (choices that are never right
are known too), the probe is flagged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch

from psychlm.frames import FrameError, check_items
from psychlm.lm.choice_model import Recipe
from psychlm.lm.choice_networks import Kind, Lexicon, untrained
from psychlm.probes import scores as probe_scores

Baseline = Literal[Kind, "vector-similarity"]

BASELINES: tuple[Baseline, ...] = (*get_args(Kind), "vector-similarity")
PARTIAL: tuple[Baseline, ...] = ("choice-only", "choice-to-choice")  # never see the question
MARGIN = 0.05
RECIPE = Recipe(learning_rate=3e-3, epochs=12, batch_size=32, patience=3)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a baseline made of a probe."""

    baseline: Baseline
    embeddings: str  # "learned" or "given"
    accuracy: float  # on the test items
    low: float  # of the interval over clusters
    high: float
    level: float  # of the interval
    chance: float  # mean of one over the number of choices
    margin: float
    n_train: int
    n_test: int
    n_clusters: int
    logprobs: pd.DataFrame  # test items x choices, nats (cosines for vector similarity)

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval lies above chance by the margin."""
        return self.low > self.chance + self.margin

    @property
    def below_chance(self) -> bool:
        """Whether the whole interval lies below chance by the margin: what is wrong shows, and guessing does better."""
        return self.high < self.chance - self.margin

    @property
    def flags(self) -> bool:
        """Whether this is an artefact: a baseline that never sees the question is surely not at chance."""
        return (self.beats_chance or self.below_chance) and self.baseline in PARTIAL


def judge(
    baseline: Baseline,
    train: pd.DataFrame,
    test: pd.DataFrame,
    *,
    development: pd.DataFrame | None = None,
    lexicon: Lexicon | None = None,
    recipe: Recipe = RECIPE,
    size: int = 64,
    hidden: int = 64,
    seed: int = 0,
    level: float = 0.95,
    margin: float = MARGIN,
    device: str | torch.device = "cpu",
) -> Verdict:
    """Train one baseline on a probe and test it on questions it has not met.

    Parameters
    ----------
    baseline : {"choice-only", "choice-to-choice", "question-to-choice", "esim", "vector-similarity"}
        Networks of :mod:`psychlm.lm.choice_networks`, and the cosine of the question's and the choice's mean word
        vectors, which is not trained.
    train, test, development : DataFrame
        Items frames. Training stops by ``development``; a fifth of the clusters of ``train`` unless given. Clusters of
        ``test`` that stand in ``train`` are refused.
    lexicon : Lexicon, optional
        Given word vectors (:meth:`Lexicon.of_encoder`, :meth:`Lexicon.of_file`); learned ones unless given.
    size, hidden : int
        d and h of the networks.
    level, margin : float
        Of the interval, and by how much it must clear chance.

    Raises
    ------
    FrameError
        If items break their contract, or training and test share clusters or questions.
    ValueError
        If vector similarity is asked for without given vectors, or a baseline has no such name.
    """
    if baseline not in BASELINES:
        raise ValueError(f"no baseline is named {baseline!r}; there are {list(BASELINES)}")
    train, test = _apart(check_items(train), check_items(test))
    if baseline == "vector-similarity":
        if lexicon is None or lexicon.vectors is None:
            raise ValueError(
                "vector similarity needs given vectors: lexicon=Lexicon.of_encoder() or Lexicon.of_file(path)"
            )
        scores, n_train = similarities(test, lexicon), 0
    else:
        if development is None:
            train, development = _held_out(train, seed)
        words = lexicon or Lexicon.learned(train)
        model = untrained(baseline, words, seed=seed, size=size, hidden=hidden, device=device)
        scores = model.trained(train, recipe, seed=seed, development=development).logprobs(test)
        n_train = len(train)
    said = probe_scores.instance_accuracy(
        test.assign(_all=0), probe_scores.graded(test, scores), by="_all", level=level
    ).iloc[0]
    accuracy, low, high = (float(said[name]) for name in ("accuracy", "low", "high"))
    chance = float((1 / test["choices"].map(len)).mean())
    return Verdict(
        baseline,
        "learned" if lexicon is None else "given",
        accuracy,
        low,
        high,
        level,
        chance,
        margin,
        n_train,
        len(test),
        int(said["n_clusters"]),
        scores,
    )


def judge_all(
    train: pd.DataFrame,
    test: pd.DataFrame,
    *,
    baselines: Iterable[Baseline] = BASELINES,
    given: Lexicon | None = None,
    learned: bool = True,
    **options: object,
) -> list[Verdict]:
    """Return the verdict of every baseline, with learned vectors, with given ones, or both.

    Parameters
    ----------
    given : Lexicon, optional
        Given vectors: every baseline is tried with them as well. Vector similarity is left out without.
    learned : bool
        Whether the networks are also tried with learned vectors.
    **options
        As in :func:`judge`.
    """
    tried = [
        (name, lexicon)
        for name in baselines
        for lexicon in ([None] if learned else []) + ([given] if given else [])
    ]
    return [
        judge(name, train, test, lexicon=lexicon, **options)  # type: ignore[arg-type]
        for name, lexicon in tried
        if name != "vector-similarity" or lexicon is not None
    ]


def table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return verdicts as a table, one row each, without their scores.

    ``beats_chance`` and ``below_chance`` say on which side of chance a baseline surely is; ``flags``, that it is so
    without seeing the question.
    """
    fields = (
        "baseline",
        "embeddings",
        "accuracy",
        "low",
        "high",
        "chance",
        "beats_chance",
        "below_chance",
        "flags",
        "n_train",
        "n_test",
    )
    return pd.DataFrame([{name: getattr(verdict, name) for name in fields} for verdict in verdicts])


def similarities(items: pd.DataFrame, lexicon: Lexicon) -> pd.DataFrame:
    """Return the cosine of the mean word vectors of question and choice, items x choices.

    NaN where an item has fewer choices; 0 where a text has no known word.
    """
    counts = items["choices"].map(len).to_numpy()
    texts = [*items["prompt"], *(choice for choices in items["choices"] for choice in choices)]
    number, distinct = pd.factorize(np.array(texts, dtype=object))
    assert lexicon.vectors is not None
    nothing = np.zeros(lexicon.vectors.shape[1], dtype=np.float32)
    means = np.stack(
        [words.mean(axis=0) if len(words) else nothing for words in lexicon.encode(list(distinct))]
    )
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    asked, offered = means[np.repeat(number[: len(items)], counts)], means[number[len(items) :]]
    cosines = np.full((len(items), counts.max()), np.nan)
    cosines[np.arange(counts.max()) < counts[:, None]] = (asked * offered).sum(axis=1)
    return pd.DataFrame(cosines, index=pd.Index(items["item_id"], name="item")).rename_axis(
        columns="choice"
    )


def _clusters(items: pd.DataFrame) -> pd.Series:
    """Return the clusters of items, each its own where there is none."""
    return items["cluster"] if "cluster" in items.columns else items["item_id"]


def _apart(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both with their clusters, if they share none."""
    train, test = (items.assign(cluster=_clusters(items)) for items in (train, test))
    shared = set(train["cluster"]) & set(test["cluster"])
    if shared:
        raise FrameError(
            f"{len(shared)} clusters stand in training and test, {sorted(map(str, shared))[0]!r} among them, so that "
            "memory would look like an artefact; split by cluster"
        )
    return train, test


def _held_out(
    train: pd.DataFrame, seed: int, share: float = 0.2
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training items and those held out for development, whole clusters at a time."""
    clusters = train["cluster"].unique()
    if len(clusters) < 2:
        raise FrameError(
            "all training items are one cluster, and none can be held out; pass development items"
        )
    order = np.random.default_rng(seed).permutation(len(clusters))
    held = train["cluster"].isin(clusters[order[: max(1, round(share * len(clusters)))]])
    return train[~held], train[held]
