r"""N-gram language models with interpolated modified Kneser-Ney smoothing, on arrays.

Counts, discounts and back-off weights are those of KenLM's ``lmplz`` (Heafield et al. 2013):

.. math:: P(w \mid c) = \frac{n(c w) - D_{n(c w)}}{\sum_v n(c v)}
    + \gamma(c) P(w \mid c'), \qquad
    \gamma(c) = \frac{D_1 N_1(c) + D_2 N_2(c) + D_3 N_{3+}(c)}{\sum_v n(c v)}

with c' the context c without its first word. At the highest order n counts occurrences; below it,
the different words before an n-gram, unless that begins with ``<s>``. At order 1 the last term is
uniform over the vocabulary, ``</s>`` and the unknown word (Chen and Goodman 1999). Where a text has
``<unk>`` as a word of its own, every unknown word is read as that word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.running_text import UNKNOWN, Tokenize, plain, sum_over_words, word_level_tokens

# the numbers of <s>, </s> and a word that was never seen
BEGIN = 0
END = 1
UNSEEN = 2
FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])  # discounts where a text is too small to estimate them


@dataclass(frozen=True, eq=False)
class _Order:
    """The n-grams of one order, sorted by key."""

    key: np.ndarray  # place of the first n - 1 words among the order below, times V, plus the word
    probability: np.ndarray  # of the last word after the others
    backoff: np.ndarray  # gamma of the order below's n-grams as contexts; 1 where none was seen


@dataclass(frozen=True, eq=False)
class NgramModel:
    """An n-gram model: the words it knows, and the n-grams of each order."""

    vocabulary: dict[str, int]
    orders: tuple[_Order, ...]

    def token_scores(self, sentences: Iterable[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the surprisals of sentences' tokens and ends, in bits, and which are unknown. Both
        arrays have n_tokens + n_sentences entries: each sentence is closed by its end."""
        stand_in = self.vocabulary.get(UNKNOWN, UNSEEN)
        numbers = np.array([self.vocabulary.get(token, stand_in) for token in _marked(sentences)])
        predicted = numbers != BEGIN
        key_index = numbers  # of the 1-gram that ends here
        probability = self.orders[0].probability[key_index]
        for order in self.orders[1:]:
            if not len(order.key):  # every sentence was shorter
                break
            context = _before(key_index)
            key_index = _find(order.key, context, numbers, len(self.vocabulary))
            lower = np.where(context >= 0, order.backoff[context], 1.0) * probability
            probability = np.where(key_index >= 0, order.probability[key_index], lower)
        unknown = (numbers == stand_in) | (numbers == UNSEEN)
        return -np.log2(probability[predicted]), unknown[predicted]

    def surprisal(self, words: pd.DataFrame, tokenize: Tokenize = plain) -> pd.DataFrame:
        """Return words with ``surprisal_bits``, ``n_tokens`` (whose surprisals are added) and
        ``n_unknown``; ``sentence_id`` tells sentences apart where texts have several."""
        tokens = word_level_tokens(words, tokenize)
        sentences = [list(part) for _, part in tokens.groupby("sentence", sort=False)["token"]]
        bits, unknown = self.token_scores(sentences)
        ends = np.cumsum([len(sentence) + 1 for sentence in sentences]) - 1
        return sum_over_words(words, tokens, np.delete(bits, ends), np.delete(unknown, ends))

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity of a text: unknown words and ends of sentences count."""
        return float(2 ** self.token_scores(sentences)[0].mean())


def train(sentences: Iterable[Sequence[str]], order: int) -> NgramModel:
    """Train an n-gram model (interpolated modified Kneser-Ney). Where a text is too small for its
    discounts to be estimated, they are 0.5, 1 and 1.5."""
    if order < 1:
        raise ValueError(f"order is {order}; it must be 1 or more")
    vocabulary = {"<s>": BEGIN, "</s>": END, "": UNSEEN}
    words = np.array([vocabulary.setdefault(t, len(vocabulary)) for t in _marked(sentences)])
    starts = np.maximum.accumulate(np.where(words == BEGIN, np.arange(len(words)), 0))
    n_words = len(vocabulary)
    # Per order: sorted keys, the place of the n-gram that ends at each word (-1: it would begin
    # before its sentence), one position of each n-gram, and how often it occurs.
    keys = [np.arange(n_words)]
    places = [words]
    positions = [np.zeros(n_words, dtype=np.int64)]
    counts = [np.bincount(words, minlength=n_words)]
    positions[0][words] = np.arange(len(words))
    for _ in range(order - 1):
        context = _before(places[-1])
        inside = (context >= 0) & (words != BEGIN)
        key = context[inside] * n_words + words[inside]
        unique, first, key_index, count = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        keys.append(unique)
        places.append(np.full(len(words), -1))
        places[-1][inside] = key_index
        positions.append(np.flatnonzero(inside)[first])
        counts.append(count)
    orders: list[_Order] = []
    for n, (key, position) in enumerate(zip(keys, positions, strict=True), start=1):
        count = counts[n - 1]
        if n < order:
            # The different words before an n-gram; what begins a sentence keeps its count.
            different = np.bincount(places[n - 1][positions[n]], minlength=len(key))
            count = np.where(starts[position] == position - n + 1, count, different)
        if n == 1:
            count[[BEGIN, UNSEEN]] = 0
            context = np.zeros(n_words, dtype=np.int64)
            n_contexts = 1
            lower = np.full(n_words, 1 / (n_words - 1))  # <s> is never predicted
        else:
            context = places[n - 2][position - 1]
            n_contexts = len(keys[n - 2])
            lower = orders[-1].probability[places[n - 2][position]]
        discount = _discounts(count)[np.minimum(count, 3)]
        total = np.bincount(context, count, n_contexts)
        held_back = np.bincount(context, discount, n_contexts)
        backoff = np.divide(held_back, total, out=np.ones(n_contexts), where=total > 0)
        divisor = np.where(total > 0, total, 1.0)[context]
        probability = (count - discount) / divisor + backoff[context] * lower
        orders.append(_Order(key, probability, backoff))
    return NgramModel(vocabulary, tuple(orders))


def _marked(sentences: Iterable[Sequence[str]]) -> list[str]:
    """Return the tokens of all sentences, each between its marks."""
    tokens: list[str] = []
    for sentence in sentences:
        if "<s>" in sentence or "</s>" in sentence:
            raise ValueError(f"take <s> or </s> out of the sentence {list(sentence[:8])}")
        tokens += ["<s>", *sentence, "</s>"]
    if not tokens:
        raise ValueError("the text has no sentence; give sequences of tokens")
    return tokens


def _before(place: np.ndarray) -> np.ndarray:
    """Return the place of the n-gram that ends one word before each word."""
    return np.concatenate([[-1], place[:-1]])


def _find(key: np.ndarray, context: np.ndarray, word: np.ndarray, n_words: int) -> np.ndarray:
    """Return the place of context and word among the sorted keys, -1 where it is not."""
    wanted = context * n_words + word
    key_index = np.searchsorted(key, wanted).clip(max=len(key) - 1)
    return np.where((context >= 0) & (word != BEGIN) & (key[key_index] == wanted), key_index, -1)


def _discounts(count: np.ndarray) -> np.ndarray:
    """Return the discounts of counts 0, 1, 2 and 3 or more (Chen and Goodman 1999, equation 17)."""
    n = np.bincount(count, minlength=5)[:5].astype(float)
    if not n[1:].all():
        return FALLBACK
    k = np.arange(1, 4)
    discount = k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[k + 1] / n[k]
    return FALLBACK if ((discount < 0) | (discount > k)).any() else np.concatenate([[0], discount])
