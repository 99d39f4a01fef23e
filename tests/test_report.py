"""Numbers beside the published ones, written whole or not at all. Reference: json's own reader."""

import html
import json
import re
from pathlib import Path

import IPython
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from nbformat.v4 import new_code_cell, new_notebook

from psychlm import _formatting, report
from psychlm.device import torch_device

VERDICT = {"sentence": "It runs.", "support": "Once.", "outcome": "reproduced", "rests_on": "toys"}


class Session:
    """A session of IPython: the cells run so far, and the variables that they left."""

    def __init__(self, *cells: str) -> None:
        self.user_ns: dict = {"In": ["", *cells, "the cell that runs now"]}
        for cell in cells:
            exec(cell, self.user_ns)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Begin a report as the runner does; return the folder that it is written into."""
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    monkeypatch.setenv("PSYCHLM_PROFILE", "quick")
    report.begin("99_toy")
    return tmp_path


def read(folder: Path) -> dict:
    return json.loads((folder / "99_toy.json").read_text())


def numbers(folder: Path) -> dict[str, dict]:
    return {number["key"]: number for number in read(folder)["numbers"]}


def test_a_number_stands_beside_the_published_one(folder: Path) -> None:
    report.record("toy.r", np.float64(0.8561), published=0.86, source="Table 1", p=np.float32(0.5))
    number = {"key": "toy.r", "value": 0.8561, "published": 0.86, "unit": None}
    assert read(folder)["numbers"] == [number | {"source": "Table 1", "data": "real", "p": 0.5}]
    assert read(folder)["status"] == "running"
    report.record("toy.r", float("nan"), low=-np.inf)
    (last,) = read(folder)["numbers"]
    assert last["value"] is None and last["low"] is None, "the last value under a key stands"
    with pytest.raises(ValueError, match=r"'toy' share the names \['q'\]; name each apart"):
        report.record_table(pd.Series([1, 2], ["q", "q"]), prefix="toy")
    with pytest.raises(ValueError, match=r"toy\.a: a published value needs its source"):
        report.record("toy.a", 1, published=1)
    with pytest.raises(ValueError, match=r"toy\.a: published should be one number"):
        report.record("toy.a", 1.0, published={"a": 1.0}, source="Table 1")


def test_a_number_without_a_report_and_one_that_is_none_are_refused(folder, monkeypatch) -> None:
    with pytest.raises(TypeError):
        report.record("toy.a", object())
    assert not list(folder.iterdir()), "nothing half-written is left"
    monkeypatch.setattr(report, "_current", None)
    with pytest.raises(RuntimeError, match=r"call report\.begin"):
        report.record("toy.a", 1)


def test_the_stamp_says_parameters_versions_seed_and_where_each_part_ran(folder, monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: Session("seed = 7\ndraws = 10"))
    torch_device("cpu", "irt.score")  # before the report begins
    report.begin("99_toy", data_kind="simulated")
    torch_device("cpu", "lm.load")
    report.record("toy.a", 1)
    report.record("toy.b", 2, data="published")
    assert [number["data"] for number in read(folder)["numbers"]] == ["simulated", "published"]
    stamp = read(folder)["provenance"]
    assert (stamp["seed"], stamp["parameters"]) == (7, {"seed": 7, "draws": 10})
    assert (stamp["data"], stamp["models"]) == ({}, {}) and stamp["seconds"] >= 0
    assert {"python", "torch", "numpy"} <= set(stamp["versions"])
    assert (stamp["device"], stamp["ran_on"]) == ("cpu", {"lm.load": "cpu"})


def test_a_run_outside_the_runner_does_not_replace_the_published_report(folder, monkeypatch):
    monkeypatch.delenv("PSYCHLM_PROFILE")
    (folder / "99_toy.json").write_text("the published report")
    report.begin("99_toy")
    report.verdict(**VERDICT)
    assert (folder / "99_toy.json").read_text() == "the published report"
    assert read(folder / "interactive")["status"] == "complete"


@pytest.mark.parametrize("location", ["center", "left"])
def test_what_a_figure_draws_is_its_table(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plt.rcParams, "axes.titlelocation", location)
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [3, 4], label="a line")
    left.scatter([5], [6])
    left.hlines([7], 0, 1)
    left.set_title("both")
    left.add_collection(LineCollection([np.empty((0, 2)), [(0, 9), (1, 9)]]))
    right.barh([0, 1], [10, 20])
    table = report.figure_data(figure)
    assert table["kind"].value_counts().to_dict() == {"line": 2, "segment": 4, "bar": 2, "point": 1}
    line = table.loc[table["label"] == "a line", ["panel", "x", "y"]]
    assert line.to_numpy().tolist() == [["both", 1, 3], ["both", 2, 4]]
    assert table.loc[table["kind"] == "bar", "x"].tolist() == [10, 20]
    plt.close(figure)


# the parameters cell, which report.begin reads


@pytest.fixture
def run_cells(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that begins a report after the cells given and returns its parameters."""

    def run(*cells: str, **rules) -> dict:
        monkeypatch.setattr(IPython, "get_ipython", lambda: Session(*cells))
        report.begin("99_toy", **rules)
        report.record("toy.a", 1)
        return read(folder)["provenance"]["parameters"]

    return run


