"""Laverghetta et al. (2021): which participants to keep, models in four training regimes, and how
models agree with people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm import corpora, ctt, irt, lm, stats
from psychlm.frames import FrameError, check_responses, drop_constant

if TYPE_CHECKING:
    from psychlm.lm.finetune import Regime

REGIMES: dict[Regime, str] = {  # names of lm.fine_tune, and what the notebook calls them
    "zero shot": "neither",
    "pre-train only": "pre-training",
    "fine-tune only": "fine-tuning",
    "both": "pre-training fine-tuning",
}
RATE, TOKENS = 1e-5, 175  # of all models (section 4.2)
REJECT_BELOW, ACCEPT_ABOVE, ATTENTION_NEEDED = 0.40, 0.60, 0.75


def screen(
    responses: pd.DataFrame,
    *,
    attention: pd.DataFrame | None = None,
    persons: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Decide whether to accept each submission, and give the reason.

    1. Of several submissions by one worker or from one address, only the first is kept.
    2. A score below 40 % is rejected and one above 60 % accepted; between them (both included) a
       person needs 75 % of the attention checks.

    The paper's third stage, reading the justifications that people wrote, is left to people.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Graded responses, one row per submission; the score is the proportion correct.
    attention : DataFrame, shape (n_persons, n_checks), optional
        Graded attention checks. Without them, scores between the thresholds are for "review".
    persons : DataFrame, indexed by person, optional
        ``worker``, ``address`` and ``submitted`` (time or number); missing values match nobody.

    Returns
    -------
    DataFrame, indexed by person
        ``decision`` ("accept", "reject" or "review"), ``stage`` in which it fell, ``reason``,
        ``score`` and ``attention_score`` (NaN without checks).

    Raises
    ------
    FrameError
        If a frame does not cover the same persons as the responses.
    """
    checked = check_responses(responses)
    score = checked.mean(axis=1)
    for name, frame in {"attention": attention, "persons": persons}.items():
        if frame is not None and (
            frame.index.has_duplicates or set(frame.index) != set(score.index)
        ):
            raise FrameError(f"{name} and responses must have the same persons, each once")
    attentive = pd.Series(np.nan, index=score.index)
    if attention is not None:
        attentive = check_responses(attention).mean(axis=1).reindex(score.index)

    # Stage 1: submissions in order of time; all but the first of a worker or address are repeated.
    repeated = pd.Series(False, index=score.index)
    if persons is not None:
        in_time = persons.sort_values("submitted", kind="stable")[["worker", "address"]]
        filled_in = in_time.notna() & (in_time != "")
        again = in_time.apply(pd.Series.duplicated) & filled_in
        repeated = again.any(axis=1).reindex(score.index)

    between = (score >= REJECT_BELOW) & (score <= ACCEPT_ABOVE)
    percent = (100 * score).map("{:.0f} % correct".format)
    checks = percent + (100 * attentive).map(", {:.0f} % of the attention checks".format)
    cases = [  # (condition, decision, stage, reason): the first that holds decides
        (repeated, "reject", 1, "not the first submission of this worker or address"),
        (score < REJECT_BELOW, "reject", 2, percent),
        (between & attentive.isna(), "review", 2, percent + ", no attention checks"),
        (between & (attentive < ATTENTION_NEEDED), "reject", 2, checks),
        (between, "accept", 2, checks),
        (score > ACCEPT_ABOVE, "accept", 2, percent),
    ]
    result = pd.DataFrame(index=score.index, columns=["decision", "stage", "reason"], dtype=object)
    for condition, decision, stage, reason in reversed(cases):
        result.loc[condition, ["decision", "stage"]] = [decision, stage]
        result["reason"] = result["reason"].mask(condition, reason)
    return result.assign(score=score, attention_score=attentive)


