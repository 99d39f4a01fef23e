"""Classical test theory: how hard, how telling and how alike the items of a test are.

Everything starts from a responses frame (persons x items; 0, 1 or NaN for an item that was not asked). Missing
responses are handled pairwise: each mean rests on those who answered the item, each covariance or correlation on
those who answered both items, and a person's score is the proportion correct among the items they answered. With
complete responses these are the textbook quantities on sum scores.

Sources: Lord & Novick (1968), *Statistical Theories of Mental Test Scores*; Cronbach (1951); the clusters follow
Laverghetta et al. (2021), section 5.1. ``smallest_subset`` asks how few persons or models show the same.
"""

from psychlm.ctt.agreement import fleiss_kappa
from psychlm.ctt.clusters import ClusterAgreement, ItemClusters, cluster_agreement, cluster_items
from psychlm.ctt.items import (
    average_inter_item_correlation,
    difficulty,
    discrimination_index,
    inter_item_correlation,
    item_rest_correlation,
    item_total_correlation,
)
from psychlm.ctt.reliability import (
    alpha_if_deleted,
    cronbach_alpha,
    kr20,
    split_half,
    standard_error_of_measurement,
)
from psychlm.ctt.restarts import cluster_items_by_restarts
from psychlm.ctt.subset import (
    GreedySubset,
    SmallestSubset,
    greedy_subset,
    smallest_subset,
    subset_agreement,
)

__all__ = [
    "average_inter_item_correlation",
    "difficulty",
    "discrimination_index",
    "inter_item_correlation",
    "item_rest_correlation",
    "item_total_correlation",
    "alpha_if_deleted",
    "cronbach_alpha",
    "kr20",
    "split_half",
    "standard_error_of_measurement",
    "ClusterAgreement",
    "ItemClusters",
    "cluster_agreement",
    "cluster_items",
    "fleiss_kappa",
    "cluster_items_by_restarts",
    "GreedySubset",
    "SmallestSubset",
    "greedy_subset",
    "smallest_subset",
    "subset_agreement",
]
