"""Reading studies from files of your own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm import frames, roles
from psychlm.corpora import _sniff
from psychlm.corpora._corpus import Corpus, from_long, joined, with_predictors, with_times
from psychlm.corpora._formats import (
    GRADES,
    PRACTICE,
    USUAL,
    Format,
    check_column,
    filtered_rows,
    find,
    kinds_of,
    naming,
    one_label,
    practice_in,
    series_of,
)
from psychlm.corpora._reading_formats import (
    A_TEXT,
    TIME_OF,
    list_of,
    of_words_only,
    read_rows,
    with_lists,
)
from psychlm.corpora._sniff import FILE
from psychlm.frames import FrameError, format_names, refuse

YES_AND_NO = dict.fromkeys("yes y ja j oui o sí si s sì".split(), 1.0)
YES_AND_NO |= dict.fromkeys("no n nein non não nee".split(), 0.0)
OURS = {"person": "subject", "text": "text_id", "word_number": "word_id", "word": "word"}
NUMBER = "number of the word"
FILLER = re.compile(r"(?i)(?<![a-z])(?:fillers?|distra[ck]tors?|füller)(?![a-z])")


def read_experiment(
    table: str | Path,
    readings: str | Path | None = None,
    *,
    person: str | None = None,
    text: str | None = None,
    word_number: str | None = None,
    word: str | None = None,
    measure: str | Sequence[str] = (),
    condition: str | Sequence[str] = (),
    answer: str | None = None,
    group: str | Sequence[str] = (),
    filter: str | None = None,
    drop: str | Sequence[str] = (),
    missing: str | Sequence[str] = (),
    encoding: str | None = None,
) -> Corpus:
    """Read a reading experiment from one table, or from a file of words and one of readings.

    Parameters
    ----------
    table : path
        Alone: results of Ibex, PCIbex, jsPsych, Gorilla, PsychoPy, OpenSesame or Linger, a report
        of EyeLink, or a table with a row for each person and word (long) or each person and text
        (wide: ``Word1``, ``RT1``, ``Word2`` ...), or a folder of such files.
    readings : path, optional
        With it ``table`` is one of words: :func:`psychlm.corpora.reading_times.from_csv`.
    person, text, word_number, word : str, optional
        The columns that hold them; found by the program or by usual names unless given. Several
        that name a person or text together are joined with "+".
    measure : str or sequence of str
        The columns of times in ms; all that are recognised unless given. A name that does not end
        in ``_ms``, and is not known, becomes ``self_paced_ms``.
    condition : str or sequence of str
        Columns that name the version of a text that a reader saw. Unless given, a column of a usual
        name is used where several words would stand at one place.
    answer : str, optional
        The column that says whether a question was answered rightly: 1 or 0, true, yes, ja ...
    group : str or sequence of str
        Columns that tell groups of readers apart; they stay with the readings.
    filter : str, optional
        The rows that are read, "Label=experiment,filler"; several columns with ";". Practice is
        left out unless a filter is given, such as "Label=*" for all rows.
    drop : str or sequence of str
        Columns that are left out.
    missing : str or sequence of str
        What stands for a missing time beside empty cells and NA, as "-1".
    encoding : str, optional
        Of text files; found unless given.

    Returns
    -------
    Corpus
        Words and ids are as they are written ("NA", "007"). The first of ``notes`` begins with
        "recognised": what was read as what, and which rows are left out. ``questions`` are answers
        to questions, where the file grades them.

    Examples
    --------
    >>> _ = Path("results.csv").write_text("ID,Item,WordNr,Word,RT\\ns1,1,1,Good,310\\n")
    >>> study = read_experiment("results.csv", person="ID")
    >>> study.readings["self_paced_ms"].tolist()
    [310.0]
    """
    told = roles.told({**locals()}, roles.READINGS)
    told["missing"] = [*map(str, told["missing"])]
    if readings is not None:
        of_one_table = [name for name in ("condition", "answer", "group", "filter") if told[name]]
        refuse("options", of_one_table, "are for one table; with two files, leave them out")
        return _read_two(Path(table), Path(readings), told)
    with naming(Path(table)):
        return _read_one(Path(table), told)


def from_csv(words: str | Path, readings: str | Path) -> Corpus:
    """Read your own corpus from two files: CSV and its relatives, Excel or Parquet.

    Times of 0 ms are missing, and counted in ``notes``; values that are no numbers too, with a
    warning. Readings of words that are not there are a :class:`FrameError`. Columns of other names
    are told to :func:`psychlm.corpora.read_experiment`, which takes these files.

    Parameters
    ----------
    words : path
        One row per word, whole texts: ``text_id``, ``word_id`` (1, 2, ... in each text), ``word``
        (as printed, with its punctuation), and any predictors (``log_frequency``, ``line`` ...);
        ``position`` and ``length_chars`` (letters and digits) are added where they are absent.
    readings : path
        One row per person and word: ``subject``, ``text_id``, ``word_id`` and at least one measure
        in ms whose name ends in ``_ms``; an empty cell, or NA, where a word was skipped.

    Examples
    --------
    >>> _ = Path("words.csv").write_text("text_id,word_id,word\\nt,1,Good\\nt,2,day.\\n")
    >>> _ = Path("times.csv").write_text("subject,text_id,word_id,gaze_ms\\ns1,t,1,210\\n")
    >>> from_csv("words.csv", "times.csv").readings["gaze_ms"].tolist()
    [210.0]
    """
    return read_experiment(words, readings)


def _times(
    rows: pd.DataFrame, known: Mapping[str, str], told: Sequence[str], used: set[str]
) -> dict[str, str]:
    """Return columns of times and our names of them; ``known`` are names that they may have."""
    found: dict[str, str] = {}
    for name, ours in known.items():
        column = find(rows, [name], used - {*told})
        if column and column not in found and ours not in found.values():
            found[column] = ours
    if known is TIME_OF:
        own = [name for name in rows if str(name).endswith("_ms") and name not in used]
        found = found | {name: name for name in own if name not in found}
    chosen = {}
    for name in told:
        column = next((column for column, ours in found.items() if name in (column, ours)), name)
        check_column([column], rows, f"; its times are {format_names(found)}")
        chosen[column] = found.get(column, column if column.endswith("_ms") else "self_paced_ms")
    return chosen if told else found


def _read_two(words: Path, readings: Path, told: Mapping[str, Any]) -> Corpus:
    """Read a corpus from a file of words and one of readings, with what is told of the roles."""
    notes: list[str] = []
    tables = []
    times: dict[str, str] = {}
    for path, other_role in ((words, "word"), (readings, "person")):
        with naming(path):
            read = _sniff.read_table(path, told["encoding"], spaces=True)
        cells = _sniff.unique_columns(read.cells).drop(columns=told["drop"], errors="ignore")
        names: dict[str, str] = {}
        for role in ("text", "word_number", other_role):
            known = [OURS[role], *USUAL[role].split()]
            column = told[role] if told[role] in cells else find(cells, known, names)
            if told[role] and column != told[role] and column != OURS[role]:
                check_column([told[role]], cells)
            if column:
                names[column] = OURS[role]
        if path == readings:
            times = _times(cells, TIME_OF, told["measure"], {*names})
        renamed = {theirs: ours for theirs, ours in (names | times).items() if theirs != ours}
        said = [f"{ours} = {theirs}" for theirs, ours in renamed.items()]
        notes += [f"{path.name}: {note}" for note in (*read.notes, *said)]
        tables.append(cells.rename(columns=names | times))
    text = [*OURS.values(), *times.values()]
    word_table, reading_table = (_sniff.with_numbers(table, text, strict=False) for table in tables)
    column_of = {ours: theirs for theirs, ours in times.items()}
    reading_table, said = with_times(reading_table, column_of, told["missing"])
    word_table = frames.check_words(word_table)
    reading_table = frames.check_readings(reading_table)
    keys = ["text_id", "word_id"]
    places = pd.MultiIndex.from_frame(reading_table[keys])
    unknown = places[~places.isin(pd.MultiIndex.from_frame(word_table[keys]))].tolist()
    if unknown:
        raise FrameError(
            f"{len(unknown)} readings are of words that {words} does not have, first {unknown[0]} "
            "(text_id, word_id); do both files count words from 1 in each text?"
        )
    corpus = Corpus(with_predictors(word_table), reading_table)
    recognised = f"recognised: words and readings: {_counts(corpus)}; times: {', '.join(column_of)}"
    return replace(corpus, notes=(recognised, *notes, *said, *_in_seconds(corpus)))


def _in_seconds(corpus: Corpus) -> list[str]:
    """Return a note, and warn, where times are too short for milliseconds."""
    medians = corpus.readings.filter(regex="_ms$").median()
    short = medians[medians < 10]
    if short.empty:
        return []
    said = f"the median of {[*short.index]} is {short.iloc[0]:.3g} ms: are these seconds?"
    warnings.warn(f"{said} Write milliseconds", RuntimeWarning, stacklevel=4)
    return [said]


def _counts(corpus: Corpus) -> str:
    """Return how many readers, texts, words and readings there are."""
    return (
        f"{corpus.readings['subject'].nunique():,} readers, "
        f"{corpus.words['text_id'].nunique():,} texts, {len(corpus.words):,} words, "
        f"{len(corpus.readings):,} readings"
    )


def _roles(
    form: Format, rows: pd.DataFrame, told: Mapping[str, Any], path: Path, notes: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the column of each role, "" where there is none, and columns of times: our names.

    What is told wins, then the format's columns, then the usual names.
    """
    told = {**told, "correct": told["answer"]}
    one_column = (*OURS, "correct")
    used = {told[role] for role in one_column if told[role]} | {*told["measure"]}
    roles = {"word": told["word"] or find(rows, form.names("word"), used)}
    on_words = rows[rows[roles["word"]].notna()] if roles["word"] else rows
    times = _times(on_words, form.times or TIME_OF, told["measure"], used | {roles["word"]})
    if not roles["word"] and times and rows[[*times][0]].map(list_of).notna().any():
        roles["word"] = find(rows, A_TEXT, times)
    of_words = of_words_only(rows, roles["word"], times)
    used |= {roles["word"], *times, *of_words}
    for role in ("person", "text", "condition", "label", "correct"):
        is_told = role in one_column and told[role]
        roles[role] = told[role] if is_told else find(rows, form.names(role), used)
        if role == "label":  # of several, the one that tells practice or fillers from the rest
            there = [find(rows, [name], used) for name in form.names(role)]
            for name in filter(None, there):
                kinds = kinds_of(rows, name).dropna().unique()
                if any(PRACTICE.search(kind) or FILLER.search(kind) for kind in kinds):
                    roles[role] = name
                    break
        used |= {roles[role], *roles[role].split("+")}
    graded = find(rows[of_words], form.names("correct"))
    if graded and not roles["correct"]:
        notes.append(f"{graded!r} is of words, no answer to a question; else answer='{graded}'")
    lacking = [role for role in ("person", "text", "word") if not roles[role]]
    if "person" in lacking and (FILE in rows or form.needs):
        lacking.remove("person")
    if "text" in lacking and times and rows[[*times][0]].map(list_of).notna().any():
        lacking.remove("text")
    if lacking := lacking + ["measure"] * (not times):
        stems = [stem for stem, columns in series_of(rows).items() if len(columns) > 1]
        without = f" (of numbered columns the name without number: {', '.join(stems)})"
        raise FrameError(
            f"{path} is read as {form.name} and has the columns {', '.join(map(str, rows.columns))}"
            f"; which of them is the {', the '.join(lacking)}? Name them: "
            + ", ".join(f"{role}='...'" for role in lacking)
            + without * bool(stems)
        )
    # A number of the word is whole; a region is one only if no two words of a text share it.
    roles["word_number"] = told["word_number"] or ""
    place = [c for r in ("person", "text", "condition", "label") for c in roles[r].split("+") if c]
    for name in form.names("word_number") if not told["word_number"] else ():
        column = find(on_words, [name], used)
        if column and not roles["word_number"]:
            number, others = _sniff.numbers_among(on_words[column])
            is_whole = not len(others) and number.notna().any() and (number.dropna() % 1 == 0).all()
            is_told = name in form.own_names("word_number") or name.startswith("wor")
            if is_whole and (is_told or not on_words.duplicated([*place, column]).any()):
                roles["word_number"] = column
    return roles, times


