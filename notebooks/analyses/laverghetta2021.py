"""Laverghetta et al. (2021): participants, models in four training regimes, and their agreement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student_t

from psychlm import corpora, ctt, data, irt, lm, stats
from psychlm.frames import check_responses, drop_constant

if TYPE_CHECKING:
    from psychlm.lm.finetune import Regime

REGIMES: dict[Regime, str] = {  # names of lm.fine_tune, and what the notebook calls them
    "zero shot": "neither",
    "pre-train only": "pre-training",
    "fine-tune only": "fine-tuning",
    "both": "pre-training fine-tuning",
}
RATE, TOKENS = 1e-5, 175  # of all models (section 4.2)
REJECT_BELOW, ACCEPT_ABOVE = 0.40, 0.60


def screen(responses: pd.DataFrame) -> pd.Series:
    """Decide about each submission by its proportion correct: below 40 % "reject", above 60 %
    "accept", between them (both included) "review", by attention checks and what people wrote.

    Repeated submissions of one worker or address are taken out before."""
    score = check_responses(responses).mean(axis=1)
    conditions = [score < REJECT_BELOW, score > ACCEPT_ABOVE]
    decision = np.select(conditions, ["reject", "accept"], "review")
    return pd.Series(decision, score.index, name="decision")


def train_in_four_regimes(
    encoders: Sequence[str],
    sources: Sequence[str | Path],
    *,
    n_train: int,
    n_stop: int,
    seeds: Iterable[int],
    **options: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train encoders on sentence pairs in the paper's four regimes, and give them the diagnostic.

    Of the pairs in ``sources``, ``n_train`` are learned and ``n_stop`` others stop training, with
    ``options`` of :func:`psychlm.lm.fine_tune`. Return graded responses (models x items) to the
    diagnostic, and ``regime``, ``encoder`` and ``seed`` of each model."""
    diagnostic = corpora.item_banks.glue_diagnostic("laverghetta2021/diagnostic_results")
    pairs = pd.concat(map(corpora.item_banks.nli, sources), ignore_index=True)
    pairs["item_id"] = range(len(pairs))  # the same pair may be in two sources
    rows, made = {}, {}
    for seed in seeds:
        drawn = pairs.sample(min(n_train + n_stop, len(pairs)), random_state=seed)
        given = {"learning_rate": RATE, "max_tokens": TOKENS, "out": None} | options
        given |= {"development": drawn[:n_stop], "seed": seed, "task": "pair"}
        for encoder, (regime, name) in product(encoders, REGIMES.items()):
            tuned = lm.fine_tune(drawn[n_stop:], encoder, regime=regime, **given)
            answers = lm.evaluate(diagnostic, tuned.folder, device=options.get("device", "auto"))
            model = f"{Path(encoder).name}, {name}, {seed}"
            rows[model] = answers.responses.iloc[0]
            made[model] = {"regime": name, "encoder": encoder, "seed": seed}
    return pd.DataFrame(rows).T, pd.DataFrame(made).T


def agreement_by_group(
    people: pd.Series, models: pd.DataFrame, groups: pd.Series, label: pd.Series
) -> pd.DataFrame:
    """Return how the difficulties of groups of models go with those of people, over items: ``n``,
    ``accuracy``, Spearman's ``rho``, and ``rho_within_label`` (:func:`within_labels`)."""
    rows = {}
    for name, group in models[people.index].groupby(groups):
        difficulty = ctt.difficulty(group)
        within = within_labels(people, difficulty, label[people.index])
        row = {"n": len(group), "accuracy": difficulty.mean()}
        row["rho"] = stats.correlation(people, difficulty).r
        rows[name] = row | {"rho_within_label": within.r}
    return pd.DataFrame(rows).T.sort_values("accuracy")


def within_labels(x: pd.Series, y: pd.Series, label: pd.Series) -> stats.Correlation:
    """Return the correlation of ranks less the mean rank of the item's gold label. A crowd that
    likes one label finds its items easy whatever they say; that is taken out."""
    ranks = [values.rank() for values in (x, y)]
    inside = [rank - rank.groupby(label).transform("mean") for rank in ranks]
    return stats.correlation(inside[0], inside[1], "pearson")


