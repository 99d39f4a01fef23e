"""Reading-time models: additive models equal to mgcv's, one at a time or for hundreds of language models at once."""

from psychlm.reading.formula import FormulaError
from psychlm.reading.gam import fit
from psychlm.reading.result import GAMFit
from psychlm.reading.simulated import simulate
from psychlm.reading.sweep import BASELINE, delta_loglik

__all__ = ["BASELINE", "FormulaError", "GAMFit", "delta_loglik", "fit", "simulate"]
