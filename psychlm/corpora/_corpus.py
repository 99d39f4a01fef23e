"""Reading-time corpora as words and readings, and the tables that they are made of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import pandas as pd

from psychlm import frames
from psychlm.corpora import _sniff
from psychlm.corpora._formats import check_column
from psychlm.frames import FrameError, format_names, refuse


@dataclass(frozen=True)
class Corpus:
    """A reading-time corpus: its words, and who read which for how long."""

    words: pd.DataFrame  # a words frame with position (in the text), length_chars and predictors
    readings: pd.DataFrame  # times by subject ("mean" of released means), text_id and word_id
    surprisals: pd.DataFrame | None = None  # text_id, word_id, bits by released model
    notes: tuple[str, ...] = ()  # what was taken for what, and what was left out, with counts
    questions: pd.DataFrame | None = None  # subject, text_id, correct (1, 0, NaN: not known)

    @property
    def accuracy(self) -> pd.Series:
        """Share of right answers to questions, by reader."""
        if self.questions is None:
            raise FrameError("this corpus has no graded answers to questions; see questions")
        return self.questions.groupby("subject")["correct"].mean()


def from_long(
    frame: pd.DataFrame,
    *,
    measures: Mapping[str, str],
    person: str = "Subject",
    text: str = "Item",
    word_number: str = "WordNr",
    word: str = "Word",
    condition: Sequence[str] = (),
    missing: Sequence[str] = (),
) -> Corpus:
    """Make a corpus of the usual file of a laboratory: one row per person and word.

    Columns that are the same for all readings of a word become columns of ``words``, the others
    (trial numbers ...) columns of ``readings``. Rows without person, item, number or word are
    dropped, and times of 0 ms (a skipped word) are missing; ``notes`` count both. Values that are
    no numbers are missing, with a warning. A table that lacks a column, or has two words at one
    place or two readings of a word by one person, is a :class:`FrameError`.

    Parameters
    ----------
    frame : DataFrame
    measures : mapping
        Columns with times in ms, and their names here: ``{"RT": "self_paced_ms"}``.
    person, text, word_number, word : str
        The columns that hold the person, the text (sentence, item), the word's number in it, from
        1, and the word as printed.
    condition : sequence of str
        Columns that tell the versions of a text apart: its id is "7-ambiguous", ``item`` is "7".
    missing : sequence of str
        What stands for a missing time beside empty cells and NA, as "-1".

    Examples
    --------
    >>> table = pd.DataFrame({"Subject": [1, 1, 2, 2], "Item": 7, "WordNr": [1, 2, 1, 2],
    ...     "Word": ["Dogs", "bark."] * 2, "RT": [310, 295, 402, 377]})
    >>> corpus = from_long(table, measures={"RT": "self_paced_ms"})
    >>> corpus.words[["text_id", "word_id", "word", "length_chars"]].to_numpy().tolist()
    [['7', 1, 'Dogs', 4], ['7', 2, 'bark.', 4]]
    """
    ids = {person: "subject", text: "text_id", word_number: "word_id", word: "word"}
    names = ids | dict(measures)
    check_column([*names, *condition], frame.columns, ": name yours, for instance person='ID'")
    badly_named = [name for name in measures.values() if not name.endswith("_ms")]
    refuse("measures", badly_named, "need names that end in _ms (and times in ms)")
    refuse(
        "columns",
        [new for old, new in names.items() if new != old and new in frame.columns],
        f"are there beside those that get these names ({names}); drop or rename them, or name "
        "them as the columns to read (text='text_id')",
    )
    table = frames.plain(frame).rename(columns=names)
    if condition:  # a model needs the item beside its versions
        table["item"] = table.get("item", table["text_id"])
        versions = [names.get(name, name) for name in condition]
        table["text_id"] = joined(table, ["text_id", *versions])
    blank = table[list(ids.values())].isna()
    blank["word"] |= table["word"] == ""
    for column, name in {person: "subject", text: "text_id"}.items():
        n_blank = int(blank.loc[~blank["word"], name].sum())
        if 2 * n_blank > (~blank["word"]).sum():
            raise FrameError(
                f"{n_blank} rows with a word have no {column!r}; if the cell above holds for them, "
                f"fill the column (in pandas: table[{column!r}].ffill())"
            )
    notes = [
        f"{int(blank[name].sum())} of {len(table)} rows without {original!r} are dropped"
        for original, name in ids.items()
        if blank[name].any()
    ]
    table = table[~blank.any(axis=1)].reset_index(drop=True)
    # PCIbex writes a comma within a word as %2C.
    coded = table["word"].astype(str).str.contains("%2C", regex=False)
    if coded.any():
        table["word"] = table["word"].str.replace("%2C", ",", regex=False)
        notes.append(f"%2C in {int(coded.sum())} words is read as a comma")
    # Two computers may have stored a letter with its accent as one character and as two.
    table["word"] = [normalize("NFC", w) if isinstance(w, str) else w for w in table["word"]]
    table, said = with_times(table, {name: column for column, name in measures.items()}, missing)
    notes += said
    _refuse_readings_twice(table, person, [*names.values(), "item"])
    table = frames.check_readings(table)

    # Each place in a text has one word, and what is the same for all its readings belongs to it.
    keys = ["text_id", "word_id"]
    same = table.groupby(keys).nunique(dropna=False).le(1).all()
    if not same["word"]:
        places = table.groupby(keys)["word"].nunique()
        raise FrameError(
            f"several words stand at (text_id, word_id) {format_names(places.index[places > 1])}; "
            f"name the column of texts ({text!r} was read: text='...'), or the one that tells the "
            "versions of a text apart: condition='...'"
        )
    of_readings = ("subject", *measures.values())
    of_words = [n for n in table.columns if same.get(n, False) and n not in of_readings]
    words = table[[*keys, *of_words]].drop_duplicates(keys).sort_values(keys, ignore_index=True)
    others = table.columns.difference([*ids.values(), *measures.values(), *of_words], sort=False)
    readings = table[["subject", *keys, *measures.values(), *others]]
    for name, n_missing in readings[[*measures.values()]].isna().sum().items():
        if n_missing:
            notes.append(f"{n_missing} of {len(readings)} readings have no {name!r}")
    return Corpus(with_predictors(frames.check_words(words)), readings, None, tuple(notes))


def _refuse_readings_twice(table: pd.DataFrame, person: str, known: Sequence[str]) -> None:
    """Refuse several readings of a word by one reader, with what tells them apart in this table."""
    places = ["subject", "text_id", "word_id"]
    twice = table.duplicated(places)
    if not twice.any():
        return
    first = table.loc[twice, places].head(1).itertuples(index=False, name=None)
    said = f"{twice.sum()} readings (subject, text_id, word_id) occur more than once, first "
    said += f"{format_names(first)}; "
    n_copies = int(table.duplicated().sum())
    if n_copies:
        said += f"{n_copies} of them are copies of whole rows: remove these from the file"
        raise FrameError(f"{said} (in pandas: table.drop_duplicates())")
    # a column that tells times apart has a value for each time, and not one for each word
    most = table.value_counts(places).max()
    n_values = table.groupby(["subject", "text_id"]).nunique()
    others = [name for name in n_values if name not in known and n_values[name].max() <= most]
    apart = [name for name in others if not table.duplicated([*places, name]).any()]
    if not apart:
        said += "no column tells them apart: add one, or remove the rows that do not count"
        raise FrameError(said)
    raise FrameError(
        f"{said}if one reader saw a text twice, condition='{apart[0]}' tells the times apart; if "
        f"two readers have one name, person='{person}+{apart[0]}'"
    )


def joined(table: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the cells of several columns as one text, "7-ambiguous"; missing where one is."""
    cells = [table[name].map(frames.label_of, na_action="ignore").astype("str") for name in columns]
    return cells[0].str.cat(cells[1:], sep="-") if len(cells) > 1 else cells[0]