def average_inter_item_correlation(
    responses: pd.DataFrame, subsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the average inter-item correlation of subsets of items, (n_subsets, size) positions.
    Undefined correlations, of items that everyone answered alike, count as 0."""
    r = ctt.inter_item_correlation(responses).fillna(0).to_numpy()
    size = subsets.shape[1]
    total = r[subsets[:, :, None], subsets[:, None, :]].sum(axis=(1, 2))
    return (total - r[subsets, subsets].sum(axis=1)) / (size * (size - 1))


def rasch_difficulties(responses: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return Rasch difficulties without the items that everyone answered alike, and of all items.
    The second fit keeps these items with a weak prior on every difficulty, N(0, 3)."""
    kept, _ = drop_constant(responses)
    finite = irt.fit(kept, "Rasch", standard_errors=False)
    weak = irt.Normal(0, 3)
    shrunk = irt.fit(responses, "Rasch", priors={"intercept": weak}, standard_errors=False)
    if not (finite.converged and shrunk.converged):
        raise RuntimeError("a Rasch fit did not converge; see the warnings of irt.fit")
    return finite.items["b"], shrunk.items["b"]


def not_aligned(
    takers: Mapping[str, pd.DataFrame],
    items: pd.Index,
    subsets: NDArray[np.int64],
    categories: Mapping[str, NDArray[np.int64]],
    level: float,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Correlate what section 6 says not to align: people's measures with those of other takers.

    Return by taker the correlation of item-rest correlations over ``items``, and those of average
    inter-item correlations over ``subsets`` and ``categories`` (positions of the items)."""
    rest = {name: ctt.item_rest_correlation(rows[items]) for name, rows in takers.items()}
    of_subsets = {
        name: average_inter_item_correlation(rows[items], subsets) for name, rows in takers.items()
    }
    of_categories = {
        name: [
            average_inter_item_correlation(rows[items], own[None])[0] for own in categories.values()
        ]
        for name, rows in takers.items()
    }
    item_rest, iic = {}, {}
    for name in list(takers)[1:]:
        item_rest[name] = vars(stats.correlation(rest["human"], rest[name], "pearson", level=level))
        r = stats.correlation(of_subsets["human"], of_subsets[name], "pearson").r
        both = of_categories["human"], of_categories[name]
        by_category = stats.correlation(*both, "pearson", level=level)
        iic[name] = {"subsets": r, "categories": by_category.r}
        iic[name] |= {"low": by_category.low, "high": by_category.high}
    return pd.DataFrame(item_rest).T[["r", "low", "high", "p", "n"]], pd.DataFrame(iic).T


def agreement_by_rank(
    takers: Mapping[str, pd.DataFrame], rng: np.random.Generator, n_ranks: int = 3
) -> pd.DataFrame:
    """Compare people's widest partition with the ``n_ranks`` widest of each other population.
    ``takers`` maps "human" and the populations to their responses; the items are people's."""
    items = takers["human"].columns
    people, rows = widest_partitions(takers["human"], rng)[0][1], {}
    for name in list(takers)[1:]:
        widest = widest_partitions(takers[name][items], rng)[:n_ranks]
        for rank, (width, labels) in enumerate(widest, 1):
            rows[name, rank] = {"width": width, "r": ctt.cluster_agreement(people, labels).r}
    return pd.DataFrame(rows).T.rename_axis(["population", "rank"])


def widest_partitions(
    responses: pd.DataFrame, rng: np.random.Generator, n_searches: int = 80
) -> list[tuple[float, pd.Series]]:
    """Return the different partitions in which short searches end, as (mean silhouette width,
    labels), the widest first."""
    found: dict[tuple, tuple[float, pd.Series]] = {}
    for restarts in np.resize([3, 8, 25, 80], n_searches):
        one = ctt.cluster_items_by_restarts(responses, rng=rng, restarts=int(restarts))
        found[tuple(one.labels)] = (float(one.silhouette.max()), one.labels)
    return sorted(found.values(), key=lambda partition: -partition[0])


def printed_p_bands(n_items: dict[str, int]) -> pd.DataFrame:
    """Compare the bands of p that Tables 1 to 3 print ("<0.05") with the printed r.

    p is that of the t test of a correlation over a category's items (Table 2: over their pairs). A
    band is ``possible`` if some r that rounds to the printed one has its p there."""
    edges = [0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0]
    bands = ["<0.001", "<0.01", "<0.05", "<0.1", "<0.5", ">0.5"]
    rows = []
    for name in ("table1", "table2", "table3"):
        for row in data.published(f"laverghetta2021.{name}").itertuples():
            n = n_items[row.category]
            n = n * (n - 1) // 2 if name == "table2" else n
            r = np.clip(abs(row.r) + np.linspace(-0.005, 0.005, 11), 0, 1 - 1e-9)
            p = 2 * student_t.sf(r * np.sqrt((n - 2) / (1 - r**2)), n - 2)
            place = bands.index(row.p)
            possible = ((p >= edges[place]) & (p < edges[place + 1])).any()
            said = f"{name}, {row.category}, {row.population}: r = {row.r:.2f}, n = {n}, "
            said += f"p = {p[5]:.2f}, printed {row.p}"
            cell = {"table": name, "category": row.category, "population": row.population}
            rows.append(cell | {"p": p[5], "possible": possible, "said": said})
    return pd.DataFrame(rows)
