"""The traditional language models of Hao et al. (2020, section 3.1), trained and tested on one corpus.

N-grams by KenLM; LSTMs and Transformers by :mod:`psychlm.lm.recurrent_training`, with batch size, dropout and rate
tuned or not. All of a corpus share its closed vocabulary, so that their perplexities compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pandas as pd
from torch import Tensor

from psychlm.corpora.text import WordCorpus
from psychlm.lm import ngram, recurrent_training
from psychlm.lm.lmplz import KenlmError, program
from psychlm.lm.ngram import NgramModel
from psychlm.lm.recurrent import Architecture, Vocabulary, WordModel
from psychlm.lm.recurrent_training import Training

LARGEST_TUNED = 650  # larger ones take over what was found for it (section 3.1)
KIND: dict[str, Literal["lstm", "transformer"]] = {"LSTM": "lstm", "Transformer": "transformer"}
FIRST_RATE = {"LSTM": 20.0, "Transformer": 5.0}  # of PyTorch's word language model example


@dataclass(frozen=True, eq=False)
class Trained:
    """A traditional language model and what it makes of its corpus's test part."""

    family: Literal["n-gram", "LSTM", "Transformer"]
    size: int  # the order of an n-gram, the hidden units of a network
    corpus: WordCorpus
    model: NgramModel | WordModel
    perplexity: float  # per token of the test part, ends of sentences counted
    training: Training | None = None  # of networks

    @property
    def name(self) -> str:
        """Its name in the paper: "3-Gram", "LSTM-200", "Transformer-424"."""
        return f"{self.size}-Gram" if self.family == "n-gram" else f"{self.family}-{self.size}"

    @property
    def key(self) -> str:
        """Corpus and name as a report's key has them: "penn_treebank.3-gram"."""
        return f"{self.corpus.name}.{self.name}".lower().replace(" ", "_")

    def surprisal(self, words: pd.DataFrame) -> pd.DataFrame:
        """Return printed words with ``surprisal_bits`` and ``n_unknown``, read in the corpus's own tokens."""
        return self.model.surprisal(words, self.corpus.tokenize)


def kenlm_missing(*, build_missing: bool) -> str:
    """Say why n-grams cannot be trained here; an empty text where they can.

    Parameters
    ----------
    build_missing : bool
        Build KenLM's programs, which takes a minute, where they are not found.
    """
    try:
        program("lmplz", build_missing=build_missing)
    except KenlmError as error:
        return str(error)
    return (
        ""
        if find_spec("kenlm")
        else "the module kenlm is not installed; pip install kenlm (needs g++)"
    )


def ngrams(corpus: WordCorpus, orders: Sequence[int], folder: str | Path) -> Iterator[Trained]:
    """Train n-grams and yield each.

    Parameters
    ----------
    folder : str or Path
        Where ARPA files go.

    Raises
    ------
    KenlmError
        If KenLM is missing.
    """
    for order in orders:
        file = Path(folder) / f"{corpus.name}.{order}.arpa"
        model = ngram.train(corpus.train, order, file, discount_fallback=True)
        yield Trained(
            "n-gram", order, corpus, model, model.perplexity(corpus.test).including_unknown
        )


def networks(
    corpus: WordCorpus,
    family: Literal["LSTM", "Transformer"],
    sizes: Sequence[int],
    training: Training,
    *,
    trials: tuple[int, int] = (0, 0),
    folder: str | Path | None = None,
    device: str = "cpu",
) -> Iterator[Trained]:
    """Train LSTMs or Transformers of several sizes, the smallest first, and yield each.

    Parameters
    ----------
    training : Training
        Its rate is replaced by PyTorch's example's for this kind of model; all three tuned settings are where there
        are trials.
    trials : (int, int)
        Random and model-based trials of the search for batch size, dropout and rate; the paper's are 7 and 13.
    folder : str or Path, optional
        Where checkpoints and trials are kept, so that a run that was killed goes on.
    """
    vocabulary = Vocabulary.of(corpus.train)
    train, validation, test = (
        vocabulary.stream(part) for part in (corpus.train, corpus.validation, corpus.test)
    )
    how = replace(training, rate=FIRST_RATE[family])
    for size in sorted(sizes):
        made = Architecture(KIND[family], size)
        place = None if folder is None else Path(folder) / f"{corpus.name}.{family}.{size}"
        if sum(trials) and size <= LARGEST_TUNED:
            how = _tuned(train, validation, vocabulary, made, how, trials, place, device)
        done = recurrent_training.train(
            train, validation, vocabulary, made, how, folder=place, device=device
        )
        yield Trained(
            family, size, corpus, done.model, recurrent_training.perplexity(done.model, test), how
        )


def _tuned(
    train: Tensor,
    validation: Tensor,
    vocabulary: Vocabulary,
    made: Architecture,
    how: Training,
    trials: tuple[int, int],
    place: Path | None,
    device: str,
) -> Training:
    """Search, and keep the trials beside the checkpoint."""
    storage = None
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{place / 'trials.db'}"
    return recurrent_training.tune(
        train,
        validation,
        vocabulary,
        made,
        how,
        random_trials=trials[0],
        model_trials=trials[1],
        storage=storage,
        device=device,
    ).training
