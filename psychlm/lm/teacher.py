"""An interpolated Kneser-Ney trigram over word pieces whose whole next-piece distributions teach a neural model.

One pass over a text tells a neural model one next piece per context; the counts of the same text tell it a whole
distribution. Mixing the two as the training target lets a small model learn in one epoch what it else needs several for
(knowledge distillation: Hinton, Vinyals & Dean 2015; Kneser & Ney 1995; Chen & Goodman 1999).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse


class TrigramTeacher:
    """Dense next-piece distributions of an interpolated Kneser-Ney trigram.

    ``p(w|uv) = max(c(uvw) - D, 0) / c(uv) + D N(uv·) / c(uv) p(w|v)`` with one discount an order,
    ``D = n1 / (n1 + 2 n2)``, and continuation counts for the bigram and the unigram.

    Parameters
    ----------
    stream : (n,) int array
        A text as piece ids.
    openings : (m, 3) int array
        Beginnings of texts: the beginning-of-text piece and the two after it.
    vocabulary : int
        V, the number of pieces; the bigram is kept dense, V x V in float32.
    """

    def __init__(self, stream: np.ndarray, openings: np.ndarray, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        shift = np.int64(vocabulary)
        running = np.lib.stride_tricks.sliding_window_view(stream, 3)
        first, second, third = np.concatenate([running, openings]).astype(np.int64).T
        trigrams = (first * shift + second) * shift + third
        kinds, counts = np.unique(trigrams, return_counts=True)
        self._contexts, rows = np.unique(kinds // shift, return_inverse=True)
        self._seen, self._backoff = self._discounted(
            counts, rows, kinds % shift, len(self._contexts)
        )

        begun = (
            openings[:, 0].astype(np.int64) * shift + openings[:, 1]
        )  # nothing precedes these: plain counts
        follows = np.concatenate([kinds % shift**2, begun])
        pairs, continuations = np.unique(follows, return_counts=True)
        bigram, backoff = self._discounted(continuations, pairs // shift, pairs % shift, vocabulary)
        unigram = np.bincount(pairs % shift, minlength=vocabulary) + 0.5
        self.bigram = bigram.toarray().astype(np.float32)
        self.bigram += np.outer(backoff, unigram / unigram.sum()).astype(np.float32)

    def _discounted(
        self, counts: np.ndarray, rows: np.ndarray, columns: np.ndarray, n_rows: int
    ) -> tuple[sparse.csr_matrix, np.ndarray]:
        """Return the discounted relative counts and, per row, the mass that the discount freed."""
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = once / (once + 2 * twice) if twice else 0.75
        totals = np.bincount(rows, weights=counts, minlength=n_rows)
        kept = (np.maximum(counts - discount, 0) / totals[rows]).astype(np.float32)
        seen = sparse.csr_matrix((kept, (rows, columns)), shape=(n_rows, self.vocabulary))
        mass = np.bincount(rows, weights=kept, minlength=n_rows)
        return seen, (1 - mass).astype(np.float32)

    def __call__(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the next-piece distributions of contexts.

        Parameters
        ----------
        before, last : (n,) int arrays
            The two pieces before the one to predict; -1 in ``before`` where there is only one.

        Returns
        -------
        (n, V) float32 array
            Rows sum to 1.
        """
        keys = np.asarray(before, dtype=np.int64) * self.vocabulary + last
        found = np.minimum(np.searchsorted(self._contexts, keys), len(self._contexts) - 1)
        known = np.flatnonzero((self._contexts[found] == keys) & (np.asarray(before) >= 0))
        backoff = np.ones(len(keys), dtype=np.float32)
        backoff[known] = self._backoff[found[known]]
        dense = self.bigram[last] * backoff[:, None]
        seen = self._seen[found[known]].tocoo()
        dense[known[seen.row], seen.col] += (
            seen.data
        )  # no (row, column) twice: the counts were of distinct trigrams
        return dense
