"""Reading-time corpora, public ones and your own; lags, word frequencies, measures and exclusions.

Readers return a :class:`Corpus`. From there to a model of reading times::

    corpus = reading_times.natural_stories()
    words = reading_times.add_lags(corpus.words, ["length_chars"])  # prev_length_chars
    words, removed = reading_times.exclude(words)                   # named, counted exclusions
    steps = reading_times.trimming("self_paced_ms", shortest=100, sd=2.5)
    readings, trimmed = reading_times.exclude(corpus.readings, steps)
    readings = reading_times.join(readings, words)                  # readings of the words left

Your own data are two CSV files (:func:`from_csv`) or one long table (:func:`from_long`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm import data, frames
from psychlm.corpora._corpus import (
    Corpus,
    from_long,
    skipped_as_missing,
    with_predictors,
)
from psychlm.corpora.experiments import from_csv
from psychlm.corpora.fixations import reading_measures
from psychlm.corpora.frequency import language_of, log_frequency
from psychlm.frames import FrameError, refuse

__all__ = ["GOODKIND_BICKNELL", "add_lags", "exclude", "join", "places_before", "trimming"]
__all__ += ["Corpus", "from_csv", "from_long", "language_of", "log_frequency", "reading_measures"]
__all__ += ["dundee", "natural_stories", "provo", "sap", "ucl", "ucl_norms", "ucl_sentences"]


# ---- predictors, exclusions ----


def add_lags(
    words: pd.DataFrame, columns: Sequence[str], lags: int = 1, *, within: Sequence[str] = ()
) -> pd.DataFrame:
    """Add columns with the values of previous words: ``prev_length_chars``, ``prev2_...``, ...

    ``words`` are whole texts (add lags before words are left out), or readings, with ``subject``,
    whose previous words are the same reader's. A lag never crosses a text, a gap in ``word_id``, or
    a change in the columns ``within`` (``["sentence_id"]``): where there is no such word the value
    is missing.

    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["Good", "day."]})
    >>> add_lags(words.assign(length_chars=[4, 3]), ["length_chars"])["prev_length_chars"].tolist()
    [nan, 4.0]
    """
    columns = np.atleast_1d(columns).tolist()
    if "subject" in words:
        words = frames.check_rows(words, ["subject", "text_id", "word_id"], [], "readings")
    else:
        words = frames.check_words(words, whole_texts=False)
    absent = [name for name in columns if name not in words]
    refuse("columns", absent, f"are not there; there are {list(words.columns)}")
    added: dict[str, pd.Series] = {}
    for lag, places in enumerate(places_before(words, lags, within)[1:], start=1):
        prefix = "prev_" if lag == 1 else f"prev{lag}_"
        for name in columns:
            values = words[name].iloc[places].set_axis(words.index)
            added[prefix + name] = values.where(places >= 0)
    return words.assign(**added)


def places_before(words: pd.DataFrame, lags: int, within: Sequence[str] = ()) -> NDArray[np.int64]:
    """Return the places of each word and of those before it, or -1, shape (1 + lags, n_words).

    The word before a word has the number before its own, in the same text (of readings, by the same
    reader) and, with ``within``, the same values of those columns. All lags are made here.

    >>> places_before(pd.DataFrame({"text_id": "a", "word_id": [2, 1, 4]}), 1).tolist()
    [[0, 1, 2], [1, -1, -1]]
    """
    if lags < 0:
        raise ValueError(f"lags is {lags}; it counts previous words")
    within = np.atleast_1d(within).tolist()
    absent = [name for name in within if name not in words]
    refuse("columns", absent, f"of within= are not there; there are {list(words.columns)}")
    keys = [name for name in ("subject", "text_id") if name in words]
    order = np.lexsort((words["word_id"], *(pd.factorize(words[name])[0] for name in keys)))
    ordered = words.iloc[order]
    number = ordered["word_id"].to_numpy()
    codes = [pd.factorize(ordered[name])[0] for name in (*keys, *within)]
    places = [np.arange(len(words))]
    for lag in range(1, lags + 1):
        follows = number[lag:] == number[:-lag] + lag
        for code in codes:  # a missing value is equal to none
            follows &= (code[lag:] == code[:-lag]) & (code[lag:] >= 0)
        before = np.full(len(words), -1)
        before[order[lag:]] = np.where(follows, order[:-lag], -1)
        places.append(before)
    return np.stack(places)


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
    """Leave words, or readings, out by named steps, and count what each step removed.

    A step takes a frame and returns which rows to leave out (bool). Of ``words``, whole texts, each
    step takes all; the word after those left out goes too, since its predictors hold the excluded
    word's. Of readings (with a column ``subject``; :func:`trimming`) a step takes those that the
    steps before it left, as in a methods section: means and deviations are of these.

    Returns
    -------
    kept : DataFrame
        The words or readings that are left.
    removed : DataFrame
        By ``step`` how many rows were ``flagged``, ``removed`` (by no step before it) and ``left``;
        of readings, which are flagged once, also their share of all, ``percent``, and how many
        ``readers`` are left.

    Examples
    --------
    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["Good", "day."]})
    >>> exclude(words)[1].set_index("step").loc["first word of a text", "removed"]
    np.int64(1)
    """
    if "subject" in words:
        return _exclude_readings(frames.plain(words), steps)
    words = frames.check_words(words, whole_texts=False)
    flags = {name: _flagged(words, name, step) for name, step in steps.items()}
    marked = words.assign(out=np.logical_or.reduce(list(flags.values())))
    flags["after one of these"] = add_lags(marked, ["out"])["prev_out"].eq(True)
    flagged = pd.DataFrame(flags, index=words.index)
    out = flagged.cummax(axis=1)  # by this step, or one before it
    table = pd.DataFrame({"flagged": flagged.sum(), "left": (~out).sum()})
    table["removed"] = out.sum().diff().fillna(out.sum()).astype(int)
    table = table.rename_axis("step").reset_index()[["step", "flagged", "removed", "left"]]
    return words[~out.iloc[:, -1]], table


def _flagged(rows: pd.DataFrame, name: str, step: Step) -> pd.Series:
    """Return which rows a step leaves out."""
    try:
        out = pd.Series(step(rows), rows.index)
    except (KeyError, TypeError) as error:
        raise FrameError(
            f"the step {name!r} cannot be computed ({error}); it needs a column of numbers, or one "
            f"that is not there: there are {list(rows.columns)}"
        ) from error
    if len(out) and not pd.api.types.is_bool_dtype(out):
        raise FrameError(f"the step {name!r} returned {out.dtype}, and not True or False by row")
    return out.astype(bool)


def _exclude_readings(
    readings: pd.DataFrame, steps: Mapping[str, Step]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Apply the steps one after the other to the readings left."""
    if steps is GOODKIND_BICKNELL:
        raise ValueError(
            "these steps are of words, and readings are given; write exclude(readings, "
            "trimming('self_paced_ms', shortest=100, sd=2.5)), or exclude words and join both"
        )
    left = readings
    rows = []
    for name, step in steps.items():
        out = _flagged(left, name, step)
        left = left[~out]
        share = 100 * out.sum() / max(len(readings), 1)
        rows.append((name, int(out.sum()), share, len(left), left["subject"].nunique()))
    return left, pd.DataFrame(rows, columns=["step", "removed", "percent", "left", "readers"])


