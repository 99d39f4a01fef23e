"""Labels of classifiers are matched with choices by what they mean."""

import pytest

from psychlm.lm import ModelError
from psychlm.lm.prompts import check_labels, meaning, outputs_of

NLI = ["entailment", "neutral", "contradiction"]
STARS = ["very negative", "negative", "neutral", "positive", "very positive"]


@pytest.mark.parametrize(
    ("word", "spellings"),
    [
        ("entailment", ["ENTAILMENT", "entail", "e"]),
        ("neutral", ["Neither"]),
        ("contradiction", ["contradict"]),
        ("not entailment", ["not_entailment", "NOT-ENTAILMENT"]),
        ("positive", ["POS"]),
        ("negative", ["neg"]),
        ("very negative", ["Very  Negative", "1 star"]),
        ("very positive", ["5 stars"]),
        ("sports", ["sports"]),
    ],
)
def test_labels_are_known_by_their_meaning(word, spellings) -> None:
    assert {meaning(spelling) for spelling in spellings} == {word}


@pytest.mark.parametrize(
    ("choices", "labels", "outputs"),
    [
        (NLI, ["contradiction", "entailment", "neutral"], [[1], [2], [0]]),
        (["entailment", "not_entailment"], ["CONTRADICTION", "NEUTRAL", "ENTAIL"], [[2], [0, 1]]),
        (["entailment", "not_entailment"], ["entailment", "not_entailment"], [[0], [1]]),
        (["negative", "positive"], ["NEG", "NEU", "POS"], [[0], [2]]),
        (["negative", "positive"], [f"{i} stars" for i in range(1, 6)], [[0, 1], [3, 4]]),
        (STARS, [f"{i} stars" for i in (5, 4, 3, 2, 1)], [[4], [3], [2], [1], [0]]),
        (["politics", "sports"], ["Sports", "Politics", "World"], [[1], [0]]),
    ],
)
def test_choices_find_their_outputs_whatever_their_order(choices, labels, outputs) -> None:
    assert outputs_of(choices, labels, "model") == outputs


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["LABEL_0", "LABEL_1"], r"labels of m, \['LABEL_0', .* have no meaning; .*labels="),
        (["0", "1"], "have no meaning"),
        (["pos", "positive"], "mean the same"),
    ],
)
def test_labels_that_say_nothing_or_the_same_are_refused(labels, says) -> None:
    with pytest.raises(ModelError, match=says):
        check_labels(labels, "m")
