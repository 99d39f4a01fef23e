"""DictionaryQA: which sense of a word does this sentence use? (Richardson & Sabharwal 2020, 3.2)

A question shows a word in the example of one of its senses in GCIDE; the right answer is the
definition of that sense, the distractors are definitions of the word's other senses and, if those
do not suffice, definitions drawn at random. **Only senses with an example serve as distractors**,
as the right answer does: definitions with and without examples are worded differently, and the
authors found 56 % of answers from the choices alone before they left such distractors out.

Stricter than the paper's: distractors share the part of speech of the right answer (or "To ..."
gives verbs away), and definitions that name the word itself are left out.

GCIDE, the GNU Collaborative International Dictionary of English, is Webster's Revised Unabridged
Dictionary of 1913 with additions. Debian's package ``dict-gcide`` holds it as dictd's two files:
``gcide.dict.dz`` (text, compressed so that gzip reads it) and ``gcide.index`` (headword, offset and
length in base 64). A record reads so::

    Bank \\Bank\\ (b[a^][ng]k), n. [OE. banke; akin to E. bench.]
       1. A mound, pile, or ridge of earth; as, a bank of clouds; a bank of snow.
          [1913 Webster]

                They cast up a bank against the city. --2 Sam. xx.

Every numbered or lettered definition is a sense; what follows *as,*, stands in quotes, or is
indented below is its example. Records that cannot be read so (a tenth) are left out."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from base64 import b64decode
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from psychlm.data import DataError, DataMissingError
from psychlm.frames import check_items

VARIABLE = "PSYCHLM_GCIDE"
FOLDERS = ("/usr/share/dictd", "/usr/local/share/dictd", "/opt/homebrew/share/dictd")
COLUMNS = ["word", "pos", "definition", "example", "example_kind", "forms"]
N_CHOICES = 5
LARGEST_PART = 3000  # most questions for training and for development, and a third of all
# Table 2 of the paper, definitions
PROMPT = 'In the sentence "{sentence}", the word "{shown}" is best defined as:'
# Prepositions and their like are too few to draw distractors from
PARTS_ASKED = ("noun", "verb", "adjective", "adverb")
MAX_WORDS = 40  # of a definition or an example; longer ones are encyclopaedic
MAX_REDRAWS = 50
MAX_HEADER_LINES = 25  # a header that has not closed its brackets by then is broken

# Reading GCIDE

_PARTS = (
    "n noun, v verb, vb verb, a adjective, adj adjective, p adjective, adv adverb, "
    "prep preposition, conj conjunction, interj interjection, pron pronoun"
)
PARTS_OF_SPEECH = dict(part.split(" ") for part in _PARTS.split(", "))
POS = re.compile(rf"(?:^|[\\),;\s])({'|'.join(PARTS_OF_SPEECH)})\.(?:\s|$|,|;)")
BRACKETED = re.compile(r"\[[^\[\]]*\]")
INFLECTED = re.compile(
    r"\[[^\[\]]*?\b(?:imp|p\. p|p\. pr|Compar|superl|pl)\b[^\[\]]*\]|;\s*pl\.[^\[]*"
)
# Accents as GCIDE writes them: [=a], [ae], [a^], ["e]
ACCENTED = re.compile(
    r"\[(?:deg|[^A-Za-z0-9\]\s]{1,2}([A-Za-z]{1,2})[^A-Za-z\]\s]{0,2}"
    r"|([A-Za-z]{1,2})[^A-Za-z\]\s.]{1,2}|(ae|oe|AE|OE))\]"
)
PRONOUNCED = re.compile(
    r"\[(?:[^A-Za-z\]]{1,2}[A-Za-z]{1,2}[^A-Za-z\]]{0,2}|[A-Za-z]{1,3}[^A-Za-z\]]{0,2})\]"
)
# Where a paragraph comes from: [1913 Webster], [WordNet 1.5], [PJC]
SOURCE = re.compile(
    r"\[(?=[^\]]*(?:Webster|WordNet|PJC|Century|RDH|JCR|RP|AS|MW10|wiki|Stedman|Tolkien|\d{4}))"
    r"[^\]]*\]"
)
NUMBER = re.compile(r"^ {1,5}\d+\.\s+")
LETTER = re.compile(r"\n\s*\(([a-z])\)\s+")
LABEL = re.compile(r"\s*\[[^\[\]]*\]\s*\.?\s*$")
FIELD = re.compile(  # (Zool.), "pl.:", "Hence," at the beginning of a definition
    r"^(?:\((?:[A-Z]|a\)|derived)[^)]{0,40}\)\s*"
    r"|(?:pl|sing|Hence|Fig|Specifically|Specif|Also)\.?[:,]\s*|[:,;.]\s*)+"
)
ATTRIBUTION = re.compile(r"\s*--\s?(?=[A-Z0-9(])[^\"]{1,60}$")
QUOTED = re.compile(r'\s*"([^"]{8,})"\s*(?:--\s?[^".;]{1,40}\.?)?')
USAGE = re.compile(r"[;:,.]?\s+as,\s+")
SEE = re.compile(
    r"\s*(?:(?:See|Cf\.|Compare|Called also|Also called|Opposed to|Written also|Syn\.)"
    r"\s[^.]*\.?)+$"
)


def find(path: str | Path | None = None) -> Path:
    """Return ``gcide.dict.dz``: the one named, a variable's, or the system's; or else
    DataMissingError."""
    named = path if path is not None else os.environ.get(VARIABLE)
    places = [Path(named)] if named else [Path(folder) for folder in FOLDERS]
    for place in places:
        file = place / "gcide.dict.dz" if place.is_dir() else place
        if file.is_file():
            return file
    raise DataMissingError(
        f"no GCIDE in {', '.join(map(str, places))}: `apt-get install dict-gcide`, or set "
        f"{VARIABLE} to the folder that holds gcide.dict.dz and gcide.index"
    )


def read(path: str | Path | None = None, *, first: int | None = None) -> pd.DataFrame:
    """Read the dictionary (:func:`find`), or only its first records, into one row per sense.

    Columns: ``entry_id``, ``word``, ``pos``, ``definition`` (without labels and references),
    ``example`` (or None), ``example_kind`` ("usage", "quoted", "quotation") and ``forms``, the
    inflected ones of the record. ``attrs`` count ``entries``, those ``with_examples``, and
    ``example_kinds``. DataError if a file is missing or is no dictionary."""
    file = find(path)
    index = file.with_name("gcide.index")
    if not index.is_file():
        raise DataError(f"{file} has no gcide.index beside it: apt-get install dict-gcide")
    try:
        raw = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        message = f"{file} cannot be decompressed ({error}): apt-get install dict-gcide"
        raise DataError(message) from error
    # The index: headword, offset and length, in dictd's base 64, where A is 0. Headwords that begin
    # with 00- are dictd's own notes. Several headwords may lead to one record, which is read once.
    bounds: set[tuple[int, int]] = set()
    for line in index.read_text(encoding="latin-1").splitlines():
        if not line.startswith("00-"):
            numbers = [number.rjust(8, "A") for number in line.split("\t")[1:]]
            with contextlib.suppress(ValueError):  # a damaged row
                offset, length = (int.from_bytes(b64decode(n, validate=True)) for n in numbers)
                if 0 < length <= len(raw) - offset:
                    bounds.add((offset, length))
    rows: list[tuple[str | None, ...]] = []
    for offset, length in sorted(bounds)[:first]:
        with contextlib.suppress(UnicodeDecodeError):  # of three records
            rows += _senses(raw[offset : offset + length].decode("utf-8"))
    if not rows:
        raise DataError(f"{file} holds no dictionary entry that can be read")
    entries = pd.DataFrame(rows, columns=COLUMNS).drop_duplicates(["word", "pos", "definition"])
    entries.insert(0, "entry_id", [f"gcide-{i:06d}" for i in range(len(entries))])
    entries = entries.reset_index(drop=True)
    counts = {"entries": len(entries), "with_examples": int(entries["example"].notna().sum())}
    entries.attrs = counts | {"example_kinds": entries["example_kind"].value_counts().to_dict()}
    return entries


def _senses(text: str) -> list[tuple[str | None, ...]]:
    """Return the senses of one record, none if it cannot be read."""
    # The header ends where its brackets are closed.
    lines = text.split("\n")
    depth = 0
    for i, line in enumerate(lines[:MAX_HEADER_LINES]):
        depth += sum(line.count(a) - line.count(b) for a, b in ("[]", "()", "{}"))
        if depth <= 0 and not line.rstrip().endswith((",", ";", "&")):
            header = " ".join(part.strip() for part in lines[: i + 1])
            body = "\n".join(lines[i + 1 :])
            break
    else:
        return []
    # Headword, part of speech, inflected forms.
    word = header.split("\\")[0].strip()
    spoken = BRACKETED.sub(" ", BRACKETED.sub(" ", header))
    pos = POS.search(spoken.rsplit("\\", 1)[-1])
    if not word or "\\" not in header or pos is None:
        return []
    inflected = " ".join(INFLECTED.findall(PRONOUNCED.sub("", header)))
    forms = " ".join(dict.fromkeys(form.lower() for form in re.findall(r"\{([^{}]+)\}", inflected)))
    # Definitions, each with the quotation that follows it (None where none does).
    definitions: list[list] = []
    expects_quotation = False
    for paragraph in re.split(r"\n[ \t]*\n", body):
        indent = len(paragraph) - len(paragraph.lstrip(" \n")) - paragraph.startswith("\n")
        start = paragraph.lstrip()
        bare = paragraph.lstrip("\n")
        if not start or start.startswith("["):
            continue
        if indent >= 8:
            if expects_quotation and definitions[-1][1] is None:
                definitions[-1][1] = paragraph
        elif start.startswith(("{", "Note:", "Syn:", "Usage:", "--")):
            expects_quotation = False
        elif NUMBER.match(bare) or not definitions:
            numbered = NUMBER.sub("", bare)
            lettered = LETTER.split("\n" + numbered)
            parts = lettered[2::2] if len(lettered) > 2 else [numbered]
            definitions += [[part, None] for part in parts]
            expects_quotation = True
        else:
            expects_quotation = False
    senses = [_sense(*pair) for pair in definitions]
    word = _plain(word)
    part_of_speech = PARTS_OF_SPEECH[pos[1]]
    return [(word, part_of_speech, *sense, forms) for sense in senses if sense is not None]


def _plain(text: str) -> str:
    """Return text without braces, marks of accents, and repeated blanks."""
    text = ACCENTED.sub(lambda match: next((g for g in match.groups() if g), "°"), text)
    return " ".join(text.replace("{", "").replace("}", "").split())


def _sense(raw: str, quotation: str | None) -> tuple[str | None, ...] | None:
    """Return definition, example and its kind, or None where no definition is left."""
    text = _plain(SOURCE.sub("", raw))
    # Labels such as [Obs.] and authors of quotations stand at the end, one behind another.
    while (match := LABEL.search(text)) or (match := ATTRIBUTION.search(text)):
        text = text[: match.start()]
    example = ""
    kind = None
    if match := USAGE.search(text):
        text, example, kind = text[: match.start()], text[match.end() :], "usage"
    elif match := QUOTED.search(text):
        text = text[: match.start()] + text[match.end() :]
        example = match[1]
        kind = "quoted"
    elif quotation is not None:  # on one line, without its author
        line = _plain(SOURCE.sub("", quotation))
        example = re.sub(r"\s*--\s?(?=[A-Z0-9(]).*$", "", line).replace(" . . . ", " ... ")
        kind = "quotation"
    bare = FIELD.sub("", ATTRIBUTION.sub("", QUOTED.sub(" ", text)))
    definition = SEE.sub("", FIELD.sub("", BRACKETED.sub("", bare)))
    definition = " ".join(definition.split()).strip(" .,;:-")
    if not re.search(r"[A-Za-z]{2}", definition):
        return None
    example = example.split(" [")[0].strip(' .;:,"')
    definition = definition[0].upper() + definition[1:]
    return definition, example or None, kind if example else None


# Building the probe


def shows(word: str, text: str, forms: str = "") -> str | None:
    """Return the word as a text shows it, or None if it does not: regular endings are known,
    ``forms`` are inflected ones that the dictionary names.

    >>> shows("nestle", "The baby nestled her head")
    'nestled'"""
    words = (match[0] for match in re.finditer(r"[A-Za-z][A-Za-z'-]*", text))
    known = spellings(word, forms)
    return next((shown for shown in words if shown.lower() in known), None)


@lru_cache(4096)  # a word is asked for once for each of its senses
def spellings(word: str, forms: str) -> frozenset[str]:
    """Return how a word may be written, in lower case."""
    stem = word.lower()
    known = {stem, *forms.split()}
    if stem.endswith("y"):
        known |= {stem[:-1] + ending for ending in ("ies", "ied", "ier", "iest")}
    base = stem.removesuffix("e")
    doubled = stem + stem[-1] if re.search(r"[aeiou][bdgklmnprt]$", stem) else stem
    for root in {stem, base, doubled}:
        known |= {root + end for end in ("s", "es", "ed", "d", "ing", "er", "est", "eth")}
    return frozenset(known)


def build(
    entries: pd.DataFrame,
    rng: np.random.Generator,
    *,
    n_items: int | None = None,
    distractors_without_examples: bool = False,
) -> pd.DataFrame:
    """Build DictionaryQA: a question for each sense with an example, of words with other senses.

    Of ``entries`` (:func:`read`) ``n_items`` questions are kept, whole words at a time, or all.
    ``distractors_without_examples`` is the mistake of the paper's first version, to show it. The
    items have the columns of WordNet's questions that tables need; their cluster is the word."""
    # Senses that may be choices: of single content words, with a definition not too long.
    n_words = entries["definition"].str.count(r"\s+") + 1
    single = entries["word"].str.fullmatch(r"[A-Za-z]{2,}")
    entries = entries[single & n_words.between(2, MAX_WORDS) & entries["pos"].isin(PARTS_ASKED)]
    entries = entries.assign(cluster=entries["word"].str.lower())
    entries = entries.drop_duplicates(["cluster", "definition"])
    # Senses to ask about: those whose example shows the word and whose definition does not.
    with_examples = entries[entries["example"].notna()]
    golds = with_examples[with_examples["example"].str.count(r"\s+") < MAX_WORDS]
    shown = pd.Series(
        map(shows, golds["cluster"], golds["example"], golds["forms"]), golds.index, object
    )
    named = pd.Series(
        map(shows, golds["cluster"], golds["definition"], golds["forms"]), golds.index, object
    )
    golds = golds.assign(shown=shown)[shown.notna() & named.isna()]
    # Distractors: the word's other senses first.
    pool = entries if distractors_without_examples else with_examples
    senses = _other_senses(golds, pool, rng)
    golds = golds[golds.index.isin(senses["gold"])]
    if golds.empty:
        raise DataError("the dictionary gives no question; read all of it")
    if n_items is not None:  # words drawn at random until there are so many questions
        up_to = _questions_up_to(golds["cluster"], rng)
        kept_words = up_to.index[up_to <= max(n_items, up_to.iloc[0])]
        golds = golds[golds["cluster"].isin(kept_words)]
    distractors = _fill_up(golds, senses[senses["gold"].isin(golds.index)], pool, rng)
    # Choices in random order: column 0 of ``texts`` is the right answer.
    golds = golds.sort_index()
    ordered = distractors.sort_values("gold", kind="stable")
    wrong = ordered["text"].to_numpy().reshape(-1, N_CHOICES - 1)
    texts = np.column_stack([golds["definition"], wrong])
    order = rng.permuted(np.tile(np.arange(N_CHOICES), (len(golds), 1)), axis=1)
    examples = zip(golds["example"], golds["shown"], strict=True)
    items = pd.DataFrame(
        {
            "item_id": "dictionary:" + golds["entry_id"].to_numpy(),
            "prompt": [PROMPT.format(sentence=text, shown=word) for text, word in examples],
            "choices": np.take_along_axis(texts, order, axis=1).tolist(),
            "answer": order.argmin(axis=1),
            "cluster": golds["cluster"].to_numpy(),
            "probe": "dictionary",
            "hops": 0,
            "distractor_set": "sense",
            "distractor_distance": 0,
        }
    )
    # Split, whole words at a time.
    up_to = _questions_up_to(items["cluster"], rng)
    most = min(LARGEST_PART, len(items) // 3)
    parts = np.select([up_to <= most, up_to <= 2 * most], ["train", "dev"], "test")
    items["split"] = items["cluster"].map(pd.Series(parts, index=up_to.index)).to_numpy()
    return check_items(items)


def _questions_up_to(words: pd.Series, rng: np.random.Generator) -> pd.Series:
    """Return by word how many questions are about the words up to it, in random order."""
    sizes = words.groupby(words).size()
    return sizes.iloc[rng.permutation(len(sizes))].cumsum()


def _other_senses(
    golds: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Return up to four other senses (``entry``) of each gold sense's word and part of speech."""
    left = golds[["cluster", "pos", "definition", "forms"]].rename_axis("gold").reset_index()
    right = pool[["cluster", "pos", "definition"]].rename_axis("entry").reset_index()
    pairs = left.merge(right, on=["cluster", "pos"], suffixes=("_gold", ""))
    pairs = pairs[pairs["gold"] != pairs["entry"]]
    # Leave out definitions that name the word, and those that share over two thirds of their words
    # with the right one.
    kept = []
    columns = (pairs[name] for name in ("cluster", "definition", "definition_gold", "forms"))
    words_of = cache(lambda text: frozenset(re.findall(r"\w+", text.lower())))
    names = cache(shows)  # the senses of a word meet each other, so that texts come again
    for word, definition, gold, forms in zip(*columns, strict=True):
        a = words_of(definition)
        b = words_of(gold)
        kept.append(3 * len(a & b) <= 2 * len(a | b) and names(word, definition, forms) is None)
    pairs = pairs[np.array(kept, dtype=bool)]
    shuffled = pairs.iloc[rng.permutation(len(pairs))]
    return shuffled.loc[shuffled.groupby("gold").cumcount() < N_CHOICES - 1, ["gold", "entry"]]


def _fill_up(
    golds: pd.DataFrame, senses: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Return four distractors for each gold sense: other senses, then random ones of its pos."""
    n_random = N_CHOICES - 1 - senses.groupby("gold").size().reindex(golds.index, fill_value=0)
    slots = pd.DataFrame({"gold": np.repeat(golds.index.to_numpy(), n_random)})
    pos_of_slot = slots["gold"].map(golds["pos"])
    by_pos = {pos: rows.index.to_numpy() for pos, rows in pool.groupby("pos")}
    entry = np.full(len(slots), -1)
    redraw = np.ones(len(slots), dtype=bool)
    for _ in range(MAX_REDRAWS):
        for pos, candidates in by_pos.items():
            here = redraw & (pos_of_slot == pos).to_numpy()
            entry[here] = rng.choice(candidates, int(here.sum()))
        both = pd.concat([senses, slots.assign(entry=entry)], ignore_index=True)
        both["text"] = both["entry"].map(pool["definition"])
        # Draw again what repeats a choice, or is a sense of the word itself.
        same_word = both["entry"].map(pool["cluster"]).eq(both["gold"].map(golds["cluster"]))
        is_answer = both["text"].eq(both["gold"].map(golds["definition"]))
        clash = both.duplicated(["gold", "text"]) | is_answer | same_word
        redraw = clash.to_numpy()[len(senses) :]
        if not redraw.any():
            return both
    raise DataError(f"{redraw.sum()} distractors repeat a choice; use the whole dictionary")
