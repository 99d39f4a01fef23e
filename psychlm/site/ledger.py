"""The ledger of published numbers: every printed cell once, by what it rests on."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pandas as pd

from psychlm import data

COLUMNS = ("own data", "printed arithmetic", "reference program", "true by construction")
ELSEWHERE = "counted elsewhere"  # another analysis of a printed cell that has a row already
TOLERANCE = 0.5 + 1e-7  # units of the last decimal printed: equal when rounded


def match(keys: pd.Series, patterns: pd.Series) -> pd.Series:
    """Return for each key the label of the first pattern that it matches, -1 for none.

    Examples
    --------
    >>> match(pd.Series(["a.x", "b"]), pd.Series(["a.*"])).tolist()
    [0, -1]
    """
    return keys.map(
        lambda key: next((i for i, one in patterns.items() if fnmatchcase(key, one)), -1)
    )


def printed_cells(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per printed cell that was compared, with what the comparison rests on.

    A cell counts if its number was compared, or if ``data/published/ledger.csv`` says that it rests
    on *own data*. The columns of :data:`COLUMNS` answer different questions and are never added up:
    *own data* are computed from responses that the authors released, *printed arithmetic* from
    other printed numbers; a *reference program* is no paper, and what is *true by construction* no
    evidence.

    Parameters
    ----------
    numbers : DataFrame
        As :func:`gather_numbers` returns them.

    Returns
    -------
    DataFrame
        The rows of ``numbers`` that count, with ``column``, ``units`` (ours less printed, in units
        of the last decimal printed), ``agrees`` and ``relative``, the distance by the printed
        number.
    """
    rules = data.published("ledger")
    named = match(numbers["key"], rules["pattern"]).map(rules["column"])
    cells = numbers.assign(column=named.fillna(COLUMNS[0]))
    counted = cells["verdict"].isin(["agrees", "differs"]) | named.eq(COLUMNS[0])
    counted &= cells["column"].ne(ELSEWHERE) & cells["data"].ne("simulated")
    cells = cells[counted].dropna(subset=["value", "published_value"]).reset_index(drop=True)
    apart, printed = cells["value"] - cells["published_value"], cells["published_value"].abs()
    units = apart * 10.0 ** cells["decimals"].astype(float)
    relative = apart.abs() / printed.where(printed > 0)
    return cells.assign(units=units, agrees=units.abs() <= TOLERANCE, relative=relative)
