"""The GNU Collaborative International Dictionary of English (GCIDE) as a table of senses with their examples.

GCIDE is Webster's Revised Unabridged Dictionary of 1913 with later additions. Debian's package ``dict-gcide`` holds it
as dictd's pair of files: ``gcide.dict.dz`` (text, compressed so that gzip reads it) and ``gcide.index`` (headword,
offset and length in base 64). A record reads so::

    Bank \\Bank\\ (b[a^][ng]k), n. [OE. banke; akin to E. bench.]
       1. A mound, pile, or ridge of earth; as, a bank of clouds; a bank of snow.
          [1913 Webster]

                They cast up a bank against the city. --2 Sam. xx.

Every numbered or lettered definition is a sense; what follows *as,*, stands in quotes, or is indented below is its
example. A record that cannot be read so is left out, and counted by the reason.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from psychlm.data import DataError, DataMissingError

ENVIRONMENT = "PSYCHLM_GCIDE"
FOLDERS = (
    "/usr/share/dictd",
    "/usr/local/share/dictd",
    "/opt/homebrew/share/dictd",
    "/usr/lib/dict",
)
_DIGITS = {
    c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
}
_HEADER_LINES = 25  # a header that has not closed its brackets by then is broken
_COLUMNS = ("word", "pos", "definition", "example", "example_kind", "labels", "forms")

_PARTS = {
    "n": "noun",
    "v": "verb",
    "a": "adjective",
    "adj": "adjective",
    "adv": "adverb",
    "p": "adjective",
    "prep": "preposition",
    "conj": "conjunction",
    "interj": "interjection",
    "pron": "pronoun",
    "vb": "verb",
}
_POS = re.compile(r"(?:^|[\\),;\s])(n|v|vb|a|adj|adv|p|prep|conj|interj|pron)\.(?:\s|$|,|;)")
_BRACKETED = re.compile(r"\[[^\[\]]*\]")
_INFLECTED = re.compile(
    r"\[[^\[\]]*?\b(?:imp|p\. p|p\. pr|Compar|superl|pl)\b[^\[\]]*\]|;\s*pl\.[^\[]*"
)
_ACCENTED = re.compile(  # [=a], [ae], [a^], ["e]: accents as GCIDE writes them
    r"\[(?:deg|[^A-Za-z0-9\]\s]{1,2}([A-Za-z]{1,2})[^A-Za-z\]\s]{0,2}|([A-Za-z]{1,2})[^A-Za-z\]\s.]{1,2}|(ae|oe|AE|OE))\]"
)
_SOURCE = re.compile(  # [1913 Webster], [WordNet 1.5], [PJC]: where a paragraph comes from
    r"\[(?=[^\]]*(?:Webster|WordNet|PJC|Century|RDH|JCR|RP|AS|MW10|wiki|Stedman|Tolkien|\d{4}))[^\]]*\]"
)
_NUMBER = re.compile(r"^ {1,5}\d+\.\s+")
_LETTER = re.compile(r"\n\s*\(([a-z])\)\s+")
_PRONOUNCED = re.compile(
    r"\[(?:[^A-Za-z\]]{1,2}[A-Za-z]{1,2}[^A-Za-z\]]{0,2}|[A-Za-z]{1,3}[^A-Za-z\]]{0,2})\]"
)
_LABEL = re.compile(r"\s*\[([^\[\]]*)\]\s*\.?\s*$")
_FIELD = re.compile(
    r"^(?:\((?:[A-Z]|a\)|derived)[^)]{0,40}\)\s*|(?:pl|sing|Hence|Fig|Specifically|Specif|Also)\.?[:,]\s*|[:,;.]\s*)+"
)
_ATTRIBUTION = re.compile(r"\s*--\s?(?=[A-Z0-9(])[^\"]{1,60}$")
_QUOTED = re.compile(r'\s*"([^"]{8,})"\s*(?:--\s?[^".;]{1,40}\.?)?')
_USAGE = re.compile(r"[;:,.]?\s+as,\s+")
_SEE = re.compile(
    r"\s*(?:(?:See|Cf\.|Compare|Called also|Also called|Opposed to|Written also|Syn\.)\s[^.]*\.?)+$"
)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The senses of a dictionary, and what could not be read."""

    entries: (
        pd.DataFrame
    )  # one row per sense: entry_id, word, pos, definition, example (None where there is none), ...
    broken: (
        pd.Series
    )  # records left out, by reason: "no part of speech", "no definition", "encoding error", ...
    path: Path
    n_records: int

    @property
    def with_examples(self) -> pd.DataFrame:
        """The entries that have an example sentence or usage."""
        return self.entries[self.entries["example"].notna()]


