"""Readers of corpora against their makers' counts, a Dundee Corpus of six words written here, long
tables, the same readings as programs write them, and exclusions counted by hand."""

import re

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas._libs.parsers import STR_NA_VALUES

import psychlm
from psychlm import cli, frames
from psychlm.corpora import _sniff, read_experiment
from psychlm.corpora import reading_times as corpora
from psychlm.corpora._reading_formats import EYELINK
from psychlm.frames import FrameError

WORDS = ["The", "old", "man,", "who", "had", "3", "cats", "doesn't", "sleep.", "He", "reads", "on"]


@pytest.fixture
def words():
    return pd.DataFrame(
        {"text_id": "1", "word_id": range(1, len(WORDS) + 1), "word": WORDS, "log_frequency": 5.0}
    )


def test_public_corpora_have_their_texts_words_models_measures_and_surprisals():
    ucl = corpora.ucl()
    assert len(ucl.words) == len(ucl.readings) == 1726
    assert ucl.words["text_id"].nunique() == 205
    assert ucl.surprisals.shape[1] == 2 + 12
    assert {"first_fixation_ms", "gaze_ms", "self_paced_ms"} <= set(ucl.readings)
    provo = corpora.provo()
    assert provo.words["text_id"].nunique() == 55
    assert len(provo.readings) > 2640
    assert not [name for name in provo.readings if name.endswith("_ms")]  # they are scaled, not ms
    stories = corpora.natural_stories()
    assert len(stories.words) == len(stories.readings) == len(stories.surprisals) == 10256
    bits = stories.surprisals["GPT-3 davinci"]
    assert bits.isna().sum() == 10  # the first word of each story
    # "moors", the 21st word, is two tokens: -5.148232 and -0.001676 nats
    moors = stories.words["word_id"].eq(21) & stories.words["text_id"].eq("1")
    assert bits[moors].item() == pytest.approx((5.148232 + 0.001676) / np.log(2), abs=1e-5)


def test_exclusions_are_named_and_counted_those_of_lines_where_they_are_known(words):
    frequency = words["log_frequency"].where(words["word"] != "reads")
    kept, table = corpora.exclude(words.assign(log_frequency=frequency))
    assert kept["word"].tolist() == ["had"]
    assert table.set_index("step")["removed"].to_dict() == {
        "first word of a text": 1,  # The
        "last word of a text": 1,  # on
        "first word of a line": 0,
        "last word of a line": 0,
        "before punctuation": 2,  # man, sleep.
        "not alphabetic": 2,  # 3 doesn't
        "no frequency": 1,  # reads
        "after one of these": 4,  # old, who, cats, He
    }
    assert table["left"].iloc[-1] == len(kept)
    assert (table["removed"].sum() + len(kept)) == len(words)
    lines = words.assign(line=[1] * 6 + [2] * 6)
    flagged = corpora.exclude(lines)[1].set_index("step")["flagged"]
    assert flagged[["first word of a line", "last word of a line"]].tolist() == [2, 2]


@given(seed=st.integers(0, 10**6), sd=st.sampled_from([1.0, 2.5]), log=st.booleans())
def test_readings_are_left_out_step_by_step(seed, sd, log):
    """Each step against a loop over the groups of the readings that the steps before it left."""
    rng = np.random.default_rng(seed)
    keys = pd.MultiIndex.from_product([["s1", "s2", "s3"], ["t"], range(1, 41)])
    readings = keys.to_frame(index=False, name=["subject", "text_id", "word_id"])
    readings["condition"] = rng.choice(["a", "b"], len(readings))
    readings["rt_ms"] = rng.lognormal(5.8, 0.6, len(readings)).round()
    readings.loc[rng.random(len(readings)) < 0.1, "rt_ms"] = np.nan
    steps = corpora.trimming(
        "rt_ms",
        accuracy=pd.Series({"s1": 0.9, "s2": 0.6}),
        longest_total_s=30,
        shortest=100,
        longest=3000,
        sd=sd,
        by=["subject", "condition"],
        log=log,
    )
    kept, removed = corpora.exclude(readings, steps)
    left, counts = readings.dropna(subset=["rt_ms"]), []
    counts.append(len(left))
    left = left[left["subject"] != "s2"]
    counts.append(len(left))
    slow = [s for s, part in left.groupby("subject") if part["rt_ms"].sum() > 30_000]
    left = left[~left["subject"].isin(slow)]
    counts.append(len(left))
    for low, high in ((100, np.inf), (0, 3000)):
        left = left[left["rt_ms"].between(low, high)]
        counts.append(len(left))
    parts = []
    for _, part in left.groupby(["subject", "condition"]):
        y = np.log(part["rt_ms"]) if log else part["rt_ms"]
        good = np.abs(y - y.mean()) <= sd * y.std(ddof=1) if len(y) > 1 else y == y
        parts.append(part[good])
    left = pd.concat(parts).sort_index() if parts else left
    counts.append(len(left))
    assert removed["left"].tolist() == counts
    assert removed["removed"].sum() + len(kept) == len(readings)
    pd.testing.assert_frame_equal(kept, left)


