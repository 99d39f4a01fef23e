"""Reading-time models: additive models equal to mgcv's, one at a time or for hundreds of language models at once."""

from psychlm.reading.gam import GAMFit, fit

__all__ = ["GAMFit", "fit"]
