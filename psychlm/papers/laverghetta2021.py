"""Laverghetta et al. (2021), section 4: which participants of a crowd study to keep."""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, check_responses

REJECT_BELOW, ACCEPT_ABOVE, ATTENTION_NEEDED = 0.40, 0.60, 0.75


def screen(
    responses: pd.DataFrame,
    *,
    attention: pd.DataFrame | None = None,
    persons: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Decide whether to accept each submission, and give the reason.

    1. Of several submissions by one worker or from one address, only the first is kept.
    2. A score below 40 % is rejected and one above 60 % accepted; between them (both included) a
       person needs 75 % of the attention checks.

    The paper's third stage, reading the justifications that people wrote, is left to people.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Graded responses, one row per submission; the score is the proportion correct.
    attention : DataFrame, shape (n_persons, n_checks), optional
        Graded attention checks. Without them, scores between the thresholds are for "review".
    persons : DataFrame, indexed by person, optional
        ``worker``, ``address`` and ``submitted`` (time or number); missing values match nobody.

    Returns
    -------
    DataFrame, indexed by person
        ``decision`` ("accept", "reject" or "review"), ``stage`` in which it fell, ``reason``,
        ``score`` and ``attention_score`` (NaN without checks).

    Raises
    ------
    FrameError
        If a frame does not cover the same persons as the responses.
    """
    checked = check_responses(responses)
    score = checked.mean(axis=1)
    for name, frame in {"attention": attention, "persons": persons}.items():
        if frame is not None and (
            frame.index.has_duplicates or set(frame.index) != set(score.index)
        ):
            raise FrameError(f"{name} and responses must have the same persons, each once")
    attentive = pd.Series(np.nan, index=score.index)
    if attention is not None:
        attentive = check_responses(attention).mean(axis=1).reindex(score.index)

    # Stage 1: submissions in order of time; all but the first of a worker or address are repeated.
    repeated = pd.Series(False, index=score.index)
    if persons is not None:
        in_time = persons.sort_values("submitted", kind="stable")[["worker", "address"]]
        known = in_time.notna() & (in_time != "")
        again = in_time.apply(pd.Series.duplicated) & known
        repeated = again.any(axis=1).reindex(score.index)

    between = (score >= REJECT_BELOW) & (score <= ACCEPT_ABOVE)
    percent = (100 * score).map("{:.0f} % correct".format)
    checks = percent + (100 * attentive).map(", {:.0f} % of the attention checks".format)
    cases = [  # (condition, decision, stage, reason): the first that holds decides
        (repeated, "reject", 1, "not the first submission of this worker or address"),
        (score < REJECT_BELOW, "reject", 2, percent),
        (between & attentive.isna(), "review", 2, percent + ", no attention checks"),
        (between & (attentive < ATTENTION_NEEDED), "reject", 2, checks),
        (between, "accept", 2, checks),
        (score > ACCEPT_ABOVE, "accept", 2, percent),
    ]
    result = pd.DataFrame(index=score.index, columns=["decision", "stage", "reason"], dtype=object)
    for condition, decision, stage, reason in reversed(cases):
        result.loc[condition, ["decision", "stage"]] = [decision, stage]
        result["reason"] = result["reason"].mask(condition, reason)
    return result.assign(score=score, attention_score=attentive)
