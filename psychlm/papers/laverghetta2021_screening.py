"""Which participants of a crowd study to keep: three stages, a decision with its reason for every submission.

The procedure is that of Laverghetta et al. (2021), section 4: (1) of several submissions by one worker or from one
address only the first is kept; (2) a score below 40 % is rejected, above 60 % accepted, and between the two (both
included) the attention checks decide, of which 75 % are needed; (3) the justifications of all who are left are looked
at. Stage 3 was done by people: here it raises flags that show a person where to look. It does not judge whether a
justification is relevant.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
import pandas as pd

from psychlm.frames import FrameError, check_responses

# "good" and "nice" are the paper's examples; the others are ours ("n a" is what is left of "n/a")
NONSENSE_WORDS = frozenset(
    {
        "a",
        "amazing",
        "awesome",
        "best",
        "cool",
        "correct",
        "excellent",
        "fine",
        "good",
        "great",
        "interesting",
        "n",
        "na",
        "nice",
        "no",
        "none",
        "nothing",
        "ok",
        "okay",
        "super",
        "thank",
        "thanks",
        "true",
        "very",
        "well",
        "yeah",
        "yes",
    }
)


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
    flagged: Literal["review", "reject"] = "review",
    flag_share: float = 0.25,
    ngram: int = 4,
    containment: float = 0.8,
    nonsense_words: Collection[str] = NONSENSE_WORDS,
) -> pd.DataFrame:
    """Decide on every submission, and say why.

    Parameters
    ----------
    responses : DataFrame, shape (n_persons, n_items)
        Graded answers to the questions, one row a submission. The score is the proportion correct of those answered.
    attention : DataFrame, shape (n_persons, n_checks), optional
        Graded attention checks of the same persons; needed where a score lies between the two thresholds.
    persons : DataFrame, optional
        ``person`` (the index of ``responses``), ``worker``, ``address`` and ``submitted`` (time or number). Without it
        duplicates are not looked for. A missing or empty worker or address matches nobody; submissions of the same
        time stand in the order of this frame.
    justifications : DataFrame, shape (n_persons, n_items), optional
        What each person wrote on each question; NaN where nothing was asked for, "" where nothing was written.
    questions : Series, item -> text, optional
        The text of each question (premise and hypothesis); without it, copying is not looked for.
    reject_below, accept_above, attention_needed : float
        The paper's 40 %, 60 % and 75 %. A score of exactly 40 % or 60 % goes to the attention checks, and exactly 75 %
        of these is enough.
    flagged : {"review", "reject"}
        What becomes of those whose justifications raise a flag.
    flag_share : float
        Share of a person's justifications that must be copied, or nonsense, to raise that flag. The paper gives no
        number: this one is ours, as are the next two.
    ngram, containment : int, float
        A justification is copied if at least this share of its word n-grams stands in the question. Shorter ones are
        taken for a quoted detail, which the paper saw in its best workers.
    nonsense_words : collection of str
        A justification of such words only, or without any word, is nonsense.

    Returns
    -------
    DataFrame
        One row a submission, in the order of ``responses``: ``person``, ``decision`` ("accept", "reject" or "review"),
        ``stage`` (1, 2 or 3, where the decision fell), ``reason``, ``score`` and ``attention_score`` (0..1, NaN
        without checks), ``flags`` (those of "same", "copied", "nonsense" and "missing" that were raised, by commas).

    Raises
    ------
    FrameError
        If frames do not cover the same persons or items, a time is missing, or a score lies between the thresholds
        and there are no attention checks to decide.
    """
    if not 0 <= reject_below <= accept_above <= 1 or flagged not in ("review", "reject"):
        raise ValueError(
            f"it must be that 0 <= reject_below <= accept_above <= 1 (they are {reject_below} and {accept_above}), "
            f"and that flagged is 'review' or 'reject' (it is {flagged!r})"
        )
    answers = check_responses(responses)
    score = answers.mean(axis=1)
    checks = _attention_score(attention, answers.index)
    duplicate = _duplicates(persons, answers.index)
    flags = _flags(
        justifications,
        questions,
        answers,
        flag_share,
        ngram,
        containment,
        frozenset(nonsense_words),
    )
    between = (score >= reject_below) & (score <= accept_above)
    _require_checks(between & duplicate.eq("") & checks.isna())

    inattentive = between & (checks < attention_needed)
    cases = [  # the first that holds decides
        (duplicate.ne(""), "reject", 1, "not the first submission from this " + duplicate),
        (
            score < reject_below,
            "reject",
            2,
            _percent(score) + f" correct, below {reject_below:.0%}",
        ),
        (inattentive, "reject", 2, _between(score, checks) + f", below {attention_needed:.0%}"),
        (flags.ne(""), flagged, 3, "justifications: " + flags),
        (between, "accept", 2 if justifications is None else 3, _between(score, checks)),
        (
            score > accept_above,
            "accept",
            2 if justifications is None else 3,
            _percent(score) + " correct",
        ),
    ]
    holds = [case[0].to_numpy() for case in cases]
    return pd.DataFrame(
        {
            "person": answers.index,
            "decision": np.select(holds, [case[1] for case in cases], ""),
            "stage": np.select(holds, [case[2] for case in cases], 0),
            "reason": np.select(holds, [case[3].to_numpy(dtype=object) for case in cases], ""),
            "score": score.to_numpy(),
            "attention_score": checks.to_numpy(),
            "flags": flags.to_numpy(),
        }
    )


def _percent(share: pd.Series) -> pd.Series:
    return (100 * share).map("{:.0f} %".format)


def _between(score: pd.Series, checks: pd.Series) -> pd.Series:
    return _percent(score) + " correct, and " + _percent(checks) + " of the attention checks"


def _attention_score(attention: pd.DataFrame | None, persons: pd.Index) -> pd.Series:
    if attention is None:
        return pd.Series(np.nan, index=persons)
    checks = check_responses(attention)
    _require_same(checks.index, persons, "attention checks")
    return checks.mean(axis=1).reindex(persons)


def _require_same(found: pd.Index, expected: pd.Index, what: str) -> None:
    """Raise unless the frame called ``what`` covers exactly the persons of the responses."""
    twice = found[found.duplicated()].unique()
    absent, unknown = expected.difference(found, sort=False), found.difference(expected, sort=False)
    if len(twice) or len(absent) or len(unknown):
        raise FrameError(
            f"the {what} do not cover the persons of the responses one to one: missing {list(absent[:5])}, "
            f"not in the responses {list(unknown[:5])}, twice {list(twice[:5])}; select the same persons in both"
        )


def _require_checks(undecided: pd.Series) -> None:
    if undecided.any():
        raise FrameError(
            f"persons {list(undecided.index[undecided][:5])} scored between the two thresholds, where attention checks "
            "decide, and have none; pass attention=, or set reject_below and accept_above to one value"
        )


def _duplicates(persons: pd.DataFrame | None, index: pd.Index) -> pd.Series:
    """Say for every submission what it shares with an earlier one: "worker", "address", "worker and address", ""."""
    if persons is None:
        return pd.Series("", index=index)
    absent = {"person", "worker", "address", "submitted"}.difference(persons.columns)
    if absent:
        raise FrameError(
            f"the persons frame lacks the columns {sorted(absent)}, and has {list(persons.columns)}"
        )
    _require_same(pd.Index(persons["person"]), index, "persons")
    if persons["submitted"].isna().any():
        late = persons.loc[persons["submitted"].isna(), "person"]
        raise FrameError(
            f"persons {list(late[:5])} have no time of submission, so which came first is unknown"
        )
    in_time = persons.sort_values("submitted", kind="stable").set_index("person")
    worker, address = (
        in_time[key].duplicated() & in_time[key].notna() & in_time[key].ne("")
        for key in ("worker", "address")
    )
    shared = np.select(
        [worker & address, worker, address], ["worker and address", "worker", "address"], ""
    )
    return pd.Series(shared, index=in_time.index).reindex(index)


def _flags(
    justifications: pd.DataFrame | None,
    questions: pd.Series | None,
    answers: pd.DataFrame,
    flag_share: float,
    ngram: int,
    containment: float,
    nonsense_words: frozenset[str],
) -> pd.Series:
    """Name the flags that each person's justifications raise, joined by commas."""
    if justifications is None:
        return pd.Series("", index=answers.index)
    _require_same(justifications.index, answers.index, "justifications")
    unknown = justifications.columns.difference(
        answers.columns if questions is None else questions.index, sort=False
    )
    if len(unknown):
        raise FrameError(
            f"justifications are for items {list(unknown[:5])}, which are not among the questions"
        )
    written = justifications.rename_axis(index="person", columns="item").reset_index()
    texts = written.melt(id_vars="person", value_name="text").dropna(subset="text")
    texts["text"] = _plain(texts["text"])
    words = texts["text"].str.split()
    texts["nonsense"] = words.map(nonsense_words.issuperset)
    texts["copied"] = False
    if questions is not None:
        texts["copied"] = (
            _containment(texts["text"], _plain(questions).loc[texts["item"]], ngram) >= containment
        )

    by_person = texts.groupby("person")
    share = by_person[["copied", "nonsense"]].mean()
    raised = (share >= flag_share) & (share > 0)
    raised.insert(0, "same", (by_person["text"].nunique() == 1) & (by_person.size() > 1))
    raised = raised.reindex(answers.index)
    raised["missing"] = raised["same"].isna()
    raised = raised.fillna(False).astype(bool)
    names = pd.Series("", index=answers.index, dtype="str")
    for flag in raised:
        names = names.mask(raised[flag], names + f", {flag}")
    return names.str.removeprefix(", ")


def _plain(text: pd.Series) -> pd.Series:
    """Lower-case words with single spaces: what is left when case and punctuation are set aside."""
    return text.astype(str).str.lower().str.replace(r"[\W_]+", " ", regex=True).str.strip()


def _containment(texts: pd.Series, questions: pd.Series, ngram: int) -> np.ndarray:
    """Return the share of each text's word n-grams that stand in its question; 0 for texts of fewer words."""
    from sklearn.feature_extraction.text import CountVectorizer

    if not (texts.str.count(" ") >= ngram - 1).any():
        return np.zeros(len(texts))
    count = CountVectorizer(ngram_range=(ngram, ngram), binary=True, token_pattern=r"\S+")
    in_texts, in_questions = count.fit_transform(texts), count.transform(questions)
    n_grams = np.asarray(in_texts.sum(axis=1)).ravel()
    shared = np.asarray(in_texts.multiply(in_questions).sum(axis=1)).ravel()
    return shared / np.maximum(n_grams, 1)
