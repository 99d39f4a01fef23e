"""N-gram language models with modified Kneser-Ney smoothing (Heafield et al. 2013), trained and
queried with KenLM.

Hao et al. (2020) take orders 2 to 5. A sentence is a line: it begins after ``<s>`` and ends with
``</s>``, which counts in the perplexity but belongs to no word. Text in which rare words are
written ``<unk>`` (Penn Treebank, WikiText-2) has it as a word of its own. ``lmplz`` keeps that name
for what it never saw, so here the text's ``<unk>`` becomes ``<rare>``, and so does every word that
such a model does not know.

``pip install kenlm`` brings only the module that queries models. ``lmplz``, which trains them, and
``query``, which checks them, come from the same source with cmake and boost; the build takes about
a minute and is kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm.corpora.text import UNKNOWN, Tokenize, plain
from psychlm.data import atomic_write
from psychlm.lm import cache
from psychlm.lm.tokens import sum_over_words, word_level_tokens

UNKNOWN_WORD = "<rare>"  # KenLM takes <UNK> for its own <unk>
BITS_PER_LOG10 = np.log2(10.0)
MEMORY = "20%"  # that lmplz may use

VERSION = "0.3.0"
SHA256 = "c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8"
PROGRAMS = ("lmplz", "query", "build_binary")
PACKAGES = (
    "cmake g++ make zlib1g-dev libbz2-dev liblzma-dev libboost-program-options-dev "
    "libboost-system-dev libboost-thread-dev libboost-test-dev"
)


class KenlmError(RuntimeError):
    """KenLM is missing, cannot be built, or refused its input: which, why, and what to do."""


@dataclass(frozen=True, eq=False)
class NgramModel:
    """An n-gram model that KenLM holds in memory."""

    path: Path  # the ARPA file or KenLM binary it came from
    order: int
    _scorer: Any

    def token_scores(self, sentence: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the surprisals of a sentence's tokens and of its end, in bits, and which of them
        are unknown.

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
        replaced = [a != b for a, b in zip(sentence, known, strict=True)] + [False]
        return -BITS_PER_LOG10 * np.array(log10), np.array(missing) | np.array(replaced)

    def surprisal(self, words: pd.DataFrame, tokenize: Tokenize = plain) -> pd.DataFrame:
        """Return words with the surprisal of each in bits.

        Parameters
        ----------
        words : DataFrame
            ``text_id``, ``word_id``, ``word``; ``sentence_id`` where texts have more than one
            sentence.
        tokenize : callable
            How a printed word becomes the tokens that the model was trained on; their surprisals
            are added.

        Returns
        -------
        DataFrame
            ``words`` with ``surprisal_bits``, ``n_tokens`` and ``n_unknown``.
        """
        tokens = word_level_tokens(words, tokenize)
        sentences = tokens.groupby("sentence", sort=False)["token"]
        scored = [self.token_scores(list(sentence)) for _, sentence in sentences]
        bits, unknown = (
            np.concatenate([part[:-1] for part in parts]) for parts in zip(*scored, strict=True)
        )
        return sum_over_words(words, tokens, bits, unknown)

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity as KenLM does: unknown words and ends of sentences count."""
        return float(2 ** np.concatenate([self.token_scores(one)[0] for one in sentences]).mean())


def load(path: str | Path) -> NgramModel:
    """Open an ARPA file or a KenLM binary.

    Raises
    ------
    KenlmError
        If the module ``kenlm`` is not installed or the file is no n-gram
        model.
    """
    path = Path(path)
    if not path.is_file():
        raise KenlmError(f"no n-gram model at {path}; train one with psychlm.lm.ngram.train")
    try:
        import kenlm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise KenlmError(
            "the module kenlm, which queries n-gram models, is not installed; pip install kenlm "
            "(needs g++)"
        ) from error
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        model = kenlm.Model(str(path), config)
    except OSError as error:
        raise KenlmError(f"{path} is not an n-gram model that KenLM reads: {error}") from error
    return NgramModel(path, model.order, model)


