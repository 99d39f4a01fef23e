from . import (
    answers as answers,
    experiments as experiments,
    fixations as fixations,
    frequency as frequency,
    item_banks as item_banks,
    novels as novels,
    reading_times as reading_times,
    responses as responses,
)
from .answers import (
    Answers as Answers,
    read_answers as read_answers,
    read_responses as read_responses,
)
from .experiments import read_experiment as read_experiment
from .item_banks import (
    NLI_LABELS as NLI_LABELS,
    read_arc as read_arc,
    read_items as read_items,
    write_arc as write_arc,
)
from .responses import (
    CrowdLabels as CrowdLabels,
    LAVERGHETTA_CATEGORIES as LAVERGHETTA_CATEGORIES,
    Laverghetta2021 as Laverghetta2021,
    comprehenotes as comprehenotes,
    lalor2016 as lalor2016,
    lalor2018 as lalor2018,
    lalor2018_ratings as lalor2018_ratings,
    laverghetta2021 as laverghetta2021,
    lsat6 as lsat6,
    metabench as metabench,
    metabench_scores as metabench_scores,
)
