"""Readers of public data: reading times, responses, item banks, text."""

from psychlm._recipes import CATEGORIES as LAVERGHETTA_CATEGORIES
from psychlm.corpora.answers import Answers, read_answers, read_responses
from psychlm.corpora.experiments import read_experiment
from psychlm.corpora.item_banks import NLI_LABELS, read_arc, read_items, write_arc
from psychlm.corpora.responses import (
    CrowdLabels,
    Laverghetta2021,
    comprehenotes,
    lalor2016,
    lalor2018,
    lalor2018_ratings,
    laverghetta2021,
    lsat6,
    metabench,
    metabench_scores,
)

__all__ = [
    "LAVERGHETTA_CATEGORIES",
    "NLI_LABELS",
    "Answers",
    "CrowdLabels",
    "Laverghetta2021",
    "comprehenotes",
    "lalor2016",
    "lalor2018",
    "lalor2018_ratings",
    "laverghetta2021",
    "lsat6",
    "metabench",
    "metabench_scores",
    "read_answers",
    "read_arc",
    "read_experiment",
    "read_items",
    "read_responses",
    "write_arc",
]
