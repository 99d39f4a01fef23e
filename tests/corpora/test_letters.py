"""Letters with their combining marks: how many there are is known from how each word was made."""

from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psychlm import frames, lm
from psychlm.corpora import reading_times as corpora
from psychlm.corpora._corpus import with_predictors
from psychlm.crowds.networks import split_words
from psychlm.lm.tokens import prepare_words

# Letters, and marks that stand on or after one of them.
SCRIPTS = {
    "Latin": ("aceinouEs", "\u0300\u0301\u0302\u0303\u0308\u0323\u0327"),
    "Greek": ("αειουωηΣσ", "\u0301\u0308\u0313\u0345"),
    "Cyrillic": ("аеиуйёкЖ", "\u0301\u0306\u0308"),
    "Hebrew": ("אבגדשתםל", "\u05b8\u05b9\u05bc\u05c1"),
    "Arabic": ("ابتحدسكو", "\u064e\u064f\u0651\u0653"),
    "Devanagari": ("कखगजतबमरड", "\u093c\u093e\u093f\u0940\u0947\u094d\u0902"),
    "Bengali": ("কখগজতবমর", "\u09be\u09bf\u09c7\u09cd"),
    "Tamil": ("கசடதபமயர", "\u0bbe\u0bbf\u0bc6\u0bcd"),
    "Thai": ("กขคงดตนมร", "\u0e31\u0e34\u0e49\u0e4c"),
    "Hangul": ("가나다람각한글", ""),
}


@st.composite
def words_of_one_script(draw):
    """Draw words with their number of letters and whether punctuation ends them."""
    letters, marks = SCRIPTS[draw(st.sampled_from(sorted(SCRIPTS)))]
    letter = st.tuples(
        st.sampled_from(letters), st.text(marks, max_size=2) if marks else st.just("")
    )
    drawn = draw(
        st.lists(
            st.tuples(st.lists(letter, min_size=1, max_size=7), st.sampled_from(["", ",", "!”"])),
            min_size=1,
            max_size=8,
        )
    )
    words = ["".join(map("".join, made)) for made, _ in drawn]
    return words, [len(made) for made, _ in drawn], [end for _, end in drawn]


@settings(max_examples=settings.default.max_examples // 2)
@given(words_of_one_script())
def test_a_mark_belongs_to_its_letter_however_the_text_is_stored(drawn):
    bare, n_letters, ends = drawn
    printed = " ".join(word + end for word, end in zip(bare, ends, strict=True))
    composed = [normalize("NFC", word) for word in bare]
    counts = {word: number for number, word in enumerate(dict.fromkeys(composed), start=1)}
    of_lower = pd.Series(counts).groupby(str.lower).sum()
    expected = [np.log(of_lower[word.lower()]) for word in composed]
    tables = {}
    for form in ("NFC", "NFD"):
        other = "NFD" if form == "NFC" else "NFC"
        words = with_predictors(lm.words_of(normalize(form, printed)))
        assert words["length_chars"].tolist() == n_letters
        assert frames.word_shape(words["word"]).str.count("a").tolist() == n_letters
        frequency = corpora.log_frequency(
            words["word"], {normalize(other, word): n for word, n in counts.items()}
        )
        assert frequency.tolist() == pytest.approx(expected)
        tables[form] = corpora.exclude(words)[1].set_index("step")
        flagged = tables[form]["flagged"]
        assert flagged["before punctuation"] == sum(end != "" for end in ends)
        assert flagged["not alphabetic"] == flagged["no frequency"] == 0
        assert [word for word in split_words(printed) if len(word) > 1 or word.isalpha()] == [
            word.lower() for word in composed
        ]
    pd.testing.assert_frame_equal(tables["NFC"], tables["NFD"])


def test_a_joiner_or_a_soft_hyphen_inside_a_word_is_no_letter_and_excludes_nothing():
    words = with_predictors(lm.words_of("co\u00adoperate می\u200cخواهم क्\u200dष ok"))
    assert words["length_chars"].tolist() == [9, 7, 2, 2]
    assert corpora.exclude(words)[1].set_index("step").loc["not alphabetic", "flagged"] == 0


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("今天天气很好", True),
        ("我爱你。", True),
        ("私は猫が好きです。", True),
        ("วันนี้อากาศดีมาก", True),
        ("The old man saw 今天天气很好我们去公园", True),
        ("我 喜欢 读书 。", False),
        ("我们 是 中华人民共和国 的 人 。", False),
        ("คอมพิวเตอร์", False),
        ("コンピューター", False),
        ("오늘은 날씨가 좋습니다", False),
    ],
)
def test_a_text_without_spaces_between_words_is_named_short_ones_too(text, warns, recwarn):
    prepare_words(lm.words_of(text))
    said = [str(warning.message) for warning in recwarn]
    assert bool(said) == warns
    assert all("cut the text into words" in message for message in said)


def test_readers_whose_computers_store_accents_differently_read_the_same_words():
    text = ["L’été", "à", "Málaga", "était", "très", "beau"]
    rows = [
        (person, "1", place, normalize(form, word), 300)
        for person, form in (("a", "NFC"), ("b", "NFD"))
        for place, word in enumerate(text, start=1)
    ]
    table = pd.DataFrame(rows, columns=["Subject", "Item", "WordNr", "Word", "RT"])
    corpus = corpora.from_long(table, measures={"RT": "self_paced_ms"})
    assert corpus.words["word"].tolist() == text
    assert corpus.words["length_chars"].tolist() == [4, 1, 6, 5, 4, 4]
    assert len(corpus.readings) == 12
