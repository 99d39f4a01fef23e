r"""Features of texts and of sentence pairs from a frozen encoder: the inputs of kind ``encoder``.

A text is the mean of its states, as a unit vector (as all-MiniLM-L6-v2 was trained). A pair is
compared word by word, as in decomposable attention (Parikh et al. 2016, EMNLP) with nothing to
learn: with :math:`p_j` and :math:`h_i` the states of premise and hypothesis,

.. math::
    s_{ij} = \cos(h_i, p_j), \qquad d_i = h_i - \sum_j \mathrm{softmax}_j(10\, s_{ij})\, p_j .
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from psychlm.frames import FrameError
from psychlm.lm.encoders import encoder_states

SHARPNESS = 10.0  # of the softmax that aligns words; cosines of unrelated words lie near 0.2
PAIRS_AT_ONCE = 4096  # whose states are kept at a time: about 100 MB


def text_features(texts: Sequence[str], encoder: str | Path = "bundled") -> NDArray[np.float32]:
    """Return the (n, d) unit vectors of texts: the mean of their states.

    >>> text_features(["A fine film.", "A dull film."]).shape  # doctest: +SKIP
    (2, 384)
    """
    return _unit(np.concatenate(encoder_states(texts, encoder, mean=True)))


def pair_features(
    premises: Sequence[str], hypotheses: Sequence[str], encoder: str | Path = "bundled"
) -> NDArray[np.float32]:
    r"""Return the (n, 2 d + 7) features of sentence pairs.

    They are, in this order, the unit vector of the hypothesis (d); the difference :math:`d_i` of
    the hypothesis' word that the premise covers least, :math:`\min_i \max_j s_{ij}` (d); the least
    and the mean of :math:`\max_j s_{ij}` over the hypothesis' words, and of :math:`\max_i s_{ij}`
    over the premise's; the logarithms of both lengths in tokens; and the cosine of both unit
    vectors.

    >>> pair_features(["A man sleeps."], ["A person rests."]).shape  # doctest: +SKIP
    (1, 775)
    """
    if len(premises) != len(hypotheses):
        raise FrameError(f"{len(premises)} premises and {len(hypotheses)} hypotheses are no pairs")
    rows = []
    for start in range(0, len(premises), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        read = [encoder_states(texts[part], encoder) for texts in (premises, hypotheses)]
        for premise, hypothesis in zip(*read, strict=True):
            u = _unit(premise.mean(0))
            v = _unit(hypothesis.mean(0))
            # Words without the special tokens at both ends; an empty text keeps its first token.
            p = premise[1:-1] if len(premise) > 2 else premise[:1]
            h = hypothesis[1:-1] if len(hypothesis) > 2 else hypothesis[:1]
            similarity = _unit(h) @ _unit(p).T
            covered = similarity.max(1)
            used = similarity.max(0)
            # Align the word covered least with a weighted mean of the premise's words.
            least = covered.argmin()
            weights = np.exp(SHARPNESS * (similarity[least] - covered[least]))
            difference = h[least] - weights @ p / weights.sum()
            numbers = [covered.min(), covered.mean(), used.min(), used.mean()]
            numbers += [np.log(len(p)), np.log(len(h)), u @ v]
            rows.append(np.concatenate([v, difference, numbers]))
    return np.array(rows, dtype=np.float32)


def _unit(states: NDArray[np.float32]) -> NDArray[np.float32]:
    return states / np.linalg.norm(states, axis=-1, keepdims=True)
