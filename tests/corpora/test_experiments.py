"""Files of reading studies in the shape that programs and laboratories write them, each with its
words and times as they were written here."""

import csv
import json
import warnings

import numpy as np
import pandas as pd
import pytest

from psychlm import roles
from psychlm.corpora import _encodings, read_experiment
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError

SENTENCES = {"1": '"We left," he said.', "2": "Dogs bark!"}
PEOPLE = ["p1", "p2"]


def study(people=PEOPLE, sentences=SENTENCES):
    """Return the rows of a study: person, item, word number, word, ms."""
    rows = [
        (person, item, number, word)
        for person in people
        for item, sentence in sentences.items()
        for number, word in enumerate(sentence.split(), 1)
    ]
    table = pd.DataFrame(rows, columns=["person", "item", "number", "word"])
    return table.assign(ms=300.0 + np.arange(len(table)))


def check(corpus, table, columns=("person", "number", "word", "ms")):
    """Compare words and times by reader with those of the study; texts may have other names."""
    joined = corpora.join(corpus.readings, corpus.words)
    time = joined.filter(like="_ms").columns[0]
    found = joined[["subject", "word_id", "word", time]].set_axis(columns, axis=1)
    found = sorted(map(tuple, found.astype({"ms": float}).to_numpy().tolist()))
    assert found == sorted(map(tuple, table[[*columns]].to_numpy().tolist()))
    assert corpus.notes[0].startswith("recognised: ")


def ibex(table, file, old=False, quoted=False):
    head = ["Results reception time", "MD5 hash of participant's IP address", "Controller name"]
    head += ["Item number", "Element number", "Type" if old else "Label", "Group"]
    if old:
        head[0] = "Time results were received"
        head += ["Word number", "Word", "Reading time", "Newline?", "Sentence (or sentence MD5)"]
    else:
        head += ["PennElementType", "PennElementName", "Parameter", "Value", "EventTime"]
        head += ["Reading time", "Newline?", "Sentence (or sentence MD5)", "Comments"]
    lines = ["#", "# Results on a day", "# USER AGENT: a browser"]
    lines += [f"# {n}. {name}." for n, name in enumerate(head, 1)]
    for row in table.itertuples():
        # both readers have one address
        cells = [str(1600 + PEOPLE.index(row.person)), "ab12", "DashedSentence", "4", "0"]
        cells += ["experiment", "NULL"]
        sentence = SENTENCES[row.item].replace(",", "%2C")
        word = row.word.replace(",", "%2C")
        kind = [] if old else ["Controller-DashedSentence", "DashedSentence"]
        rest = [] if old else ["17"]
        cells += [*kind, str(row.number), word, *rest, str(row.ms), "false", sentence]
        lines.append(",".join(cells if old else [*cells, "None"]))
    file.write_text("\n".join(lines) + "\n")


def gorilla(table, file):
    names = {"person": "Participant Private ID", "ms": "Reaction Time"}
    names |= {name: f"Spreadsheet: {name}" for name in ("item", "word")}
    rows = table.rename(columns=names)
    rows = rows.assign(**{"Zone Type": "content", "Response": "SPACE"}).drop(columns="number")
    end = pd.DataFrame({"Participant Private ID": ["END OF FILE"]})
    pd.concat([rows, end]).to_csv(file, index=False)


def linger(table, file):
    lines = [
        f"{r.person} main {r.item} a {r.number - 1} {r.word} - {r.ms}" for r in table.itertuples()
    ]
    lines.insert(5, "p1 main 1 a ? yes 1 1200")
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture
def read(tmp_path):
    """Write a table, or a text, and return what is read from it with what is told."""

    def read(table, **told):
        text = table if isinstance(table, str) else table.to_csv(index=False)
        (tmp_path / "lab.csv").write_text(text)
        return read_experiment(tmp_path / "lab.csv", **told)

    return read


def trials(table):
    for (person, item), rows in table.groupby(["person", "item"], sort=False):
        yield person, item, rows["word"].tolist(), rows["ms"].tolist()


