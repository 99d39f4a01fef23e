"""Reading-time models: additive models equal to mgcv's, one at a time or for hundreds of language
models at once."""

from psychlm.reading_times._result import GAMFit
from psychlm.reading_times.contrasts import FormulaError
from psychlm.reading_times.gam import fit
from psychlm.reading_times.lm_quality import (
    explained_share,
    gain_relation,
    predictability_norm_correlation,
    quality,
)
from psychlm.reading_times.power import Simulated, power_curve, simulate
from psychlm.reading_times.sweep import BASELINE, delta_loglik
from psychlm.reading_times.tests import Table, anova

__all__ = [
    "BASELINE",
    "FormulaError",
    "GAMFit",
    "Simulated",
    "Table",
    "anova",
    "delta_loglik",
    "explained_share",
    "fit",
    "gain_relation",
    "power_curve",
    "predictability_norm_correlation",
    "quality",
    "simulate",
]