def test_words_steps_are_refused_for_readings_and_the_message_names_the_call():
    readings = pd.DataFrame({"subject": ["s"] * 3, "text_id": "t", "word_id": [1, 2, 3]})
    readings["self_paced_ms"] = [50.0, 300, 310]
    with pytest.raises(ValueError, match="trimming\\('self_paced_ms', shortest=100, sd=2.5\\)"):
        corpora.exclude(readings)
    steps = corpora.trimming("self_paced_ms", shortest=100, sd=2.5)
    own = {"the last word": lambda r: r["word_id"] == 3}
    kept, removed = corpora.exclude(readings, own | steps)
    assert kept["word_id"].tolist() == [2]
    assert removed["step"].tolist()[0] == "the last word"


def test_frequencies_of_a_language_are_wordfreqs_and_a_language_is_guessed_where_letters_say_it():
    words = pd.Series(["Der", "Hund,", "xqzzy", "Häuser"])
    found = corpora.log_frequency(words, language="de")
    assert found.isna().tolist() == [False, False, True, False]
    # Zipf scale: the article is among the ten most frequent words, one of 100 words
    assert found[0] > 7 > found[1] > found[3] > 3
    with pytest.raises(ValueError, match="no language 'xx'; it has .*'de'"):
        corpora.log_frequency(words, language="xx")
    with pytest.raises(ValueError, match="either counts"):
        corpora.log_frequency(words)
    assert corpora.language_of(words) == ""
    assert corpora.language_of(pd.Series(["यह", "किताब।"])) == "hi"
    assert corpora.language_of(pd.Series(["ο", "σκύλος"])) == "el"


def test_lags_never_cross_a_text_or_a_gap_or_a_sentence():
    sentences = pd.DataFrame({"text_id": "a", "word_id": [1, 2, 3], "word": "w", "x": [1.0, 2, 3]})
    sentences["sentence"] = [1, 1, 2]
    lagged = corpora.add_lags(sentences, ["x"], within=["sentence"])
    assert lagged["prev_x"].fillna(-1).tolist() == [-1, 1, -1]
    table = pd.DataFrame(
        {"text_id": list("aaabb"), "word_id": [1, 2, 4, 1, 2], "word": "w", "x": [1.0, 2, 3, 4, 5]}
    )
    lagged = corpora.add_lags(table.sample(frac=1, random_state=0), ["x"], lags=2).sort_index()
    assert lagged["prev_x"].fillna(-1).tolist() == [-1, 1, -1, -1, 4]
    assert lagged["prev2_x"].isna().all()


HEADER = "WORD TEXT LINE OLEN WLEN XPOS WNUM FDUR OBLP WDLP LAUN TXFR"


def dundee_files(folder):
    """Write one text of six words on two lines, read by one person who blinked once."""
    words = ["Are", "tourists", "enticed", "by", "these", '"ads?"']
    rows = [
        f"{word} 1 1 {1 + i // 3} {1 + i % 3} {i + 1} {10 * i} {len(word)} {len(word)} 0 0 0 "
        f"{i + 1} 1"
        for i, word in enumerate(words)
    ]
    (folder / "tx01wrdp.dat").write_text("\n".join(rows), encoding="latin-1")
    rows = [HEADER]
    for pair in ["1 200", "2 180", "2 90", "0 60", "4 210", "3 150", "4 120", "6 250", "6 30"]:
        word, ms = map(int, pair.split())
        blink = f"*Blink -99 -99 -99 -99 -99 -99 {ms} -99 -99 -99 -99"
        rows.append(f"{words[word - 1]} 1 1 3 3 12 {word} {ms} 1 1 -99 4" if word else blink)
    (folder / "sa01ma1p.dat").write_text("\n".join(rows), encoding="latin-1")


