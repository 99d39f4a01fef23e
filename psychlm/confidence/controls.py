"""Responders whose behaviour is known: one that must come out clean of prior bias, and one that must not."""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm import frames


def _matrix(items: pd.DataFrame) -> tuple[np.ndarray, pd.Index]:
    """Return the lengths of all choices in characters, shape (n_items, most choices), NaN where there is none."""
    n = frames.check_items(items)["choices"].map(len).to_numpy()
    lengths = np.full((len(items), n.max()), np.nan)
    lengths[np.arange(n.max()) < n[:, None]] = items["choices"].explode().str.len()
    return lengths, pd.Index(items["item_id"], name="item")


def random_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, spread: float = 1.0
) -> pd.DataFrame:
    """Return scores drawn by lot, whatever prompt and choices say: the responder without a prior bias.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    spread : float
        Standard deviation of the scores in nats: how sure the responder is, not of what.

    Returns
    -------
    DataFrame, shape (n_items, most choices)
        As ``lm.choice_logprobs``: the logarithms of probabilities over the item's choices.
    """
    lengths, index = _matrix(items)
    return _normalised(
        np.where(np.isnan(lengths), np.nan, spread * rng.normal(size=lengths.shape)), index
    )


def length_biased_responder(
    items: pd.DataFrame, *, rng: np.random.Generator, nats_per_sd: float = 1.0, spread: float = 1.0
) -> pd.DataFrame:
    """Return the scores of a responder that likes long choices, and is a random one otherwise.

    Parameters
    ----------
    items : DataFrame
        An items frame.
    nats_per_sd : float
        What a choice gains that is longer by one standard deviation, within items, of lengths in characters; negative
        for a responder that likes short ones.
    spread : float
        Standard deviation in nats of what is drawn by lot.

    Returns
    -------
    DataFrame, shape (n_items, most choices)
        As :func:`random_responder`.
    """
    lengths, index = _matrix(items)
    centred = lengths - np.nanmean(lengths, axis=1, keepdims=True)
    sd = np.nanstd(centred)
    if sd == 0:
        raise frames.FrameError(
            "the choices of each item have one length: nothing for a bias to hold on to"
        )
    return _normalised(nats_per_sd * centred / sd + spread * rng.normal(size=lengths.shape), index)


def _normalised(values: np.ndarray, index: pd.Index) -> pd.DataFrame:
    top = np.nanmax(values, axis=1, keepdims=True)
    return pd.DataFrame(
        values - top - np.log(np.nansum(np.exp(values - top), axis=1, keepdims=True)), index=index
    )
