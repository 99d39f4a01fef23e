"""Measures on the confidences of models that choose: prior bias, chance, choice paralysis, calibration, controls.

Everything takes *scores*: a frame items x choices of natural logarithms, as ``lm.choice_logprobs`` returns it. After
Shen & Kejriwal (2022), with the perturbed items of ``psychlm.probes.confusion``.
"""

from psychlm.confidence.calibration import Calibration, calibration
from psychlm.confidence.chance import ChanceTest, against_chance, picks_by_place
from psychlm.confidence.controls import length_biased_responder, random_responder
from psychlm.confidence.paralysis import (
    AccuracyChange,
    Paralysis,
    accuracy_change,
    choice_paralysis,
    paralysis_by_number,
)
from psychlm.confidence.parts import BiasParts, bias_parts, choice_features
from psychlm.confidence.preference import Association, PriorBias, association, prior_bias
from psychlm.confidence.scores import check_scores, confidence_in, confidences, grades
from psychlm.confidence.table import by_benchmark

__all__ = [
    "AccuracyChange",
    "Association",
    "BiasParts",
    "Calibration",
    "ChanceTest",
    "Paralysis",
    "PriorBias",
    "accuracy_change",
    "against_chance",
    "association",
    "bias_parts",
    "by_benchmark",
    "calibration",
    "check_scores",
    "choice_features",
    "choice_paralysis",
    "confidence_in",
    "confidences",
    "grades",
    "length_biased_responder",
    "paralysis_by_number",
    "picks_by_place",
    "prior_bias",
    "random_responder",
]
