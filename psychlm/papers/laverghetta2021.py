"""Laverghetta et al. (2021), section 4: which participants of a crowd study to keep."""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, check_responses


def screen(
    responses: pd.DataFrame,
    *,
    attention: pd.DataFrame | None = None,
    persons: pd.DataFrame | None = None,
    justifications: pd.DataFrame | None = None,
    questions: pd.Series | None = None,
    reject_below: float = 0.40,
    accept_above: float = 0.60,
    attention_needed: float = 0.75,
) -> pd.DataFrame:
    """Decide in three stages whether to accept each submission, and give the reason.

    1. Of several submissions by one worker or from one address, only the first is kept.
    2. A score below 40 % is rejected and one above 60 % accepted; between them (both included) a
       person needs 75 % of the attention checks.
    3. Justifications that are missing, all the same, or copied from the question are flagged for a
       person to look at. Whether one is relevant is not judged.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Graded responses, one row per submission; the score is the proportion correct.
    attention : DataFrame, shape (n_persons, n_checks), optional
        Graded attention checks. Without them, scores between the thresholds are for "review".
    persons : DataFrame, indexed by person, optional
        ``worker``, ``address`` and ``submitted`` (time or number); missing values match nobody.
    justifications : DataFrame, shape (n_persons, n_items), optional
        Texts by item; NaN where none was asked for.
    questions : Series, item -> text, optional
        The questions; without them copied justifications are not looked for.
    reject_below, accept_above, attention_needed : float
        The paper's thresholds.

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

    # Stage 3: justifications compared as lower-case words; stages 1 and 2 take precedence below.
    flags = pd.Series("", index=score.index)
    if justifications is not None:
        texts = justifications.reindex(score.index).apply(_plain)
        copied = pd.DataFrame(False, index=texts.index, columns=texts.columns)
        if questions is not None:
            for item, question in _plain(questions.reindex(texts.columns)).items():
                long = texts[item].str.count(" ") >= 3  # a quoted detail is no copy
                inside = texts[item].map(lambda text, q=question: str(text) in str(q))
                copied[item] = long & inside
        n_texts = (texts.fillna("") != "").sum(axis=1)
        raised = {
            "missing": n_texts == 0,
            "same": (texts.nunique(axis=1) == 1) & (n_texts > 1),
            "copied": copied.sum(axis=1) > 0.25 * n_texts,
        }
        for flag, rows in raised.items():
            flags = flags.where(~rows, flags + f" {flag}")

    between = (score >= reject_below) & (score <= accept_above)
    percent = (100 * score).map("{:.0f} % correct".format)
    checks = percent + (100 * attentive).map(", {:.0f} % of the attention checks".format)
    last = 2 if justifications is None else 3
    cases = [  # (condition, decision, stage, reason): the first that holds decides
        (repeated, "reject", 1, "not the first submission of this worker or address"),
        (score < reject_below, "reject", 2, percent),
        (between & attentive.isna(), "review", 2, percent + ", no attention checks"),
        (between & (attentive < attention_needed), "reject", 2, checks),
        (flags != "", "review", 3, "justifications:" + flags),
        (between, "accept", last, checks),
        (score > accept_above, "accept", last, percent),
    ]
    result = pd.DataFrame(index=score.index, columns=["decision", "stage", "reason"], dtype=object)
    for condition, decision, stage, reason in reversed(cases):
        result.loc[condition, ["decision", "stage"]] = [decision, stage]
        result["reason"] = result["reason"].mask(condition, reason)
    return result.assign(score=score, attention_score=attentive)


def _plain(texts: pd.Series) -> pd.Series:
    """Return texts as lower-case words with single spaces; NaN stays."""
    return texts.str.lower().str.replace(r"[\W_]+", " ", regex=True).str.strip()
