"""The ledger of published numbers. Reference: cells counted by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from psychlm import data, site
from psychlm.site import index


def numbers(**values: tuple[float, str]) -> pd.DataFrame:
    """Return numbers beside published ones, from keys with `__` for dots."""
    records = [
        {"key": key.replace("__", "."), "value": value, "published": published, "data": "real"}
        for key, (value, published) in values.items()
    ]
    return index.compare({"notebook": "10_items", "numbers": records})


def test_a_printed_cell_that_two_analyses_give_counts_once() -> None:
    both = {
        "laverghetta2021__table3__PP": (0.1, "0.86"),
        "laverghetta2021__table3_ltm__PP": (0.86, "0.86"),
    }
    cells = site.printed_cells(numbers(**both))
    assert cells["key"].tolist() == ["laverghetta2021.table3_ltm.PP"]
    assert cells["agrees"].tolist() == [True]


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("laverghetta2021.table1.PP.lstm", "own data"),
        ("lalor2020.table2_5.5GS.neutral.percentile", "printed arithmetic"),
        ("hao2020.figure4.rho", "printed arithmetic"),
        ("mirt.lalor2016.5GS.neutral.loglik", "reference program"),
        ("ucl2023.default.r_cloze", "reference program"),
        ("comprehenotes.figure7_4.n_full", "true by construction"),
    ],
)
def test_every_cell_stands_in_one_column(key: str, column: str) -> None:
    cells = site.printed_cells(numbers(**{key.replace(".", "__"): (0.5, "0.51")}))
    assert cells[["column", "agrees"]].to_numpy().tolist() == [[column, False]]
    assert column in site.LEDGER_COLUMNS


def test_what_is_not_compared_is_no_cell_but_for_printed_numbers_of_own_data(tmp_path) -> None:
    table = numbers(hao2020__table1__x=(3, "4"), lalor2020__rmsd__ability=(0.03, "0.154"))
    cells = site.printed_cells(table.assign(verdict="no comparison"))
    assert cells["key"].tolist() == ["lalor2020.rmsd.ability"]
    assert cells["units"].tolist() == pytest.approx([-124])
    assert site.printed_cells(table.assign(data="simulated")).empty
    assert site.printed_cells(site.gather_numbers(tmp_path)).empty, "no reports"


def test_every_rule_names_a_column_and_every_reason_says_what_it_is() -> None:
    rules = data.published("ledger")
    assert set(rules["column"]) <= {*site.LEDGER_COLUMNS, "counted elsewhere"}
    assert rules["pattern"].is_unique and rules.notna().all(axis=None)
    assert set(data.published("departures")["explained"]) == {"yes", "no"}
    questions = data.published("questions")
    assert questions["question"].str.endswith("?").all() and questions.notna().all(axis=None)
    experiments = data.published("experiments")
    assert set(experiments["extent"]) == {"whole", "in part", "none"}
    assert experiments.loc[experiments["extent"] != "whole", "why"].notna().all()
