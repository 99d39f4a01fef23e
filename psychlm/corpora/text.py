"""Text for word-level language models, in training, validation and test parts with one closed vocabulary.

What the training part holds less often than ``min_count`` is ``<unk>`` in all three, so that n-grams, LSTMs and
Transformers share their probability among the same words and their perplexities compare (Hao et al. 2020, 3.3.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import numpy as np

from psychlm import data
from psychlm.corpora.norms import Norms, ucl_norms
from psychlm.lm import drawn, training_text
from psychlm.lm.recurrent import Vocabulary
from psychlm.lm.word_tokens import UNKNOWN, Tokenize, ptb, split_clitics

Sentences = list[list[str]]

SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))\s+(?=[\"'(]*[A-Z])")
BLOCK = (
    50  # paragraphs that stay together when novels are dealt out: parts share books, but not pages
)
ASIDE = 0.1  # words of the validation and of the test part, each, as a share of the training part's
WORDS_A_DRAWN_SENTENCE = 9
CHAIN_LENGTH = 500  # words that one Markov chain runs for


@dataclass(frozen=True)
class WordCorpus:
    """A corpus of tokens in three parts.

    Attributes
    ----------
    train, validation, test : list of list of str
        Sentences of tokens, unknown ones ``<unk>``.
    tokenize : callable
        How a printed word becomes this corpus's tokens, for models that read other text later.
    kind : str
        "real", or "simulated" where a model wrote the text.
    """

    name: str
    train: Sentences
    validation: Sentences
    test: Sentences
    tokenize: Tokenize
    kind: Literal["real", "simulated"] = "real"

    @property
    def n_words(self) -> dict[str, int]:
        """Tokens in each part, the ends of sentences not counted."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: sum(map(len, part)) for name, part in parts.items()}


def read(
    names: Sequence[str], n_words: int, *, seed: int, min_count: int = 2
) -> dict[str, WordCorpus]:
    """Read corpora; where one of them cannot be had, return in their place one that the default model wrote.

    Parameters
    ----------
    names : sequence of {"novels", "Penn Treebank", "WikiText-2"}
    n_words : int
        Words of training text at most.
    seed : int
        Deals out the novels, or draws the text.
    min_count : int
        Rarer words of the training part are ``<unk>``.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    readers: dict[str, Callable[[], WordCorpus]] = {
        "novels": lambda: novels(n_words, seed=seed, min_count=min_count),
        "Penn Treebank": lambda: _benchmark(
            "Penn Treebank", "lm/ptb/ptb.valid", "lm/ptb/ptb.test", ptb, n_words
        ),
        "WikiText-2": lambda: _benchmark(
            "WikiText-2", "lm/wikitext-2/valid", "lm/wikitext-2/test", split_clitics, n_words
        ),
    }
    strange = sorted(set(names) - set(readers))
    if strange:
        raise ValueError(f"no corpus is named {strange}; there are {sorted(readers)}")
    try:
        return {name: readers[name]() for name in names}
    except data.DataMissingError:
        return {"drawn": from_default(n_words, seed=seed, min_count=min_count)}


def norms(*, seed: int, n_drawn: int = 150) -> Norms:
    """Read the norms of the UCL corpus; where they cannot be had, draw as many sentences from the default model."""
    try:
        return ucl_norms()
    except data.DataMissingError:
        return drawn.norms(n_drawn, seed)


def lower_case(word: str) -> list[str]:
    """Return a printed word's tokens in lower case, clitics and punctuation apart."""
    return [token.lower() for token in split_clitics(word)]


def novels(n_words: int, *, seed: int, min_count: int = 2) -> WordCorpus:
    """Deal out the 20 novels, a block of 50 paragraphs at a time; what shares a sentence with the UCL corpus is out."""
    paragraphs = [
        p for _, p in takewhile(lambda told: told[0] == "novels", training_text.paragraphs())
    ]
    blocks = [paragraphs[i : i + BLOCK] for i in range(0, len(paragraphs), BLOCK)]
    order = np.random.default_rng(seed).permutation(len(blocks))
    mixed = (("novels", p) for i in order for p in blocks[i])
    normed = ucl_norms().sentences.groupby("text_id")["word"].agg(" ".join)
    clean = (p for _, p, ok in training_text.without(normed, mixed) if ok)
    sentences = (s for p in clean for s in SENTENCE_END.split(p))
    return _dealt("novels", map(_tokens, sentences), n_words, min_count, "real")


