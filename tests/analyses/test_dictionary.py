"""DictionaryQA. References: entries read by eye from GCIDE, and files broken on purpose."""

import gzip

import numpy as np
import pandas as pd
import pytest
from conftest import absent
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from analyses import dictionary
from psychlm import data

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

BANK = r"""Bank \Bank\ (b[a^][ng]k), n. [OE. banke; akin to E. bench, and
   prob. of Scand. origin. See {Bench}.]
   1. A mound, pile, or ridge of earth, raised above the
      surrounding level; as, a bank of clouds; a bank of snow.
      [1913 Webster]

            They cast up a bank against the city. --2 Sam. xx.
                                                  15.
      [1913 Webster]

   2. (Zo["o]l.) A steep acclivity. [Obs.]
      [1913 Webster]

   3. The margin of a watercourse.
      [1913 Webster]

            Tiber trembled underneath her banks.  --Shak.
      [1913 Webster]

   Note: Not a sense.

            Nor is this, on the bank, a quotation of one.

   4. (Mining)
      (a) The face of the coal.
      (b) The ground at the top of a shaft; as, ores are brought
          to bank.
          [1913 Webster]

   {Bank holiday}, a day off.
"""
EMBANK = r"""Bank \Bank\, v. t. [imp. & p. p. {Banked}(b[a^][ng]kt); p. pr. &
   vb. n. {Banking}.]
   To inclose with a dike. "Banked well with earth." --Holland.
   [1913 Webster]
"""
UNCLOSED = 'Open \\O"pen\\, a. [Never closed\n   A definition in brackets\n'


def written(folder, records):
    """Write records as dictd's two files."""

    def number(value):
        return DIGITS[value // 4096] + DIGITS[value // 64 % 64] + DIGITS[value % 64]

    raw, rows = b"", []
    for record in records:
        encoded = record.encode("latin-1")
        rows.append(f"word\t{number(len(raw))}\t{number(len(encoded))}")
        raw += encoded
    (folder / "gcide.dict.dz").write_bytes(gzip.compress(raw))
    (folder / "gcide.index").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def part():
    """The words in A: a tenth of the dictionary, for speed."""
    try:
        return dictionary.read(first=12_000)
    except data.DataError:
        absent("the GCIDE dictionary (Debian's dict-gcide)")


@pytest.fixture(scope="module")
def probe(part):
    return dictionary.build(part, np.random.default_rng(7))


def test_an_entry_is_read_as_the_eye_reads_it(tmp_path):
    read = dictionary.read(written(tmp_path, [BANK, EMBANK]))
    columns = ["pos", "definition", "example", "example_kind"]
    found = read[columns].astype(object).where(read[columns].notna(), "-")
    mound = "A mound, pile, or ridge of earth, raised above the surrounding level"
    quotation, shaft = "Tiber trembled underneath her banks", "The ground at the top of a shaft"
    assert [" | ".join(row) for row in found.to_numpy().tolist()] == [
        f"noun | {mound} | a bank of clouds; a bank of snow | usage",
        "noun | A steep acclivity | - | -",
        f"noun | The margin of a watercourse | {quotation} | quotation",
        "noun | The face of the coal | - | -",
        f"noun | {shaft} | ores are brought to bank | usage",
        "verb | To inclose with a dike | Banked well with earth | quoted",
    ]
    assert read["forms"].iloc[-1] == "banked banking"
    kinds = {"usage": 2, "quotation": 1, "quoted": 1}
    assert read.attrs == {"entries": 6, "with_examples": 4, "example_kinds": kinds}
    assert len(dictionary.read(tmp_path, first=1)) == 5


def test_a_missing_dictionary_says_how_to_get_it(tmp_path):
    with pytest.raises(data.DataError, match="apt-get install dict-gcide"):
        dictionary.read(tmp_path)
    (tmp_path / "gcide.dict.dz").write_bytes(b"no gzip")
    with pytest.raises(data.DataError, match=r"no gcide\.index"):
        dictionary.read(tmp_path)
    (tmp_path / "gcide.index").write_text("word\tA\tB\n")
    with pytest.raises(data.DataError, match="cannot be decompressed"):
        dictionary.read(tmp_path / "gcide.dict.dz")
    with pytest.raises(data.DataError, match="no dictionary entry"):
        dictionary.read(written(tmp_path, [UNCLOSED]))


def test_no_distractor_is_the_answer_or_comes_from_a_sense_without_an_example(part, probe):
    with_examples = set(part.loc[part["example"].notna(), "definition"])
    assert probe["choices"].map(lambda choices: len(set(choices))).eq(5).all()
    assert all(set(choices) <= with_examples for choices in probe["choices"])
    pairs = zip(probe["choices"], probe["answer"], strict=True)
    wrong = [choices[:answer] + choices[answer + 1 :] for choices, answer in pairs]
    long = probe.assign(choices=wrong).explode("choices")
    words = part["word"].str.lower().groupby(part["definition"]).agg(set)
    pairs = zip(long["cluster"], long["choices"], strict=True)
    own = pd.Series([word in words[choice] for word, choice in pairs], long.index)
    assert own.groupby(level=0).any().all()  # each question has another sense of its word


@pytest.mark.exhaustive
def test_definitions_without_examples_are_told_from_the_others_by_their_choices_alone(part):
    """A choice-only model of scikit-learn, a bag of words, finds the bias of the wrong way only."""
    part, accuracy = dictionary.read(first=30_000), {}  # a smaller part has too few questions
    for wrong in (False, True):
        rng = np.random.default_rng(3)
        built = dictionary.build(part, rng, distractors_without_examples=wrong)
        train, test = (built[built["split"] == name] for name in ("train", "test"))
        counts = CountVectorizer(min_df=2, binary=True).fit(train["choices"].explode())
        right = np.arange(5) == train["answer"].to_numpy()[:, None]
        model = MultinomialNB().fit(counts.transform(train["choices"].explode()), right.ravel())
        chances = model.predict_log_proba(counts.transform(test["choices"].explode())) @ [-1, 1]
        accuracy[wrong] = (chances.reshape(-1, 5).argmax(axis=1) == test["answer"]).mean()
    noise = np.sqrt(0.2 * 0.8 / len(test))
    assert accuracy[False] < 0.2 + 3 * noise
    assert accuracy[True] > 0.2 + 4 * noise
