"""Reading-time corpora, public ones and your own; lags, word frequencies and exclusions of words.

Readers return a :class:`Corpus`. From there to a model of reading times::

    corpus = reading_times.natural_stories()
    words = reading_times.add_lags(corpus.words, ["length_chars"])  # prev_length_chars
    words, removed = reading_times.exclude(words)                   # named, counted exclusions
    readings = reading_times.join(corpus.readings, words)           # readings of the words left

Your own data are two CSV files (:func:`from_csv`) or one long table (:func:`from_long`)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import regex

from psychlm import data, frames
from psychlm.corpora import _sniff
from psychlm.corpora.experiments import (
    PYMOVEMENTS,
    Corpus,
    from_csv,
    from_long,
    from_pymovements,
    skipped_as_missing,
    with_predictors,
)
from psychlm.frames import FrameError, refuse

__all__ = [
    "GOODKIND_BICKNELL",
    "PYMOVEMENTS",
    "Corpus",
    "add_lags",
    "dundee",
    "exclude",
    "from_csv",
    "from_long",
    "from_pymovements",
    "join",
    "log_frequency",
    "natural_stories",
    "provo",
    "reading_measures",
    "sap",
    "ucl",
    "ucl_norms",
    "ucl_sentences",
]


# ---- predictors, exclusions ----


def log_frequency(words: pd.Series, counts: Mapping[str, float]) -> pd.Series:
    """Return the natural logarithm of the count of each word, bare and in lower case.

    Words without a count have NaN. Neither case, nor the form of apostrophes and accents matters in
    words or counts: the counts of "The" and "the" are added.

    >>> log_frequency(pd.Series(["The", "sea,", "selkie"]), {"the": 1, "sea": 1}).tolist()
    [0.0, 0.0, nan]
    """

    def lower(text: pd.Series) -> pd.Series:
        apostrophes = text.str.normalize("NFC").str.replace(r"[’‘ʼ`´]", "'", regex=True)
        return apostrophes.str.lower()

    table = pd.Series(counts, dtype=float)
    twice = table.index[table.index.duplicated()]
    add = "more than once; add them: counts.groupby(level=0).sum()"
    refuse("counts have the words", twice, add)
    of_lower = table.groupby(lower(table.index.astype(str).to_series()).to_numpy()).sum()
    # regex's \w holds combining marks, which belong to the letter before them
    edges = regex.compile(r"^[\W_]+|[\W_]+$")
    count = lower(words).map(lambda word: of_lower.get(edges.sub("", word)), na_action="ignore")
    return np.log(count.where(count > 0)).rename("log_frequency")


def add_lags(words: pd.DataFrame, columns: Sequence[str], lags: int = 1) -> pd.DataFrame:
    """Add columns with the values of previous words: ``prev_length_chars``, ``prev2_...``, ...

    ``words`` are whole texts (add lags before words are left out). A lag never crosses a text or a
    gap in ``word_id``: where there is no such word the value is missing.

    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["Good", "day."]})
    >>> add_lags(words.assign(length_chars=[4, 3]), ["length_chars"])["prev_length_chars"].tolist()
    [nan, 4.0]
    """
    words = frames.check_words(words, whole_texts=False)
    ordered = words.sort_values(["text_id", "word_id"], kind="stable")
    added: dict[str, pd.Series] = {}
    for lag in range(1, lags + 1):
        before = ordered[["text_id", "word_id"]].shift(lag)
        follows = before["text_id"] == ordered["text_id"]
        follows &= before["word_id"] == ordered["word_id"] - lag
        prefix = "prev_" if lag == 1 else f"prev{lag}_"
        added |= {prefix + name: ordered[name].shift(lag).where(follows) for name in columns}
    return words.assign(**added)


def _is_edge(words: pd.DataFrame, group: str, edge: str) -> pd.Series:
    """Return which words are the first (``edge="min"``) or last ("max") of a text or line."""
    if group not in words:
        return pd.Series(False, index=words.index)
    groups = words.groupby(list({"text_id", group}))
    return words["word_id"] == groups["word_id"].transform(edge)


Step = Callable[[pd.DataFrame], pd.Series]
GOODKIND_BICKNELL: dict[str, Step] = {
    "first word of a text": lambda words: _is_edge(words, "text_id", "min"),
    "last word of a text": lambda words: _is_edge(words, "text_id", "max"),
    "first word of a line": lambda words: _is_edge(words, "line", "min"),
    "last word of a line": lambda words: _is_edge(words, "line", "max"),
    "before punctuation": lambda words: frames.without_marks(words["word"]).str.contains(r"[\W_]$"),
    "not alphabetic": lambda words: (
        ~frames.without_marks(words["word"]).str.fullmatch(r"[\W_]*[^\W\d_]+[\W_]*")
    ),
    "no frequency": lambda words: words.get("log_frequency", words["word_id"]).isna(),
}
"""The exclusions of Goodkind & Bicknell (2018); those on lines or frequencies need such columns."""


def exclude(
    words: pd.DataFrame, steps: Mapping[str, Step] = GOODKIND_BICKNELL
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Leave words out by named steps, and count what each step removed.

    ``words`` are whole texts; each step takes them and returns which to leave out (bool). The word
    after each of these goes too, since its predictors hold the excluded word's. Return the words
    that are left, and by step how many were ``flagged``, ``removed`` (by no step before it) and
    ``left``.

    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["Good", "day."]})
    >>> exclude(words)[1].set_index("step").loc["first word of a text", "removed"]
    np.int64(1)
    """
    words = frames.check_words(words, whole_texts=False)
    flags = {name: step(words).astype(bool) for name, step in steps.items()}
    marked = words.assign(out=np.logical_or.reduce(list(flags.values())))
    flags["after one of these"] = add_lags(marked, ["out"])["prev_out"].eq(True)
    flagged = pd.DataFrame(flags, index=words.index)
    out = flagged.cummax(axis=1)  # by this step, or one before it
    table = pd.DataFrame({"flagged": flagged.sum(), "left": (~out).sum()})
    table["removed"] = out.sum().diff().fillna(out.sum()).astype(int)
    table = table.rename_axis("step").reset_index()[["step", "flagged", "removed", "left"]]
    return words[~out.iloc[:, -1]], table


