"""Reading-time models: additive models equal to mgcv's, one at a time or for hundreds of language models at once."""

from psychlm.reading_times.formula import FormulaError
from psychlm.reading_times.gam import fit
from psychlm.reading_times.power import (
    Perplexity,
    dataset_size_against_gain,
    perplexity,
    perplexity_against_gain,
    pnc_against_gain,
    predictability_norm_correlation,
    quality,
)
from psychlm.reading_times.result import GAMFit
from psychlm.reading_times.simulated import simulate, simulate_corpus
from psychlm.reading_times.sweep import BASELINE, delta_loglik

__all__ = [
    "BASELINE",
    "FormulaError",
    "GAMFit",
    "Perplexity",
    "dataset_size_against_gain",
    "delta_loglik",
    "fit",
    "perplexity",
    "perplexity_against_gain",
    "pnc_against_gain",
    "predictability_norm_correlation",
    "quality",
    "simulate",
    "simulate_corpus",
]