def train(sentences: Iterable[Sequence[str]], order: int, path: str | Path) -> NgramModel:
    """Train an n-gram model with ``lmplz`` (interpolated modified Kneser-Ney), write its ARPA file
    and open it.

    Where a corpus is too small for its discounts to be estimated, they are 0.5, 1 and 1.5.

    Parameters
    ----------
    sentences : iterable of sequences of str
        Tokens without white space; a token ``<unk>`` is a word like any other (see the module).
    order : int
        2 to 6; KenLM's module reads no unigram models.
    path : str or Path
        Where the ARPA file goes; it is moved there when it is whole.

    Raises
    ------
    KenlmError
        If ``lmplz`` is missing or refuses the text; its own message is in the error.
    """
    lines = []
    for sentence in sentences:
        start = list(sentence[:8])
        if "<s>" in sentence or "</s>" in sentence:
            raise KenlmError(
                f"the sentence {start} holds <s> or </s>, which KenLM adds itself; take them out"
            )
        line = " ".join(UNKNOWN_WORD if token == UNKNOWN else token for token in sentence)
        if len(line.split()) != len(sentence):
            raise KenlmError(f"a token of {start} is empty or holds white space; split it first")
        lines.append(f"{line}\n")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [program("lmplz"), "-o", order, "-S", MEMORY, "-T", path.parent]
    command += ["--discount_fallback"]
    with atomic_write(path) as part:
        arguments = [str(argument) for argument in (*command, "--arpa", part)]
        done = subprocess.run(arguments, input="".join(lines).encode(), capture_output=True)
        if done.returncode:
            output = done.stderr.decode(errors="replace")
            exceptions = [line for line in output.splitlines() if "exception" in line.lower()]
            why = (exceptions or [output[-400:].strip()])[0]
            raise KenlmError(f"lmplz could not train order {order}: {why}")
    return load(path)


def program(name: str = "lmplz", *, build_missing: bool = True) -> Path:
    """Return one of KenLM's programs, from PATH, from the cache, or freshly built.

    Parameters
    ----------
    name : {"lmplz", "query", "build_binary"}
    build_missing : bool
        Build it where it is not found.

    Raises
    ------
    KenlmError
        If it is not there and cannot be, or must not be, built.
    """
    folder = cache.folder() / f"kenlm-{VERSION}" / "bin"
    path = shutil.which(name) or shutil.which(name, path=str(folder))
    if path is not None:
        return Path(path)
    if not build_missing:
        raise KenlmError(
            f"KenLM's {name} is neither on PATH nor in {folder}; psychlm.lm.ngram.build() builds it"
        )
    return build() / name


def build(source: Path | None = None) -> Path:
    """Build KenLM's programs from its source distribution into the cache; return their folder.

    Parameters
    ----------
    source : Path, optional
        A local ``kenlm-0.3.0.tar.gz``; fetched with pip unless given.
    """
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        raise KenlmError(
            "lmplz needs cmake and a C++ compiler to be built; on Debian: apt-get install "
            f"{PACKAGES}"
        )
    target = cache.folder() / f"kenlm-{VERSION}" / "bin"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as name:
        folder = Path(name)
        code, binaries = folder / f"kenlm-{VERSION}", folder / "build"
        if source is None:
            options = ["--no-deps", "--no-binary", "kenlm", "--quiet", "--dest", str(folder)]
            _run([sys.executable, "-m", "pip", "download", *options, f"kenlm=={VERSION}"])
            source = folder / f"kenlm-{VERSION}.tar.gz"
        sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
        if sha256 != SHA256:
            raise KenlmError(
                f"{source.name} is not kenlm {VERSION} (SHA-256 expected {SHA256}, got {sha256}); "
                "fetch it again"
            )
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        _run(["cmake", "-S", str(code), "-B", str(binaries), "-DCMAKE_BUILD_TYPE=Release"])
        jobs = ["--parallel", str(os.cpu_count() or 1)]
        _run(["cmake", "--build", str(binaries), *jobs, "--target", *PROGRAMS])
        if not target.exists():  # another process may have been faster
            (binaries / "bin").rename(target)
    return target


def _run(command: list[str]) -> None:
    """Run one step of the build, or raise its last lines."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise KenlmError(
            f"could not build KenLM: {' '.join(command[:3])} returned {done.returncode}: "
            f"{' | '.join(output)}. On Debian its build needs: apt-get install {PACKAGES}. Or put "
            "an lmplz on PATH"
        )
