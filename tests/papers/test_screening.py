"""Screening by hand-made cases, one a rule of section 4 of Laverghetta et al. (2021), and by a plain restatement of the
score rule on whole numbers (hypothesis)."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psychlm.frames import FrameError
from psychlm.papers.laverghetta2021_screening import screen

PREMISE = pd.Series(
    {
        "q1": "The cat sat on the mat in the hall. Some animal was sitting in the hall.",
        "q2": "All of the boys ate two apples before noon. Some boys ate at least one apple.",
        "q3": "He did not say that she was unkind. She was unkind.",
        "q4": "The water is too hot to drink. Nobody can drink the water now.",
    }
)


def graded(right, n_items=20, n_checks=None):
    """One row a person with so many right answers out of n_items."""
    rows = [[1] * k + [0] * (n_items - k) for k in right]
    prefix = "check" if n_checks else "q"
    return pd.DataFrame(rows, index=[f"p{i}" for i in range(len(right))]).add_prefix(prefix)


def decide(*args, **kwargs):
    return screen(*args, **kwargs).set_index("person")


# stage 2


@pytest.mark.parametrize(
    ("right", "checks", "decision"),
    [
        (7, 4, "reject"),  # 35 %: below 40 %, attentive or not
        (8, 3, "accept"),  # 40 % exactly is not below; 75 % of the checks exactly is enough
        (8, 2, "reject"),
        (12, 3, "accept"),
        (12, 2, "reject"),  # 60 % exactly is not above
        (13, 0, "accept"),  # 65 %: above 60 %, attentive or not
    ],
)
def test_the_score_rule_with_its_edges(right, checks, decision):
    found = screen(graded([right]), attention=graded([checks], 4, n_checks=4)).iloc[0]
    assert (found["decision"], found["stage"]) == (decision, 2)
    assert found["score"] == right / 20
    assert found["attention_score"] == checks / 4


@settings(max_examples=60, deadline=None)
@given(
    n_items=st.integers(1, 60),
    n_checks=st.integers(1, 12),
    data=st.data(),
)
def test_the_score_rule_in_whole_numbers(n_items, n_checks, data):
    right = data.draw(st.lists(st.integers(0, n_items), min_size=1, max_size=8))
    passed = data.draw(st.lists(st.integers(0, n_checks), min_size=len(right), max_size=len(right)))
    found = screen(graded(right, n_items), attention=graded(passed, n_checks, n_checks))
    for k, c, decision in zip(right, passed, found["decision"], strict=True):
        rejected = 5 * k < 2 * n_items or (5 * k <= 3 * n_items and 4 * c < 3 * n_checks)
        assert decision == ("reject" if rejected else "accept")


def test_scores_rest_on_the_answers_given():
    responses = pd.DataFrame({"a": [1, 0], "b": [np.nan, 0], "c": [1, 1]}, index=["half", "full"])
    found = decide(responses)
    assert found["score"].to_dict() == {"half": 1.0, "full": 1 / 3}


def test_thresholds_are_arguments():
    found = screen(
        graded([10, 11]),
        reject_below=0.55,
        accept_above=0.55,
        attention=graded([4, 4], 4, n_checks=4),
    )
    assert found["decision"].tolist() == ["reject", "accept"]


def test_reasons_say_what_decided():
    found = decide(graded([4, 10, 10, 18]), attention=graded([4, 1, 3, 2], 4, n_checks=4))
    assert found["reason"].tolist() == [
        "20 % correct, below 40%",
        "50 % correct, and 25 % of the attention checks, below 75%",
        "50 % correct, and 75 % of the attention checks",
        "90 % correct",
    ]


# stage 1


def people(**columns):
    n = len(columns["worker"])
    return pd.DataFrame({"person": [f"p{i}" for i in range(n)], **columns})


def test_the_first_submission_of_a_worker_or_an_address_is_kept():
    persons = people(
        worker=list("ABACD"), address=["1", "2", "3", "2", "5"], submitted=[1, 2, 3, 4, 5]
    )
    found = decide(graded([20] * 5), persons=persons)
    assert found["decision"].tolist() == ["accept", "accept", "reject", "reject", "accept"]
    assert found["stage"].tolist() == [2, 2, 1, 1, 2]
    assert found.loc["p2", "reason"] == "not the first submission from this worker"
    assert found.loc["p3", "reason"] == "not the first submission from this address"


def test_first_means_first_in_time_and_a_bad_first_is_not_replaced_by_a_better_second():
    times = pd.to_datetime(["2021-01-02", "2021-01-01"])
    found = decide(
        graded([20, 2]), persons=people(worker=["A", "A"], address=["1", "1"], submitted=times)
    )
    assert found["decision"].tolist() == ["reject", "reject"]
    assert found["stage"].tolist() == [1, 2]
    assert found.loc["p0", "reason"] == "not the first submission from this worker and address"


def test_unknown_workers_and_addresses_match_nobody():
    persons = people(
        worker=["A", None, None, ""], address=[None, "", "1", ""], submitted=[1, 2, 3, 4]
    )
    assert (screen(graded([20] * 4), persons=persons)["decision"] == "accept").all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12), st.randoms()
)
def test_kept_submissions_share_no_worker_and_no_address_in_whatever_order_rows_stand(
    pairs, random
):
    worker, address = zip(*pairs, strict=True)
    persons = people(worker=list(worker), address=list(address), submitted=range(len(pairs)))
    order = list(range(len(pairs)))
    random.shuffle(order)
    responses = graded([20] * len(pairs))
    found = decide(responses.iloc[order], persons=persons.sample(frac=1, random_state=1))
    assert found.index.tolist() == responses.index[order].tolist()
    kept = persons[found["decision"].reindex(persons["person"]).eq("accept").to_numpy()]
    assert kept["worker"].is_unique
    assert kept["address"].is_unique
    assert found.loc["p0", "decision"] == "accept"


# stage 3


def justified(**texts):
    """Persons (keywords) with four justifications each; all score full marks."""
    written = pd.DataFrame.from_dict(texts, orient="index", columns=PREMISE.index)
    responses = pd.DataFrame(1, index=written.index, columns=PREMISE.index)
    return responses, written


HONEST = [
    "a cat is an animal so it follows",
    "two apples each means at least one was eaten",
    "we cannot know what she is like from that",
    "it may cool down, and some people like it hot",
]


def test_flags_name_what_is_wrong_with_the_justifications():
    responses, written = justified(
        honest=HONEST,
        same=["I think that this is right"] * 4,
        copied=[*HONEST[:3], "The water is too hot to drink."],
        nonsense=["good", "Nice!", "n/a", "..."],
        quoting=["the cat sat", "two apples", "did not say", "too hot"],
        silent=[np.nan] * 4,
        blank=[""] * 4,
    )
    found = decide(responses, justifications=written, questions=PREMISE)
    assert found["flags"].to_dict() == {
        "honest": "",
        "same": "same",
        "copied": "copied",
        "nonsense": "nonsense",
        "quoting": "",
        "silent": "missing",
        "blank": "same, nonsense",
    }
    assert found["decision"].tolist() == [
        "accept",
        "review",
        "review",
        "review",
        "accept",
        "review",
        "review",
    ]
    assert (found["stage"] == 3).all()
    assert found.loc["same", "reason"] == "justifications: same"


def test_flags_can_reject():
    responses, written = justified(honest=HONEST, same=["because"] * 4)
    assert screen(responses, justifications=written, flagged="reject")["decision"].tolist() == [
        "accept",
        "reject",
    ]


def test_case_and_punctuation_do_not_hide_a_repeated_or_copied_text():
    responses, written = justified(
        same=["It follows.", "it follows", "IT FOLLOWS!", " it  follows "],
        copied=[*HONEST[:3], "THE WATER, is too hot; to drink"],
    )
    flags = decide(responses, justifications=written, questions=PREMISE)["flags"]
    assert flags.to_dict() == {"same": "same", "copied": "copied"}


def test_a_text_from_another_question_is_not_copied_from_its_own():
    responses, written = justified(mixed=[PREMISE["q2"], *HONEST[1:]])
    assert decide(responses, justifications=written, questions=PREMISE).loc["mixed", "flags"] == ""


def test_one_justification_alone_repeats_nothing():
    responses, written = justified(once=["because", np.nan, np.nan, np.nan])
    assert screen(responses, justifications=written)["flags"].tolist() == [""]


def test_exactly_the_share_of_ngrams_asked_for_is_copied():
    responses, written = justified(
        person=[*HONEST[:3], "I say the water is too hot"]
    )  # 2 of its 4 word 4-grams
    flags = {
        share: screen(responses, justifications=written, questions=PREMISE, containment=share)[
            "flags"
        ][0]
        for share in (0.5, 0.51)
    }
    assert flags == {0.5: "copied", 0.51: ""}


def test_the_share_that_raises_a_flag_is_an_argument():
    responses, written = justified(person=["good", *HONEST[1:]])
    flags = {
        share: screen(responses, justifications=written, flag_share=share)["flags"][0]
        for share in (0.25, 0.5)
    }
    assert flags == {0.25: "nonsense", 0.5: ""}


def test_copies_are_looked_for_only_where_questions_are_given():
    responses, written = justified(copied=PREMISE.tolist())
    assert screen(responses, justifications=written)["decision"].tolist() == ["accept"]


def test_an_earlier_stage_decides_before_a_flag_does():
    responses, written = justified(honest=HONEST, same=["because"] * 4)
    responses.loc["same"] = [1, 0, 0, 0]
    found = decide(responses, justifications=written)
    assert found.loc["same", ["decision", "stage", "flags"]].tolist() == ["reject", 2, "same"]


# errors


def test_a_score_between_the_thresholds_without_checks_is_an_error_that_names_the_person():
    with pytest.raises(FrameError, match=r"\['p1'\] scored between"):
        screen(graded([20, 10]))


def test_a_duplicate_between_the_thresholds_needs_no_checks():
    persons = people(worker=["A", "A"], address=["1", "2"], submitted=[1, 2])
    assert screen(graded([20, 10]), persons=persons)["decision"].tolist() == ["accept", "reject"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention": graded([4], 4, n_checks=4)},
            r"attention checks do not cover.*missing \['p1'\]",
        ),
        (
            {"persons": pd.DataFrame({"person": ["p0", "p1"]})},
            r"lacks the columns \['address', 'submitted', 'worker'\]",
        ),
        (
            {"persons": people(worker=[1, 2, 3], address=[1, 2, 3], submitted=[1, 2, 3])},
            r"not in the responses \['p2'\]",
        ),
        (
            {"persons": people(worker=[1, 2], address=[1, 2], submitted=[1, None])},
            r"\['p1'\] have no time",
        ),
        (
            {"justifications": pd.DataFrame({"zz": ["a", "b"]}, index=["p0", "p1"])},
            r"items \['zz'\]",
        ),
    ],
)
def test_frames_that_do_not_fit_get_an_error_that_says_why(options, message):
    with pytest.raises(FrameError, match=message):
        screen(graded([20, 20]), **options)


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="reject_below <= accept_above"):
        screen(graded([20]), reject_below=0.7)
    with pytest.raises(ValueError, match="'review' or 'reject'"):
        screen(graded([20]), flagged="maybe")
