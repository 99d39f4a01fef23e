"""Numbers beside the published ones, written whole or not at all. Reference: json's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from psychlm import report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    return tmp_path


def read(folder: Path) -> dict:
    return json.loads((folder / "99_toy.json").read_text())


def test_a_number_stands_beside_the_published_one(folder: Path) -> None:
    report.begin("99_toy", seed=7)
    report.record("toy.r", np.float64(0.8561), published=0.86, source="Table 1", p=np.float32(0.5))
    number = read(folder)["numbers"][0]
    assert number == {
        "key": "toy.r",
        "value": 0.8561,
        "published": 0.86,
        "unit": None,
        "source": "Table 1",
        "data": "real",
        "p": 0.5,
    }
    assert read(folder)["status"] == "running"
    report.finish()
    assert read(folder)["status"] == "complete"


def test_the_stamp_says_code_parameters_data_versions_and_seed(folder: Path) -> None:
    report.begin("99_toy", seed=7, draws=10)
    report.finish()
    stamp = read(folder)["provenance"]
    assert stamp["seed"] == 7
    assert stamp["parameters"] == {"seed": 7, "draws": 10}
    assert stamp["data"] == {}
    assert {"python", "torch", "numpy"} <= set(stamp["versions"])
    assert stamp["seconds"] >= 0


def test_what_numbers_rest_on_is_said(folder: Path) -> None:
    report.begin("99_toy")
    report.set_data_kind("simulated")
    report.record("toy.a", 1)
    report.record("toy.b", 2, data="published")
    assert [number["data"] for number in read(folder)["numbers"]] == ["simulated", "published"]


def test_the_last_value_under_a_key_stands(folder: Path) -> None:
    report.begin("99_toy")
    report.record("toy.a", 1)
    report.record("toy.a", 2)
    assert [number["value"] for number in read(folder)["numbers"]] == [2]


def test_numbers_that_json_cannot_hold_become_null(folder: Path) -> None:
    report.begin("99_toy")
    report.record("toy.a", float("nan"), low=-np.inf)
    assert read(folder)["numbers"][0] | {"key": 0} == {
        "key": 0,
        "value": None,
        "published": None,
        "unit": None,
        "source": None,
        "data": "real",
        "low": None,
    }


def test_a_published_value_names_its_source(folder: Path) -> None:
    report.begin("99_toy")
    with pytest.raises(ValueError, match=r"toy\.a: a published value names its source"):
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
