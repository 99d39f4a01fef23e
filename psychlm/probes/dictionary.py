"""DictionaryQA: which sense of a word does this sentence use? (Richardson & Sabharwal 2020, section 3.2)

A question shows a word in the example of one of its senses in GCIDE; the right answer is the definition of that sense,
the distractors are definitions of the word's other senses and, if those do not suffice, definitions drawn at random.
**Only senses that have an example serve as distractors.** The right answer always has one, and definitions with and
without examples are written differently enough for a model to tell them apart without reading the question: the authors
found 56 % of answers from the choices alone before they left such distractors out.
``distractors_without_examples=True`` builds the set the wrong way, to show it.

Two rules are stricter than the paper's: distractors share the part of speech of the right answer (or "To ..." gives
verbs away), and definitions that name the word itself are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm.data import DataError
from psychlm.frames import check_items
from psychlm.probes.gcide import Dictionary, find, read

__all__ = ["Dictionary", "DictionaryProbe", "build", "find", "read", "shows"]

N_CHOICES = 5
PROMPT = "In the sentence {sentence}, the word {shown} is best defined as:"  # Table 2 of the paper, definitions
ASKED = (
    "noun",
    "verb",
    "adjective",
    "adverb",
)  # prepositions and their like are too few to draw distractors from
LONGEST_WORDS = (
    40  # words of a definition or an example: longer ones are encyclopaedia, not dictionary
)
REDRAWS = 50


@dataclass(frozen=True, eq=False)
class DictionaryProbe:
    """The questions, and what was left out on the way."""

    items: pd.DataFrame  # an items frame; see build
    left_out: (
        pd.Series
    )  # senses that became no question, by reason, in the order in which reasons were applied
    n_entries: int
    n_with_examples: int


def build(
    dictionary: Dictionary,
    rng: np.random.Generator,
    *,
    n_items: int | None = None,
    sizes: tuple[int, int] = (3000, 3000),
    min_other_senses: int = 1,
    distractors_without_examples: bool = False,
) -> DictionaryProbe:
    """Build DictionaryQA.

    Parameters
    ----------
    dictionary : Dictionary
        From :func:`read`.
    rng : Generator
        Draws distractors, their order, the split, and the sample.
    n_items : int, optional
        Questions to keep, whole words at a time; all unless given.
    sizes : (int, int)
        Most questions for training and for development; what remains is for testing. At most a third of all goes to
        each. All questions on a word stand in one part.
    min_other_senses : int
        Other senses that a word must have to be asked about: with 0, some questions have random distractors only.
    distractors_without_examples : bool
        Whether senses without an example serve as distractors: the mistake of the paper's first version.

    Returns
    -------
    DictionaryProbe
        ``items`` has ``item_id``, ``prompt``, ``choices`` (five), ``answer``, ``cluster`` (the word), ``word``,
        ``pos``, ``probe`` ("dictionary"), ``hops`` and ``distractor_distance`` (0: a dictionary has no graph),
        ``distractor_set`` ("sense" where a distractor is one of the word's, else "random"), ``distractor_types`` (of
        the four distractors, in the order of the choices), ``n_senses`` (distractors that are senses of the word) and
        ``split``.

    Raises
    ------
    DataError
        If no question can be built.
    """
    entries = _usable(dictionary.entries)
    golds, left_out = _golds(entries)
    left_out = {
        "no single content word, or definition too short or long": len(dictionary.entries)
        - len(entries)
    } | left_out
    pool = entries if distractors_without_examples else entries[entries["example"].notna()]
    other = _other_senses(golds, pool, rng)
    n_other = other.groupby("gold").size().reindex(golds.index, fill_value=0)
    left_out["too few other senses"] = int((n_other < min_other_senses).sum())
    golds = golds[n_other >= min_other_senses]
    if golds.empty:
        raise DataError(
            f"{dictionary.path} gives no question ({left_out}); is it the whole dictionary?"
        )
    if n_items is not None:
        golds = _whole_words(golds, n_items, rng)
        left_out["not in the sample"] = int((n_other >= min_other_senses).sum()) - len(golds)
    distractors = _filled(golds, other[other["gold"].isin(golds.index)], pool, rng)
    items = _items(golds, distractors, rng)
    items["split"] = _split(items["cluster"], sizes, rng)
    return DictionaryProbe(
        check_items(items),
        pd.Series(left_out, name="senses", dtype=int),
        len(dictionary.entries),
        len(dictionary.with_examples),
    )


def shows(word: str, text: str, forms: str = "") -> str | None:
    """Return the word as a text shows it ("nestled" for *nestle*), or None where it does not stand there.

    Parameters
    ----------
    forms : str
        Inflected forms that the dictionary names, with blanks between them; regular endings are known.
    """
    stem = word.lower()
    spelt = {stem, *forms.split()}
    if stem.endswith("y"):
        spelt |= {stem[:-1] + ending for ending in ("ies", "ied", "ier", "iest")}
    base = stem[:-1] if stem.endswith("e") else stem
    doubled = stem + stem[-1] if re.search(r"[aeiou][bdgklmnprt]$", stem) else stem
    for root in {stem, base, doubled}:
        spelt |= {root + ending for ending in ("s", "es", "ed", "d", "ing", "er", "est", "eth")}
    found = next(
        (match for match in re.finditer(r"[A-Za-z][A-Za-z'-]*", text) if match[0].lower() in spelt),
        None,
    )
    return found[0] if found else None


def _usable(entries: pd.DataFrame) -> pd.DataFrame:
    """Return the senses that may stand among choices: of single content words, with a definition not too long."""
    words = entries["definition"].str.count(r"\s+") + 1
    single = entries["word"].str.fullmatch(r"[A-Za-z]{2,}")
    kept = entries[single & words.between(2, LONGEST_WORDS) & entries["pos"].isin(ASKED)]
    return kept.assign(cluster=kept["word"].str.lower()).drop_duplicates(["cluster", "definition"])


def _golds(entries: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the senses to be asked about, with the word as their example shows it, and what was left out."""
    left_out = {"no example": int(entries["example"].isna().sum())}
    golds = entries[entries["example"].notna()]
    long = golds["example"].str.count(r"\s+") + 1 > LONGEST_WORDS
    left_out["example too long"] = int(long.sum())
    golds = golds[~long]
    told = zip(golds["cluster"], golds["example"], golds["definition"], golds["forms"], strict=True)
    seen = [
        (shows(word, example, forms), shows(word, definition, forms))
        for word, example, definition, forms in told
    ]
    golds = golds.assign(shown=[shown for shown, _ in seen])
    leaks = pd.Series([leak is not None for _, leak in seen], index=golds.index, dtype=bool)
    left_out["example does not show the word"] = int(golds["shown"].isna().sum())
    left_out["definition names the word"] = int((leaks & golds["shown"].notna()).sum())
    return golds[golds["shown"].notna() & ~leaks], left_out


