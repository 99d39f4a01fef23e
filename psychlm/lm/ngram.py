"""N-gram language models with modified Kneser-Ney smoothing (Heafield et al. 2013), trained and asked with KenLM.

Hao et al. (2020) take orders 2 to 5, and order 1 for word frequencies. A sentence is a line: it begins after ``<s>``
and ends with ``</s>``, which counts in the perplexity but belongs to no word. Text in which rare words are written
``<unk>`` (Penn Treebank, WikiText-2) has it as a word of its own: ``lmplz`` keeps that name for what it never saw, so
here the text's ``<unk>`` becomes ``<rare>``, and so does, when such a model is asked, every word that it does not know.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm.lm.lmplz import KenlmError, program
from psychlm.lm.word_tokens import UNKNOWN, Tokenize, joined, plain, tokens_frame

UNKNOWN_WORD = "<rare>"  # KenLM takes <UNK> for its own <unk>
RESERVED = ("<s>", "</s>")
BITS_PER_LOG10 = np.log2(10.0)


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per token as KenLM's ``query`` counts it: the sentence ends are tokens."""

    including_unknown: float
    excluding_unknown: float
    n_tokens: int
    n_unknown: int


@dataclass(frozen=True, eq=False)
class NgramModel:
    """An n-gram model that KenLM holds in memory (its unigrams alone for order 1, which KenLM's module cannot read)."""

    path: Path  # the ARPA file or KenLM binary it came from
    order: int
    _scorer: Any

    def token_scores(self, sentence: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the surprisals of a sentence's tokens and of its end, in bits, and which of them are unknown.

        Parameters
        ----------
        sentence : sequence of str, length n
            Tokens of the printed words.

        Returns
        -------
        bits : (n + 1,) float array
        unknown : (n + 1,) bool array
        """
        known = [token if token in self._scorer else UNKNOWN_WORD for token in sentence]
        log10, _, missing = zip(*self._scorer.full_scores(" ".join(known)), strict=True)
        unknown = np.array(missing) | np.array(
            [a != b for a, b in zip(sentence, known, strict=True)] + [False]
        )
        return -BITS_PER_LOG10 * np.array(log10), unknown

    def surprisal(self, words: pd.DataFrame, tokenize: Tokenize = plain) -> pd.DataFrame:
        """Return words with the surprisal of each in bits.

        Parameters
        ----------
        words : DataFrame
            ``text_id``, ``word_id``, ``word``; ``sentence_id`` where texts have more than one sentence.
        tokenize : callable
            How a printed word becomes the tokens that the model was trained on; their surprisals are added.

        Returns
        -------
        DataFrame
            ``words`` with ``surprisal_bits``, ``n_tokens`` and ``n_unknown``.
        """
        tokens = tokens_frame(words, tokenize)
        scored = [
            self.token_scores(list(s)) for _, s in tokens.groupby("sentence", sort=False)["token"]
        ]
        bits = np.concatenate([b[:-1] for b, _ in scored])
        return joined(words, tokens, bits, np.concatenate([u[:-1] for _, u in scored]))

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> Perplexity:
        """Return the perplexity per token, sentence ends counted, with and without unknown tokens."""
        scored = [self.token_scores(sentence) for sentence in sentences]
        bits, unknown = (np.concatenate(part) for part in zip(*scored, strict=True))
        return Perplexity(
            including_unknown=float(2 ** bits.mean()),
            excluding_unknown=float(2 ** bits[~unknown].mean()),
            n_tokens=len(bits),
            n_unknown=int(unknown.sum()),
        )


class _Unigrams:
    """The unigrams of an ARPA file behind the two methods of ``kenlm.Model`` that are used here."""

    def __init__(self, path: Path) -> None:
        self._log10: dict[str, float] = {}
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                fields = line.rstrip("\n").split("\t")
                if len(fields) > 1:
                    self._log10[fields[1]] = float(fields[0])

    def __contains__(self, token: str) -> bool:
        return token in self._log10 and token != UNKNOWN

    def full_scores(self, text: str) -> list[tuple[float, int, bool]]:
        return [
            (self._log10.get(token, self._log10[UNKNOWN]), 1, token not in self)
            for token in [*text.split(), "</s>"]
        ]


def load(path: str | Path) -> NgramModel:
    """Open an ARPA file or a KenLM binary.

    Raises
    ------
    KenlmError
        If the module ``kenlm`` is not installed (orders above 1 need it) or the file is no n-gram model.
    """
    path = Path(path)
    if not path.is_file():
        raise KenlmError(f"no n-gram model at {path}; train one with psychlm.lm.ngram.train")
    with path.open("rb") as opened:
        head = opened.read(200)
    if head.startswith(b"\\data\\") and b"ngram 2=" not in head:
        return NgramModel(path, 1, _Unigrams(path))
    try:
        import kenlm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise KenlmError(
            "n-gram models are asked through the module kenlm; pip install kenlm (needs g++)"
        ) from error
    try:
        config = kenlm.Config()
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        model = kenlm.Model(str(path), config)
    except OSError as error:
        raise KenlmError(f"{path} is not an n-gram model that KenLM reads: {error}") from error
    return NgramModel(path, model.order, model)


def train(
    sentences: Iterable[Sequence[str]],
    order: int,
    path: str | Path,
    *,
    discount_fallback: bool = False,
    memory: str = "20%",
) -> NgramModel:
    """Train an n-gram model with ``lmplz`` (interpolated modified Kneser-Ney), write its ARPA file and open it.

    Parameters
    ----------
    sentences : iterable of sequences of str
        Tokens without white space; a token ``<unk>`` is a word like any other (see the module).
    order : int
        1 to 5 (``lmplz`` as it is built takes up to 6).
    path : str or Path
        Where the ARPA file goes; it is moved there when it is whole.
    discount_fallback : bool
        Where a corpus is too small for its discounts to be estimated, take 0.5, 1 and 1.5 for them.
    memory : str
        What ``lmplz`` may use, as its option ``-S`` has it.

    Raises
    ------
    KenlmError
        If ``lmplz`` is missing or refuses the text; its own words are in the message.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.writing")
    command = [
        str(program("lmplz")),
        "-o",
        str(order),
        "-S",
        memory,
        "-T",
        str(path.parent),
        "--arpa",
        str(unfinished),
    ]
    command += ["--discount_fallback"] if discount_fallback else []
    text = "".join(f"{_trainable(sentence)}\n" for sentence in sentences)
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        said = done.stderr.decode(errors="replace")
        why = next(
            (line for line in said.splitlines() if "exception" in line.lower()), said[-400:].strip()
        )
        hint = (
            "; the text is too small for its discounts: discount_fallback=True"
            if "BadDiscount" in said
            else ""
        )
        raise KenlmError(f"lmplz could not train order {order}{hint}. It says: {why}")
    unfinished.replace(path)
    return load(path)


def _trainable(sentence: Sequence[str]) -> str:
    """Return a sentence as a line that lmplz reads as these very tokens."""
    if any(token in RESERVED for token in sentence):
        raise KenlmError(
            f"the sentence {list(sentence)[:8]} holds <s> or </s>, which KenLM sets itself; take them out"
        )
    line = " ".join(UNKNOWN_WORD if token == UNKNOWN else token for token in sentence)
    if len(line.split()) != len(sentence):
        raise KenlmError(
            f"a token of {list(sentence)[:8]} is empty or holds white space; split it first"
        )
    return line