def test_the_dundee_layout_gives_first_fixations_gazes_and_totals(tmp_path):
    with pytest.raises(FrameError, match="0 files tx..wrdp.dat.*Name the folder"):
        corpora.dundee(tmp_path)
    dundee_files(tmp_path)
    corpus = corpora.dundee(tmp_path)
    assert " ".join(corpus.words["word"]) == 'Are tourists enticed by these "ads?"'
    assert corpus.words["line"].nunique() == 2
    found = corpus.readings.set_index("word_id")
    first_fixation = {1: 200, 2: 180, 4: 210, 6: 250}  # word 3 was passed over at first
    assert found["first_fixation_ms"].dropna().to_dict() == first_fixation
    assert found["gaze_ms"].dropna().to_dict() == {1: 200, 2: 270, 4: 210, 6: 280}
    assert found["total_ms"].to_dict() == {1: 200, 2: 270, 3: 150, 4: 330, 6: 280}
    assert found["prev_fixated"].to_dict() == {1: False, 2: True, 3: True, 4: False, 6: False}
    assert found["first_pass"].to_dict() == {1: True, 2: True, 3: False, 4: True, 6: True}
    (tmp_path / "tx01wrdp.dat").rename(tmp_path / "tx02wrdp.dat")
    with pytest.raises(FrameError, match="fixations of texts \\['01'\\]"):
        corpora.dundee(tmp_path)


@pytest.fixture
def csv_corpus(tmp_path):
    """Write the files of words and readings, and return what is read from them."""

    def read(readings, mark=",", measures="gaze_ms"):
        files = tmp_path / "words.csv", tmp_path / "readings.csv"
        words = 'text_id,word_id,word\n01,1,None\n01,2,"so;"\n'
        files[0].write_text(words.replace(",", mark))
        rows = [f"subject text_id word_id {measures}", *readings.split("; ")]
        files[1].write_text("\n".join(mark.join(row.split()) for row in rows))
        return corpora.from_csv(*files)

    return read


def test_csv_files_of_words_readings_and_counts_are_a_corpus(csv_corpus, tmp_path):
    corpus = csv_corpus("007 01 1 250; 007 01 2 0")
    (tmp_path / "counts.csv").write_text("word,count\nso,100\nnone,7\nnull,3\n")
    counts = _sniff.read_csv(tmp_path / "counts.csv", ["word"])
    frequency = corpora.log_frequency(corpus.words["word"], counts.set_index("word")["count"])
    np.testing.assert_allclose(frequency, np.log([7, 100]))
    assert corpus.words["word"].tolist() == ["None", "so;"]
    assert corpus.words["length_chars"].tolist() == [4, 2]
    assert corpus.readings["subject"].tolist() == ["007", "007"]
    assert corpus.readings["gaze_ms"].isna().tolist() == [False, True]
    assert corpus.notes[0].startswith("recognised: words and readings: 1 readers, 1 texts")
    assert corpus.notes[1:] == ("1 of 2 times 'gaze_ms' are 0 ms (not fixated) and missing",)
    assert len(frames.check_readings(corpora.join(corpus.readings, corpus.words))) == 2
    with pytest.raises(FrameError, match="are in both"):
        corpora.join(corpus.readings.assign(word="so"), corpus.words)
    with pytest.raises(FrameError, match=r"\['gaze_ms'\] hold 0 ms in 1 of 2 rows"):
        frames.check_readings(corpus.readings.fillna({"gaze_ms": 0}))
    with pytest.warns(RuntimeWarning, match="1 values of 'gaze_ms' are no numbers and missing"):
        assert csv_corpus("007 01 1 .; 007 01 2 250").readings["gaze_ms"].isna().sum() == 1
    with pytest.raises(FrameError, match=r"1 readings are of words that .* first \('01', 5\)"):
        csv_corpus("007 01 5 250")