def jspsych(table, file, version=2, nested=False):
    if version == 1:
        names = ["subject_id", "sentence", "word_number", "word", "rt_word"]
        table.set_axis(names, axis=1).to_csv(file, index=False)
        return
    rows = [
        {"subject_id": person, "trial_type": "spr", "spr_words": words, "spr_rts": times}
        for person, item, words, times in trials(table)
    ]
    if file.suffix == ".json":
        hello = {"trial_type": "html-button-response", "rt": 9, "subject_id": "p1"}
        rows = [hello, *rows]
        if nested:  # a list for each reader, who is named around the trials
            rows = [
                {"subject_id": person, "trials": [{k: v for k, v in r.items() if k != "subject_id"}
                                                  for r in rows if r["subject_id"] == person]}
                for person in PEOPLE
            ]  # fmt: skip
        file.write_text(json.dumps(rows))
    else:
        lists = [
            {k: json.dumps(v) if isinstance(v, list) else v for k, v in r.items()} for r in rows
        ]
        pd.DataFrame(lists).to_csv(file, index=False)


def psychopy(table, file):
    rows = table.assign(expName="spr", psychopyVersion="2023.2", rt=table["ms"] / 1000)
    names = {"person": "participant", "rt": "key_resp.rt"}
    rows.rename(columns=names).drop(columns=["ms", "number"]).to_csv(file, index=False)


def opensesame(table, file):
    rows = table.assign(word='"' + table["word"])  # each word opens a quotation
    rows = rows.rename(columns={"person": "subject_nr", "ms": "response_time"})
    text = ['"' + '","'.join(rows.columns) + '"']
    for row in rows.itertuples(index=False):
        text.append('"' + '","'.join(str(cell).replace('"', '\\"') for cell in row) + '"')
    file.write_text("\n".join(text) + "\n")


def german(table, file, encoding="utf-8-sig"):
    names = {"person": "VP", "item": "Satz", "number": "WortNr", "word": "Wort", "ms": "Lesezeit"}
    cells = table.rename(columns=names)
    cells["Lesezeit"] = [f"{ms:.1f}".replace(".", ",") for ms in cells["Lesezeit"]]
    cells.to_csv(file, index=False, sep=";", encoding=encoding)


def wide(table, file, sentence=False):
    rows = [
        {"Subject": person, "Item": item, "Sentence": " ".join(words)}
        | ({} if sentence else {f"Word{n}": word for n, word in enumerate(words, 1)})
        | {f"RT{n}": ms for n, ms in enumerate(times, 1)}
        for person, item, words, times in trials(table)
    ]
    table = pd.DataFrame(rows)
    (table if sentence else table.drop(columns="Sentence")).to_csv(file, index=False, na_rep="NA")


def eprime(table, file, slides=False):
    rows = [
        {"ExperimentName": "SPR", "Subject": person, "ItemNo": item, "Question.RT": 900}
        | (
            {f"Word{n}": w for n, w in enumerate(words, 1)}
            if slides
            else {"Sentence": " ".join(words)}
        )
        | {f"{'Slide' if slides else 'Word'}{n}.RT": ms for n, ms in enumerate(times, 1)}
        | {"Question.ACC": 1}
        for person, item, words, times in trials(table)
    ]
    text = pd.DataFrame(rows).to_csv(index=False, sep="\t", quoting=csv.QUOTE_NONE, na_rep="NULL")
    file.write_text("C:\\Data\\merged.emrg2\n" + text, encoding="utf-16")


def eprime_words(table, file):
    names = {"person": "Subject", "item": "Item", "word": "Word", "ms": "WordDisplay.RT"}
    table.rename(columns=names).assign(ExperimentName="SPR").to_csv(file, index=False)


def data_viewer(table, file):
    """A report that is named as Excel's, of readers who saw the texts in other orders."""
    is_first = (table["person"] == "p1") == (table["item"] == "1")
    names = {"person": "RECORDING_SESSION_LABEL", "item": "satz", "number": "IA_ID"}
    names |= {"word": "IA_LABEL", "ms": "IA_DWELL_TIME"}
    rows = table.assign(TRIAL_INDEX=np.where(is_first, 1, 2)).rename(columns=names)
    rows.to_csv(file, sep="\t", index=False)


def jspsych_words(table, file):
    table = table.assign(word="<p class='x'>" + table["word"] + "</p>")
    rows = table.set_axis(["subject", "item", "trial_index", "stimulus", "rt"], axis=1)
    about = {"stimulus": ["<p>Read these.</p>", "<b>+</b>"], "rt": 5000, "subject": "p1"}
    rows = pd.concat([pd.DataFrame(about), rows]).assign(trial_type="html-keyboard-response")
    rows.to_csv(file, index=False)


