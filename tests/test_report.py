"""Numbers beside the published ones, written whole or not at all. Reference: json's own reader."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from psychlm import irt, report
from psychlm.device import torch_device


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    monkeypatch.setenv("PSYCHLM_PROFILE", "quick")  # as the runner does
    return tmp_path


def read(folder: Path) -> dict:
    return json.loads((folder / "99_toy.json").read_text())


def test_a_number_stands_beside_the_published_one(folder: Path) -> None:
    report.begin("99_toy", seed=7)
    report.record("toy.r", np.float64(0.8561), published=0.86, source="Table 1", p=np.float32(0.5))
    number = {"key": "toy.r", "value": 0.8561, "published": 0.86, "unit": None}
    assert read(folder)["numbers"] == [number | {"source": "Table 1", "data": "real", "p": 0.5}]
    assert read(folder)["status"] == "running"
    report.finish()
    assert read(folder)["status"] == "complete"


def test_the_stamp_says_parameters_versions_seed_and_where_each_part_ran(folder: Path) -> None:
    irt.score(pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, 1.0]}), pd.DataFrame([[1, 0], [0, 1]]))
    report.begin("99_toy", seed=7, draws=10)
    torch_device("cpu", "lm.load")
    report.finish()
    stamp = read(folder)["provenance"]
    assert (stamp["seed"], stamp["parameters"]) == (7, {"seed": 7, "draws": 10})
    assert stamp["data"] == {} and stamp["seconds"] >= 0
    assert {"python", "torch", "numpy"} <= set(stamp["versions"])
    assert (stamp["device"], stamp["ran_on"]) == ("cpu", {"lm.load": "cpu"})


def test_what_numbers_rest_on_is_recorded(folder: Path) -> None:
    report.begin("99_toy", data_kind="simulated")
    report.record("toy.a", 1)
    report.record("toy.b", 2, data="published")
    assert [number["data"] for number in read(folder)["numbers"]] == ["simulated", "published"]


def test_a_run_outside_the_runner_does_not_replace_the_published_report(folder, monkeypatch):
    monkeypatch.delenv("PSYCHLM_PROFILE")
    (folder / "99_toy.json").write_text("the published report")
    report.begin("99_toy")
    report.finish()
    assert (folder / "99_toy.json").read_text() == "the published report"
    assert read(folder / "interactive")["status"] == "complete"


def test_a_table_is_recorded_cell_by_cell_beside_the_published_one(folder: Path) -> None:
    ours = pd.DataFrame({"r": [0.5, 0.6], "n": [3, 4]}, index=["PP", "MN"])
    printed = pd.DataFrame({"r": [0.52, np.nan]}, index=["PP", "MN"])
    report.begin("99_toy")
    report.record_table(ours, prefix="toy", published=printed, source="Table 1", low=ours - 1)
    numbers = {number["key"]: number for number in read(folder)["numbers"]}
    assert list(numbers) == ["toy.PP.r", "toy.PP.n", "toy.MN.r", "toy.MN.n"]
    assert (numbers["toy.PP.r"]["published"], numbers["toy.PP.r"]["source"]) == (0.52, "Table 1")
    assert (numbers["toy.MN.r"]["published"], numbers["toy.MN.r"]["source"]) == (None, None)
    assert numbers["toy.MN.n"] | {"value": 4, "low": 3} == numbers["toy.MN.n"]


def test_published_values_of_a_table_may_be_a_dict_and_one_value_must_be_scalar(folder) -> None:
    report.begin("99_toy")
    table = pd.Series({"a": 1.0, "b": 2.0})
    report.record_table(table, prefix="toy", published={"b": 2.1}, source="Table 1")
    assert [n["published"] for n in read(folder)["numbers"]] == [None, 2.1]
    with pytest.raises(ValueError, match=r"toy\.a: published should be one number"):
        report.record("toy.a", 1.0, published={"a": 1.0}, source="Table 1")


def test_mgcv_is_stamped_only_if_it_ran(folder: Path) -> None:
    code = "from psychlm import report; print(report.r_versions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{}"
    if importlib.util.find_spec("rpy2") is None:
        pytest.skip("rpy2 is not installed")
    ran = "from psychlm.reading_times import mgcv; mgcv.version(); import rpy2.robjects as r; "
    asked = f"{ran} r.r('loadNamespace(\"mgcv\")'); {code}"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert "'mgcv': '" in done.stdout and "'R': '" in done.stdout, done.stderr


def test_what_a_figure_draws_is_its_table() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [3, 4], label="a line")
    left.scatter([5], [6])
    left.hlines([7], 0, 1)
    left.set_title("both")
    right.barh([0, 1], [10, 20])
    table = report.figure_data(figure)
    assert table["kind"].value_counts().to_dict() == {"line": 2, "segment": 2, "bar": 2, "point": 1}
    line = table.loc[table["label"] == "a line", ["panel", "x", "y"]]
    assert line.to_numpy().tolist() == [["both", 1, 3], ["both", 2, 4]]
    assert table.loc[table["kind"] == "bar", "x"].tolist() == [10, 20]
    plt.close(figure)


def test_the_last_value_under_a_key_stands_and_what_json_cannot_hold_is_null(folder) -> None:
    report.begin("99_toy")
    report.record("toy.a", 1)
    report.record("toy.a", float("nan"), low=-np.inf)
    (number,) = read(folder)["numbers"]
    assert number["value"] is None and number["low"] is None


def test_a_published_value_names_its_source(folder: Path) -> None:
    report.begin("99_toy")
    with pytest.raises(ValueError, match=r"toy\.a: a published value needs its source"):
        report.record("toy.a", 1, published=1)


def test_a_number_without_a_report_says_how_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_current", None)
    with pytest.raises(RuntimeError, match=r"call report\.begin"):
        report.record("toy.a", 1)


def test_nothing_half_written_is_left(folder: Path) -> None:
    report.begin("99_toy")
    with pytest.raises(TypeError):
        report.record("toy.a", object())
    assert not list(folder.iterdir())