def find(path: str | Path | None = None) -> Path:
    """Return the file ``gcide.dict.dz`` (or ``gcide.dict``): the one named, or a variable's, or where systems keep it.

    Raises
    ------
    DataMissingError
        If it is not there; the message says how to get it.
    """
    named = path if path is not None else os.environ.get(ENVIRONMENT)
    places = [Path(named)] if named else [Path(folder) for folder in FOLDERS]
    for place in places:
        names = (place / "gcide.dict.dz", place / "gcide.dict") if place.is_dir() else (place,)
        for file in names:
            if file.is_file():
                return file
    looked = ", ".join(str(place) for place in places)
    raise DataMissingError(
        f"the GCIDE dictionary is not here (looked in {looked}); get it with `apt-get install dict-gcide`, or name the "
        f"folder that holds gcide.dict.dz and gcide.index (an argument, or the variable {ENVIRONMENT})"
    )


def read(path: str | Path | None = None, *, first: int | None = None) -> Dictionary:
    """Read the dictionary into one row per sense.

    Parameters
    ----------
    path : str or Path, optional
        ``gcide.dict.dz``, or its folder; the system's own unless given. ``gcide.index`` lies beside it.
    first : int, optional
        Read only so many records, from A on: for a quick look.

    Returns
    -------
    Dictionary
        ``entries`` has ``entry_id``, ``word``, ``pos``, ``definition`` (without its example, labels and references),
        ``example``, ``example_kind`` ("usage", "quoted" or "quotation"), ``labels`` ("Obs.", "Colloq." ...) and
        ``forms`` (the inflected forms that the record names). ``broken`` counts the records left out.

    Raises
    ------
    DataError
        If the dictionary or its index is missing, or the file is no dictionary.
    """
    file = find(path)
    raw, bounds, n_broken = _raw(file)
    bounds = bounds[:first]
    broken: Counter[str] = Counter({"broken index row": n_broken} if n_broken else {})
    rows: list[tuple[str | None, ...]] = []
    for offset, length in bounds:
        try:
            text = raw[offset : offset + length].decode("utf-8")
        except UnicodeDecodeError:
            broken["encoding error"] += 1
            continue
        senses, why = _senses(text)
        rows.extend(senses)
        if why:
            broken[why] += 1
    if not rows:
        raise DataError(
            f"{file} holds no dictionary entry that can be read ({dict(broken)}); get it anew"
        )
    entries = pd.DataFrame(rows, columns=list(_COLUMNS)).drop_duplicates(
        ["word", "pos", "definition"]
    )
    entries.insert(0, "entry_id", [f"gcide-{i:06d}" for i in range(len(entries))])
    return Dictionary(
        entries.reset_index(drop=True),
        pd.Series(broken, name="records", dtype=int).sort_index(),
        file,
        len(bounds),
    )


def _raw(file: Path) -> tuple[bytes, list[tuple[int, int]], int]:
    """Return the text as bytes, the bounds of its records, and how many index rows point nowhere."""
    index = file.with_name("gcide.index")
    if not index.is_file():
        raise DataError(
            f"{file} has no gcide.index beside it; both files come with `apt-get install dict-gcide`"
        )
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".dz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{file} cannot be decompressed ({error}); get it anew: apt-get install dict-gcide"
        ) from error
    table = pd.read_csv(
        index,
        sep="\t",
        names=["word", "offset", "length"],
        quoting=3,
        keep_default_na=False,
        encoding="latin-1",
        on_bad_lines="skip",
        dtype=str,
    )
    table = table[~table["word"].str.startswith("00-")]
    offset, length = _numbers(table["offset"]), _numbers(table["length"])
    sound = (offset >= 0) & (length > 0) & (offset + length <= len(raw))
    bounds = pd.MultiIndex.from_arrays([offset[sound], length[sound]]).unique().sort_values()
    return raw, bounds.tolist(), int((~sound).sum())


def _numbers(column: pd.Series) -> np.ndarray:
    """Return what dictd's base-64 numbers stand for, -1 where one is none."""
    values = np.zeros(len(column), dtype=np.int64)
    bad = ~column.str.fullmatch(r"[A-Za-z0-9+/]{1,8}").to_numpy(dtype=bool)
    letters = column.where(~bad, "A").str.rjust(8, "A")
    for place in range(8):
        values = values * 64 + letters.str[place].map(_DIGITS).to_numpy(dtype=np.int64)
    return np.where(bad, -1, values)


