"""Shen & Kejriwal (2022): tests against chance, what a prior bias is made of, and tables of results
on perturbed items (:mod:`psychlm.probes.confusion`, which has the measures)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats
from scipy.linalg import helmert
from statsmodels.stats.proportion import proportion_confint

from psychlm import comparison, frames, stats
from psychlm.lm.choices import check_scores, grade, n_choices
from psychlm.probes.confusion import PriorBias, prior_bias

FEATURES = ("place", "length_chars", "log_frequency")


@dataclass(frozen=True)
class ChanceTest:
    """How often the pseudo-correct choice is picked, against chance; items with tied scores are
    left out."""

    rate: float
    low: float  # Wilson's interval (1927)
    high: float
    chance: float  # mean of 1 / number of choices
    n_items: int
    p: float  # two-sided, exact


def against_chance(scores: pd.DataFrame, answers: pd.DataFrame | pd.Series) -> ChanceTest:
    """Test how often the pseudo-correct choice is picked against 1/n for an item of n choices.

    The count of picks is Poisson-binomial, and the two-sided p-value sums the probabilities of all
    counts that are no likelier than the observed one; it is NaN where every item is tied."""
    scores = check_scores(scores)
    tied = (scores.eq(scores.max(axis=1), axis=0).sum(axis=1) > 1).to_numpy()
    clear = scores[~tied]
    n = len(clear)
    nan = float("nan")
    if not n:
        return ChanceTest(nan, nan, nan, nan, 0, nan)
    picked = grade(answers, clear).to_numpy()
    size = n_choices(clear)
    k = int(picked.sum())
    # The count of picks is a sum of coins of unequal chances: sum what is no likelier than k.
    pmf = scipy_stats.poisson_binom(1 / size).pmf(np.arange(n + 1))
    p = float(min(1.0, pmf[pmf <= pmf[k] * (1 + 1e-7)].sum()))  # the tolerance of binomtest
    low, high = proportion_confint(k, n, method="wilson")
    chance = float((1 / size).mean())
    return ChanceTest(k / n, float(low), float(high), chance, n, p)


@dataclass(frozen=True)
class BiasDecomposition:
    """A prior bias split into what is known of the choices and what is not."""

    coefficients: pd.DataFrame  # by feature: nats_per_sd, se, low, high, z, p; sd of the feature
    shares: pd.Series  # of the variance of scores within items: features, "choice" (u), "noise" (e)
    choice_sd: float  # sigma_u, nats
    noise_sd: float  # sigma_e, nats
    converged: bool


def choice_features(items: pd.DataFrame) -> pd.DataFrame:
    """Return every choice with its place (from 0), text, length and frequency.

    ``log_frequency`` is the mean over a choice's words of log10(count + 1), counted in the prompts
    and choices of ``items``; 0 for a choice without words."""
    flat = items[["item_id", "choices"]].explode("choices").reset_index(drop=True)
    words = flat["choices"].str.lower().str.findall(r"\w+").explode()
    prompts = items["prompt"].str.lower().str.findall(r"\w+").explode()
    log_count = np.log10(words.map(pd.concat([prompts, words]).value_counts()).astype(float) + 1)
    features = {
        "place": flat.groupby("item_id", sort=False).cumcount(),
        "text": flat["choices"],
        "length_chars": flat["choices"].str.len(),
        "log_frequency": log_count.fillna(0).groupby(level=0).mean(),
    }
    return pd.DataFrame(features)


def bias_decomposition(
    presentations: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
) -> BiasDecomposition:
    r"""Split a prior bias into place, length and frequency of the choices, a choice's own appeal,
    and noise.

    The scores of choice j of item i in presentation k follow a linear mixed model with a random
    intercept per choice,

    .. math:: s_{ijk} = \alpha_{ik} + \beta_1\,\mathrm{place}_{ijk} + \beta_2\,\mathrm{length}_{ij}
              + \beta_3\,\mathrm{frequency}_{ij} + u_{ij} + e_{ijk},
              \quad u \sim N(0, \sigma^2_u),\ e \sim N(0, \sigma^2_e).

    It is fitted to orthonormal (Helmert) contrasts of the choices within item and presentation,
    which :math:`\alpha_{ik}` leaves unchanged and whose errors are independent. The share of a
    feature is its slope times its covariance with the prediction of all features, over the variance
    of that prediction and the two random ones (Nakagawa & Schielzeth 2013); it may be negative.

    ``presentations`` are at least two pairs of items, perturbed without a question or with a wrong
    one and shuffled, and their scores in the source's order, as :func:`prior_bias` takes them."""
    if (k := len(presentations)) < 2:
        raise ValueError("one presentation cannot tell a preference from noise; give another")
    # One row per choice and presentation, sorted by item, choice (its place in the source) and
    # presentation.
    parts = []
    for number, (items, scores) in enumerate(presentations):
        values = check_scores(scores).reindex(items["source_item_id"]).to_numpy()
        if np.isnan(values).all(axis=1).any():
            raise frames.FrameError("items have no scores; score the perturbed items themselves")
        row = np.repeat(np.arange(len(items)), items["choices"].map(len))
        choice = items["order"].explode().to_numpy(int)
        source = items["source_item_id"].to_numpy()[row]
        beside = {"source": source, "choice": choice, "score": values[row, choice]}
        parts.append(choice_features(items).assign(presentation=number, **beside))
    long = pd.concat(parts).sort_values(["source", "choice", "presentation"], kind="stable")
    each = long.groupby(["source", "choice"])
    added = (long["choice"] < 0).any()
    if added or (each.size() != k).any() or (each["text"].nunique() != 1).any():
        raise frames.FrameError("the presentations differ in their items or choices")
    # Contrasts of scores and features within items, items of equal numbers of choices at once: (N,
    # 1 + p).
    size = long.groupby("source", sort=False)["choice"].transform("size") // k
    turned = []
    for n, rows in long.groupby(size, sort=True):
        stack = rows[["score", *FEATURES]].to_numpy(float).reshape(-1, n, k * (1 + len(FEATURES)))
        contrasts = np.einsum("cj,ijv->icv", helmert(n), stack)
        turned.append(contrasts.reshape(-1, 1 + len(FEATURES)))
    table = np.concatenate(turned)
    y = table[:, 0]
    x = table[:, 1:]
    groups = np.repeat(np.arange(len(table) // k), k)
    if np.allclose(y.reshape(-1, k).std(axis=1), 0, atol=1e-9):
        raise ValueError("all presentations score alike: the model does not read the question")
    sd = np.sqrt((x**2).mean(axis=0))
    if not sd.all() or np.linalg.matrix_rank(x / sd) < len(sd):
        same = [name for name, value in zip(FEATURES, sd, strict=True) if value == 0]
        raise ValueError(f"features {same or list(FEATURES)} do not vary within items, or are one")
    from statsmodels.regression.mixed_linear_model import MixedLM

    with warnings.catch_warnings(action="ignore"):  # convergence is reported in the result
        fit = MixedLM(y, x / sd, groups=groups).fit(reml=True)
    beta = fit.fe_params
    se = fit.bse_fe
    choice_variance = float(fit.cov_re[0, 0])
    noise = float(fit.scale)
    explained = beta * ((x / sd).T @ (x / sd) / len(x) @ beta)
    parts_of = pd.Series([*explained, choice_variance, noise], index=[*FEATURES, "choice", "noise"])
    half = scipy_stats.norm.ppf(0.975) * se
    z = beta / se
    coefficients = pd.DataFrame(
        {"nats_per_sd": beta, "se": se, "low": beta - half, "high": beta + half, "z": z},
        index=pd.Index(FEATURES, name="feature"),
    ).assign(p=2 * scipy_stats.norm.sf(np.abs(z)), sd=sd)
    shares = parts_of / parts_of.sum()
    sds = (choice_variance**0.5, noise**0.5)
    return BiasDecomposition(coefficients, shares, *sds, bool(fit.converged))


Result = ChanceTest | PriorBias | comparison.Comparison


def by_benchmark(results: Mapping[tuple[str, ...], Result], names: Sequence[str]) -> pd.DataFrame:
    """Return one row per test, with Holm's correction over all of them.

    The index has ``names``, the meanings of the keys of ``results``. The estimate of a prior bias
    is its lasting share, that of a comparison of grades the change in accuracy."""
    rows: list[tuple[Any, ...]] = []
    for one in results.values():
        if isinstance(one, ChanceTest):
            rows.append((one.rate, one.low, one.high, one.chance, one.n_items, one.p))
        elif isinstance(one, comparison.Comparison):
            rows.append((one.difference, one.low, one.high, 0.0, one.n, one.p))
        else:
            share = one.lasting_share or stats.Interval(np.nan, np.nan, np.nan, 0.95, 0)
            rows.append((share.estimate, share.low, share.high, 0.0, one.n_items, one.p))
    columns = ["estimate", "low", "high", "null", "n_items", "p"]
    index = pd.MultiIndex.from_tuples([tuple(key) for key in results], names=list(names))
    table = pd.DataFrame(rows, index=index, columns=columns)
    return table.assign(p_holm=stats.holm(table["p"]))


def knowledge(answers: pd.DataFrame | pd.Series, scores: pd.DataFrame) -> dict[str, float]:
    """Return ``accuracy``, its interval ``low`` and ``high`` (Wilson, 95 %), ``chance``, ``n``."""
    right = grade(answers, scores)
    low, high = proportion_confint(right.sum(), len(right), method="wilson")
    chance = float((1 / scores.notna().sum(axis=1)).mean())
    return {"accuracy": right.mean(), "low": low, "high": high, "chance": chance, "n": len(right)}


def control_alarms(
    items: pd.DataFrame, responder: Callable[..., pd.DataFrame], seeds: Iterable[int]
) -> np.ndarray:
    """Return how often :func:`against_chance` and :func:`prior_bias` call a responder biased (p up
    to .05), as shares of the seeds."""
    p = []
    answers = items.set_index("item_id")["answer"]
    for rng in map(np.random.default_rng, seeds):
        thrice = [responder(items, rng=rng) for _ in range(3)]
        bias = prior_bias(*thrice, rng=rng, n_permutations=99, n_boot=2)
        p.append((against_chance(thrice[0], answers).p, bias.p))
    return (np.array(p) <= 0.05).mean(axis=0)


def cases(holds: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model: the benchmarks that it knows, and on how many a bias holds.

    ``holds`` has a row for each benchmark and way of scoring ("name, way"), by ``benchmark`` and
    ``model``; a bias counts where it holds under every way of scoring."""
    columns = ["cases", "prior_bias", "lasting_share", "paralysis", "drop", "equal_draw"]
    family = holds.index.get_level_values("model").str.split(",").str[0]
    table = {}
    for name, rows in holds.groupby(family, sort=False):
        held = rows[["prior_bias", "paralysis"]].groupby("benchmark").all()
        means = rows[["drop", "equal_draw"]].astype(float).mean()
        table[name] = {"cases": len(held), **held.sum(), **means}
        table[name]["lasting_share"] = rows["lasting_share"].median()
    return pd.DataFrame(table, index=columns).T.rename_axis("model").astype(float)