def test_ids_are_joined_whether_they_are_numbers_or_text_and_ids_of_nothing_are_named():
    words = pd.DataFrame({"text_id": ["1", "2"], "word_id": [1, 1], "word": ["a", "b"]})
    readings = words.drop(columns="word").assign(gaze_ms=[200.0, 300.0])
    for name, types in (("text_id", [int, float, "category"]), ("word_id", [str, float])):
        for kind in types:
            assert corpora.join(readings.astype({name: kind}), words)["word"].tolist() == ["a", "b"]
            assert len(corpora.join(readings, words.astype({name: kind}))) == 2
    with pytest.raises(FrameError, match=r"the first .* are .'1', '1'. and .'x', '1'."):
        corpora.join(readings, words.assign(text_id=["x", "y"]))


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_commas_semicolons_and_tabs_separate_columns(mark, csv_corpus):
    time = "250.5" if mark == "," else "250,5"
    assert csv_corpus(f"007 01 1 {time}", mark).readings["gaze_ms"].tolist() == [250.5]
    thousands = '"1,234"' if mark == "," else "1,234"
    with pytest.raises(FrameError, match="'1,234', where the comma may mark"):
        csv_corpus(f"007 01 1 {thousands}; 008 01 1 310", mark)
    with pytest.raises(FrameError, match=r"columns \['gaze_ms'\] occur more than once"):
        csv_corpus("007 01 1 250 260", mark, "gaze_ms gaze_ms")
    with pytest.raises(FrameError, match="rows have more cells than the 4 names"):
        csv_corpus("007 01 1 250 9; 007 01 2 250", mark)


COLUMNS = ["Subject", "Item", "WordNr", "Word", "RT"]


@pytest.fixture
def long():
    """Two people, two sentences of three words, as a laboratory's software writes them."""
    table = pd.DataFrame({"Item": [7] * 3 + [8] * 3, "WordNr": [1, 2, 3] * 2})
    table["Word"] = "Dogs bark, loudly. It isn't late.".split()  # noqa: SIM905
    table = pd.DataFrame({"Subject": [1, 2]}).merge(table, how="cross")
    return table.assign(RT=np.arange(300.0, 312), condition=table["Item"] % 2, trial=range(12))


def test_a_long_table_says_what_it_dropped_and_how_it_read_what_is_written_otherwise(long):
    """EyeLink's reports write 0 for a word that was skipped; as a time it biased slopes."""
    gaps = long.assign(Subject=long["Subject"].where(long.index > 0), RT=long["RT"].astype(object))
    gaps.loc[[5, 6], "RT"] = ["timeout", 0]
    with pytest.warns(RuntimeWarning, match="1 values of 'RT' are no numbers"):
        corpus = corpora.from_long(gaps, measures={"RT": "self_paced_ms"})
    assert len(corpus.readings) == 11 and set(corpus.readings["subject"]) == {"1", "2"}
    assert corpus.readings["self_paced_ms"].isna().sum() == 2
    assert corpus.notes[:3] == (
        "1 of 12 rows without 'Subject' are dropped",
        "1 values of 'RT' are no numbers and missing: ['timeout']",
        "1 of 11 times 'self_paced_ms' are 0 ms (not fixated) and missing",
    )
    commas = long.assign(Word=long["Word"] + "%2C", RT=(long["RT"] + 0.5).astype(str))
    commas["RT"] = commas["RT"].str.replace(".", ",")
    corpus = corpora.from_long(commas, measures={"RT": "self_paced_ms"})
    assert corpus.words["word"].str.endswith(",").all()
    assert "%2C in 12 words is read as a comma" in corpus.notes
    assert corpus.readings["self_paced_ms"].tolist() == [x + 0.5 for x in range(300, 312)]
    slow = long.assign(RT=["1,024", *long["RT"].astype(int).astype(str)[1:]])
    with pytest.raises(FrameError, match="numbers such as '1,024', where the comma may"):
        corpora.from_long(slow, measures={"RT": "self_paced_ms"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.rename(columns={"WordNr": "Nr"}), "there is no column 'WordNr'; the file has"),
        (lambda t: pd.concat([t, t.head(1)]), "occur more than once"),
        (lambda t: t.assign(WordNr=t["WordNr"] + 0.5), "word_id is '1.5'.*whole numbers"),
        (lambda t: t.assign(Word=t["Word"] + t["Subject"].astype(str)), "several words stand at"),
        (lambda t: t.assign(RT=-t["RT"]), "negative times"),
        (lambda t: t.assign(text_id="x"), "columns .'text_id'. are there beside"),
    ],
)
def test_a_long_table_that_would_give_wrong_results_is_refused(long, change, says):
    with pytest.raises(FrameError, match=says):
        corpora.from_long(change(long), measures={"RT": "self_paced_ms"})


