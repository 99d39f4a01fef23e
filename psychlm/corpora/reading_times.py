"""Reading-time corpora, and how to bring your own: who read which word for how long, as the contracts' frames.

Readers return a :class:`Corpus`. From there to a model of reading times it is four steps, none of which drops a word in
silence::

    corpus = corpora.natural_stories()
    words = corpora.add_lags(corpus.words, ["length_chars"])         # prev_length_chars, within a text only
    words, removed = corpora.exclude(words)                          # Goodkind & Bicknell's steps, with their counts
    readings = corpora.join(corpus.readings, words)                  # readings of the words that are left

Your own corpus is two CSV files, see :func:`from_csv`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from psychlm import data, frames
from psychlm.corpora.exclusions import GOODKIND_BICKNELL, add_lags, exclude, join, log_frequency
from psychlm.frames import FrameError

__all__ = [
    "GOODKIND_BICKNELL",
    "Corpus",
    "add_lags",
    "dundee",
    "exclude",
    "from_csv",
    "join",
    "log_frequency",
    "natural_stories",
    "provo",
    "reading_measures",
    "ucl",
]

UCL_MODELS = {
    "bigram": "2-gram",
    "trigram": "3-gram",
    "tetragram": "4-gram",
    "rnn": "RNN",
    "psg": "PSG",
    "s_GPT2": "GPT-2",
    "s_GPT2_medium": "GPT-2 medium",
    "s_GPT2_large": "GPT-2 large",
    "s_GPT2_xl": "GPT-2 XL",
    "s_GPTNeo_125M": "GPT-Neo 125M",
    "s_GPTNeo": "GPT-Neo 1.3B",
    "s_GPTNeo_2.7B": "GPT-Neo 2.7B",
}
UCL_MEASURES = {
    "RTfirstfix": "first_fixation_ms",
    "RTfirstpass": "gaze_ms",
    "RTrightbound": "right_bounded_ms",
    "RTgopast": "go_past_ms",
    "self_paced_reading_time": "self_paced_ms",
}
MEAN_READER = "mean"  # the subject of readings that were released as means over people


@dataclass(frozen=True)
class Corpus:
    """A reading-time corpus.

    Attributes
    ----------
    words : DataFrame
        A words frame with ``position`` (in the text), ``length_chars`` and what else is known of the words.
    readings : DataFrame
        Times by ``subject``, ``text_id`` and ``word_id``; ``subject`` is "mean" where only means were released.
    surprisals : DataFrame or None
        ``text_id``, ``word_id`` and one column of surprisals (bits) for each model that was released with the corpus.
    notes : tuple of str
        What the reader left out, with counts.
    """

    words: pd.DataFrame
    readings: pd.DataFrame
    surprisals: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()


def ucl() -> Corpus:
    """Read the UCL corpus: 205 sentences from novels, mean times, and the surprisals of twelve models.

    Sentences are the texts; their first words were not released. ``log_frequency`` is the natural logarithm of the
    SUBTLEX-US count (missing for 30 words), ``length_chars`` counts attached punctuation, as released. Times are means
    over people, with 0 for those who skipped the word (Frank et al. 2013; de Varda et al. 2023).
    """
    table = pd.read_csv(data.path("ucl2023/all_measures"), keep_default_na=False, na_values=[""])
    table = table.sort_values(["sent_id", "context_length"], ignore_index=True)
    keys = pd.DataFrame(
        {"text_id": table["sent_id"].astype(str), "word_id": table["context_length"] + 1}
    )
    words = keys.assign(
        word=table["word"],
        position=table["context_length"],
        length_chars=table["length"],
        log_frequency=table["Subtlex_log10"],
        cloze_probability=table["cloze_p_smoothed"],
        cloze_surprisal_bits=table["cloze_s"] / np.log(2),
    )
    readings = pd.concat(
        [keys.assign(subject=MEAN_READER), table[list(UCL_MEASURES)].rename(columns=UCL_MEASURES)],
        axis=1,
    )
    surprisals = table[list(UCL_MODELS)].rename(columns=UCL_MODELS) / np.log(2)
    return _checked(words, readings, pd.concat([keys, surprisals], axis=1))


def natural_stories() -> Corpus:
    """Read the Natural Stories corpus: ten stories, mean self-paced times and GPT-3's surprisals (Futrell et al. 2021).

    ``n_readers`` counts the people behind each mean. The model's tokens are summed over the word that they begin in;
    the first word of a story has none. The release has no word frequencies: see :func:`log_frequency`.
    """
    read = {"sep": "\t", "quoting": 3, "keep_default_na": False}
    words = pd.read_csv(data.path("naturalstories/all_stories"), **read)
    words = words.sort_values(["item", "zone"], ignore_index=True).rename(
        columns={"zone": "word_id"}
    )
    words["text_id"] = words.pop("item").astype(str)
    times = pd.read_csv(data.path("naturalstories/processed_wordinfo"), **read)
    readings = pd.DataFrame(
        {
            "subject": MEAN_READER,
            "text_id": times["item"].astype(str),
            "word_id": times["zone"],
            "self_paced_ms": times["meanItemRT"],
            "n_readers": times["nItem"],
        }
    )
    tokens = pd.read_csv(
        data.path("naturalstories/all_stories_gpt3"),
        keep_default_na=False,
        na_values={"logprob": [""]},
        quotechar='"',
    )
    tokens["text_id"] = (tokens["story"] + 1).astype(str)
    surprisals = _tokens_to_words(words, tokens).rename(columns={"surprisal_bits": "GPT-3 davinci"})
    words = words[["text_id", "word_id", "word"]].assign(
        position=words["word_id"], length_chars=words["word"].str.len()
    )
    return _checked(
        words, readings.sort_values(["text_id", "word_id"], ignore_index=True), surprisals
    )


def _tokens_to_words(words: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """Sum the log-probabilities (nats) of tokens over the words that they begin in, by counting letters of a text."""
    parts = []
    for text_id, mine in words.groupby("text_id", sort=False):
        theirs = tokens[tokens["text_id"] == text_id]
        ends = mine["word"].str.replace(" ", "").str.len().cumsum().to_numpy()
        lengths = theirs["token"].str.replace(r"\s", "", regex=True).str.len().cumsum().to_numpy()
        if len(lengths) == 0 or lengths[-1] != ends[-1]:
            raise FrameError(
                f"the tokens of text {text_id!r} do not spell its words; they have another length"
            )
        word = np.searchsorted(ends, np.r_[0, lengths[:-1]], side="right").clip(max=len(mine) - 1)
        bits = pd.Series(-theirs["logprob"].to_numpy() / np.log(2)).groupby(word).sum(min_count=1)
        bits[word[np.isnan(theirs["logprob"].to_numpy())]] = np.nan
        parts.append(
            mine[["text_id", "word_id"]].assign(
                surprisal_bits=bits.reindex(range(len(mine))).to_numpy()
            )
        )
    return pd.concat(parts, ignore_index=True)


def provo() -> Corpus:
    """Read the Provo corpus: 55 passages with eye-tracking means (Luke & Christianson 2018).

    The measures come from the CMCL 2021 shared task, which scaled them: they are not in ms, and their names say
    ``_scaled``. That release also cut the passages into sentences; its words are found in the passages by their
    letters, and ``notes`` counts those that are not.
    """
    passages = pd.read_csv(data.path("provo/provo_texts"), keep_default_na=False)
    spelled = (
        passages["text"].str.replace("Õ", "'").str.split()
    )  # an apostrophe in another encoding
    words = pd.DataFrame({"text_id": passages["text_id"].astype(str), "word": spelled}).explode(
        "word", ignore_index=True
    )
    words["word_id"] = words.groupby("text_id").cumcount() + 1
    words = words.assign(position=words["word_id"], length_chars=words["word"].str.len())
    table = pd.read_csv(data.path("provo/provo_words"), keep_default_na=False, na_values=[""])
    ours, theirs = (
        [re.sub(r"\W", "", word).lower() for word in column]
        for column in (words["word"], table["word"])
    )
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    of_words = np.concatenate([np.arange(block.a, block.a + block.size) for block in blocks])
    of_table = np.concatenate([np.arange(block.b, block.b + block.size) for block in blocks])
    measures = {
        "FFD": "first_fixation_scaled",
        "GPT": "go_past_scaled",
        "TRT": "total_scaled",
        "nFix": "n_fixations_scaled",
    }
    readings = pd.concat(
        [
            words[["text_id", "word_id"]]
            .iloc[of_words]
            .reset_index(drop=True)
            .assign(subject=MEAN_READER),
            table[[*measures, "fixProp"]]
            .iloc[of_table]
            .reset_index(drop=True)
            .rename(columns=measures | {"fixProp": "fixated_percent"}),
        ],
        axis=1,
    )
    note = f"{len(table) - len(of_table)} of {len(table)} measured words are not found in the passages; left out"
    return Corpus(frames.check_words(words), readings, None, (note,))


def _checked(
    words: pd.DataFrame, readings: pd.DataFrame, surprisals: pd.DataFrame | None = None
) -> Corpus:
    return Corpus(
        frames.check_words(words, whole_texts=False), frames.check_readings(readings), surprisals
    )


_DUNDEE_WORDS = [
    "word",
    "text",
    "screen",
    "line",
    "line_position",
    "screen_position",
    "x",
    "printed_chars",
    "length_chars",
    "punctuation",
    "opening",
    "closing",
    "word_id",
    "text_frequency",
]
_DUNDEE_FIXATIONS = [
    "word",
    "screen",
    "line",
    "printed_chars",
    "length_chars",
    "x",
    "word_id",
    "duration_ms",
    "letter",
    "word_letter",
    "launch",
    "text_frequency",
]


def dundee(folder: str | Path) -> Corpus:
    """Read the Dundee Corpus (Kennedy 2003) from its original files; the University of Dundee licenses it.

    Parameters
    ----------
    folder : path
        Holds ``tx01wrdp.dat`` ... (the words) and ``sa01ma1p.dat`` ... (fixations in order of time: subject sa, text
        01), in this folder or below it. Latin-1, columns separated by blanks, a header in the fixation files only.

    Returns
    -------
    Corpus
        ``words`` with ``screen``, ``line`` and ``length_chars`` (without punctuation). ``readings`` hold the words
        that were fixated: ``first_fixation_ms``, ``gaze_ms`` (from entering the word first to leaving it first),
        ``total_ms``, ``prev_fixated`` (the word before had been fixated by then) and ``first_pass`` (no later word
        had been).
    """
    files = {file.name.lower(): file for file in sorted(Path(folder).rglob("*.dat"))}
    texts = {
        name[2:4]: file for name, file in files.items() if re.fullmatch(r"tx\d\dwrdp\.dat", name)
    }
    events = {
        (name[:2], name[2:4]): file
        for name, file in files.items()
        if re.fullmatch(r"s[a-z]\d\dma1p\.dat", name)
    }
    if not texts or not events:
        raise FrameError(
            f"{folder} holds {len(texts)} files tx??wrdp.dat and {len(events)} s???ma1p.dat; the corpus has 20 and "
            "200. Name the folder that holds both"
        )
    strays = sorted({text for _, text in events} - set(texts))
    if strays:
        raise FrameError(
            f"there are fixations of texts {strays}, but no tx{strays[0]}wrdp.dat; copy the word files too"
        )
    words = pd.concat(
        [_blanks(file, _DUNDEE_WORDS, 0).assign(text_id=text) for text, file in texts.items()],
        ignore_index=True,
    )
    words["position"] = words["word_id"]
    words["line"] = words["screen"].astype(str) + "." + words["line"].astype(str)
    fixations = pd.concat(
        [
            _blanks(file, _DUNDEE_FIXATIONS, 1).assign(subject=who, text_id=text)
            for (who, text), file in events.items()
        ],
        ignore_index=True,
    )
    on_words = ~fixations["word"].str.startswith("*") & (
        fixations["word_id"] > 0
    )  # *Blink, *Off-screen
    columns = ["text_id", "word_id", "word", "position", "screen", "line", "length_chars"]
    return _checked(words[columns], reading_measures(fixations[on_words]))


def _blanks(file: Path, names: list[str], skip: int) -> pd.DataFrame:
    """Read a table whose columns are separated by blanks; quotes are part of the words."""
    table = pd.read_csv(
        file,
        sep=r"\s+",
        names=names,
        skiprows=skip,
        encoding="latin-1",
        quoting=3,
        keep_default_na=False,
        index_col=False,
    )
    numbers = pd.to_numeric(table["word_id"], errors="coerce")
    if numbers.isna().any():
        line = int(np.argmax(numbers.isna())) + skip + 1
        raise FrameError(
            f"{file.name}, line {line}: no word number in column {names.index('word_id') + 1}; is it cut off?"
        )
    return table


def reading_measures(fixations: pd.DataFrame) -> pd.DataFrame:
    """Turn fixations in order of time into times by person and word.

    Parameters
    ----------
    fixations : DataFrame
        ``subject``, ``text_id``, ``word_id``, ``duration_ms``, in the order in which they happened.

    Returns
    -------
    DataFrame
        A readings frame of the words that were fixated, with the measures that :func:`dundee` names.
    """
    keys = ["subject", "text_id", "word_id"]
    seen = fixations[[*keys, "duration_ms"]].reset_index(drop=True)
    within = seen.groupby(["subject", "text_id"], sort=False)
    visit = (seen[keys] != seen[keys].shift()).any(axis=1).cumsum()
    first_visit = visit == visit.groupby([seen[key] for key in keys]).transform("min")
    by_word = seen.groupby(keys, sort=False)["duration_ms"]
    first = ~seen.duplicated(keys)
    readings = seen.loc[first, keys].assign(
        first_fixation_ms=seen["duration_ms"][first], order=np.flatnonzero(first)
    )
    readings["total_ms"] = by_word.transform("sum")[first]
    gaze = (
        seen["duration_ms"]
        .where(first_visit, 0)
        .groupby([seen[key] for key in keys])
        .transform("sum")
    )
    readings["gaze_ms"] = gaze[first]
    readings["first_pass"] = (seen["word_id"] >= within["word_id"].cummax())[first]
    before = (
        readings[[*keys, "order"]]
        .assign(word_id=readings["word_id"] + 1)
        .rename(columns={"order": "order_before"})
    )
    readings = readings.merge(before, on=keys, how="left")
    readings["prev_fixated"] = readings["order_before"] < readings["order"]
    columns = [*keys, "first_fixation_ms", "gaze_ms", "total_ms", "prev_fixated", "first_pass"]
    return readings[columns].sort_values(keys, ignore_index=True)


def from_csv(words: str | Path, readings: str | Path) -> Corpus:
    """Read your own corpus from two CSV files.

    Parameters
    ----------
    words : path
        One row a word, whole texts: ``text_id``, ``word_id`` (1, 2, ... in each text), ``word`` (as printed, with its
        punctuation), and any predictors (``log_frequency``, ``line`` ...); ``position`` and ``length_chars`` (letters
        and digits) are added where they are absent.
    readings : path
        One row a person and word: ``subject``, ``text_id``, ``word_id`` and at least one measure in ms whose name ends
        in ``_ms``; an empty cell where a word was skipped. Any other columns (``prev_fixated``) are kept.

    Raises
    ------
    FrameError
        If a column is missing, a row stands twice, or a word was read that is not among the words.
    """
    text = {"text_id": str, "word": str, "subject": str}
    tables = [
        pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])
        for path in (words, readings)
    ]
    spaces = tables[0].columns.intersection(["space_before", "space_after"])
    tables[0][spaces] = (
        tables[0][spaces].astype(object).fillna("").infer_objects()
    )  # no space: not a missing value
    corpus = _checked(*tables)
    known = pd.MultiIndex.from_frame(corpus.words[["text_id", "word_id"]])
    asked = pd.MultiIndex.from_frame(corpus.readings[["text_id", "word_id"]])
    strange = ~asked.isin(known)
    if strange.any():
        text_id, word_id = asked[strange][0]
        raise FrameError(
            f"{int(strange.sum())} readings are of words that {words} does not have, first ({text_id!r}, {word_id}) "
            "(text_id, word_id); do both files count words from 1 in each text?"
        )
    table = corpus.words
    if "position" not in table:
        table = table.assign(position=table["word_id"])
    if "length_chars" not in table:
        table = table.assign(length_chars=table["word"].str.count(r"[^\W_]"))
    return Corpus(table, corpus.readings)