def _read_one(path: Path, told: Mapping[str, Any]) -> Corpus:
    """Read a corpus from one file or folder, with what is told of the roles."""
    form, rows, notes = read_rows(path, told["encoding"])
    rows = with_lists(rows, form, told["word"], told["measure"])
    one_column = [told[name] for name in (*OURS, "answer") if told[name]]
    for name in (*one_column, *told["group"], *told["condition"], *told["drop"]):
        for part in [name] if name in rows else name.split("+"):
            check_column([part], rows)
    rows = rows.drop(columns=told["drop"])
    if form.prepare:
        rows, said = form.prepare(rows)
        notes += said
    roles, times = _roles(form, rows, told, path, notes)
    word = roles["word"]
    if not roles["person"]:
        roles["person"] = FILE
        rows = rows if FILE in rows else rows.assign(**{FILE: path.stem})
        notes.append("no column names readers: a file is one; else tell the column, person='...'")
    if not roles["text"]:
        roles["text"] = "words of the text"
        printed = rows[word].map(lambda cell: list_of(cell) or [cell], "ignore")
        rows[roles["text"]] = printed.map(lambda cells: " ".join(map(str, cells)), "ignore")
    for role in ("person", "text"):
        if roles[role] not in rows:
            rows[roles[role]] = joined(rows, roles[role].split("+"))
    of_labels = [roles["person"], roles["text"], roles["condition"], roles["label"]]
    one_label(rows, [*of_labels, *told["condition"], *told["group"]], notes)
    if FILE in rows and roles["person"] != FILE:
        n_files = rows.groupby(roles["person"])[FILE].nunique()
        if (n_files > 1).any():
            notes.append(
                f"readers {format_names(n_files.index[n_files > 1])} stand in several files, and "
                f"are taken for one reader each; else person='{roles['person']}+{FILE}'"
            )

    # Rows with a word are readings; a question without a text is on the last that its reader saw.
    is_word = rows[word].notna() & rows[word].ne("")
    place = pd.Series(np.where(is_word, np.arange(len(rows)), np.nan))
    last = place.groupby(rows[roles["person"]].to_numpy()).ffill()
    last = last[~is_word & rows[roles["text"]].isna()].dropna().astype(int)
    labels = [name for name in dict.fromkeys([roles["label"], roles["condition"]]) if name]
    for name in dict.fromkeys([roles["text"], *labels, *told["condition"]]):
        of_text = rows[name].take(last).set_axis(last.index)
        rows[name] = rows[name].fillna(of_text.reindex(rows.index))

    is_answer = ~is_word & rows[roles["text"]].notna()
    is_answer &= rows[roles["correct"]].notna() if roles["correct"] else False
    is_used = is_word | is_answer
    is_read, left_out, said = _selected(rows[is_used], is_word[is_used], labels, told["filter"])
    is_read = is_read.reindex(rows.index, fill_value=False)
    notes += said
    if n_others := int((~is_used).sum()):
        left_out.append(f"{n_others:,} rows that are neither words nor graded answers")

    # One row a word. Its number is told, or its place in a list or among its reader's rows.
    words, said = _spread(rows[is_word & is_read].reset_index(drop=True), word, [*times])
    notes += said
    of_trial = [roles["person"], roles["text"], *(told["condition"] or labels)]
    roles["word_number"] = _number_words(words, roles["word_number"], of_trial, notes)

    # Versions of a text have ids of their own where their words differ.
    condition = list(told["condition"])
    for name in reversed(labels) if not condition else ():
        places = [roles["text"], *condition, roles["word_number"]]
        if words.groupby(places)[word].nunique().gt(1).any():
            condition.append(name)
    if (found := roles["condition"]) and found not in condition:
        notes.append(f"{found!r} is no factor; where it is one, name it: condition='{found}'")
    ids = {role: roles[role] for role in OURS}
    kept = [*ids.values(), *times, *condition]
    hidden = [ours for ours in (*OURS.values(), *times.values()) if ours in words]
    hidden = [ours for ours in hidden if ours not in kept]
    if hidden:
        words = words.drop(columns=hidden)
        notes.append(f"columns {hidden} are left out: other columns get these names")
    for name in (ids["person"], ids["text"], word):
        words[name] = joined(words, [name])
        if count := int(words[name].eq("NA").sum()):
            notes.append(f"'NA' in {count} cells of {name!r} is text, not a missing value")
    words = _sniff.with_numbers(words, kept, strict=False)
    corpus = from_long(words, measures=times, condition=condition, missing=told["missing"], **ids)
    if form.unit_ms != 1:
        corpus.readings[[*times.values()]] *= form.unit_ms
        notes.append(f"{[*times]} are in seconds, {[*times.values()]} in ms")
    keys = ["text_id", "word_id"]
    if groups := [name for name in told["group"] if name in corpus.words]:
        with_group = corpus.readings.merge(corpus.words[[*keys, *groups]], on=keys, how="left")
        corpus = replace(corpus, words=corpus.words.drop(columns=groups), readings=with_group)

    if roles["correct"]:
        answers = rows[is_answer & is_read]
        columns = (ids["person"], [ids["text"], *condition], roles["correct"])
        corpus = _with_questions(corpus, answers, words, columns, bool(told["answer"]), notes)
    n_answers = int((is_answer & is_read).sum())
    ids["text"] = " + ".join([ids["text"], *condition])
    said_columns = ids | {ours: theirs for theirs, ours in times.items()}
    recognised = f"recognised: {form.name}: {_counts(corpus)}; of {len(rows):,} rows "
    recognised += f"{int((is_word & is_read).sum()):,} hold words"
    recognised += f", {n_answers:,} answers; " if n_answers else "; "
    recognised += ", ".join(f"{ours} = {theirs}" for ours, theirs in said_columns.items())
    recognised += f"; left out: {'; '.join(left_out) or 'nothing'}"
    return replace(corpus, notes=(recognised, *notes, *corpus.notes, *_in_seconds(corpus)))