def _senses(text: str) -> tuple[list[tuple[str | None, ...]], str | None]:
    """Return the senses of one record, or why it has none."""
    header, body = _split_header(text)
    if header is None:
        return [], "brackets of the header never close"
    word = header.split("\\")[0].strip()
    if not word or "\\" not in header:
        return [], "no headword"
    spoken = _BRACKETED.sub(" ", _BRACKETED.sub(" ", header))
    pos = _POS.search(spoken.rsplit("\\", 1)[-1])
    if pos is None:
        return [], "no part of speech"
    inflected = " ".join(_INFLECTED.findall(_PRONOUNCED.sub("", header)))
    forms = " ".join(dict.fromkeys(form.lower() for form in re.findall(r"\{([^{}]+)\}", inflected)))
    found = [
        (_plain(word), _PARTS[pos[1]], *sense, forms)
        for sense in map(_sense, *_gathered(body))
        if sense is not None
    ]
    return found, None if found else "no definition"


def _split_header(text: str) -> tuple[str | None, str]:
    """Return the header (until its brackets close) and the body of a record."""
    lines = text.split("\n")
    depth = 0
    for i, line in enumerate(lines[:_HEADER_LINES]):
        depth += sum(line.count(opens) - line.count(closes) for opens, closes in ("[]", "()", "{}"))
        if depth <= 0 and not line.rstrip().endswith((",", ";", "&")):
            return " ".join(part.strip() for part in lines[: i + 1]), "\n".join(lines[i + 1 :])
    return None, ""


def _gathered(body: str) -> tuple[list[str], list[str | None]]:
    """Return the raw definitions of a body, and the quotation that follows each (None where none does)."""
    definitions: list[str] = []
    quotations: list[str | None] = []
    listening = False  # whether a quotation would belong to the last definition
    for paragraph in re.split(r"\n[ \t]*\n", body):
        indent = len(paragraph) - len(paragraph.lstrip(" \n")) - paragraph.startswith("\n")
        start = paragraph.lstrip()
        if not start or start.startswith("["):
            continue
        if indent >= 8:
            if listening and quotations[-1] is None:
                quotations[-1] = paragraph
        elif start.startswith(("{", "Note:", "Syn:", "Usage:", "--", "[")):
            listening = False
        elif _NUMBER.match(paragraph.lstrip("\n")) or not definitions:
            for part in _parts(_NUMBER.sub("", paragraph.lstrip("\n"))):
                definitions.append(part)
                quotations.append(None)
            listening = True
        else:
            listening = False
    return definitions, quotations


def _parts(paragraph: str) -> Iterator[str]:
    """Yield the lettered definitions of a sense, or the whole of it."""
    pieces = _LETTER.split("\n" + paragraph)
    yield from pieces[2::2] if len(pieces) > 2 else [paragraph]


def _plain(text: str) -> str:
    """Return text with its accents, braces and blanks made plain."""
    text = _ACCENTED.sub(
        lambda found: next((group for group in found.groups() if group), "°"), text
    )
    return " ".join(text.replace("{", "").replace("}", "").split())


def _sense(raw: str, quotation: str | None) -> tuple[str | None, ...] | None:
    """Return definition, example, its kind, and labels, or None where no definition is left."""
    text = _plain(_SOURCE.sub("", raw))
    labels = []
    while (found := _LABEL.search(text)) or (found := _ATTRIBUTION.search(text)):
        if found.re is _LABEL:
            labels.append(found[1])
        text = text[: found.start()]
    example, kind = None, None
    if found := _USAGE.search(text):
        text, example, kind = text[: found.start()], text[found.end() :], "usage"
    elif found := _QUOTED.search(text):
        text, example, kind = text[: found.start()] + text[found.end() :], found[1], "quoted"
    elif quotation is not None:
        example, kind = _quotation(quotation), "quotation"
    definition = _SEE.sub(
        "",
        _FIELD.sub(
            "", _BRACKETED.sub("", _FIELD.sub("", _ATTRIBUTION.sub("", _QUOTED.sub(" ", text))))
        ),
    )
    definition = " ".join(definition.split()).strip(" .,;:-")
    if not re.search(r"[A-Za-z]{2}", definition):
        return None
    example = (example or "").split(" [")[0].strip(' .;:,"')
    definition = definition[0].upper() + definition[1:]
    return definition, example or None, kind if example else None, "; ".join(labels) or None


def _quotation(raw: str) -> str:
    """Return a quotation on one line, without its author."""
    kept = re.sub(r"\s*--\s?(?=[A-Z0-9(]).*$", "", _plain(_SOURCE.sub("", raw)))
    return kept.replace(" . . . ", " ... ")
