"""Tests of several benchmarks and probes side by side, their p-values corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from psychlm import stats
from psychlm.confidence.chance import ChanceTest
from psychlm.confidence.paralysis import AccuracyChange, Paralysis
from psychlm.confidence.preference import Association, PriorBias

Result = ChanceTest | PriorBias | Association | Paralysis | AccuracyChange


def by_benchmark(
    results: Mapping[tuple[str, ...], Result], names: Sequence[str] = ("benchmark", "probe")
) -> pd.DataFrame:
    """Return one row a test, with Holm's correction over all of them.

    Parameters
    ----------
    results : mapping
        From the benchmark and the probe (or whatever ``names`` says) to what a measure returned.

    Returns
    -------
    DataFrame
        Indexed by ``names``: ``measure``, ``estimate``, ``low``, ``high``, ``null`` (the value under the null),
        ``n_items``, ``p``, ``p_holm``. The estimate of a prior bias is its lasting share.
    """
    index = pd.MultiIndex.from_tuples([tuple(key) for key in results], names=list(names))
    table = pd.DataFrame([_row(result) for result in results.values()], index=index)
    return table.assign(p_holm=stats.holm(table["p"]))


def _row(result: Result) -> dict[str, object]:
    if isinstance(result, ChanceTest):
        measure, at, null = "pseudo-correct picked", result, result.chance
        estimate, low, high = at.rate, at.low, at.high
    else:
        measure, interval = {
            PriorBias: lambda r: ("lasting share of variance", r.lasting_share),
            Association: lambda r: ("correlation within items", r.r),
            Paralysis: lambda r: ("drop in confidence", r.drop),
            AccuracyChange: lambda r: ("change in accuracy", r.change),
        }[type(result)](result)
        nan = float("nan")
        estimate, low, high = (
            (interval.estimate, interval.low, interval.high) if interval else (nan, nan, nan)
        )
        null = 0.0
    return {
        "measure": measure,
        "estimate": estimate,
        "low": low,
        "high": high,
        "null": null,
        "n_items": result.n_items,
        "p": result.p,
    }