def readers_in_columns(table, file):
    wide = table.pivot(index=["item", "number", "word"], columns="person", values="ms")
    wide.reset_index().rename(columns={"number": "WordNr"}).to_csv(file, index=False)


FILES = {
    "E-Prime": ("r.txt", eprime, {}),
    "E-Prime, words and slides": ("r.txt", eprime, {"slides": True}),
    "Data Viewer": ("r.xls", data_viewer, {}),
    "E-Prime by word": ("r.csv", eprime_words, {}),
    "jsPsych by word": ("r.csv", jspsych_words, {}),
    "readers in columns": ("r.csv", readers_in_columns, {}),
    "PCIbex": ("r", ibex, {}),
    "Ibex before 2020": ("r.csv", ibex, {"old": True}),
    "Gorilla": ("r.csv", gorilla, {}),
    "Linger": ("r.dat", linger, {}),
    "jsPsych 1": ("r.csv", jspsych, {"version": 1}),
    "jsPsych 2": ("r.csv", jspsych, {}),
    "jsPsych JSON": ("r.json", jspsych, {}),
    "jsPsych JSON by reader": ("r.json", jspsych, {"nested": True}),
    "PsychoPy": ("r.csv", psychopy, {}),
    "German": ("r.csv", german, {}),
    "German of Excel": ("r.txt", german, {"encoding": "utf-16"}),
    "wide": ("r.csv", wide, {}),
    "wide with sentences": ("r.csv", wide, {"sentence": True}),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_programs_hold_the_words_and_times_that_were_written(name, tmp_path):
    file, write, options = FILES[name]
    write(study(), tmp_path / file, **options)
    corpus = read_experiment(tmp_path / file)
    table = study()
    if "Ibex" in name or name == "PCIbex":
        table["person"] = table["person"].map({"p1": "1600-ab12", "p2": "1601-ab12"})
    check(corpus, table.round(6))
    assert corpus.words["text_id"].nunique() == 2
    if name == "Linger":
        assert corpus.questions.to_numpy().tolist() == [["p1", "main-1-a", 1.0]]


@pytest.mark.parametrize("written", ["{:.0f} ms", "{:.0f}ms", "00:00:00.{:03.0f}", "fast{:.0f}"])
def test_times_with_their_unit_are_read_and_texts_are_refused(written, read):
    table = lab().assign(RT=[written.format(ms) for ms in study()["ms"].round()])
    if "ms" in written:
        check(read(table), study().assign(ms=lambda t: t["ms"].round()))
    else:
        with pytest.raises(FrameError, match="no value of 'RT' is a number: .*write milliseconds"):
            read(table)


@pytest.mark.parametrize("part", ["W", "Slide", "Region_"])
@pytest.mark.parametrize("question", ["", "Question", "Comp"])
def test_measures_of_words_are_no_answers_to_questions(part, question, read):
    """E-Prime logs the same measures of each part of a trial; these readers press a wrong key."""
    rows = []
    for person, item, words, times in trials(study()):
        row = {"ExperimentName": "SPR", "Subject": person, "ItemNo": item}
        row |= {"Sentence": " ".join(words)}
        for n, ms in enumerate(times, 1):
            about = {"ACC": 0, "CRESP": "x", "OnsetTime": 1000 * n, "RESP": "y", "RT": ms}
            row |= {f"{part}{n}.{name}": value for name, value in about.items()}
        rows.append(row | {f"{question}.ACC": 1, f"{question}.RT": 900} if question else row)
    table = pd.DataFrame(rows).sort_index(axis=1)
    corpus = read(table)
    check(corpus, study())
    if question:
        assert corpus.questions["correct"].tolist() == [1.0] * len(rows)
        return
    assert corpus.questions is None
    advised = next(note for note in corpus.notes if "no answer to a question" in note)
    told = advised.split("answer='")[1].rstrip("'")  # as the note says
    assert read(table, answer=told).questions["correct"].tolist() == [0.0] * len(rows)


def test_numbered_columns_of_other_names_are_told_without_their_numbers(read, tmp_path):
    wide(study(), tmp_path / "r.csv")
    text = (tmp_path / "r.csv").read_text().replace("Word", "Stueck").replace("RT", "X")
    with pytest.raises(FrameError, match=r"the name without number: Stueck, X\)"):
        read(text)
    check(read(text, word="Stueck", measure="X"), study())


def test_marks_of_opensesame_are_escaped(tmp_path):
    opensesame(study(), tmp_path / "r.csv")
    check(read_experiment(tmp_path / "r.csv"), study().assign(word=lambda t: '"' + t["word"]))


@pytest.mark.parametrize("suffix", [".xlsx", ".parquet"])
def test_excel_and_parquet_are_read_for_one_table_and_for_two(suffix, tmp_path):
    table = study()
    names = {"person": "subject", "item": "text_id", "number": "word_id", "ms": "gaze_ms"}
    ours = table.rename(columns=names)
    words = ours[["text_id", "word_id", "word"]].drop_duplicates()
    parts = {"one": ours, "words": words, "readings": ours.drop(columns="word")}
    for name, part in parts.items():
        file = tmp_path / f"{name}{suffix}"
        part.to_excel(file, index=False) if suffix == ".xlsx" else part.to_parquet(file)
    check(read_experiment(tmp_path / f"one{suffix}"), table)
    check(corpora.from_csv(tmp_path / f"words{suffix}", tmp_path / f"readings{suffix}"), table)


def test_latin_letters_of_two_files_are_read_and_the_encoding_is_said(tmp_path):
    (tmp_path / "w.csv").write_bytes("text_id,word_id,word\nt,1,Müller\n".encode("cp1252"))
    (tmp_path / "r.csv").write_text("VP,text_id,word_id,RT\n1,t,1,310\n")
    corpus = read_experiment(tmp_path / "w.csv", tmp_path / "r.csv")
    assert corpus.words["word"].tolist() == ["Müller"]
    assert corpus.notes[1:] == (
        "w.csv: read as Windows-1252",
        "r.csv: subject = VP",
        "r.csv: self_paced_ms = RT",
    )


def test_a_folder_is_a_study_whose_files_are_readers_and_bad_files_are_named(tmp_path):
    table = study()
    for person in PEOPLE:
        rows = table[table["person"] == person].drop(columns=["person", "number"])
        rows.assign(expName="e").rename(columns={"ms": "k.rt"}).to_csv(
            tmp_path / f"{person}.csv", index=False
        )
    (tmp_path / "empty.csv").write_text("")
    corpus = read_experiment(tmp_path)
    check(corpus, table.assign(ms=table["ms"] * 1000))
    assert any("empty.csv is left out" in note for note in corpus.notes)
    # two lists, whose first readers have one number
    for person, item in zip(PEOPLE, SENTENCES, strict=True):
        rows = table[(table["person"] == person) & (table["item"] == item)].rename(
            columns={"ms": "RT"}
        )
        rows.assign(Subject=1).drop(columns="person").to_csv(
            tmp_path / f"{person}.csv", index=False
        )
    note = "readers ['1'] stand in several files, and are taken for one reader each"
    assert any(note in said for said in read_experiment(tmp_path).notes)
    corpus = read_experiment(tmp_path, person="Subject+file")  # as the note says
    assert corpus.readings["subject"].unique().tolist() == ["1-p1", "1-p2"]


def test_merged_cells_of_excel_and_headers_of_files_put_together_lose_no_reading(read, tmp_path):
    table = lab()[["Subject", "item", "word", "RT"]]
    table.set_index(["Subject", "item", "word"]).to_excel(tmp_path / "lab.xlsx")  # merged
    check(read_experiment(tmp_path / "lab.xlsx"), study())
    blank = table.assign(Subject=table["Subject"].mask(table["Subject"].duplicated()))
    with pytest.raises(FrameError, match=r"10 rows .* no 'Subject'; .*table\['Subject'\].ffill"):
        read(blank)
    check(read(blank.assign(Subject=blank["Subject"].ffill())), study())
    corpus = read("".join(rows.to_csv(index=False) for _, rows in table.groupby("Subject")))
    check(corpus, study())
    assert "1 rows repeat the header" in corpus.notes


def test_first_pass_times_are_those_of_the_first_pass(read):
    """IA_FIRST_FIX_PROGRESSIVE is 0 for "old", which s1 read after "man"; "." is missing."""
    head = "RECORDING_SESSION_LABEL item IA_ID IA_LABEL IA_SKIP IA_FIRST_FIX_PROGRESSIVE "
    head += "IA_FIRST_FIXATION_DURATION IA_FIRST_RUN_DWELL_TIME IA_REGRESSION_PATH_DURATION "
    head += "IA_DWELL_TIME"
    rows = ["s1 1 1 The 0 1 200 200 200 200", "s1 1 2 old 1 0 250 250 250 250"]
    rows += ["s2 1 1 The 1 . . . . 0", "s2 1 2 old 0 1 190 190 190 190"]
    text = "\n".join("\t".join(row.split()) for row in (head, *rows))
    corpus = read(text)
    times = corpus.readings[["first_fixation_ms", "gaze_ms", "go_past_ms", "total_ms"]]
    nan = np.nan
    expected = [[200] * 4, [nan, nan, nan, 250], [nan] * 4, [190] * 4]
    np.testing.assert_array_equal(times, expected)
    assert any("first-pass times of 1 words" in note for note in corpus.notes)
    by_skip = read(text.replace("\tIA_FIRST_FIX_PROGRESSIVE", "\tX"))
    assert by_skip.readings["gaze_ms"].isna().sum() == 2


def lab(**columns):
    return study().assign(**columns).rename(columns={"person": "Subject", "ms": "RT"})


def test_practice_is_left_out_fillers_are_named_and_both_are_selected_by_filter(read):
    kind = np.where(study()["item"] == "1", "filler", "practice")
    table = lab(Bedingung=kind)
    corpus = read(table)
    assert corpus.words["text_id"].unique().tolist() == ["1"]
    assert "4 rows of practice (Bedingung); keep them: filter='Bedingung=*'" in corpus.notes[0]
    assert "of 12 rows 8 hold words; person" in corpus.notes[0]
    check(read(table, filter="Bedingung=*"), study())  # as the note says
    shown = roles.in_shell("filter='condition=*'; method='irt'; else (frame.dropna(axis=1) does)")
    assert shown == "--filter 'condition=*'; --method 'irt'; else"
    fillers = read(table, filter="Bedingung=practice")
    assert fillers.words["text_id"].unique().tolist() == ["2"]
    table = lab(Bedingung=np.where(kind == "practice", "test", kind))
    note = next(n for n in read(table, filter="Bedingung=*").notes if "filler" in n)
    told = note.partition("without them: filter='")[2].removesuffix("'")
    assert read(table, filter=told).readings["self_paced_ms"].min() == 304
    with pytest.raises(FrameError, match="no row has Bedingung = x; there are"):
        read(table, filter="Bedingung=x")
    with pytest.raises(FrameError, match="there is no column 'Art'; the file has Subject"):
        read(table, filter="Art=x")


def test_answers_of_pcibex_belong_to_the_text_before_them_and_practice_has_its_own(read):
    """ "yes" answers the key F, which is right in two of three trials that are no practice."""
    head = ["Results reception time", "MD5 hash of participant's IP address", "Label"]
    head += ["PennElementType", "Parameter", "Value", "correct_answer", "Reading time", "Sentence"]
    lines = [f"# {n}. {name}." for n, name in enumerate(head, 1)]
    lines[-1] = "# 9. Sentence (or sentence MD5)."
    for n, (label, answer) in enumerate(
        [("practice", "yes"), ("test", "yes"), ("test", "no"), ("filler", "yes")]
    ):
        before = f"17,ab,{label}"
        lines += [f"{before},Controller-DashedSentence,{k},w{k},F,{300 + k},s{n}" for k in (1, 2)]
        lines.append(f"{before},Selector,Selection,{answer},F")
        lines.append(f"{before},PennController,_Trial_,End,F")
    text = "\n".join(["#", *lines])
    corpus = read(text)
    assert corpus.questions.to_numpy().tolist() == [
        ["17-ab", "s1", 1.0], ["17-ab", "s2", 0.0], ["17-ab", "s3", 1.0]
    ]  # fmt: skip
    # 16 rows: 6 words, 3 answers, 2 words and 1 answer of practice, 4 others
    assert "of 16 rows 6 hold words, 3 answers" in corpus.notes[0]
    assert "left out: 3 rows of practice" in corpus.notes[0]
    assert "4 rows that are neither" in corpus.notes[0]
    assert read(text, filter="Label=*").accuracy.to_dict() == {"17-ab": 0.75}


def test_versions_of_an_item_are_texts_of_their_own(read):
    table = lab(Condition=lambda t: np.where(t["person"] == "p1", "a", "b"))
    table["word"] = np.where(table["Condition"] == "b", table["word"] + "x", table["word"])
    corpus = read(table)
    assert corpus.words["text_id"].unique().tolist() == ["1-a", "1-b", "2-a", "2-b"]
    assert corpus.words["item"].unique().tolist() == ["1", "2"]
    assert "text = item + Condition" in corpus.notes[0]
    table = table.rename(columns={"Condition": "Zz"})
    with pytest.raises(FrameError, match=r"text='\.\.\.'\), or the one .* condition='\.\.\.'"):
        read(table)
    pd.testing.assert_frame_equal(read(table, condition="Zz").readings, corpus.readings)
    by_reader = read(table, condition="Subject").words["text_id"]  # a role may be a version too
    assert by_reader.unique().tolist() == ["1-p1", "1-p2", "2-p1", "2-p2"]


def test_answers_beside_the_words_are_questions_with_accuracy_by_reader(read):
    right = lambda t: np.where((t["person"] == "p2") & (t["item"] == "1"), 0, 1)  # noqa: E731
    corpus = read(lab(Frage_korrekt=right))
    words = lab(**{"Frage richtig?": lambda t: np.where(right(t), "ja", "nein")})
    said = "answers ('Frage richtig?') are not graded: they are ['ja', 'nein']; answer= names"
    assert said in " ".join(read(words).notes)
    told = read(words, answer="Frage richtig?")
    pd.testing.assert_frame_equal(told.questions, corpus.questions)
    assert len(corpus.questions) == 4
    assert corpus.accuracy.to_dict() == {"p1": 1.0, "p2": 0.5}
    assert any("75% right; fewest by p2: 50%" in note for note in corpus.notes)


def test_one_thousands_separator_is_a_number_and_a_word_among_times_is_a_warning(tmp_path):
    file = tmp_path / "r.csv"
    german(study(), file)
    file.write_text(file.read_text("utf-8-sig").replace("301,0", "1.204,3").replace("302,0", "weg"))
    with pytest.warns(RuntimeWarning, match=r"1 values of 'Lesezeit' are no numbers.*'weg'"):
        corpus = read_experiment(file)
    times = corpus.readings["self_paced_ms"].tolist()
    assert times[:2] == [300.0, 1204.3] and np.isnan(times[2]) and times[3] == 303.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corpus = read_experiment(file, missing="weg")
    assert "1 values of 'Lesezeit' stand for missing: ['weg']" in corpus.notes


def test_points_that_may_mark_thousands_are_refused_beside_whole_numbers(read):
    times = ["310", "432", "1.637", "960", "500", "700"] * 2
    with pytest.raises(FrameError, match="beside '310'.*write '1637' if thousands"):
        read(lab(ms=times))
    decimal = [time if "." in time else f"{time}.0" for time in times]
    assert read(lab(ms=decimal)).readings["self_paced_ms"].min() == 1.637


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("Kedi ılık sütü içti , şimdi uyuyor", "cp1254"),
        ("Wół pił świeżą wodę", "cp1250"),
        ("Кошка спит на старом диване", "cp1251"),
        ("η γάτα κοιμάται στον καναπέ", "iso8859-7"),
        ("猫 昨天 喜欢 睡觉", "gb18030"),
        ("貓 昨天 喜歡 睡覺", "big5"),
    ],
)
def test_letters_that_are_not_western_need_the_name_of_their_encoding(words, encoding, tmp_path):
    table = pd.DataFrame({"subject": "s1", "text": 1, "word": words.split(), "RT": 300})
    table.to_csv(tmp_path / "a.csv", index=False, encoding=encoding)
    offered = {"iso8859-7": "cp1253"}.get(encoding, encoding)
    with pytest.raises(FrameError, match=f"encoding='{offered}' reads"):
        read_experiment(tmp_path / "a.csv")
    read_words = read_experiment(tmp_path / "a.csv", encoding=encoding).words["word"]
    assert read_words.tolist() == words.split()


