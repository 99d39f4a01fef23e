"""Tables as programs write them. Reference: the same readings as one plain long table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from psychlm import corpora
from psychlm.corpora import reading_times
from psychlm.frames import FrameError

WORDS = {"s1": ["Dogs", "bark,", "loudly."], "s2": ["The", "sea", "is", "calm."]}
LONG = pd.DataFrame(
    [
        (person, text, n, word, 200.5 + 10 * n + 7 * len(word) + (person == "b"))
        for person in ("a", "b")
        for text, words in WORDS.items()
        for n, word in enumerate(words, 1)
    ],
    columns=["Subject", "Item", "WordNr", "Word", "RT"],
)


def pcibex(file: Path) -> None:
    names = ["Results reception time", "MD5 hash of participant's IP address", "PennElementType"]
    names += ["Parameter", "Value", "Reading time", "Sentence (or sentence MD5)"]
    lines = ["# Results on a day.", "# USER AGENT: a browser", "# Columns below this comment:"]
    lines += [f"# {n}. {name}." for n, name in enumerate(names, 1)]
    for row in LONG.itertuples():
        cells = [17, row.Subject, "Controller-DashedSentence", row.WordNr]
        cells += [row.Word.replace(",", "%2C"), row.RT, row.Item]
        lines.append(",".join(map(str, cells)))
    lines.append("17,a,PennController,_Trial_,Start,NULL,NULL")
    file.write_text("\n".join(lines))


# programs that write one table, and how they name person, text, number, word and time
PROGRAMS = {
    "jsPsych": ["subject_id", "sentence", "word_number", "word", "rt_word"],
    "EyeLink": ["RECORDING_SESSION_LABEL", "item", "IA_ID", "IA_LABEL", "IA_FIRST_RUN_DWELL_TIME"],
    "a laboratory": list(LONG),
}


@pytest.mark.parametrize("program", ["PCIbex", *PROGRAMS])
def test_tables_of_programs_are_the_same_corpus(program: str, tmp_path: Path) -> None:
    expected = reading_times.from_long(LONG, measures={"RT": "ms_ms"})
    file, gap = tmp_path / "table.csv", program == "EyeLink"
    if program == "PCIbex":
        pcibex(file)
    else:
        table = LONG.set_axis(PROGRAMS[program], axis=1).assign(trial_type="self-paced-reading")
        table = table.astype({PROGRAMS[program][4]: object})
        if gap:
            table.iloc[0, 4] = "."
        table.to_csv(file, index=False, sep="\t" if gap else ",")
    read = corpora.read_experiment(file)
    columns = ["text_id", "word_id", "word", "length_chars"]
    pd.testing.assert_frame_equal(read.words[columns], expected.words[columns])
    times = read.readings.filter(like="_ms").iloc[:, 0]
    assert times.isna().tolist() == [gap] + [False] * (len(LONG) - 1)
    times = times.fillna(expected.readings["ms_ms"])
    assert times.tolist() == expected.readings["ms_ms"].tolist()
    assert read.readings["subject"].nunique() == 2
    assert f"the table is read as {program}" in read.notes[0]


@pytest.mark.parametrize("mark", ["", "_", "."])
def test_a_wide_table_is_the_same_corpus(mark: str, tmp_path: Path) -> None:
    wide = LONG.pivot(index=["Subject", "Item"], columns="WordNr", values=["Word", "RT"])
    wide.columns = [f"{name}{mark}{number}" for name, number in wide.columns]
    wide.reset_index().to_csv(tmp_path / "wide.csv", index=False)
    columns = {"subject": "Subject", "item": "Item"}
    read = corpora.read_experiment(tmp_path / "wide.csv", measure="RT", columns=columns)
    expected = reading_times.from_long(LONG, measures={"RT": "self_paced_ms"})
    pd.testing.assert_frame_equal(read.words, expected.words)
    pd.testing.assert_frame_equal(read.readings, expected.readings)


def test_named_columns_are_read_and_others_are_refused_with_both_headers(tmp_path: Path) -> None:
    names = ["ID", "Satz", "Nr", "Wort", "ms"]
    LONG.set_axis(names, axis=1).to_csv(tmp_path / "own.csv", index=False)
    columns = {"subject": "ID", "item": "Satz", "word_number": "Nr", "word": "Wort"}
    read = corpora.read_experiment(tmp_path / "own.csv", measure="ms", columns=columns)
    assert read.readings["self_paced_ms"].tolist() == LONG["RT"].tolist()
    with pytest.raises(FrameError, match="header ID, Satz, Nr, Wort, ms, .*expected.*RECORDING_S"):
        corpora.read_experiment(tmp_path / "own.csv")
    with pytest.raises(FrameError, match="columns name .'items'."):
        corpora.read_experiment(tmp_path / "own.csv", columns={"items": "Satz"})
    with pytest.raises(FrameError, match="does not exist"):
        corpora.read_experiment(tmp_path / "none.csv")