def train_in_four_regimes(
    encoders: Sequence[str],
    sources: Sequence[str | Path],
    *,
    n_train: int,
    n_stop: int,
    seeds: Iterable[int],
    learning_rate: float = RATE,
    **options: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train encoders on sentence pairs in the paper's four regimes, and give them the diagnostic.

    Parameters
    ----------
    encoders : sequence of str
        As :func:`psychlm.lm.fine_tune` takes them.
    sources : sequence of str or Path
        Files of pairs (:func:`psychlm.corpora.item_banks.nli`), from which both draws are made.
    n_train, n_stop : int
        How many pairs are learned, and how many others training is stopped by.
    seeds : iterable of int
        Of the pairs drawn, of random weights and of training; each seed makes a model.
    **options
        Of :func:`psychlm.lm.fine_tune`.

    Returns
    -------
    responses : DataFrame, shape (n_models, n_items)
        Graded responses of the models to the diagnostic.
    models : DataFrame, indexed by model
        ``regime``, ``encoder`` and ``seed``.

    Raises
    ------
    DataMissingError
        If pairs or the diagnostic's sentences cannot be had.
    ModelError
        If an encoder cannot be opened, or is too large to be trained here.
    """
    diagnostic = corpora.item_banks.glue_diagnostic("laverghetta2021/diagnostic_results")
    pairs = pd.concat(map(corpora.item_banks.nli, sources), ignore_index=True)
    pairs["item_id"] = range(len(pairs))  # the same pair may be in two sources
    rows, made = {}, {}
    for seed in seeds:
        drawn = pairs.sample(min(n_train + n_stop, len(pairs)), random_state=seed)
        given = options | {"out": None, "development": drawn[:n_stop], "seed": seed, "task": "pair"}
        given |= {"learning_rate": learning_rate, "max_tokens": TOKENS}
        for encoder, (regime, name) in product(encoders, REGIMES.items()):
            tuned = lm.fine_tune(drawn[n_stop:], encoder, regime=regime, **given)
            answers = lm.evaluate(diagnostic, tuned.folder, device=options.get("device", "auto"))
            model = f"{Path(encoder).name}, {name}, {seed}"
            rows[model] = answers.responses.iloc[0]
            made[model] = {"regime": name, "encoder": encoder, "seed": seed}
    return pd.DataFrame(rows).T, pd.DataFrame(made).T


def agreement(people: pd.Series, models: pd.DataFrame, label: pd.Series) -> dict[str, float]:
    """Return how the difficulties of models go with those of people, over items.

    Parameters
    ----------
    people : Series, indexed by item
        Proportion of people who are right.
    models : DataFrame, shape (n_models, n_items)
        Graded responses of models to the same items.
    label : Series, indexed by item
        Gold labels: a model that always gives one label makes its items easy.

    Returns
    -------
    dict
        ``accuracy``, Spearman's ``rho``, and ``rho_within_label``: of ranks less the mean rank of
        their gold label.
    """
    difficulties = pd.DataFrame({"people": people, "models": ctt.difficulty(models[people.index])})
    pair = difficulties["people"], difficulties["models"]
    return {
        "accuracy": difficulties["models"].mean(),
        "rho": stats.correlation(*pair).r,
        "rho_within_label": within_labels(*pair, label[people.index]).r,
    }


def agreement_by_group(
    people: pd.Series, models: pd.DataFrame, groups: pd.Series, label: pd.Series
) -> pd.DataFrame:
    """Return :func:`agreement` of each group of models and its size ``n``, by accuracy."""
    grouped = models.groupby(groups)
    rows = {name: {"n": len(some), **agreement(people, some, label)} for name, some in grouped}
    return pd.DataFrame(rows).T.sort_values("accuracy")


def within_labels(x: pd.Series, y: pd.Series, label: pd.Series) -> stats.Correlation:
    """Return the correlation of ranks less the mean rank of the item's gold label.

    A crowd that likes one label finds its items easy whatever they say; that is taken out.
    """
    ranks = [values.rank() for values in (x, y)]
    inside = [rank - rank.groupby(label).transform("mean") for rank in ranks]
    return stats.correlation(inside[0], inside[1], "pearson")


def random_cluster_agreement(
    labels: pd.Series, n_populations: int, restarts: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return how populations of twenty who guess cluster the items as ``labels`` do."""
    numbered, agreements = labels.reset_index(drop=True), []
    for coins in rng.integers(0, 2, size=(n_populations, 20, len(labels))):
        drawn = ctt.cluster_items_by_restarts(pd.DataFrame(coins), rng=rng, restarts=restarts)
        agreements.append(ctt.cluster_agreement(numbered, drawn.labels).r)
    return np.array(agreements)


def pretraining_checkpoints(
    study: corpora.Laverghetta2021, people: pd.Series, finetuned: pd.Series
) -> pd.DataFrame:
    """Return the accuracy of the checkpoints of the authors' own BERT, and their Spearman
    correlation (``rho``) with people's difficulties, by fine-tuning data and epoch."""
    names = study.models.index.to_series()
    epoch = names.str.extract(r"^bert-base-cased-epoch-(\d+)-", expand=False).dropna().astype(int)
    responses = study.models.loc[epoch.index, people.index]
    rows = {"epoch": epoch, "finetuned": finetuned[epoch.index], "accuracy": responses.mean(axis=1)}
    rows["rho"] = responses.T.corrwith(people, method="spearman")
    return pd.DataFrame(rows).set_index(["finetuned", "epoch"]).sort_index()


def average_inter_item_correlation(
    responses: pd.DataFrame, subsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the average inter-item correlation of subsets of items.

    Undefined correlations, of items that everyone answered alike, count as 0.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
    subsets : ndarray of int, (n_subsets, size)
        Positions of the items of each subset.
    """
    r = ctt.inter_item_correlation(responses).fillna(0).to_numpy()
    size = subsets.shape[1]
    total = r[subsets[:, :, None], subsets[:, None, :]].sum(axis=(1, 2))
    return (total - r[subsets, subsets].sum(axis=1)) / (size * (size - 1))


def rasch_difficulties(responses: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return Rasch difficulties without the items that everyone answered alike, and of all items.

    The second fit keeps these items with a weak prior on every difficulty, N(0, 3).

    Raises
    ------
    RuntimeError
        If a fit does not converge.
    """
    kept, _ = drop_constant(responses)
    finite = irt.fit(kept, "Rasch", standard_errors=False)
    weak = irt.Normal(0, 3)
    shrunk = irt.fit(responses, "Rasch", priors={"intercept": weak}, standard_errors=False)
    if not (finite.converged and shrunk.converged):
        raise RuntimeError("a Rasch fit did not converge; see the warnings of irt.fit")
    return finite.items["b"], shrunk.items["b"]