def write_pcibex(long, file):
    names = ["Results reception time", "MD5 hash of participant's IP address", "PennElementType"]
    names += ["Parameter", "Value", "Reading time", "Sentence (or sentence MD5)"]
    lines = ["# Results on a day.", "# USER AGENT: a browser", "# Columns below this comment:"]
    lines += [f"# {n}. {name}." for n, name in enumerate(names, 1)]
    for row in long.itertuples():
        cells = [17, row.Subject, "Controller-DashedSentence", row.WordNr]
        cells += [row.Word.replace(",", "%2C"), row.RT, row.Item]
        lines.append(",".join(map(str, cells)))
    lines.append("17,1,PennController,_Trial_,Start,NULL,NULL")
    file.write_text("\n".join(lines))


# programs that write one table, and how they name person, text, number, word and time
PROGRAMS = {
    "jsPsych": ["subject_id", "sentence", "word_number", "word", "rt_word"],
    "EyeLink": ["RECORDING_SESSION_LABEL", "item", "IA_ID", "IA_LABEL", "IA_FIRST_RUN_DWELL_TIME"],
    "a laboratory": COLUMNS,
}


READERS = ["from_csv", "words of surprisal", "scores", "wide", "PCIbex", *PROGRAMS]
EMPTY_LOOKING = [*sorted(STR_NA_VALUES - {""}), "None", "7", "07", "1e3", "TRUE", "so."]


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=settings.default.max_examples // 2)
@given(
    words=st.lists(st.sampled_from(EMPTY_LOOKING), min_size=3, max_size=3),
    ids=st.lists(st.sampled_from(EMPTY_LOOKING), min_size=2, max_size=2, unique=True),
    text=st.sampled_from(EMPTY_LOOKING),
    missing=st.sampled_from(sorted(STR_NA_VALUES)),
    mark=st.sampled_from([",", ";", "\t"]),
)
def test_no_word_person_or_text_is_taken_for_a_missing_value_and_no_time_for_text(
    reader, words, ids, text, missing, mark, tmp_path
):
    table = pd.DataFrame({"Item": text, "WordNr": [1, 2, 3], "Word": words})
    table = pd.DataFrame({"Subject": ids}).merge(table, how="cross")[COLUMNS[:4]]
    table["RT"], file = [310, missing, 290, 280, 300, 305], tmp_path / "table.csv"
    if reader == "scores":
        for name in ("Subject", "Word"):
            own = table.drop_duplicates(name).rename(columns={name: "item"})[["item", "RT"]]
            own.to_csv(file, index=False, sep=mark)
            assert cli.read_scores(file, "RT", None).index.tolist() == own["item"].tolist()
        return
    ours = table.set_axis(["subject", "text_id", "word_id", "word", "gaze_ms"], axis=1)
    if reader in ("from_csv", "words of surprisal"):
        ours.iloc[:3, 1:4].to_csv(file, index=False, sep=mark)
        ours.drop(columns="word").to_csv(tmp_path / "readings.csv", index=False, sep=mark)
        if reader != "from_csv":
            assert cli.read_words(str(file))["word"].tolist() == words
            return
        read = corpora.from_csv(file, tmp_path / "readings.csv")
    elif reader == "wide":
        wide = table.pivot(index=["Subject", "Item"], columns="WordNr", values=["Word", "RT"])
        wide.columns = [f"{name}{number}" for name, number in wide.columns]
        wide.assign(Word4="NA", RT4="NA").reset_index().to_csv(file, index=False, sep=mark)
        read = read_experiment(file, measure="RT", person="Subject", text="Item")
    elif reader == "PCIbex":
        write_pcibex(table, file)
        read = read_experiment(file)
        ours["subject"] = "17-" + ours["subject"]
        ours = ours[~ours["gaze_ms"].isin(["", "NULL"])]  # rows that are no readings
    else:
        table.set_axis(PROGRAMS[reader], axis=1).to_csv(file, index=False, sep=mark)
        read = read_experiment(file)
    keys = ["subject", "text_id", "word_id"]
    found = corpora.join(read.readings, read.words).set_index(keys).sort_index()
    expected = ours.set_index(keys).sort_index()
    assert found["word"].to_dict() == expected["word"].to_dict()
    times = pd.to_numeric(expected["gaze_ms"].mask(expected["gaze_ms"] == missing))
    np.testing.assert_array_equal(found.filter(like="_ms").iloc[:, 0].astype(float), times)


