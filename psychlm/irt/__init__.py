"""Item response theory: 1PL, Rasch, 2PL and 3PL models by marginal maximum likelihood, from tests to machine learning.

``fit`` estimates items, ``IRTFit.score`` persons; ``curves`` draws what was fitted. ``s_x2``, ``ld_x2``, ``q3``, ``m2``
and ``person_fit`` test it. ``tetrachoric``, ``parallel_analysis``, ``two_factor`` and the rotations ask how many
abilities there are; ``select_items`` makes a scale of a bank of items, and ``confirm`` tries it on new persons.
``mantel_haenszel`` and ``dif_likelihood_ratio`` ask whether items work alike in two groups, such as people and models;
``lltm`` explains difficulties by features of the items.
"""

from psychlm.irt._fit import fit
from psychlm.irt.confirm import confirm
from psychlm.irt.dif import (
    LikelihoodRatioDIF,
    MantelHaenszel,
    dif_likelihood_ratio,
    mantel_haenszel,
)
from psychlm.irt.dimension import eigenvalues, parallel_analysis, unidimensionality
from psychlm.irt.goodness import ld_x2, likelihood_ratio, person_fit, q3, s_x2
from psychlm.irt.limited_information import m2
from psychlm.irt.lltm import LLTMFit, lltm
from psychlm.irt.priors import Beta, LogNormal, Normal
from psychlm.irt.result import IRTFit, IRTWarning
from psychlm.irt.rotation import oblimin, target_rotation
from psychlm.irt.scoring import score
from psychlm.irt.select import select_items
from psychlm.irt.tetrachoric import tetrachoric
from psychlm.irt.two_factor import two_factor

__all__ = [
    "Beta",
    "IRTFit",
    "IRTWarning",
    "LLTMFit",
    "LikelihoodRatioDIF",
    "LogNormal",
    "MantelHaenszel",
    "Normal",
    "confirm",
    "dif_likelihood_ratio",
    "eigenvalues",
    "fit",
    "ld_x2",
    "likelihood_ratio",
    "lltm",
    "m2",
    "mantel_haenszel",
    "oblimin",
    "parallel_analysis",
    "person_fit",
    "q3",
    "s_x2",
    "score",
    "select_items",
    "target_rotation",
    "tetrachoric",
    "two_factor",
    "unidimensionality",
]
