"""The notebooks: each has the documented anatomy, and runs once with small parameters."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import IN_CI, ROOT, SHARE, absent

from psychlm import data, site
from psychlm.site import collection

REAL = sorted((ROOT / "notebooks").glob("[0-9]*_*.ipynb"))
VALUES = yaml.safe_load((ROOT / "tests" / "parameter_values.yaml").read_text(encoding="utf-8"))


def cells_of(path: Path, kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_notebook_has_its_anatomy_and_no_outputs(path: Path) -> None:
    notebook, code = collection.read(path), cells_of(path, "code")
    tags = [cell.metadata.get("tags", []) for cell in code]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert notebook.question, "its first cell asks **Question.** ..."
    title = rf"#\s+{notebook.number}\b"
    assert re.match(title, notebook.cells[0][1]), "its title begins with its number"
    assert "parameters" in tags[0], "its first code cell is tagged parameters"
    assert "setup" in tags[1], "its second code cell is tagged setup"
    ends = [n for n, cell in enumerate(code) if "report.verdict(" in cell.source]
    assert ends == [len(code) - 1], "the last code cell, and no other, ends the report"
    assert len(notebook.cells) <= 62
    assert sum(len(cell.source.splitlines()) for cell in code) <= 440


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_are_short_described_and_hide_nothing(path: Path) -> None:
    figure = r"plt\.(subplots|figure|subplot_mosaic)\(|sns\.(relplot|catplot|displot|lmplot)\("
    for cell in cells_of(path, "code"):
        # a step is three to eight lines; parameters are a list, a line for each
        is_list = "parameters" in cell.metadata.get("tags", [])
        assert len(cell.source.splitlines()) <= 20 or is_list, cell.source
        hides = r"^\s*[!%].*\bpip\b|filterwarnings|simplefilter|catch_warnings"
        assert not re.search(hides, cell.source, flags=re.MULTILINE), cell.source
        if re.search(figure, cell.source):  # a caption, and words for who cannot see it
            described = cell.metadata.get("psychlm", {})
            assert described.get("caption") and described.get("alt"), cell.source
    for cell in cells_of(path, "markdown"):
        for formula in re.findall(r"\$+[^$]+\$+", cell.source):
            assert not re.search(r"\\\\[a-zA-Z]", formula), f"double backslashes: {formula}"


def value_of_today(name: str) -> dict[str, object]:
    """Return another value of one parameter of a notebook: another parameter each day."""
    listed = VALUES[name].items()
    others = [one for one in listed if "other" in one[1] and "minutes" not in one[1]]
    if not others:
        return {}
    parameter, values = others[datetime.date.today().toordinal() % len(others)]
    return {parameter: values["other"]}


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict]:
    """Run the whole collection once, in one run: its kernels share the imports."""
    reports = tmp_path_factory.mktemp("reports")
    small = collection.run_parameters(ROOT, collection.find(ROOT), "smoke")
    given = {name: small[name] | value_of_today(name) for name in small}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "run_parameters", lambda *_: given)
        outcomes = site.run(profile="smoke", root=ROOT, reports=reports)
    return reports, {outcome.notebook: outcome for outcome in outcomes}, given


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_notebook_runs_in_the_smoke_profile_and_leaves_a_complete_report(path, smoke_run) -> None:
    if IN_CI and not (SHARE / "data").is_dir():
        absent("the data share")
    reports, outcomes, given = smoke_run
    outcome, today = outcomes[path.stem], value_of_today(path.stem)
    if outcome.status == "left out":
        absent(f"{path.stem}: {outcome.error}")
    assert outcome.status == "done", f"{today}, cell {outcome.cell}: {outcome.error}"
    report = json.loads((reports / f"{path.stem}.json").read_text())
    assert report["status"] == "complete" and report["notebook"] == path.stem
    assert report["numbers"], "it records at least one number"
    expected = collection.read(path).parameters | given[path.stem]
    assert report["provenance"]["parameters"] == expected
    # pages show figures at their size, 6.5 inches of 110 pixels at most
    executed = nbformat.read(reports / f"{path.stem}.ipynb", as_version=4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    sizes = [o.metadata["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert all(size["width"] <= 730 for size in sizes), sizes
    picture = report["headline"]["file"]
    assert (reports / picture).is_file(), "the index shows the picture of its verdict"


def test_each_experiment_of_the_papers_names_keys_of_its_notebook_or_a_reason() -> None:
    numbered = {path.stem[:2]: path.read_text(encoding="utf-8") for path in REAL}
    for _, row in data.published("experiments").fillna({"keys": "", "why": ""}).iterrows():
        keys = [key.removesuffix(".*").removesuffix("*") for key in row["keys"].split(";") if key]
        assert (row["data"] != "none") == bool(keys), row["experiment"]
        assert row["data"] in ("own", "published", "other", "simulated", "none")
        assert keys or row["why"], f"{row['experiment']} is not repeated, and no reason is given"
        for key in keys:
            source = numbered[f"{int(row['notebook']):02d}"]
            assert key.split(".")[-1] in source, f"{row['experiment']}: {key}"


def test_plain_papermill_records_into_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    path = site.new("My study", root=tmp_path)
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / f"{path.stem}.json").write_text("the report that the HTML page shows")
    command = [sys.executable, "-m", "papermill", str(path), "out.ipynb", "--no-progress-bar"]
    environment = os.environ | {"PSYCHLM_REPORTS": str(reports)}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    run([*command, "-p", "n_draws", "20"], check=True, timeout=300)
    content = json.loads((reports / "interactive" / f"{path.stem}.json").read_text())
    assert content["status"] == "complete"
    assert content["provenance"]["parameters"]["n_draws"] == 20
    assert (reports / f"{path.stem}.json").read_text().startswith("the report")
    refused = run([*command, "-p", "n_draw", "2"], timeout=300)
    says = f"ValueError: {path.stem}: there is no parameter n_draw; did you mean n_draws?"
    assert refused.returncode and refused.stderr.strip().endswith(says)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blank", "reading-times"])
def test_a_new_notebook_has_the_anatomy_of_the_others_and_runs_as_it_is(tmp_path, kind) -> None:
    (tmp_path / "notebooks").mkdir()
    path = site.new("My corpus: a début!", root=tmp_path, kind=kind)
    assert [path] == [file for file in tmp_path.rglob("*") if file.is_file()]
    assert path.name == "01_my_corpus_a_d_but.ipynb"
    test_a_notebook_has_its_anatomy_and_no_outputs(path)
    test_the_cells_of_a_notebook_are_short_described_and_hide_nothing(path)
    (outcome,) = site.run(["01"], profile="smoke", root=tmp_path)
    assert outcome.status == "done", outcome.error