def test_named_columns_are_read_and_others_are_refused_with_both_headers(long, tmp_path):
    file = tmp_path / "own.csv"
    columns = {"person": "ID", "text": "Satz", "word": "Wort"}
    long[COLUMNS].set_axis(["ID", "Satz", "Nr", "Wort", "ms"], axis=1).to_csv(file, index=False)
    read = read_experiment(file, measure="ms", word_number="Nr", **columns)
    assert read.readings["self_paced_ms"].tolist() == long["RT"].tolist()
    assert read_experiment(file).readings.equals(read.readings)
    long[COLUMNS].set_axis([*"abcde"], axis=1).to_csv(file, index=False)
    told = {"person": "a", "text": "b", "word_number": "c", "word": "d", "measure": "e"}
    assert read_experiment(file, **told).readings.equals(read.readings)
    which = "has the columns a, b, c, d, e; which of them is the person, the text, the word, the m"
    with pytest.raises(FrameError, match=which):
        read_experiment(file)
    for name in told:
        with pytest.raises(FrameError, match="there is no column 'x'; the file has a, b, c, d, e"):
            read_experiment(file, **told | {name: "x"})


def test_a_folder_of_pymovements_is_read_as_the_guide_says(tmp_path, monkeypatch):
    """Two readers of one text as PoTeC's release has them, in pymovements' folders."""
    files = tmp_path / "potec/precomputed_reading_measures"
    files.mkdir(parents=True)
    head = "word\tword_index_in_text\tFFD\tFPRT\tRPD_inc\tTFT\ttext_id\treader_id\n"
    for reader, text in enumerate(
        ("Das 1 0 0 0 210, Licht 2 180 240 240 300", "Das 1 150 150 150 150, Licht 2 . . . .")
    ):
        lines = ("\t".join([*row.split(), "b0", str(reader)]) for row in text.split(", "))
        (files / f"reader{reader}_b0_merged.tsv").write_text(head + "\n".join(lines) + "\n")
    call = re.search(
        r"\n(corpus = psychlm.*?\n\))", (ROOT / "docs/your_corpus.md").read_text(), re.S
    )[1]
    monkeypatch.chdir(tmp_path)
    exec(call, names := {"psychlm": psychlm})
    corpus = names["corpus"]
    words = corpus.words[["text_id", "word_id", "word"]].to_numpy().tolist()
    assert words == [["b0", 1, "Das"], ["b0", 2, "Licht"]]
    times = corpus.readings.set_index(["subject", "word_id"])[list(EYELINK.values())]
    nan = np.nan  # not fixated (in the first pass), which the release writes as 0 or "."
    found = times.loc[[("0", 1), ("0", 2), ("1", 1), ("1", 2)]].to_numpy()
    expected = [[nan, nan, nan, 210], [180, 240, 240, 300], [150] * 4, [nan] * 4]
    np.testing.assert_array_equal(found, expected)


