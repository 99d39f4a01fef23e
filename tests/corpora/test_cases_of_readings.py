"""Files of reading studies as people have them, with the right result of each.

Reference: the table of cases beside the shared files, counted by hand."""

import re

import numpy as np
import pytest
from conftest import ROOT, shared

from psychlm import corpora
from psychlm.corpora import reading_times

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


# what the guide's table says to change for another file: a word of the page, and its replacement
PLAIN = {
    ', filter="Label=experiment"': "",
    "accuracy=study.accuracy, ": "",
    "(1 | item)": "(1 | text_id)",
    "surprisal_bits * C(condition, Sum)": "surprisal_bits",
    "additive = ": "# ",
    "print(reading_times.anova(": "# ",
    "print(fit.means(": "# ",
}
CHANGES = {
    "pcibex_results.csv": {},
    "gorilla.csv": {"Label=experiment": "condition=SRC,ORC"},
    "lab_excel.csv": {
        "Label=experiment": "Bedingung=SRC,ORC",
        "C(condition, Sum)": "C(Bedingung, Sum)",
        'means("condition"': 'means("Bedingung"',
    },
    "jspsych2.csv": PLAIN,
    "french_NFC.csv": PLAIN,
    "hindi.csv": PLAIN,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_the_guide_leads_from_each_raw_file_to_a_mixed_model(name, tmp_path, monkeypatch):
    """PCIbex, Gorilla and Excel hold one study. Reference: R's lme4 on it, as the page calls it."""
    page = (ROOT / "docs/your_reading_experiment.md").read_text().partition("## A file of your")[0]
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S))
    code = code.replace("pcibex_results.csv", name)
    for before, after in CHANGES[name].items():
        assert before in code
        code = code.replace(before, after)
    (tmp_path / name).write_bytes(shared(f"cases/readings/{name}").read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    estimates = names["fit"].coefficients["estimate"].to_numpy()
    assert (tmp_path / "surprisal.png").exists()
    if CHANGES[name] is PLAIN:
        assert len(estimates) == 4 and np.isfinite(estimates).all()
    else:
        by_lme4 = [5.578, 0.01211, 0.00373, 0.00843, 0.02171, 0.0]
        np.testing.assert_allclose(estimates, by_lme4, rtol=0, atol=1e-3)


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