def join(readings: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """Return the readings of the given words, with the words' columns beside them.

    >>> words = pd.DataFrame({"text_id": ["t"], "word_id": [1], "length_chars": [4]})
    >>> join(words[["text_id", "word_id"]].assign(gaze_ms=250), words).columns.tolist()
    ['text_id', 'word_id', 'gaze_ms', 'length_chars']
    """
    readings, words = frames.plain(readings), frames.plain(words)
    keys = ["text_id", "word_id"]
    shared = [name for name in words if name in readings and name not in keys]
    refuse("columns", shared, "are in both the readings and the words; rename or drop them in one")
    return readings.merge(words, on=keys, how="inner", validate="many_to_one")


# ---- public corpora ----


def _released(name: str, **options: Any) -> pd.DataFrame:
    """Read a released table; what looks like a missing value ("None", "NA") is a word."""
    return pd.read_csv(data.path(name), keep_default_na=False, na_values=[""], **options)


def ucl(*, single: bool = False) -> Corpus:
    """Read the UCL corpus: 205 sentences from novels, reading times, surprisals of twelve models.

    Sentences are the texts; their first words were not released. ``log_frequency`` is the natural
    logarithm of the SUBTLEX-US count (missing for 30 words), ``length_chars`` counts attached
    punctuation, as released. Times are means over people, with 0 for those who skipped the word
    (Frank et al. 2013; de Varda et al. 2023); ``single`` gives the readings of the 43 people under
    the eye-tracker instead, NaN where a word was skipped, with ``prev_fixated``.

    >>> ucl().readings.shape
    (1726, 8)
    """
    order = ["sent_id", "context_length"]
    corpus = _from_facts(
        "ucl2023", lambda: _released("ucl2023/all_measures").sort_values(order)["word"]
    )
    if not single:
        return corpus
    readings, notes = skipped_as_missing(data.facts("frank2013/readings"))
    of_reader = [readings["subject"], readings["text_id"]]
    before = readings["first_fixation_ms"].notna().groupby(of_reader).shift(fill_value=False)
    readings = readings.assign(prev_fixated=before.astype(bool))
    readings = frames.check_readings(readings[readings["word_id"] > 1].reset_index(drop=True))
    return replace(corpus, readings=readings, notes=(*corpus.notes, *notes))


def ucl_sentences() -> pd.DataFrame:
    """Return the words of the UCL corpus's whole sentences, for language models to read.

    >>> ucl_sentences()  # doctest: +SKIP
    """
    raw = _released("ucl2023/all_measures")
    texts = raw.drop_duplicates("sent_id").set_index("sent_id")["sentence"].sort_index()
    words = texts.str.split().explode().rename("word").rename_axis("text_id").reset_index()
    words["word_id"] = words.groupby("text_id").cumcount() + 1
    return words.astype({"text_id": str})


def ucl_norms() -> pd.DataFrame:
    """Return the UCL corpus's cloze norms and the surprisals of seven GPT models (de Varda et al.
    2023), in bits, and whether a word is ``bare``: letters only, without punctuation or clitics.

    In a cloze test people read the beginning of a sentence and say the next word; the share of them
    who say the printed one, smoothed, is its cloze probability (Hao et al. 2020, section 3.3.2). A
    sentence's first word was not normed; its last word has the full stop attached.

    >>> ucl_norms().columns[3:6].tolist()
    ['cloze_surprisal_bits', 'GPT-2', 'GPT-2 medium']
    """
    corpus, keys = ucl(), ["text_id", "word_id"]
    assert corpus.surprisals is not None  # this corpus was released with them
    released = corpus.surprisals.set_index(keys).filter(regex="^GPT").reset_index()
    words = corpus.words[[*keys, "word", "cloze_surprisal_bits"]]
    table = words.merge(released, on=keys, validate="one_to_one")
    return table.assign(bare=table["word"].str.fullmatch("[A-Za-z]+"))


def natural_stories() -> Corpus:
    """Read the Natural Stories corpus: ten stories, mean self-paced times and GPT-3's surprisals.

    ``n_readers`` counts the people behind each mean (Futrell et al. 2021). The model's tokens are
    summed over the word that they begin in; the first word of a story has none. The release has no
    word frequencies: see :func:`log_frequency`.

    >>> natural_stories().readings.shape
    (10256, 5)
    """
    return _from_facts("naturalstories")


def provo() -> Corpus:
    """Read the Provo corpus: 55 passages with eye-tracking means (Luke & Christianson 2018).

    The measures come from the CMCL 2021 shared task, which scaled them: they are not in ms, and
    their names end in ``_scaled``. That release also cut the passages into sentences; its words are
    found in the passages by their letters, and those that are not are left out.

    >>> provo().readings.shape
    (2650, 8)
    """

    def words() -> pd.Series:
        # An apostrophe was Mac Roman.
        return _released("provo/provo_texts")["text"].str.replace("Õ", "'").str.split().explode()

    return _from_facts("provo", words)


def sap() -> Corpus:
    """Read the agreement and NP/Z part of the SAP Benchmark: single self-paced times of 2,000
    people (Huang et al. 2024).

    In the difficult version of an item a verb follows what looked like an object (``construction``
    "NP/Z": "Because the suspect changed the file deserved ..."), or does not agree with its subject
    ("agreement"); the easy version has a comma, or the right number. Sentences are the texts; six
    words of each were timed, at ``region`` -3 to 2 from that verb.

    >>> sap().readings["subject"].nunique()
    2000
    """
    sentences = data.facts("sap2024/sentences")
    ids = {"sentence_id": "text_id", "word_position": "word_id", "participant": "subject"}
    names = {"gpt2_bits": "GPT-2", "lstm_bits": "LSTM", "rnng_bits": "RNNG"}
    sentences = sentences.rename(columns=ids)
    bits = sentences[list(names)].apply(pd.to_numeric).rename(columns=names)
    # One sentence was released without its words.
    with_words = sentences.join(bits)[bits["GPT-2"].notna()].reset_index(drop=True)
    readings = data.facts("sap2024/readings").rename(columns=ids)
    there = readings["text_id"].isin(with_words["text_id"])
    note = f"{int((~there).sum())} of {len(readings)} readings are of a sentence without words"
    readings = readings[there].assign(
        construction=readings["construction"].map({"NPZ": "NP/Z", "NP/Z Agreement": "agreement"}),
        difficult=readings["grammaticality"] == "U",
        item=readings["item"].map("{:02d}".format),
    )
    readings = readings.drop(columns=["grammaticality", "ambiguity"])
    words = with_predictors(frames.check_words(with_words[["text_id", "word_id", "word"]]))
    surprisals = words[["text_id", "word_id"]].join(with_words[list(names.values())])
    return Corpus(words, frames.check_readings(readings), surprisals, (note,))


def _from_facts(name: str, printed: Callable[[], pd.Series] | None = None) -> Corpus:
    """Read a corpus from committed facts, with its words as printed where the text is at hand.

    ``printed`` reads the words of a text that may not be passed on. Without it a word is its shape:
    "Don't," is "aaa'a,"."""
    words, readings = data.facts(f"{name}/words"), data.facts(f"{name}/readings")
    words = words.rename(columns={"word_shape": "word"})
    surprisals = data.facts(f"{name}/surprisals") if name != "provo" else None
    if printed is None:
        return Corpus(words, readings, surprisals)
    try:
        texts = printed().reset_index(drop=True)
    except data.DataMissingError:
        note = f"words are shapes, without their letters: the texts of {name} are not at hand"
        return Corpus(words, readings, surprisals, (note,))
    if not frames.word_shape(texts).eq(words["word"]).all():
        raise FrameError(f"the text of {name} is another than that of its stored times")
    return Corpus(words.assign(word=texts), readings, surprisals)


# Columns of the Dundee Corpus's files, in their order.
_FIXATIONS = (
    "word screen line printed_chars length_chars x word_id duration_ms letter word_letter launch "
    "text_frequency"
)
_WORDS = (
    "word text screen line line_position screen_position x printed_chars length_chars punctuation "
    "opening closing word_id text_frequency"
)


def dundee(folder: str | Path) -> Corpus:
    """Read the Dundee Corpus (Kennedy 2003) from its original files, licensed by its university.

    The folder, or one below it, holds ``tx01wrdp.dat`` ... (the words) and ``sa01ma1p.dat`` ...
    (fixations in order of time: subject sa, text 01). ``words`` have ``screen``, ``line`` and
    ``length_chars`` (without punctuation), ``readings`` of the words that were fixated the measures
    of :func:`reading_measures`.

    >>> dundee("dundee").readings  # doctest: +SKIP
    """
    names = {file.name.lower(): file for file in sorted(Path(folder).rglob("*.dat"))}
    texts = {n[2:4]: f for n, f in names.items() if re.fullmatch(r"tx\d\dwrdp\.dat", n)}
    events = {n[:4]: f for n, f in names.items() if re.fullmatch(r"s[a-z]\d\dma1p\.dat", n)}
    if not texts or not events:
        raise FrameError(
            f"{folder} holds {len(texts)} files tx??wrdp.dat and {len(events)} s???ma1p.dat; the "
            "corpus has 20 and 200. Name the folder that holds both"
        )
    strays = sorted({name[2:] for name in events} - set(texts))
    refuse("fixations of texts", strays, "have no words, a file tx??wrdp.dat; copy it too")

    def read(file: Path, columns: str, header: int) -> pd.DataFrame:
        """Read a table whose columns are separated by blanks; quotes are part of the words."""
        layout = {"sep": r"\s+", "names": columns.split(), "skiprows": header, "index_col": False}
        plain = {"quoting": 3, "keep_default_na": False, "encoding": "latin-1"}
        table = pd.read_csv(file, **layout, **plain)
        wrong = pd.to_numeric(table["word_id"], errors="coerce").isna()
        if wrong.any():
            line = int(wrong.argmax()) + header + 1
            raise FrameError(f"{file.name}, line {line}: the word number is none; is it cut off?")
        return table

    tables = [read(file, _WORDS, 0).assign(text_id=text) for text, file in texts.items()]
    words = pd.concat(tables, ignore_index=True)
    words["position"] = words["word_id"]
    words["line"] = words["screen"].astype(str) + "." + words["line"].astype(str)
    tables = [
        read(file, _FIXATIONS, 1).assign(subject=name[:2], text_id=name[2:])
        for name, file in events.items()
    ]
    fixations = pd.concat(tables, ignore_index=True)
    # Rows such as *Blink and *Off-screen are no words.
    on_words = ~fixations["word"].str.startswith("*") & (fixations["word_id"] > 0)
    kept = ["text_id", "word_id", "word", "position", "screen", "line", "length_chars"]
    words = frames.check_words(words[kept], whole_texts=False)
    return Corpus(words, frames.check_readings(reading_measures(fixations[on_words])))


def reading_measures(fixations: pd.DataFrame) -> pd.DataFrame:
    """Turn fixations in order of time into times by person and word.

    ``fixations`` hold ``subject``, ``text_id``, ``word_id`` and ``duration_ms``, of each person and
    text in the order in which they happened. Of the words that were fixated, return
    ``first_fixation_ms``, ``gaze_ms`` (from entering the word first to leaving it first),
    ``total_ms``, ``prev_fixated`` (the word before had been fixated by then) and ``first_pass`` (no
    later word had been). Fixations off the words, whose ``word_id`` is missing or ".", are
    left out; ``attrs["left_out"]`` counts them, and a warning says it.

    >>> fixations = pd.DataFrame({"subject": "s", "text_id": "t", "word_id": [1, 1, 2, 1]})
    >>> fixations["duration_ms"] = [200, 100, 250, 150]
    >>> reading_measures(fixations)[["gaze_ms", "total_ms"]].to_numpy().tolist()
    [[300, 450], [250, 250]]
    """
    keys = ["subject", "text_id", "word_id"]
    # One person's reading of a text at a time, whatever order the persons come in.
    seen = frames.plain(fixations)[[*keys, "duration_ms"]]
    numbers, others = _sniff.numbers_among(seen["word_id"].replace({".": np.nan}))
    off = numbers.isna()
    wrong = [*others.unique(), *numbers[numbers % 1 > 0].unique()]
    refuse(
        "words", wrong, "of fixations are no whole numbers; name a word by its place in the text"
    )
    if off.any():
        warnings.warn(
            f"{int(off.sum())} of {len(seen)} fixations are on no word and left out",
            RuntimeWarning,
            stacklevel=2,
        )
    seen = seen.assign(word_id=numbers)[~off].astype({"word_id": np.int64})
    seen = seen.sort_values(keys[:2], kind="stable", ignore_index=True)
    groups = [seen[key] for key in keys]
    # A visit is a run of fixations on one word; gaze duration is the first visit's.
    visit = (seen[keys] != seen[keys].shift()).any(axis=1).cumsum()
    first_visit = visit == visit.groupby(groups).transform("min")
    gaze = seen["duration_ms"].where(first_visit, 0).groupby(groups).transform("sum")
    furthest = seen.groupby(["subject", "text_id"], sort=False)["word_id"].cummax()
    table = seen[keys].assign(
        first_fixation_ms=seen["duration_ms"],
        gaze_ms=gaze,
        total_ms=seen.groupby(keys, sort=False)["duration_ms"].transform("sum"),
        first_pass=seen["word_id"] >= furthest,
        order=seen.index,
    )
    table = table[~seen.duplicated(keys)]
    before = table[[*keys, "order"]].assign(word_id=table["word_id"] + 1)
    table = table.merge(before, on=keys, how="left", suffixes=("", "_before"))
    table["prev_fixated"] = table["order_before"] < table["order"]
    columns = [*keys, "first_fixation_ms", "gaze_ms", "total_ms", "prev_fixated", "first_pass"]
    measures = table[columns].sort_values(keys, ignore_index=True)
    measures.attrs["left_out"] = int(off.sum())
    return measures
