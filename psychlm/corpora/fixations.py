"""Reading measures from fixations in order of time.

References: Rayner (1998), Eye movements in reading and information processing: 20 years of
research, Psychological Bulletin 124; SR Research, EyeLink Data Viewer user's manual (interest area
reports).
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from psychlm import frames
from psychlm.corpora import _sniff
from psychlm.frames import FrameError, refuse


def reading_measures(fixations: pd.DataFrame, words: pd.DataFrame | None = None) -> pd.DataFrame:
    """Turn fixations in order of time into measures by person and word.

    The first pass over a word begins when it is fixated before any later word, and ends when the
    eyes leave it. Times of the first pass are missing where there was none.

    Parameters
    ----------
    fixations : DataFrame
        ``subject``, ``text_id``, ``word_id`` and ``duration_ms``, of each person and text in the
        order in which they happened; with ``word_letter`` (the letter of the word, from 1) also
        landing positions. Fixations off the words, whose ``word_id`` is missing or ".", are left
        out; ``attrs["left_out"]`` counts them, and a warning says it.
    words : DataFrame, optional
        ``text_id`` and ``word_id``: those of a text that a person read, but never fixated, then
        have rows too, with ``skipped``.

    Returns
    -------
    DataFrame
        One row for each person and word that was fixated:

        - ``first_fixation_ms``: the first fixation of the first pass;
        - ``single_fixation_ms``: the same where the first pass has one fixation;
        - ``gaze_ms``: all fixations of the first pass;
        - ``go_past_ms``: from entering the word in the first pass to passing it to the right, the
          time on earlier words included (regression path duration);
        - ``total_ms``: all fixations on the word;
        - ``rereading_ms``: ``total_ms`` less the first pass, where there is any;
        - ``first_pass``, and its opposite ``skipped``;
        - ``regression_out``: earlier words were fixated before the word was passed to the right;
        - ``regression_in``: the word was entered from a later one;
        - ``prev_fixated``: the word before had been fixated by then;
        - ``landing_letter``: of the first fixation of the first pass.

    Examples
    --------
    >>> fixations = pd.DataFrame({"subject": "s", "text_id": "t", "word_id": [1, 1, 2, 1]})
    >>> fixations["duration_ms"] = [200, 100, 250, 150]
    >>> reading_measures(fixations)[["gaze_ms", "go_past_ms", "total_ms"]].to_numpy().tolist()
    [[300, 300, 450], [250, 400, 250]]
    """
    keys = ["subject", "text_id", "word_id"]
    trial = keys[:2]
    # One person's reading of a text at a time, whatever order the persons come in.
    has_letters = "word_letter" in fixations
    needed = [*keys, "duration_ms"]
    absent = [name for name in needed if name not in fixations]
    refuse("fixations lack the columns", absent, "which are needed")
    seen = frames.plain(fixations)[needed + ["word_letter"] * has_letters]
    unknown = [name for name in trial if seen[name].isna().any()]
    refuse("fixations have gaps in", unknown, "and need an id in every row")
    if not pd.api.types.is_numeric_dtype(seen["duration_ms"]):
        raise FrameError("duration_ms holds text, not numbers; convert it by pd.to_numeric")
    numbers, others = _sniff.numbers_among(seen["word_id"].replace({".": np.nan}))
    off = numbers.isna()
    wrong = [*others.unique(), *numbers[numbers % 1 > 0].unique()]
    refuse(
        "words", wrong, "of fixations are no whole numbers; name a word by its place in the text"
    )
    if off.any():
        said = f"{int(off.sum())} of {len(seen)} fixations are on no word and left out"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    seen = seen.assign(word_id=numbers)[~off].astype({"word_id": np.int64})
    seen = seen.sort_values(trial, kind="stable", ignore_index=True)
    groups = [seen[key] for key in keys]
    duration = seen["duration_ms"]

    # A visit is a run of fixations on one word. The first one is a first pass if no later word has
    # been fixated: then the word is the furthest so far, until it is passed to the right.
    visit = (seen[keys] != seen[keys].shift()).any(axis=1).cumsum()
    furthest = seen.groupby(trial, sort=False)["word_id"].cummax()
    in_first_visit = visit == visit.groupby(groups).transform("min")
    first = ~seen.duplicated(keys)
    first_pass = (seen["word_id"] >= furthest).where(first).groupby(groups).transform("first")
    first_pass = first_pass.astype(bool)
    in_pass = in_first_visit & first_pass
    gaze = duration.where(in_pass, 0).groupby(groups).transform("sum")
    n_in_pass = in_pass.groupby(groups).transform("sum")
    total = duration.groupby(groups).transform("sum")
    # Until a word is passed to the right it is the furthest one.
    window = [seen["subject"], seen["text_id"], furthest]
    go_past = duration.groupby(window).transform("sum")
    went_back = (seen["word_id"] < furthest).groupby(window).transform("any")
    before = seen.groupby(trial, sort=False)["word_id"].shift()
    table = seen[keys].assign(
        first_fixation_ms=duration.where(first_pass),
        single_fixation_ms=duration.where(first_pass & (n_in_pass == 1)),
        gaze_ms=gaze.where(first_pass),
        go_past_ms=go_past.where(first_pass),
        total_ms=total,
        rereading_ms=(total - gaze).where(total > gaze),
        prev_fixated=False,
        first_pass=first_pass,
        skipped=~first_pass,
        regression_out=went_back & first_pass,
        regression_in=(before > seen["word_id"]).groupby(groups).transform("any"),
    )[first]
    if has_letters:
        table["landing_letter"] = seen["word_letter"].where(first_pass)
    first_of = pd.Series(table.index, pd.MultiIndex.from_frame(table[keys]))
    word_before = table[keys].assign(word_id=table["word_id"] - 1)
    first_of_before = first_of.reindex(pd.MultiIndex.from_frame(word_before))
    table["prev_fixated"] = first_of_before.to_numpy() < table.index
    if words is not None:
        whole = seen[trial].drop_duplicates().merge(frames.plain(words)[keys[1:]], on="text_id")
        unseen = whole[~pd.MultiIndex.from_frame(whole[keys]).isin(first_of.index)]
        table = pd.concat([table, unseen.assign(skipped=True)], ignore_index=True)
        yes_or_no = ["first_pass", "regression_in", "regression_out", "prev_fixated"]
        table[yes_or_no] = table[yes_or_no].eq(True)
    measures = table.sort_values(keys, ignore_index=True)
    measures.attrs["left_out"] = int(off.sum())
    return measures
