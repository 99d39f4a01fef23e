from ._errors import ModelError as ModelError
from ._load import (
    LanguageModel as LanguageModel,
    fingerprint as fingerprint,
    load as load,
    wrap as wrap,
)
from ._minimal_pairs import (
    MinimalPairs as MinimalPairs,
    minimal_pairs as minimal_pairs,
    read_blimp as read_blimp,
)
from ._surprisal import surprisal as surprisal, surprisals as surprisals
from .choices import (
    Evaluation as Evaluation,
    ItemTaker as ItemTaker,
    choice_logprobs as choice_logprobs,
    confidences as confidences,
    draw_responses as draw_responses,
    evaluate as evaluate,
    grade as grade,
    predictions as predictions,
)
from .finetune import FineTuned as FineTuned, fine_tune as fine_tune
from .prompts import Prompt as Prompt
from .tokens import words_of as words_of