def test_measures_of_a_drawn_scanpath_are_those_written_by_hand():
    """Eight words; the eyes go 1 3 3 2 3 5 4 5 7 6 7 and never rest on 8.

    ::

        word        1    2    3    4    5    6    7    8
        time (ms)  200
                             180
                              90
                        160
                             140
                                       220
                                  130
                                       110
                                                 250
                                            170
                                                 100
    """
    path = [(1, 200), (3, 180), (3, 90), (2, 160), (3, 140), (5, 220), (4, 130), (5, 110)]
    path += [(7, 250), (6, 170), (7, 100)]
    fixations = pd.DataFrame(path, columns=["word_id", "duration_ms"])
    fixations = fixations.assign(subject="s", text_id="t", word_letter=range(1, 12))
    words = pd.DataFrame({"text_id": "t", "word_id": range(1, 9)})
    found = corpora.reading_measures(fixations, words).set_index("word_id")
    by_hand = {
        "first_fixation_ms": [200, None, 180, None, 220, None, 250, None],
        "single_fixation_ms": [200, None, None, None, 220, None, 250, None],
        "gaze_ms": [200, None, 270, None, 220, None, 250, None],
        "go_past_ms": [200, None, 570, None, 460, None, 520, None],
        "total_ms": [200, 160, 410, 130, 330, 170, 350, None],
        "rereading_ms": [None, 160, 140, 130, 110, 170, 100, None],
        "skipped": [False, True, False, True, False, True, False, True],
        "regression_out": [False, False, True, False, True, False, True, False],
        "regression_in": [False, True, False, True, False, True, False, False],
        "landing_letter": [1, None, 2, None, 6, None, 9, None],
    }
    for name, expected in by_hand.items():
        values = found[name].astype(object).where(found[name].notna(), None)
        assert values.tolist() == expected, name
    fixated = corpora.reading_measures(fixations).set_index("word_id")
    pd.testing.assert_frame_equal(fixated, found.loc[1:7], check_dtype=False)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.data())
def test_reading_measures_do_not_depend_on_how_people_are_interleaved(drawn):
    """Fixations of three people sorted by time of day give what each person alone gives."""
    people = []
    for person in range(3):
        fixated = drawn.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
        table = pd.DataFrame({"word_id": fixated, "duration_ms": np.arange(len(fixated)) + 100})
        people.append(table.assign(subject=f"s{person}", text_id="t"))
    alone = pd.concat(map(corpora.reading_measures, people), ignore_index=True)
    turns = drawn.draw(st.permutations([i for i, table in enumerate(people) for _ in table.index]))
    rows = [table.itertuples(index=False) for table in people]
    mixed = pd.DataFrame([next(rows[person]) for person in turns])
    pd.testing.assert_frame_equal(corpora.reading_measures(mixed), alone)


def test_frequencies_depend_neither_on_case_nor_on_the_form_of_apostrophes_and_accents():
    counts = {"The": 1, "the": 2, "THE": 4, "don't": 4, "café": 2, "l’a": 3}
    printed = {"the": 7, "The,": 7, "don’t": 4, "“Don't”": 4, "cafe\u0301,": 2, "l’A": 3}
    found = np.exp(corpora.log_frequency(pd.Series([*printed]), counts))
    assert found.tolist() == pytest.approx(list(printed.values()))
    twice = pd.Series([1, 2, 3], ["the", "cat", "the"])
    with pytest.raises(FrameError, match=r"\['the'\] more than once"):
        corpora.log_frequency(pd.Series(["cat"]), twice)


def test_the_means_of_the_single_readings_are_the_released_ones() -> None:
    """Frank et al. (2013) against de Varda et al. (2023), for all 1,726 words; 0 where skipped."""
    means, single = corpora.ucl(), corpora.ucl(single=True)
    keys = ["text_id", "word_id"]
    measures = ["first_fixation_ms", "gaze_ms", "right_bounded_ms", "go_past_ms"]
    assert single.readings["subject"].nunique() == 43
    averaged = single.readings.fillna(dict.fromkeys(measures, 0)).groupby(keys)[measures].mean()
    released = means.readings.set_index(keys)[measures].sort_index()
    pd.testing.assert_frame_equal(averaged, released, rtol=1e-12)
    first = single.readings[single.readings["word_id"] == 3].iloc[0]
    same = single.readings[["subject", "text_id"]].eq(first[["subject", "text_id"]]).all(axis=1)
    second = single.readings[same & (single.readings["word_id"] == 2)].iloc[0]
    assert first["prev_fixated"] == (second["gaze_ms"] > 0)
