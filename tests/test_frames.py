"""Frames that break a contract of psychlm.frames are refused, with which rows, why, what to do."""

import csv
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import psychlm
from psychlm import frames
from psychlm.corpora import _sniff
from psychlm.frames import FrameError


def answers(**columns: object) -> pd.DataFrame:
    return pd.DataFrame(columns, index=["p0", "p1"])


@pytest.mark.parametrize(
    ("responses", "says"),
    [
        (answers(q0=[0, 2]), r"\['q0'\].*other than 0, 1 or NaN.*'p1' has 2.*grade"),
        (answers(q0=[0, 0.5]), r"'q0'.*0\.5"),
        (answers(q0=[0, np.inf]), r"'q0'.*inf"),
        (answers(q0=[0, 1]).set_axis(["a", "a"]), r"persons \['a'\] occur more.*~responses\.index"),
        (answers(a=1, b=0).set_axis(["q", "q"], axis=1), r"items \['q'\] .*~responses\.columns"),
        (answers(q0=[0, np.nan]), r"persons \['p1'\] answered no item.*dropna"),
        (answers(q0=np.nan, q1=[1, 0]), r"items \['q0'\] were answered by nobody.*dropna"),
        (answers(q0=0, q1=["yes", "no"]), r"items \['q1'\] hold text.*grade"),
        (pd.DataFrame(columns=["q0"]), r"empty \(shape \(0, 1\)"),
        (np.zeros((2, 2)), "ndarray, not a DataFrame"),
        (answers(**dict.fromkeys("abcdefgh", "text")), "and 3 more"),
    ],
)
def test_malformed_responses_are_named_with_what_to_do(responses, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        frames.check_responses(responses)


def test_sound_responses_pass_as_floats_and_constant_items_are_named() -> None:
    nullable = pd.array([1, pd.NA, 0], dtype="Int64")
    checked = frames.check_responses(
        pd.DataFrame({"q0": [True, False, True], "q1": nullable, "q2": 1})
    )
    np.testing.assert_array_equal(checked, [[1, 1, 1], [0, np.nan, 1], [1, 0, 1]])
    assert (checked.index.name, checked.columns.name) == ("person", "item")
    kept, dropped = frames.drop_constant(checked)
    assert (list(kept), list(dropped)) == (["q0", "q1"], ["q2"])


ONE_AND_ZERO: dict[str, list] = {
    "objects": [1, np.nan, 0],
    "booleans with a gap": [True, None, False],
    "decimals": [Decimal(1), None, Decimal(0)],
    "pandas's NA among objects": [np.int64(1), pd.NA, np.False_],
}


@pytest.mark.parametrize("kind", ["object", "category"])
@pytest.mark.parametrize("values", ONE_AND_ZERO.values(), ids=ONE_AND_ZERO)
def test_right_values_of_any_type_are_responses_and_scores(values: list, kind: str) -> None:
    column = pd.Series(values, dtype=object).astype(kind)
    checked = frames.check_responses(pd.DataFrame({"q0": column, "q1": 1}))
    np.testing.assert_array_equal(checked["q0"], [1, np.nan, 0])
    assert psychlm.compare(column, pd.Series(1, column.index)).difference == -0.5


@pytest.mark.parametrize("axis", ["index", "columns"])
def test_names_of_several_levels_are_joined_as_the_refusal_says(axis: str) -> None:
    responses = pd.DataFrame([[0, 1], [1, 0]])
    several = responses.set_axis(pd.MultiIndex.from_product([["a"], ["1", "2"]]), axis=axis)
    with pytest.raises(FrameError, match="MultiIndex; join them: ") as refused:
        frames.check_responses(several)
    advised = eval(str(refused.value).split("join them: ")[1], {"responses": several})
    assert getattr(frames.check_responses(advised), axis).tolist() == ["a-1", "a-2"]


def test_numbers_as_text_are_responses_when_the_advice_is_taken() -> None:
    responses = answers(q0=["1", "0"], q1=["0.0", None])
    with pytest.raises(FrameError, match=r"become numbers with responses\.astype\(float\)"):
        frames.check_responses(responses)
    checked = frames.check_responses(responses.astype(float))
    np.testing.assert_array_equal(checked, [[1, 0], [0, np.nan]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answer": 2}, r"\['i'\] name an answer that is not among"),
        ({"answer": -1}, "count from 0"),
        ({"choices": ["a"], "answer": 0}, "fewer than two choices"),
        ({"choices": "ab"}, "no list of text"),
        ({"choices": ["a", None]}, "a choice that is not text"),
        ({"choices": ["a", " "]}, "an empty choice"),
        ({"choices": ["a", "b", "a "]}, "duplicate choices"),
        ({"answer": None}, r"\['i'\] have no right answer"),
        ({"answer": [0, 1]}, r"\['i'\] name several right answers"),
        ({"answer": "B"}, "no number"),
        ({"answer": True}, "no number"),
        ({"answer": 0.5}, "no whole number"),
        ({"prompt": None}, "prompt that is not text"),
        ({"item_id": "j"}, "occur more than once"),
    ],
)
def test_malformed_items_are_named(change: dict, says: str) -> None:
    item = {"item_id": "i", "prompt": "?", "choices": ["a", "b"], "answer": 1}
    with pytest.raises(FrameError, match=says):
        frames.check_items(pd.DataFrame([item | {"item_id": "j"}, item | change]))
    with pytest.raises(FrameError, match=r"needs the columns \['prompt', 'choices', 'answer'\]"):
        frames.check_items(pd.DataFrame({"item_id": ["i"]}))


READINGS = pd.DataFrame(
    {"subject": [1, 2], "text_id": [7, 7], "word_id": ["3", "3"], "gaze_ms": [200.0, 210.0]}
)


@pytest.mark.parametrize(
    ("readings", "says"),
    [
        (READINGS.assign(gaze_ms=[200.0, -1.0]), "negative times"),
        (READINGS.rename(columns={"gaze_ms": "gaze"}), "needs a measure in ms"),
        (READINGS.assign(subject=1), "occur more than once"),
        (READINGS.assign(subject=[1, np.nan]), "subject is 'nan' in row 1"),
    ],
)
def test_malformed_readings_are_named_and_ids_that_are_numbers_become_text(readings, says) -> None:
    with pytest.raises(FrameError, match=says):
        frames.check_readings(readings)
    checked = frames.check_readings(READINGS)
    assert checked[checked.columns[:3]].to_numpy().tolist() == [["1", "7", 3], ["2", "7", 3]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("word_id", [["1", "10", "11", "2"], [1.0, 10.0, 11.0, 2.0]])
def test_word_ids_read_as_text_or_floats_sort_as_numbers(word_id: list) -> None:
    words = pd.DataFrame({"text_id": 1.0, "word_id": word_id, "word": list("abcd")})
    with pytest.warns(RuntimeWarning, match="missing in 1 texts.*before word_id 10 of text '1'"):
        checked = frames.check_words(words)
    assert checked.sort_values("word_id")["word"].tolist() == ["a", "d", "b", "c"]
    assert checked["text_id"].unique().tolist() == ["1"]
    frames.check_words(words, whole_texts=False)  # selected words may have gaps
    frames.check_words(words.assign(word_id=[1, 2, 3, 4]))


@pytest.mark.parametrize("word_id", [["1", "w1"], [1, 1.5], [1, None], ["1", ""], [1, np.inf]])
def test_word_ids_that_are_no_whole_numbers_are_refused(word_id: list) -> None:
    words = pd.DataFrame({"text_id": "a", "word_id": word_id, "word": ["x", "y"]})
    with pytest.raises(FrameError, match=r"word_id is .* in row 1 of the words \(1 such rows\)"):
        frames.check_words(words)
    missing = words.assign(word_id=[1, 2], word=["None", np.nan])
    with pytest.raises(FrameError, match="keep_default_na"):
        frames.check_words(missing)


@given(
    words=st.lists(st.text('ab" 1,\t', min_size=1, max_size=6).map("x{}".format), min_size=1),
    opened=st.sets(st.integers(0, 5)),
    lone=st.sets(st.integers(0, 5)),
    separator=st.sampled_from("\t,;"),
    written=st.sampled_from(["as text", "incomplete", csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_quotation_marks_of_a_text_neither_join_nor_lose_rows(
    tmp_path, words, opened, lone, separator, written
) -> None:
    words = [f'"{word}' if row in opened else word for row, word in enumerate(words)]
    words = ['"' if row in lone else word for row, word in enumerate(words)]
    if isinstance(written, str):
        words = [word.translate({ord(separator): None}) for word in words]
    quoted = [bool(re.fullmatch('"(""|[^"])*" *', word)) for word in words if word[0] == '"']
    # else nothing tells that they are text
    assume(not isinstance(written, str) or not quoted or not all(quoted))
    rows = [("word_id", "n", "word", "m"), *((i, 1, word, 1) for i, word in enumerate(words))]
    with (tmp_path / "words.csv").open("w", newline="") as file:
        if isinstance(written, str):
            lines = [separator.join(map(str, row)) for row in rows]
            if written == "incomplete" and len(lines) > 2:
                lines[2:3] = [lines[2].removesuffix(f"{separator}1"), ""]
            file.writelines(f"{line}\n" for line in lines)
        else:
            csv.writer(file, delimiter=separator, quoting=written).writerows(rows)
    try:
        table = _sniff.read_csv(tmp_path / "words.csv", ["word"])
    except FrameError as error:
        assert written == "incomplete" and "a quotation mark is not closed" in str(error)
    else:
        assert table["word"].tolist() == words and (table["n"] == 1).all()


def test_a_quotation_mark_that_is_never_closed_is_refused_where_cells_hold_separators(tmp_path):
    (tmp_path / "words.csv").write_text('word,n\n"a, b,1\nc,1\n')
    with pytest.raises(FrameError, match="a quotation mark is not closed"):
        _sniff.read_csv(tmp_path / "words.csv")
