"""What decides how probes are built, what comes out, and which questions are for training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.probes.wordnet_templates import PROBES

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Recipe:
    """What decides how probes are built; the same recipe and WordNet give the same questions.

    Attributes
    ----------
    seed : int
    max_hops : int or None
        The deepest HOPS(c, r) asked about; all of them where None. The paper's Figure 3 goes to 4.
    answers_per_hop : int
        Keys drawn for a concept at each number of hops.
    contexts_per_concept : int
        Example sentences used of a concept that has more.
    max_distance : int
        Depth of sister families, and hops to the hypernyms and hyponyms that serve as distractors.
    perturbations : bool
        Every question with each set of distractors; else with one, drawn at random.
    top_up : bool
        Random distractors where a set has fewer than four of its kind (at least one is its own), as in the questions
        that the paper's authors released; else such sets are left out.
    filter_leaks : bool
        Leave out keys and distractors that repeat the word asked about or stand in the question.
    max_concepts : int or None
        Concepts drawn a probe; all of them where None.
    max_train : int
        Training questions at most, of the perturbed ones; and never more than half of all.
    dev_share : float
        Of the concepts outside training, the share that is for development.
    """

    seed: int = 0
    max_hops: int | None = 4
    answers_per_hop: int = 1
    contexts_per_concept: int = 1
    max_distance: int = 3
    perturbations: bool = True
    top_up: bool = True
    filter_leaks: bool = True
    max_concepts: int | None = None
    max_train: int = 3000
    dev_share: float = 0.2

    def __post_init__(self) -> None:
        """Say which number makes no sense."""
        least = {"answers_per_hop": 1, "contexts_per_concept": 1, "max_distance": 1, "max_train": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {low} or more")
        if any(value is not None and value < 1 for value in (self.max_hops, self.max_concepts)):
            raise ValueError("max_hops and max_concepts count from 1; None means all of them")
        if not 0 <= self.dev_share <= 1:
            raise ValueError(f"dev_share is {self.dev_share}; it is a share, between 0 and 1")


@dataclass(frozen=True)
class Probes:
    """Questions that were built, and what was left out on the way.

    Attributes
    ----------
    items : DataFrame
        An items frame: ``item_id``, ``prompt``, ``choices`` (five), ``answer``; then ``probe``, ``concept``, ``pos``,
        ``word`` (as it stands in the question; empty in synonymy), ``lemma``, ``answer_concept``, ``hops`` (0 where
        question and key are of one concept), ``cluster``, ``distractor_set`` and ``distractor_distance`` (0 for random
        ones), and for the four distractors in the order of the choices ``distractor_types``,
        ``distractor_distances``, ``distractor_concepts``; ``split``.
    counts : DataFrame
        ``probe``, ``what``, ``n``: what was struck out or left out, by reason.
    recipe : Recipe
    wordnet_version : str
    """

    items: pd.DataFrame
    counts: pd.DataFrame
    recipe: Recipe
    wordnet_version: str

    def sizes(self) -> pd.DataFrame:
        """Return a row a probe: questions (unique, and with perturbations), concepts, cluster size, splits."""
        unique = (
            self.items.drop_duplicates(["probe", "prompt", "answer_concept"])
            .groupby("probe", observed=True)
            .size()
        )
        groups = self.items.groupby("probe", observed=True)
        table = pd.DataFrame(
            {
                "unique": unique,
                "with_perturbations": groups.size(),
                "concepts": groups["concept"].nunique(),
                "cluster_size": groups.size() / groups["cluster"].nunique(),
            }
        )
        splits = pd.crosstab(self.items["probe"], self.items["split"]).reindex(
            columns=list(SPLITS), fill_value=0
        )
        return table.join(splits).reindex([probe for probe in PROBES if probe in table.index])

    def header(self) -> dict[str, Any]:
        """Return what a file of these questions says about itself."""
        left_out = self.counts.groupby("probe", observed=True)[["what", "n"]]
        return {
            "source": f"WordNet {self.wordnet_version}",
            "seed": self.recipe.seed,
            "recipe": asdict(self.recipe),
            "left_out": {probe: dict(rows.itertuples(index=False)) for probe, rows in left_out},
        }


def split_by_concept(items: pd.DataFrame, recipe: Recipe) -> pd.Series:
    """Assign every question to train, dev or test, all questions about one concept to the same.

    One random order of concepts serves all probes. In each probe concepts go to training as long as their questions
    fit into ``max_train`` and half of all questions; of the others the first ``dev_share`` are for development.
    """
    concepts = np.unique(items["concept"].to_numpy(dtype=str))
    rank = pd.Series(
        np.random.default_rng([recipe.seed, len(PROBES)]).permutation(len(concepts)), index=concepts
    )
    sizes = items.groupby(["probe", "concept"], observed=True).size().rename("n").reset_index()
    sizes = sizes.assign(rank=rank[sizes["concept"]].to_numpy()).sort_values(["probe", "rank"])
    groups = sizes.groupby("probe", observed=True)
    limit = np.minimum(recipe.max_train, groups["n"].transform("sum") // 2)
    train = groups["n"].cumsum() <= limit
    others = sizes.loc[~train].groupby("probe", observed=True)["n"]
    dev = (others.cumsum() <= recipe.dev_share * others.transform("sum")).reindex(
        sizes.index, fill_value=False
    )
    sizes["split"] = np.select([train, dev], ["train", "dev"], "test")
    found = sizes.set_index(["probe", "concept"])["split"]
    keys = pd.MultiIndex.from_frame(items[["probe", "concept"]].astype(str))
    return pd.Series(found.loc[keys].to_numpy(), index=items.index, name="split")