def trimming(
    measure: str,
    *,
    accuracy: Mapping[str, float] | None = None,
    least_accuracy: float = 0.8,
    longest_total_s: float | None = None,
    shortest: float | None = None,
    longest: float | None = None,
    sd: float | None = None,
    by: Sequence[str] = ("subject",),
    log: bool = False,
) -> dict[str, Step]:
    """Return the usual exclusions of readings as named steps for :func:`exclude`, in this order.

    Readings without a time; readers with few right answers, or who took too long; times below or
    above a limit; times far from the rest of the same reader (and condition). The steps are a dict:
    add your own with ``|``, ``{"practice": lambda r: r["block"] == "practice"} | trimming(...)``.
    Practice trials are left out by ``read_experiment``, which says so.

    Parameters
    ----------
    measure : str
        The column of times (ms).
    accuracy, least_accuracy : mapping, float
        The share of right answers of each reader, as ``corpus.accuracy``, and the least that is
        kept; a reader without a known answer is kept.
    longest_total_s : float, optional
        Readers whose times add up to more seconds are left out.
    shortest, longest : float, optional
        Times below or above are left out (ms).
    sd, by, log : float, sequence of str, bool
        Times, or with ``log`` their logarithms, more than so many standard deviations from the mean
        of their group are left out; ``by=["subject", "condition"]`` makes groups.

    Examples
    --------
    >>> readings = pd.DataFrame({"subject": "s1", "text_id": "t", "word_id": [1, 2, 3, 4]})
    >>> readings["self_paced_ms"] = [np.nan, 80, 300, 9000]
    >>> steps = trimming("self_paced_ms", shortest=100, longest=3000)
    >>> exclude(readings, steps)[1].iloc[:, [0, 1, 3]].to_numpy().tolist()
    [['no time', 1, 3], ['below 100 ms', 1, 2], ['above 3,000 ms', 1, 1]]
    """

    def far(readings: pd.DataFrame) -> pd.Series:
        x = np.log(readings[measure]) if log else readings[measure]
        groups = x.groupby([readings[name] for name in by], dropna=False)
        return (x - groups.transform("mean")).abs() > sd * groups.transform("std")

    by = np.atleast_1d(by).tolist()
    groups = " and ".join(by)
    scale = "the logarithm, " if log else ""
    steps: dict[str, Step] = {"no time": lambda readings: readings[measure].isna()}
    if accuracy is not None:
        share = {str(name): value for name, value in dict(accuracy).items()}
        steps[f"readers with less than {least_accuracy:.0%} right answers"] = lambda readings: (
            readings["subject"].astype(str).map(share).lt(least_accuracy)
        )
    if longest_total_s is not None:
        steps[f"readers who took more than {longest_total_s:g} s"] = lambda readings: (
            readings.groupby("subject")[measure].transform("sum") > 1000 * longest_total_s
        )
    if shortest is not None:
        steps[f"below {shortest:,g} ms"] = lambda readings: readings[measure] < shortest
    if longest is not None:
        steps[f"above {longest:,g} ms"] = lambda readings: readings[measure] > longest
    if sd is not None:
        steps[f"beyond {sd:g} SD ({scale}by {groups})"] = far
    return steps


