r"""What a prior bias is made of: the place of a choice, its length, how frequent its words are, and the rest.

The scores :math:`s_{ijk}` of choice j of item i in presentation k are modelled as

.. math:: s_{ijk} = \alpha_{ik} + \beta_1\,\mathrm{place}_{ijk} + \beta_2\,\mathrm{length}_{ij}
          + \beta_3\,\mathrm{frequency}_{ij} + u_{ij} + e_{ijk},
          \quad u \sim N(0, \sigma^2_u),\ e \sim N(0, \sigma^2_e):

a linear mixed model with a random intercept for each choice. Two decisions: scores rather than picks (a conditional
logit), because a pick forgets how strong a preference was and cannot tell what lasts (u) from what does not (e); and
orthonormal (Helmert) contrasts of the choices within item and presentation rather than scores, because confidences
say nothing of :math:`\alpha_{ik}`, and such contrasts of independent errors are independent again, so the model holds
for them exactly.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats
from scipy.linalg import helmert

from psychlm import frames
from psychlm.confidence.scores import check_scores

FEATURES = ("place", "length_chars", "log_frequency")
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class BiasParts:
    """A prior bias split into what is known of the choices and what is not."""

    coefficients: (
        pd.DataFrame
    )  # by feature: nats per standard deviation, se, low, high, z, p; sd of the feature
    shares: pd.Series  # of the variance of scores within items: the features, "choice" (u) and "noise" (e); sum to 1
    choice_sd: float  # sigma_u, nats
    noise_sd: float  # sigma_e, nats
    n_choices: int  # random intercepts less one for each item
    n_presentations: int
    converged: bool


def choice_features(items: pd.DataFrame, word_counts: pd.Series | None = None) -> pd.DataFrame:
    """Return place, length and frequency of every choice, one row a choice.

    Parameters
    ----------
    items : DataFrame
        An items frame, perturbed or not.
    word_counts : Series by word in lower case, optional
        How often words occur; counted in the prompts and choices of ``items`` unless given.

    Returns
    -------
    DataFrame
        ``item``, ``place`` (from 0), ``text``, ``length_chars``, and ``log_frequency``: the mean over the choice's
        words of the common logarithm of (count + 1); 0 for a choice without words.
    """
    flat = items[["item_id", "choices"]].explode("choices").reset_index(drop=True)
    words = flat["choices"].str.lower().str.findall(WORD)
    if word_counts is None:
        prompts = items["prompt"].str.lower().str.findall(WORD).explode()
        word_counts = pd.concat([prompts, words.explode()]).value_counts()
    log_count = np.log10(words.explode().map(word_counts).fillna(0).astype(float) + 1)
    log_count[words.explode().isna()] = 0.0
    return pd.DataFrame(
        {
            "item": flat["item_id"],
            "place": flat.groupby("item_id", sort=False).cumcount(),
            "text": flat["choices"],
            "length_chars": flat["choices"].str.len(),
            "log_frequency": log_count.groupby(level=0).mean(),
        }
    )


def bias_parts(
    presentations: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    *,
    word_counts: pd.Series | None = None,
    features: Sequence[str] = FEATURES,
    level: float = 0.95,
) -> BiasParts:
    """Split a prior bias into place, length and frequency of the choices, a choice's own appeal, and noise.

    Parameters
    ----------
    presentations : sequence of (items, scores)
        At least two presentations of the same choices under prompts to which none is right: items perturbed by
        ``confusion.no_question`` or ``wrong_question``, shuffled (else place and choice cannot be told apart), and the
        scores of these items.
    word_counts : Series, optional
        As :func:`choice_features` takes it.
    features : sequence of str
        Columns of :func:`choice_features`, or of your own that the items carry as lists, one value a choice.

    Returns
    -------
    BiasParts
        The share of a feature is its slope times its covariance with all features' prediction (these sum to the
        variance of the prediction), over that variance and the two random ones (Nakagawa & Schielzeth 2013). It may
        be negative where features work against each other.

    Raises
    ------
    FrameError
        If presentations differ in their items or choices.
    ValueError
        If there are fewer than two presentations, or a feature is the same for all choices of every item, or follows
        from the others, or the scores do not differ between presentations, so that there is no noise to compare with.
    """
    if len(presentations) < 2:
        raise ValueError(
            "one presentation cannot tell a choice's own appeal from noise; ask another wrong question"
        )
    long = _long(presentations, word_counts, features)
    y, x, groups = _contrasts(long, features)
    n_presentations = len(presentations)
    if np.allclose(y.reshape(-1, n_presentations).std(axis=1), 0, atol=1e-9):
        raise ValueError(
            "the scores are the same in every presentation: the model does not read the question, all of its "
            "preference lasts, and there is no noise to hold it against"
        )
    sd = np.sqrt((x**2).mean(axis=0))
    if not sd.all() or np.linalg.matrix_rank(x / sd) < len(sd):
        same = [name for name, value in zip(features, sd, strict=True) if value == 0]
        raise ValueError(
            f"features {same or list(features)} do not vary within items, or follow from one another"
        )
    return _fit(y, x / sd, groups, pd.Series(sd, index=list(features)), n_presentations, level)


def _long(
    presentations: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    word_counts: pd.Series | None,
    features: Sequence[str],
) -> pd.DataFrame:
    """Return one row a choice and presentation, sorted by item, choice (its place in the source) and presentation."""
    parts = []
    for number, (items, scores) in enumerate(presentations):
        checked = check_scores(scores)
        missing = items["item_id"][~items["item_id"].isin(checked.index)]
        if len(missing):
            raise frames.FrameError(
                f"items {list(missing[:5])} have no scores; score the perturbed items themselves"
            )
        values = checked.loc[items["item_id"]].to_numpy()
        rows = choice_features(items, word_counts)
        own = [name for name in features if name not in rows]
        rows = rows.assign(
            source=items["source_item_id"].repeat(items["choices"].map(len)).to_numpy(),
            choice=items["order"].explode().to_numpy(int),
            presentation=number,
            score=values[~np.isnan(values)],
            **{name: items[name].explode().to_numpy(float) for name in own},
        )
        parts.append(rows)
    long = pd.concat(parts, ignore_index=True).sort_values(
        ["source", "choice", "presentation"], kind="stable"
    )
    each = long.groupby(["source", "choice"])
    if (each.size() != len(parts)).any() or (each["text"].nunique() != 1).any():
        raise frames.FrameError(
            "the presentations differ in their items or choices; give no-question and wrong-question probes of one set"
        )
    return long


def _contrasts(
    long: pd.DataFrame, features: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores (N,) and features (N, p) as contrasts within items, and which contrast of which item each is."""
    k = long["presentation"].nunique()
    size = long.groupby("source", sort=False)["choice"].transform("size") // k
    columns, groups, last = [], [], 0
    for n, rows in long.groupby(size, sort=True):
        stack = (
            rows[["score", *features]].to_numpy(float).reshape(-1, int(n), k * (1 + len(features)))
        )
        turned = np.einsum("cj,ijv->icv", helmert(int(n)), stack).reshape(-1, 1 + len(features))
        columns.append(turned)
        groups.append(last + np.repeat(np.arange(len(turned) // k), k))
        last += len(turned) // k
    table = np.concatenate(columns)
    return table[:, 0], table[:, 1:], np.concatenate(groups)


def _fit(
    y: np.ndarray,
    x: np.ndarray,
    groups: np.ndarray,
    sd: pd.Series,
    n_presentations: int,
    level: float,
) -> BiasParts:
    from statsmodels.regression.mixed_linear_model import MixedLM

    with (
        warnings.catch_warnings()
    ):  # a variance at its boundary, and convergence, are told in the result
        warnings.simplefilter("ignore")
        fit = MixedLM(y, x, groups=groups).fit(reml=True)
    beta, se = fit.fe_params, fit.bse_fe
    choice, noise = float(fit.cov_re[0, 0]), float(fit.scale)
    predicted = beta * (x.T @ x / len(x) @ beta)
    shares = pd.Series([*predicted, choice, noise], index=[*sd.index, "choice", "noise"])
    half = scipy_stats.norm.ppf((1 + level) / 2) * se
    coefficients = pd.DataFrame(
        {
            "nats_per_sd": beta,
            "se": se,
            "low": beta - half,
            "high": beta + half,
            "z": beta / se,
            "p": 2 * scipy_stats.norm.sf(np.abs(beta / se)),
            "sd": sd.to_numpy(),
        },
        index=sd.index.rename("feature"),
    )
    return BiasParts(
        coefficients,
        shares / shares.sum(),
        choice**0.5,
        noise**0.5,
        len(np.unique(groups)),
        n_presentations,
        bool(fit.converged),
    )