@pytest.mark.parametrize(
    "text",
    [
        "l'été à Noël, où",
        "ação são pão",
        "niño ¿Qué?",
        "“naïve” – it’s",
        "5 µm, 10°C",
        "Ærø;Ålborg",
    ],
)
def test_letters_of_western_languages_are_read(text):
    assert _encodings.decode("a.txt", raw=text.encode("cp1252")) == (text, "Windows-1252")


def test_fixations_off_the_words_are_left_out_and_counted():
    table = pd.DataFrame({"subject": "s", "text_id": "t", "word_id": [1, ".", 2, None, "2"]})
    table["duration_ms"] = [200, 90, 250, 80, 50]
    with pytest.warns(RuntimeWarning, match="2 of 5 fixations are on no word and left out"):
        measures = corpora.reading_measures(table)
    assert measures["total_ms"].tolist() == [200, 300] and measures.attrs["left_out"] == 2
    with pytest.raises(FrameError, match=r"words \['x'\] of fixations"):
        corpora.reading_measures(table.assign(word_id="x"))


def test_a_group_stays_with_the_readings_and_dropped_columns_go(read):
    languages = study()["person"].map({"p1": "de", "p2": "en"})
    corpus = read(lab(L1=languages, x=1), group="L1", drop=["x"])
    assert corpus.readings["L1"].unique().tolist() == ["de", "en"]
    assert "x" not in corpus.words and "x" not in corpus.readings


