"""Files of reading studies as people have them, with the right result of each.

Reference: the table of cases beside the shared files, counted by hand."""

import numpy as np
import pytest
from conftest import shared

from psychlm import corpora
from psychlm.corpora import reading_times
from psychlm.reading_times import fit

# file, words, texts, readings, readers, graded questions
STUDIES = [
    ("lab.csv", 2, 1, 4, 2, 0),
    ("ibex.csv", 9, 2, 9, 1, 0),
    ("jspsych2.csv", 17, 3, 34, 2, 0),
    ("eyelink.txt", 4, 1, 8, 2, 0),
    ("utf16.txt", 200, 20, 200, 1, 0),
    ("pcibex_results.csv", 725, 56, 1191, 3, 96),
    ("gorilla.csv", 725, 56, 1191, 3, 96),
    ("lab_excel.csv", 725, 56, 1191, 3, 96),
    ("hindi.csv", 275, 25, 2200, 8, 0),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "n_words", "n_texts", "n_readings", "n_readers", "n_questions"), STUDIES
)
def test_a_study_is_read_as_what_it_is(name, n_words, n_texts, n_readings, n_readers, n_questions):
    study = corpora.read_experiment(shared(f"cases/readings/{name}"))
    assert len(study.words) == n_words and study.words["text_id"].nunique() == n_texts
    assert len(study.readings) == n_readings
    assert study.readings["subject"].nunique() == n_readers
    assert (0 if study.questions is None else len(study.questions)) == n_questions
    assert study.notes[0].startswith("recognised: ")
    if n_questions:
        assert study.accuracy.round(3).tolist() == [0.969, 0.938, 0.969]


@pytest.mark.filterwarnings("ignore")
def test_three_files_of_one_study_give_one_mixed_model():
    """PCIbex, Gorilla and Excel: the same 24 items in two conditions, the same estimates."""
    estimates = []
    fillers_out = {"pcibex_results": "Label=experiment", "gorilla": "condition=ORC,SRC"}
    for name, rows in (fillers_out | {"lab_excel": "Bedingung=ORC,SRC"}).items():
        study = corpora.read_experiment(shared(f"cases/readings/{name}.csv"), filter=rows)
        steps = reading_times.trimming("self_paced_ms", accuracy=study.accuracy, shortest=100)
        kept, _ = reading_times.exclude(study.readings, steps)
        data = reading_times.join(kept, study.words).rename(columns={"Bedingung": "condition"})
        assert data["item"].nunique() == 24
        formula = "log(self_paced_ms) ~ length_chars + C(condition, Sum) + (1 | subject)"
        estimates.append(fit(data, formula).coefficients["estimate"].to_numpy())
    np.testing.assert_allclose(estimates[1:], [estimates[0]] * 2, rtol=0, atol=2e-3)


def test_marks_of_ibex_stay_and_two_texts_are_two():
    words = corpora.read_experiment(shared("cases/readings/ibex.csv")).words
    assert words["word"].tolist()[:3] == ['"We', "are", 'leaving,"']


def test_combining_marks_belong_to_their_letters():
    """Words at edges and before marks are left out, no others; composed accents change nothing."""
    kept = {}
    lengths = {}
    for name in ("hindi", "french_NFC", "french_NFD"):
        study = corpora.read_experiment(shared(f"cases/readings/{name}.csv"))
        kept[name] = len(reading_times.exclude(study.words)[0])
        lengths[name] = study.words["length_chars"]
    assert kept == {"hindi": 200, "french_NFC": 275, "french_NFD": 275}
    np.testing.assert_array_equal(lengths["french_NFC"], lengths["french_NFD"])
