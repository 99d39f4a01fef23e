r"""Features of texts and of sentence pairs from a frozen encoder: the inputs of kind ``encoder``.

A text is the mean of its states, as a unit vector (as all-MiniLM-L6-v2 was trained). A pair is
compared word by word, as in decomposable attention (Parikh et al. 2016, EMNLP) with nothing to
learn: with :math:`p_j` and :math:`h_i` the states of premise and hypothesis,

.. math::
    s_{ij} = \cos(h_i, p_j), \qquad d_i = h_i - \sum_j \mathrm{softmax}_j(10\, s_{ij})\, p_j .

Those of the stored items, in a few dimensions, are facts that
``python data/build_model_facts.py encoder`` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm import data
from psychlm.corpora import laverghetta2021
from psychlm.corpora.item_banks import NLI_LABELS, nli, sentiment
from psychlm.frames import FrameError
from psychlm.lm import ModelError
from psychlm.lm.encoders import encoder_states, open_encoder

SHARPNESS = 10.0  # of the softmax that aligns words; cosines of unrelated words lie near 0.2
PAIRS_AT_ONCE = 4096  # whose states are kept at a time: about 100 MB
Task = Literal["snli", "sst"]
# task -> dimensions kept of each block of states
TASKS: dict[Task, tuple[int, ...]] = {"snli": (40, 40), "sst": (48,)}
TOLERANCE = 0.01  # SD; stored features have half precision: 0.002 at 4 SD


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


def item_features(task: Task, encoder: str | Path = "stored") -> tuple[pd.DataFrame, Tensor]:
    """Return the items of a task, as numbers without wording, and their features.

    Parameters
    ----------
    task : {"snli", "sst"}
        SNLI pairs and those of GLUE's diagnostic, or the Stanford Sentiment Treebank's sentences.
    encoder : str or Path
        ``"stored"`` reads the features of all-MiniLM-L6-v2 that come with the project. Another
        encoder reads the texts now: see :func:`psychlm.lm.encoders.find_encoder`.

    Returns
    -------
    items : DataFrame
        ``item_id``, ``part``, ``answer`` (place of the gold label; for SST the degree from 0, very
        negative, to 4), ``n_words`` of the text or premise. For pairs also ``premise`` (a number
        for each) and the annotators' votes for each label (0 in the diagnostic).
    features : (n, k) float32 Tensor
        Standardised principal components; inputs of a network of the kind ``"encoder"``.

    Examples
    --------
    >>> items, features = item_features("snli")
    >>> items["part"].value_counts().to_dict(), features.shape[1]
    ({'dev': 1273, 'test': 1254, 'diagnostic': 812}, 87)
    """
    if str(encoder) == "stored":
        table = data.facts(f"models/encoder_{task}")
        columns = table.columns[table.columns.str.fullmatch(r"f\d+")]
        return table.drop(columns=columns), torch.tensor(table[columns].to_numpy(np.float32))
    items, features, affine = read_task(task, encoder)
    return items, torch.from_numpy(features @ affine[:-1] + affine[-1])


def read_task(
    task: Task, encoder: str | Path
) -> tuple[pd.DataFrame, NDArray[np.float32], NDArray[np.float32]]:
    """Return the items of a task without wording, their features (n, d) and a projection."""
    texts = task_texts(task)
    features = task_features(texts, encoder)
    # Only the first part, without its labels, decides on the projection.
    first = texts["part"] == texts["part"].iloc[0]
    width = open_encoder(encoder)[0].config.hidden_size
    affine = fit_projection(features[first], TASKS[task], width)
    return texts.drop(columns=["prompt", "hypothesis"], errors="ignore"), features, affine


def task_texts(task: Task) -> pd.DataFrame:
    """Return the items of a task in the order of :func:`item_features`, its columns with
    ``prompt``, and for pairs ``hypothesis``; DataMissingError where the texts are not to be had.

    >>> task_texts("sst")["part"].unique().tolist()  # doctest: +SKIP
    ['train', 'dev', 'test']
    """
    if task == "sst":
        parts = {part: sentiment(f"sst/stsa.fine.{part}") for part in ("train", "dev", "test")}
    else:
        parts = {part: nli(f"snli/snli_1.0_{part}") for part in ("dev", "test")}
        wording = laverghetta2021().wording()
        halves = wording["prompt"].str.split("\n", n=1, expand=True)
        parts["diagnostic"] = wording.assign(prompt=halves[0], hypothesis=halves[1])
    items = pd.concat(parts, names=["part", None]).reset_index("part").reset_index(drop=True)
    items["item_id"] = items["item_id"].astype(str)
    items["n_words"] = items["prompt"].str.split().str.len()
    columns = ["item_id", "part", "answer", "n_words"]
    if task == "snli":
        items["premise"] = pd.factorize(items["prompt"])[0]
        votes = items["annotator_labels"].explode()
        counts = pd.crosstab(votes.index, votes).reindex(items.index, fill_value=0)
        items[NLI_LABELS] = counts[NLI_LABELS]
        columns += ["premise", *NLI_LABELS]
    return items[[*columns, *(name for name in ("prompt", "hypothesis") if name in items)]]


def task_features(texts: pd.DataFrame, encoder: str | Path = "bundled") -> NDArray[np.float32]:
    """Return the features of texts (column ``prompt``) or of pairs (also ``hypothesis``)."""
    if "hypothesis" in texts:
        return pair_features(texts["prompt"].tolist(), texts["hypothesis"].tolist(), encoder)
    return text_features(texts["prompt"].tolist(), encoder)


def project(features: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
    """Return features, (n, d), in the stored dimensions of a task, (n, k): their standardised
    principal components, ``features @ W + b``.

    >>> project(text_features(["A fine film."]), "sst").shape  # doctest: +SKIP
    (1, 48)
    """
    affine = data.facts(f"models/encoder_{task}_projection").to_numpy(np.float32)
    return features @ affine[:-1] + affine[-1]


def fit_projection(
    features: NDArray[np.float32], sizes: Sequence[int], width: int
) -> NDArray[np.float32]:
    """Return the (d + 1, k) projection on principal components, each of variance 1: ``sizes`` of
    the blocks of ``width`` columns of encoder states; the numbers behind them are only
    standardised."""
    from sklearn.decomposition import PCA

    n_states = width * len(sizes)
    weights = np.zeros((features.shape[1], sum(sizes) + features.shape[1] - n_states))
    for i, size in enumerate(sizes):
        rows = slice(i * width, (i + 1) * width)
        first = sum(sizes[:i])
        components = PCA(size, random_state=0).fit(features[:, rows])
        scale = np.sqrt(components.explained_variance_)
        weights[rows, first : first + size] = components.components_.T / scale
    weights[n_states:, sum(sizes) :] = np.diag(1 / features[:, n_states:].std(0))
    return np.vstack([weights, -features.mean(0) @ weights]).astype(np.float32)


def recompute(
    tasks: Sequence[str], n: int = 20, *, seed: int = 0
) -> tuple[dict[str, float], list[str]]:
    """Compute a random sample of the stored features of tasks anew.

    ``tasks`` are "snli" or "sst", in letters of any case; ``n`` items of each are drawn. Return the
    largest difference (SD) of each task by its name as given, and the tasks whose texts, or the
    encoder, are not on this machine. DataError if the texts are not those of the stored features,
    or the features differ by .01 SD.

    Examples
    --------
    >>> recompute(["sst"])  # doctest: +SKIP
    ({'sst': 0.002}, [])
    """
    differences = {}
    absent = []
    for name in tasks if n else ():
        task = cast(Task, name.lower())
        items, stored = item_features(task)
        rows = np.random.default_rng(seed).choice(len(items), n, replace=False)
        try:
            texts = task_texts(task).iloc[rows]
            again = project(task_features(texts), task)
        except (data.DataMissingError, ModelError):
            absent.append(name)
            continue
        differences[name] = float(np.abs(again - stored[rows].numpy()).max())
        same_items = texts["item_id"].tolist() == items["item_id"].iloc[rows].tolist()
        if not same_items or differences[name] >= TOLERANCE:
            said = f"the texts of {task!r} are not those of the stored features; make these anew"
            raise data.DataError(f"{said}: `python data/build_model_facts.py encoder`")
    return differences, absent