def _number_words(words: pd.DataFrame, name: str, of_trial: list[str], notes: list[str]) -> str:
    """Return the column of the words' numbers, from 1; where there is none it is added."""
    name = NUMBER if NUMBER in words else name
    if not name:
        trial = words[of_trial].astype("str").fillna("")
        run = (trial != trial.shift()).any(axis=1).cumsum()
        words[NUMBER] = words.groupby(run).cumcount() + 1
        notes.append("words are numbered in the order of rows; else tell it, word_number='...'")
        return NUMBER
    number, others = _sniff.numbers_among(words[name])
    if not len(others) and number.min() == 0:
        words[name] = number + 1
        notes.append(f"{name!r} counts from 0, word_id from 1")
    return name


def _with_questions(
    corpus: Corpus,
    answers: pd.DataFrame,
    words: pd.DataFrame,
    columns: tuple[str, list[str], str],
    is_told: bool,
    notes: list[str],
) -> Corpus:
    """Return a corpus with its graded answers; a file may repeat them in each row of a text.

    ``columns`` are those of the person, of the text and its condition, and of the grade.
    """
    person, text, correct = columns
    beside_words = not len(answers)
    answers = words[words[correct].notna()] if beside_words else answers
    grade = answers[correct].map(frames.label_of).astype("str").str.casefold()
    grades = GRADES | {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0} | (YES_AND_NO if is_told else {})
    questions = pd.DataFrame(
        {
            "subject": joined(answers, [person]),
            "text_id": joined(answers, text),
            "correct": grade.map(grades),
        }
    )
    questions = questions.drop_duplicates() if beside_words else questions
    differs = beside_words and questions.duplicated(["subject", "text_id"]).any()
    if differs or not questions["correct"].notna().any():
        there = format_names(answers[correct].dropna().unique(), 4)
        why = "they differ between words of a text" if differs else f"they are {there}"
        notes.append(
            f"answers ({correct!r}) are not graded: {why}; answer= names a column of grades, 1 and "
            "0 or yes and no"
        )
        return corpus
    corpus = replace(corpus, questions=questions.reset_index(drop=True))
    fewest = corpus.accuracy.idxmin()
    notes.append(
        f"{len(questions):,} answers to questions ({correct}), {questions['correct'].mean():.0%} "
        f"right; fewest by {fewest}: {corpus.accuracy[fewest]:.0%}"
    )
    return corpus