def from_default(n_words: int, *, seed: int, min_count: int = 2) -> WordCorpus:
    """Let the default model write a corpus; of at most 20,000 words, since it writes slowly."""
    n_words = min(n_words, 20_000)
    written = drawn.sentences(int(n_words * (1 + 2 * ASIDE)) // WORDS_A_DRAWN_SENTENCE, seed)
    return _dealt("drawn", map(_tokens, written), n_words, min_count, "simulated")


def markov(n_words: int, n_kinds: int, *, seed: int) -> tuple[WordCorpus, float]:
    """Draw a corpus from a Markov chain of words, and return it with the perplexity that no model can beat.

    Each word's successors, the end of the sentence among them, have probabilities P_i ~ Dirichlet(0.3); per token the
    entropy of the source is sum_i pi_i H(P_i), with pi the chain's stationary distribution.

    Parameters
    ----------
    n_kinds : int
        Different words.
    """
    rng = np.random.default_rng(seed)
    chain = rng.dirichlet(
        np.full(n_kinds + 1, 0.3), size=n_kinds + 1
    )  # state 0 ends a sentence and begins the next
    steps, at = [], np.zeros(max(n_words // CHAIN_LENGTH, 10), dtype=np.int64)
    for _ in range(CHAIN_LENGTH):
        at = (rng.random(len(at))[:, None] > chain[at].cumsum(axis=1)).sum(axis=1).clip(max=n_kinds)
        steps.append(at)
    text = " ".join("." if state == 0 else f"w{state}" for state in np.stack(steps, axis=1).ravel())
    stationary = np.linalg.matrix_power(chain, 1000)[0]
    bits = -(
        stationary[:, None] * chain * np.log2(chain, where=chain > 0, out=np.zeros_like(chain))
    ).sum()
    parts = (sentence.split() for sentence in text.split("."))
    return _dealt("markov", parts, n_words, 1, "simulated"), float(2**bits)


def _tokens(sentence: str) -> list[str]:
    return [token for word in sentence.split() for token in lower_case(word)]


def _dealt(
    name: str,
    sentences: Iterable[list[str]],
    n_words: int,
    min_count: int,
    kind: Literal["real", "simulated"],
) -> WordCorpus:
    """Fill test, validation and training part, in this order, with so many words each."""
    rest = filter(None, sentences)
    aside = int(ASIDE * n_words)
    test, validation = _taken(rest, aside), _taken(rest, aside)
    train = _taken(rest, n_words)
    return WordCorpus(name, *_closed(train, validation, test, min_count), lower_case, kind)


def _taken(sentences: Iterable[list[str]], n_words: int) -> Sentences:
    """Take sentences until they have so many words."""
    taken, total = [], 0
    for sentence in sentences:
        taken.append(sentence)
        total += len(sentence)
        if total >= n_words:
            break
    return taken


def _benchmark(name: str, train: str, test: str, tokenize: Tokenize, n_words: int) -> WordCorpus:
    """Read a benchmark's validation text to train on (every tenth line aside) and its test text; a line a sentence."""
    lines = _lines(train)
    kept = _taken((line for i, line in enumerate(lines) if i % 10), n_words)
    return WordCorpus(name, *_closed(kept, lines[::10], _lines(test), 1), tokenize)


def _lines(name: str) -> Sentences:
    split = (line.split() for line in data.path(name).read_text(encoding="utf-8").splitlines())
    return [line for line in split if line]


def _closed(
    train: Sentences, validation: Sentences, test: Sentences, min_count: int
) -> tuple[Sentences, Sentences, Sentences]:
    """Write ``<unk>`` for what the training part does not hold ``min_count`` times."""
    known = set(Vocabulary.of(train, min_count=min_count).words)
    closed = (
        [[t if t in known else UNKNOWN for t in s] for s in part]
        for part in (train, validation, test)
    )
    train, validation, test = closed
    return train, validation, test
