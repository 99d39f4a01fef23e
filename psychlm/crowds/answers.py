"""Ask a trained crowd: log-probabilities of every member for every item, and graded responses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from psychlm import frames
from psychlm.crowds.encode import Inputs, on_device
from psychlm.crowds.reading import logits
from psychlm.crowds.training import TrainedCrowd


def names_of_members(n_models: int) -> pd.Index:
    """Return the names that members carry in responses: model0000, model0001, ..."""
    return pd.Index([f"model{i:04d}" for i in range(n_models)], name="person")


def logprobs(trained: TrainedCrowd, inputs: Inputs) -> NDArray[np.float32]:
    """Return the (models, n, classes) natural log-probabilities; NaN for members that diverged."""
    device = str(trained.weights["out.bias"].device)
    found = logits(trained.network, trained.weights, on_device(inputs, device)).log_softmax(2).cpu()
    found[torch.from_numpy(trained.diverged)] = torch.nan
    return found.numpy()


def respond(trained: TrainedCrowd, inputs: Inputs, answers: ArrayLike | pd.Series) -> pd.DataFrame:
    """Return the graded responses of a crowd: 1 where the most probable class is the answer.

    Parameters
    ----------
    trained : TrainedCrowd
    inputs : Encoded or Tensor
        n items, encoded with the vocabulary of the training texts.
    answers : (n,) int
        The right classes; a Series' index names the items.

    Returns
    -------
    DataFrame, shape (models, n)
        A responses frame; members that diverged (``trained.n_diverged``) have NaN throughout.

    Raises
    ------
    FrameError
        If there are not as many answers as items, or one is not a class.
    """
    gold = np.asarray(answers)
    if gold.shape != (len(inputs),):
        raise frames.FrameError(
            f"{len(inputs)} items need as many answers, and these have the shape {gold.shape}"
        )
    outside = (gold < 0) | (gold >= trained.network.classes)
    if outside.any():
        raise frames.FrameError(
            f"the answers of items {np.flatnonzero(outside)[:5].tolist()} (counted from 0) are not among the "
            f"{trained.network.classes} classes, which count from 0"
        )
    found = logprobs(trained, inputs)
    graded = np.where(trained.diverged[:, None], np.nan, found.argmax(2) == gold)
    names = (
        answers.index if isinstance(answers, pd.Series) else [f"item{i}" for i in range(len(gold))]
    )
    return pd.DataFrame(
        graded, index=names_of_members(len(graded)), columns=pd.Index(names, name="item")
    )