def _selected(
    rows: pd.DataFrame, is_word: pd.Series, labels: Sequence[str], wanted: str | None
) -> tuple[pd.Series, list[str], list[str]]:
    """Return which rows a filter selects, without practice; what is left out; notes.

    Practice stays where the filter is of the column that tells it from the rest.
    """
    is_read, filtered = filtered_rows(rows, wanted, is_word)
    left_out = []
    if wanted:
        left_out.append(f"{int((~is_read).sum()):,} rows, by filter '{wanted}'")
    name, is_practice = practice_in(
        rows, [name for name in labels if name not in filtered], is_word & is_read
    )
    if name:
        keep = ";".join(filter(None, [wanted, f"{name}=*"]))
        said = f"{(is_practice & is_read).sum():,} rows of practice ({name}); keep them: "
        left_out.append(f"{said}filter='{keep}'")
        is_read &= ~is_practice
    for name in labels:
        counts = kinds_of(rows, name)[is_read].value_counts()
        is_filler = counts.index.str.contains(FILLER)
        if is_filler.any() and not is_filler.all():
            fillers = ", ".join(counts.index[is_filler])
            others = ",".join(counts.index[~is_filler])
            said = f"{counts[is_filler].sum():,} rows are fillers ({name} = {fillers}); without "
            return is_read, left_out, [f"{said}them: filter='{name}={others}'"]
    return is_read, left_out, []


def _spread(rows: pd.DataFrame, word: str, times: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return rows that hold lists of words and times with one row a word; others as they are."""
    lists = {name: rows[name].map(list_of) for name in times}
    if not lists[times[0]].notna().any():
        return rows, []
    lists[word] = rows[word].map(lambda cell: list_of(cell) or str(cell).split())
    lengths = pd.DataFrame({name: x.map(len, "ignore") for name, x in lists.items()})
    whole = lengths.eq(lengths[word], axis=0).all(axis=1)
    notes = []
    if not whole.all():
        notes.append(
            f"{int((~whole).sum())} of {len(rows)} trials are left out: they have another number "
            "of times than of words"
        )
        warnings.warn(notes[0], RuntimeWarning, stacklevel=3)
    if not whole.any():
        raise FrameError(f"no trial has as many times ({times[0]!r}) as words ({word!r})")
    spread = rows.assign(**lists)[whole].explode([*lists], ignore_index=True)
    numbers = [np.arange(1, int(n) + 1) for n in lengths[word][whole]]
    return spread.assign(**{NUMBER: np.concatenate(numbers)}), notes
