"""Classical test theory: difficulty, discrimination, reliability and clusters of items.

Everything starts from a responses frame (persons x items; 0, 1 or NaN where not asked). Missing
responses are handled pairwise: each mean rests on those who answered the item, each covariance or
correlation on those who answered both items, and a person's score is the proportion correct among
the items they answered. With complete responses these are the textbook quantities.

Sources: Lord & Novick (1968), *Statistical Theories of Mental Test Scores*; Cronbach (1951); the
clusters follow Laverghetta et al. (2021), section 5.1.
"""

from psychlm.ctt.clusters import (
    ClusterAgreement,
    ItemClusters,
    cluster_agreement,
    cluster_items,
    cluster_items_by_restarts,
)
from psychlm.ctt.items import (
    alpha_if_deleted,
    alpha_interval,
    cronbach_alpha,
    difficulty,
    distractors,
    fleiss_kappa,
    inter_item_correlation,
    item_rest_correlation,
    keyed_in_reverse,
    omega,
    scalability,
    split_half,
    standard_error_of_measurement,
)
from psychlm.ctt.subsets import SmallestSubset, WorthInPeople, smallest_subset, worth_in_people

__all__ = [
    "ClusterAgreement",
    "ItemClusters",
    "SmallestSubset",
    "WorthInPeople",
    "alpha_if_deleted",
    "alpha_interval",
    "cluster_agreement",
    "cluster_items",
    "cluster_items_by_restarts",
    "cronbach_alpha",
    "difficulty",
    "distractors",
    "fleiss_kappa",
    "inter_item_correlation",
    "item_rest_correlation",
    "keyed_in_reverse",
    "omega",
    "scalability",
    "smallest_subset",
    "split_half",
    "standard_error_of_measurement",
    "worth_in_people",
]
