from . import (
    clusters as clusters,
    items as items,
    subsets as subsets,
)
from .clusters import (
    ClusterAgreement as ClusterAgreement,
    ItemClusters as ItemClusters,
    cluster_agreement as cluster_agreement,
    cluster_items as cluster_items,
    cluster_items_by_restarts as cluster_items_by_restarts,
)
from .items import (
    alpha_if_deleted as alpha_if_deleted,
    alpha_interval as alpha_interval,
    copied_items as copied_items,
    cronbach_alpha as cronbach_alpha,
    difficulty as difficulty,
    distractors as distractors,
    fleiss_kappa as fleiss_kappa,
    inter_item_correlation as inter_item_correlation,
    item_rest_correlation as item_rest_correlation,
    keyed_in_reverse as keyed_in_reverse,
    linked_forms as linked_forms,
    omega as omega,
    scalability as scalability,
    split_half as split_half,
    standard_error_of_measurement as standard_error_of_measurement,
)
from .subsets import (
    SmallestSubset as SmallestSubset,
    WorthInPeople as WorthInPeople,
    smallest_subset as smallest_subset,
    worth_in_people as worth_in_people,
)