CELL = "kept = [0.5]\nn_boot = 200\nmodels = ['a', 'b']\nlevel = 0.95\nfile = None"
RULES = {
    "n_boot": report.between(100, None),
    "models": (report.at_least(2), report.some_of("a", "b", "c")),
    "level": report.between(0, 1),
    "file": report.some_of("x"),
}


def test_the_report_holds_every_parameter_and_given_ones_with_their_values(run_cells) -> None:
    parameters = {"kept": [0.5], "n_boot": 200, "models": ["a", "b"], "level": 0.95, "file": None}
    assert run_cells(CELL, "import os") == parameters
    injected = "# Parameters\nn_boot = 300\nlevel = 1\nmodels = ['c', 'a']\nfile = 'x'\n"
    given_values = {"n_boot": 300, "level": 1, "models": ["c", "a"], "file": "x"}
    assert run_cells(CELL, injected, "import os", **RULES) == parameters | given_values
    changed_and_run_again = [CELL, "import os", "x = 3", CELL.replace("200", "300"), "import os"]
    assert run_cells(*changed_and_run_again) == parameters | {"n_boot": 300}
    assert run_cells(CELL, "models = []", models=report.at_least(0))["models"] == []


@pytest.mark.parametrize(
    ("given_cell", "says"),
    [
        ("n_bot = 3", "there is no parameter n_bot; did you mean n_boot?"),
        ("zzz = 3", "no parameter zzz; the parameters are kept, n_boot, models, level, file"),
        ("n_boot = 1", "n_boot=1 should be at least 100"),
        ("kept = []", r"kept=\[\] should not be empty; for instance kept=\[0.5\]"),
        ("models = ['a', 3]", r"models=\['a', 3\]: 3 should be a text, as in models="),
        ("level = float('nan')", "level=nan should be a number"),
    ],
)
def test_a_senseless_parameter_is_refused_in_one_line_that_says_what_is_allowed(
    run_cells, given_cell, says
):
    with pytest.raises(ValueError, match=f"99_toy: .*{says}") as caught:
        run_cells(CELL, given_cell, "import os", **RULES)
    assert "\n" not in str(caught.value)


def test_a_notebook_that_jupyterlab_runs_is_compared_with_its_file(
    run_cells, tmp_path, monkeypatch
):
    cells = [new_code_cell(CELL, metadata={"tags": ["parameters"]}), new_code_cell("# 99_toy")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "99_toy.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "99_toy.ipynb"))
    assert run_cells(CELL.replace("200", "300"), "import os")["n_boot"] == 300
    misspelt = CELL.replace("n_boot", "n_bot")
    with pytest.raises(ValueError, match=r"no parameter n_bot; did you mean n_boot\?.*save"):
        run_cells(CELL, "import os", "x = 3", misspelt)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "gone.ipynb"))
    assert run_cells(misspelt, "import os")["n_bot"] == 200


# tables and sentences