def _other_senses(
    golds: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Return up to four other senses (``entry``) of each gold sense's (``gold``) word and part of speech."""
    left = golds[["cluster", "pos", "definition", "forms"]].rename_axis("gold").reset_index()
    right = pool[["cluster", "pos", "definition"]].rename_axis("entry").reset_index()
    pairs = left.merge(right, on=["cluster", "pos"], suffixes=("_gold", ""))
    pairs = pairs[pairs["gold"] != pairs["entry"]]
    told = zip(pairs["cluster"], pairs["definition"], pairs["forms"], strict=True)
    named = [shows(word, definition, forms) is not None for word, definition, forms in told]
    pairs = pairs[
        ~(np.array(named, dtype=bool) | _alike(pairs["definition"], pairs["definition_gold"]))
    ]
    shuffled = pairs.iloc[rng.permutation(len(pairs))]
    return shuffled.loc[shuffled.groupby("gold").cumcount() < N_CHOICES - 1, ["gold", "entry"]]


def _alike(one: pd.Series, other: pd.Series) -> np.ndarray:
    """Tell which definitions share more than two thirds of their words: near-identical choices have no answer."""
    pairs = zip(
        one.str.lower().str.findall(r"\w+").map(set),
        other.str.lower().str.findall(r"\w+").map(set),
        strict=True,
    )
    return np.array([3 * len(a & b) > 2 * len(a | b) for a, b in pairs], dtype=bool)


def _whole_words(golds: pd.DataFrame, n_items: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return the questions on words drawn at random until there are ``n_items``."""
    counts = golds.groupby("cluster").size()
    counts = counts.iloc[rng.permutation(len(counts))]
    return golds[
        golds["cluster"].isin(counts.index[counts.cumsum() <= max(n_items, counts.iloc[0])])
    ]


def _filled(
    golds: pd.DataFrame, other: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Return four distractors for each gold sense: its word's other senses, then random ones of its part of speech."""
    n_random = N_CHOICES - 1 - other.groupby("gold").size().reindex(golds.index, fill_value=0)
    slots = pd.DataFrame(
        {"gold": np.repeat(golds.index.to_numpy(), n_random), "entry": -1, "type": "random"}
    )
    wanted = slots["gold"].map(golds["pos"])
    by_pos = {pos: rows.index.to_numpy() for pos, rows in pool.groupby("pos")}
    senses, entry = other.assign(type="sense"), slots["entry"].to_numpy().copy()
    todo = np.ones(len(slots), dtype=bool)
    for _ in range(REDRAWS):
        for pos, rows in by_pos.items():
            here = todo & (wanted == pos).to_numpy()
            entry[here] = rng.choice(rows, int(here.sum()))
        both = pd.concat([senses, slots.assign(entry=entry)], ignore_index=True)
        both["text"] = both["entry"].map(pool["definition"])
        own = both["entry"].map(pool["cluster"]).eq(both["gold"].map(golds["cluster"]))
        clash = both.duplicated(["gold", "text"]) | both["text"].eq(
            both["gold"].map(golds["definition"])
        )
        todo = (clash | own).to_numpy()[len(senses) :]
        if not todo.any():
            return both
    raise DataError(
        f"{int(todo.sum())} distractors could not be drawn without repeating a choice: too few definitions for some "
        "part of speech; use the whole dictionary"
    )


def _items(
    golds: pd.DataFrame, distractors: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Return the items frame: choices in random order."""
    golds = golds.sort_index()
    by_gold = distractors.sort_values("gold", kind="stable")
    texts = np.column_stack(
        [golds["definition"], by_gold["text"].to_numpy().reshape(-1, N_CHOICES - 1)]
    )
    types = np.column_stack(
        [np.full(len(golds), "answer"), by_gold["type"].to_numpy().reshape(-1, N_CHOICES - 1)]
    )
    order = rng.permuted(np.tile(np.arange(N_CHOICES), (len(golds), 1)), axis=1)
    n_senses, placed = (types == "sense").sum(axis=1), np.take_along_axis(types, order, axis=1)
    told = zip(golds["example"], golds["shown"], strict=True)
    return pd.DataFrame(
        {
            "item_id": "dictionary:" + golds["entry_id"].to_numpy(),
            "prompt": [
                PROMPT.format(sentence=f'"{sentence}"', shown=f'"{shown}"')
                for sentence, shown in told
            ],
            "choices": np.take_along_axis(texts, order, axis=1).tolist(),
            "answer": order.argmin(axis=1),
            "cluster": golds["cluster"].to_numpy(),
            "word": golds["word"].to_numpy(),
            "pos": golds["pos"].to_numpy(),
            "probe": "dictionary",
            "hops": 0,
            "distractor_set": np.where(n_senses > 0, "sense", "random"),
            "distractor_distance": 0,
            "distractor_types": placed[placed != "answer"].reshape(-1, N_CHOICES - 1).tolist(),
            "n_senses": n_senses,
        }
    )


def _split(clusters: pd.Series, sizes: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return train, dev or test for every item, whole clusters at a time."""
    counts = clusters.value_counts(sort=False).sort_index()
    counts = counts.iloc[rng.permutation(len(counts))]
    n_train, n_dev = (min(size, len(clusters) // 3) for size in sizes)
    upto = counts.cumsum()
    parts = pd.Series(
        np.select([upto <= n_train, upto <= n_train + n_dev], ["train", "dev"], "test"),
        index=counts.index,
    )
    return clusters.map(parts).to_numpy()