def with_times(
    table: pd.DataFrame, column_of: Mapping[str, str], missing: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times are numbers in ms, missing where none or 0, and notes.

    ``column_of`` names the columns of our measures as the file does.
    """
    notes = []
    for name, column in column_of.items():
        for_none = table[name].map(frames.label_of, na_action="ignore").isin([*missing])
        if for_none.any():
            notes.append(f"{int(for_none.sum())} values of {column!r} stand for missing: {missing}")
        cells = table[name].mask(for_none).replace(r"(?i)(?<=\d) *ms$", "", regex=True)
        table[name], others = _sniff.numbers_among(cells)
        if len(others) and table[name].isna().all():
            raise FrameError(
                f"no value of {column!r} is a number: {format_names(others.unique())}; write "
                "milliseconds, as 286, or name the columns of times: measure='...'"
            )
        if len(others):
            said = f"{len(others)} values of {column!r} are no numbers and missing: "
            notes.append(said + format_names(others.unique()))
            warnings.warn(notes[-1], RuntimeWarning, stacklevel=3)
    table, said_of_zeros = skipped_as_missing(table)
    return table, notes + said_of_zeros


def skipped_as_missing(readings: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return readings whose times of 0 ms are missing, and notes of how many each measure has."""
    zero = readings.filter(regex="_ms$").apply(pd.to_numeric, errors="coerce").eq(0)
    notes = []
    counts = zero.sum()
    for count in counts[counts > 0].unique():
        names = ", ".join(map(repr, counts.index[counts == count]))
        said = "are 0 ms (not fixated) and missing"
        notes.append(f"{count:,} of {len(readings):,} times {names} {said}")
    times = {name: readings[name].mask(rows) for name, rows in zero.items()}
    return readings.assign(**times), notes


def with_predictors(words: pd.DataFrame) -> pd.DataFrame:
    """Compose the words (NFC); add ``position`` and ``length_chars`` (letters and digits) where
    they are absent."""
    words = words.assign(word=words["word"].str.normalize("NFC"))
    length = frames.without_marks(words["word"]).str.count(r"[^\W_]")
    added = {"position": words["word_id"], "length_chars": length}
    return words.assign(**{name: x for name, x in added.items() if name not in words})