def rows_of(shown) -> list[list[str]]:
    """Return the texts of the cells of a shown table, by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", shown.html, flags=re.DOTALL)
    cells = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]
    return [[html.unescape(cell).strip() for cell in row] for row in cells]


def test_a_table_is_shown_as_readers_expect_it_and_recorded_cell_by_cell(folder: Path) -> None:
    columns = {"rho_within_label": [0.471, -0.0001], "low": [0.4, -0.1], "high": [0.5, 0.1]}
    columns |= {"p": [0.00001, 0.34], "n_items": [1417.0, np.nan], "kept": [True, False]}
    ours = pd.DataFrame(columns | {"says": ["a < b", "c"]}, index=["PP", "MN"])
    shown = report.table(ours, "toy", caption="A table.")
    assert [row[1:] for row in rows_of(shown)] == [
        ["ρ within label", "interval", "p", "n items", "kept", "says"],
        ["0.47", "[0.40, 0.50]", "< .001", "1,417", "yes", "a < b"],
        ["0.00", "[−0.10, 0.10]", ".340", "–", "no", "c"],
    ]
    assert shown.html.endswith('<p class="caption">A table.</p>') and "<details>" not in shown.html
    folded = report.table(ours, fold="All <items>").html
    assert folded.startswith("<details><summary>All &lt;items&gt;</summary>")
    assert list(numbers(folder)) == [f"toy.{row}.{name}" for row in ours.index for name in ours]


def test_each_level_of_the_index_has_its_name_above_it() -> None:
    """Reference: the frame itself, whose index and columns are read back from the HTML."""
    index = pd.MultiIndex.from_product([["PP"], ["lstm", "bert"]], names=["category", "model_id"])
    ours = pd.DataFrame([[1, 2], [3, 4]], index, pd.Index([5, 10], name="n_items"))
    assert rows_of(report.table(ours)) == [
        ["", "", "n items"],
        ["category", "model ID", "5", "10"],
        ["PP", "LSTM", "1", "2"],
        ["BERT", "3", "4"],
    ]


def test_published_values_and_intervals_stand_beside_ours(folder: Path) -> None:
    ours, low = pd.Series({"PP": 0.5, "MN": -0.25}, name="r"), pd.Series({"PP": 0.1, "MN": -0.5})
    beside = {"published": {"PP": 0.52}, "source": "T1", "low": low, "high": low + 1}
    shown = report.table(ours, "toy", **beside, format=".1f")
    in_words = [["PP", "0.5 [0.1, 1.1]", "0.52"], ["MN", "−0.2 [−0.5, 0.5]", "–"]]
    assert rows_of(shown)[0][1:] == ["r", "published"] and rows_of(shown)[1:] == in_words
    fields = ("published", "source", "low")
    recorded = [[number[name] for name in fields] for number in numbers(folder).values()]
    assert recorded == [[0.52, "T1", 0.1], [None, None, -0.5]]
    assert len(numbers(folder)) == 2
    ours = pd.DataFrame({"r": [0.5], "low": [0.4], "n": [3]}, index=["PP"])
    shown = report.table(ours, "toy", values="r", published={"PP": 0.51}, source="Table 1")
    expected = {"value": 0.5, "published": 0.51, "low": 0.4, "n": 3}
    assert numbers(folder)["toy.PP"] | expected == numbers(folder)["toy.PP"]
    assert rows_of(shown)[0][1:] == ["r", "r, published", "low", "n"]
    says = r"no row is named as a published one: \['pp'\]; rows are \['PP'\]"
    for prefix in (None, "toy"):
        with pytest.warns(RuntimeWarning, match=says):
            report.table(ours["r"], prefix, published={"pp": 0.51}, source="Table 1")


@given(st.floats(-1e12, 1e12) | st.floats(-0.05, 0.05), st.sampled_from([".2f", ".0%", "+.3f", ""]))
def test_a_shown_number_is_right_to_its_last_decimal_and_zero_has_no_sign(value, spec) -> None:
    text = _formatting.number(value, spec)
    digits = text.replace("−", "-").replace(",", "").rstrip("%")
    n_decimals = len(digits.partition(".")[2])
    assert "-" not in text and n_decimals == int(spec.lstrip("+")[1] if spec else n_decimals)
    error = abs(float(digits) - value * (100 if "%" in text else 1))
    assert error <= 0.5001 * 10.0**-n_decimals + 1e-14 * abs(value)
    assert spec or error <= max(0.1 * abs(value), 5.1e-7)  # two digits of a small number
    assert float(digits) or not text.startswith("−")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"r": float("nan")}, "r is nan"),
        ({"r": None}, "r is None"),
        ({"r": []}, "r is empty"),
        ({"r": " "}, "r is ' '"),
        ({"s": 1}, "needs a value r, which is not given"),
    ],
)
def test_a_sentence_with_a_blank_is_an_error_that_names_it(values, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        report.say("by rho: {r}.", **values)


def test_a_verdict_ends_the_report(folder: Path, capsys) -> None:
    texts = {"outcome": "partly", "rests_on": "simulated", "stand_ins": False}
    report.verdict([(False, "No."), "Yes, mostly."], support="r = {r:.2f}.", r=0.5, **texts)
    content = read(folder)
    assert content["status"] == "complete"
    assert content["verdict"] == texts | {"sentence": "Yes, mostly.", "support": "r = 0.50."}
    assert capsys.readouterr().out == "**Yes, mostly.** r = 0.50.\n"
    report.verdict("Mine.", support="Of no paper.", rests_on="own data")
    assert read(folder)["verdict"]["outcome"] == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sentence": "word " * 16}, "the sentence has 16 words, of at most 15"),
        ({"support": "word " * 41}, "the support has 41 words, of at most 40"),
        ({"outcome": "maybe"}, "outcome='maybe' should be one of 'reproduced'"),
        ({"sentence": [(False, "Yes.")]}, "the sentence of the verdict is empty"),
        ({"support": "{r}", "r": float("nan")}, "r is nan"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_verdict_is_short_and_whole_or_an_error(change, says) -> None:
    with pytest.raises(ValueError, match=says):
        report.verdict(**(VERDICT | change))
