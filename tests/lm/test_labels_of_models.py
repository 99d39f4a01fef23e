"""Labels of classifiers are matched with choices by what they mean, however they are spelled."""

import pytest

from psychlm.lm import ModelError
from psychlm.lm.prompts import check_labels, outputs_of

NLI = ["entailment", "neutral", "contradiction"]
STARS = ["very negative", "negative", "neutral", "positive", "very positive"]


@pytest.mark.parametrize(
    ("choices", "labels", "outputs"),
    [
        (NLI, ["contradict", "ENTAILMENT", "Neither"], [[1], [2], [0]]),
        (NLI, ["e", "n", "c"], [[0], [1], [2]]),
        (["entailment", "not_entailment"], ["CONTRADICTION", "NEUTRAL", "ENTAIL"], [[2], [0, 1]]),
        (["entailment", "not_entailment"], ["entailment", "NOT-ENTAILMENT"], [[0], [1]]),
        (["negative", "positive"], ["NEG", "NEU", "POS"], [[0], [2]]),
        (["negative", "positive"], [f"{i} stars" for i in range(1, 6)], [[0, 1], [3, 4]]),
        (STARS, ["5 stars", "4 stars", "3 stars", "2 stars", "1 star"], [[4], [3], [2], [1], [0]]),
        (STARS, [f"{label.upper()} " for label in STARS], [[0], [1], [2], [3], [4]]),
        (["politics", "sports"], ["Sports", "Politics", "World"], [[1], [0]]),
    ],
)
def test_choices_find_their_outputs_whatever_their_order(choices, labels, outputs) -> None:
    assert outputs_of(choices, labels, "model") == outputs


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["LABEL_0", "LABEL_1"], r"labels of m, \['LABEL_0', .* have no meaning; .*labels="),
        (["pos", "positive"], "mean the same"),
    ],
)
def test_labels_that_say_nothing_or_the_same_are_refused(labels, says) -> None:
    with pytest.raises(ModelError, match=says):
        check_labels(labels, "m")
