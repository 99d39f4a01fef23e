"""Predictability norms: how surprising people find the next word, from cloze tests, beside what
models say.

In a cloze test people read the beginning of a sentence and say the next word; the share of them who
say the printed one, smoothed, is its cloze probability (Hao et al. 2020, section 3.3.2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from psychlm import data
from psychlm.corpora import reading_times as corpora

BARE_WORD = re.compile(r"[A-Za-z]+")
PRETRAINED = [name for name in corpora.UCL_MODELS.values() if name.startswith("GPT")]


@dataclass(frozen=True)
class Norms:
    """Sentences, and how predictable their words are to people and to released models.

    Attributes
    ----------
    sentences : DataFrame
        A words frame of the whole sentences, for language models to read.
    table : DataFrame
        One row a normed word: ``text_id``, ``word_id``, ``word``; ``bare``, whether it is letters
        only, without attached punctuation or clitics; ``cloze_surprisal_bits``; and the surprisals
        in bits of released models.
    released : tuple of str
        The columns of ``table`` that hold released surprisals.
    """

    sentences: pd.DataFrame
    table: pd.DataFrame
    released: tuple[str, ...]


def is_bare(words: pd.Series) -> pd.Series:
    """Return which words are letters only, without attached punctuation or clitics."""
    return words.str.fullmatch(BARE_WORD)


def split_sentences(sentences: pd.Series) -> pd.DataFrame:
    """Return the words frame of sentences; their index is the ``text_id``."""
    words = sentences.str.split().explode().rename("word").rename_axis("text_id").reset_index()
    return words.assign(
        text_id=words["text_id"].astype(str), word_id=words.groupby("text_id").cumcount() + 1
    )


def ucl_norms() -> Norms:
    """Read the norms of the UCL corpus: cloze answers and the surprisals of seven GPT models (de
    Varda et al. 2023).

    Surprisals were released in nats and come in bits here. A sentence's first word was not normed;
    its last word has the full stop attached.
    """
    corpus = corpora.ucl()
    raw = pd.read_csv(data.path("ucl2023/all_measures"), keep_default_na=False, na_values=[""])
    sentences = raw.drop_duplicates("sent_id").set_index("sent_id")["sentence"].sort_index()
    keys = ["text_id", "word_id"]
    assert corpus.surprisals is not None  # this corpus was released with them
    columns = [*keys, "word", "cloze_surprisal_bits"]
    table = corpus.words[columns].merge(
        corpus.surprisals[[*keys, *PRETRAINED]], on=keys, validate="one_to_one"
    )
    return Norms(
        split_sentences(sentences), table.assign(bare=is_bare(table["word"])), tuple(PRETRAINED)
    )
