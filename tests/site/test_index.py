"""Numbers beside the published ones, their ledger, the index. Reference: decimals as printed."""

import json

import pandas as pd
import pytest

from psychlm import data, site
from psychlm.site import index

PRINTED = [
    (0.8571, 0.86, "agrees at 2 decimals"),
    (0.8549, 0.86, "differs at 2 decimals"),
    (0.8549, 0.9, "agrees at 1 decimal"),
    (0.8549, "0.90", "differs at 2 decimals"),
    (0.855, "0.86", "agrees at 2 decimals"),  # a tie rounds either way
    (-0.3, "−0.30", "agrees at 2 decimals"),
    (3, 3, "agrees"),
    (12.3, 12.0, "agrees"),
    (1e-7, "< .001", "not compared"),
    (None, 0.5, "not compared"),
    ([1, 2], 0.5, "not compared"),
]


def numbers_of(pairs: dict[str, tuple[float, object]], **fields) -> pd.DataFrame:
    """Return numbers beside published ones, by key."""
    records = [
        {"key": key, "value": value, "published": published, "data": "real", **fields}
        for key, (value, published) in pairs.items()
    ]
    return index.compare({"notebook": "10_items", "numbers": records})


def test_agreement_is_judged_at_the_decimals_that_the_paper_printed() -> None:
    for value, published, says in PRINTED:
        assert numbers_of({"paper.table1.r": (value, published)})["says"].item() == says
    # a float that lost its trailing zero is judged like the rest of its table
    table = numbers_of({"paper.table1.a.r": (0.74, 0.74), "paper.table1.b.r": (0.74, 0.7)})
    assert table["verdict"].tolist() == ["agrees", "differs"]
    assert table["published"].tolist() == ["0.74", "0.70"]
    simulated = numbers_of({"paper.r": (0.86, 0.86)}, data="simulated").iloc[0]
    assert simulated[["verdict", "difference"]].tolist() == ["simulated", ""]
    other = numbers_of({"paper.r": (0.01, -0.14)}, comparable=False).iloc[0]
    assert other[["published", "verdict"]].tolist() == ["−0.14", "no comparison"]


def test_numbers_of_complete_reports_are_gathered_and_runs_are_counted(tmp_path) -> None:
    number = {"key": "a.b.c", "value": 0.5, "published": 0.5, "data": "real", "low": 0.1, "n": 7}
    whole = {"status": "complete", "numbers": [number], "provenance": {}}
    left_out = {"status": "left out", "numbers": [], "provenance": {}, "error": {"message": "why"}}
    (tmp_path / "10_a.json").write_text(json.dumps(whole))
    (tmp_path / "20_b.json").write_text(json.dumps(left_out))
    numbers, runs = site.gather_numbers(tmp_path), site.gather_runs(tmp_path)
    assert numbers[["verdict", "low", "n"]].to_numpy().tolist() == [["agrees", 0.1, 7.0]]
    described = runs[["status", "error", "real"]].to_numpy().tolist()
    assert described == [["complete", "", 1], ["left out", "why", 0]]


COLUMNS = {
    "laverghetta2021.table1.PP.lstm": "own data",
    "lalor2020.table2_5.5GS.neutral.percentile": "printed arithmetic",
    "hao2020.figure4.rho": "printed arithmetic",
    "mirt.lalor2016.5GS.neutral.loglik": "reference program",
    "ucl2023.default.r_cloze": "reference program",
    "comprehenotes.figure7_4.n_full": "true by construction",
}


def test_every_printed_cell_stands_once_and_in_one_column() -> None:
    for key, column in COLUMNS.items():
        cells = site.printed_cells(numbers_of({key: (0.5, "0.51")}))
        assert cells[["column", "agrees"]].to_numpy().tolist() == [[column, False]]
    assert set(COLUMNS.values()) <= set(site.LEDGER_COLUMNS)
    of_two_analyses = {"laverghetta2021.table3.PP": 0.1, "laverghetta2021.table3_ltm.PP": 0.86}
    cells = site.printed_cells(numbers_of({key: (x, "0.86") for key, x in of_two_analyses.items()}))
    assert cells[["key", "agrees"]].to_numpy().tolist() == [["laverghetta2021.table3_ltm.PP", True]]
    # what is not compared is no cell, but for printed numbers of own data
    table = numbers_of({"hao2020.table1.x": (3, "4"), "lalor2020.rmsd.ability": (0.03, "0.154")})
    cells = site.printed_cells(table.assign(verdict="no comparison"))
    assert cells["key"].tolist() == ["lalor2020.rmsd.ability"]
    assert cells["units"].tolist() == pytest.approx([-124])
    assert site.printed_cells(table.assign(data="simulated")).empty


def test_every_rule_names_a_column_and_every_reason_says_what_it_is() -> None:
    rules = data.published("ledger")
    assert set(rules["column"]) <= {*site.LEDGER_COLUMNS, "counted elsewhere"}
    assert rules["pattern"].is_unique and rules.notna().all(axis=None)
    assert set(data.published("departures")["explained"]) == {"yes", "no"}
    questions = data.published("questions")
    assert questions["question"].str.endswith("?").all() and questions.notna().all(axis=None)
    experiments = data.published("experiments")
    alike = experiments[["same_data", "same_model", "same_analysis"]]
    assert alike.isin(["yes", "in part", "no"]).all(axis=None)
    assert experiments.loc[(alike != "yes").any(axis=1), "why"].notna().all()
