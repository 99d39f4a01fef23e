"""Item response theory: 1PL, Rasch, 2PL and 3PL models by marginal maximum likelihood, from tests to machine learning.

``fit`` estimates items, ``IRTFit.score`` persons. ``curves`` draws what was fitted; ``goodness`` tests it.
"""

from psychlm.irt.fitting import IRTWarning, fit
from psychlm.irt.priors import Beta, LogNormal, Normal
from psychlm.irt.result import IRTFit
from psychlm.irt.scoring import score

__all__ = ["Beta", "IRTFit", "IRTWarning", "LogNormal", "Normal", "fit", "score"]