def join(readings: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """Return the readings of the given words, with the words' columns beside them.

    >>> words = pd.DataFrame({"text_id": ["t"], "word_id": [1], "length_chars": [4]})
    >>> join(words[["text_id", "word_id"]].assign(gaze_ms=250), words).columns.tolist()
    ['text_id', 'word_id', 'gaze_ms', 'length_chars']
    """
    keys = ["text_id", "word_id"]
    # ids are text, as in all frames; a word has many readings
    readings = frames.check_rows(readings, keys, [], "readings", once=False)
    words = frames.check_rows(words, keys, [], "words")
    shared = [name for name in words if name in readings and name not in keys]
    refuse("columns", shared, "are in both the readings and the words; rename or drop them in one")
    joined = readings.merge(words, on=keys, how="inner")
    if joined.empty:
        first = [frame[keys].astype(str).iloc[0].tolist() for frame in (readings, words)]
        raise FrameError(
            f"no reading is of one of the words; the first (text_id, word_id) are {first[0]} and "
            f"{first[1]}"
        )
    return joined


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
    first = readings["word_id"] == 1
    notes.append(
        f"{int(first.sum()):,} of {len(readings):,} readings are of first words, which were not "
        "released, and left out"
    )
    readings = frames.check_readings(readings[~first].reset_index(drop=True))
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
    corpus = ucl()
    keys = ["text_id", "word_id"]
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
    words = data.facts(f"{name}/words")
    readings = data.facts(f"{name}/readings")
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