@pytest.mark.parametrize("name", ["phase", "practice"])
def test_practice_is_found_in_whichever_column_names_it(name, read):
    words = ("practice", "main") if name == "phase" else ("yes", "no")
    table = lab(trial_type="spr", **{name: np.where(study()["item"] == "1", *words)})
    assert read(table).words["text_id"].unique().tolist() == ["2"]
    check(read(table, filter=f"{name}=*"), study())


def test_a_filter_of_another_column_leaves_practice_out(read):
    practice = np.where(study()["item"] == "1", "yes", "no")
    table = lab(practice=practice, excluded=study()["person"].map({"p1": "yes", "p2": "no"}))
    corpus = read(table, filter="excluded=no")
    assert corpus.readings["subject"].unique().tolist() == ["p2"]
    assert corpus.words["text_id"].unique().tolist() == ["2"]
    assert "4 rows of practice (practice); keep them: filter='" in corpus.notes[0]
    assert len(read(table, filter="excluded=no;practice=*").readings) == 6


def test_a_text_read_twice_needs_the_column_that_tells_the_times_apart(read):
    table = lab().rename(columns={"number": "WordNr"})
    twice = pd.concat([table.assign(Session=1), table.assign(Session=2)])
    with pytest.raises(FrameError, match="condition='Session' .* person='Subject[+]Ses") as error:
        read(twice)
    assert "np." not in str(error.value)
    corpus = read(twice, condition="Session")
    assert corpus.words["text_id"].unique().tolist() == ["1-1", "1-2", "2-1", "2-2"]
    readers = read(twice, person="Subject+Session").readings["subject"]
    assert readers.nunique() == 2 * lab()["Subject"].nunique()
    # a number of each row tells nothing apart, and copies of rows are named as such
    copies = twice.drop(columns="Session")
    with pytest.raises(FrameError, match="no column tells them apart"):
        read(copies.assign(row=range(len(copies))))
    with pytest.raises(FrameError, match=f"{len(table)} of them are copies of whole rows"):
        read(copies)
    assert len(read(copies.drop_duplicates()).readings) == len(table)


def test_times_in_seconds_of_a_table_are_a_warning_and_lists_need_no_text(read):
    with pytest.warns(RuntimeWarning, match="are these seconds"):
        read(lab(ms=lambda t: t["ms"] / 1000))
    corpus = read('participant,sentence,key_resp.rt,expName\np,The dog.,"[0.35, 0.41]",e\n')
    assert corpus.words[["text_id", "word"]].to_numpy().tolist() == [
        ["The dog.", "The"],
        ["The dog.", "dog."],
    ]


def test_a_binary_file_of_excel_is_refused_by_what_helps(tmp_path):
    (tmp_path / "r.xls").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    with pytest.raises(FrameError, match="old Excel, which is not read; save it as xlsx"):
        read_experiment(tmp_path / "r.xls")


@pytest.mark.parametrize(
    "text", ["", "a,b\n", "# a comment\na,b\n1,2\n", "[{", "[1, 2]", "# 1. x\n1\n"]
)
def test_what_is_no_study_is_one_line(text, read):
    with pytest.raises(FrameError) as error:
        read(text)
    assert "lab.csv" in str(error.value) and "\n" not in str(error.value)
