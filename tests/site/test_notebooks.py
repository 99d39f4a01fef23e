"""Each notebook has the documented anatomy and runs once with small parameters; other values of its
parameters run, and senseless ones are refused.

Reference: ``tests/parameter_values.yaml`` for the values; the parameters cells for their names. The
run of each notebook takes one of the other values, another for each day of commits;
``-m exhaustive`` tries all.
"""

import ast
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import IPython
import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
import yaml
from conftest import IN_CI, ROOT, SHARE, absent
from toy_notebooks import completed

from psychlm import data, report, site
from psychlm.site import collection

NOTEBOOKS = {notebook.name: notebook for notebook in collection.find(ROOT)}
VALUES = yaml.safe_load((ROOT / "tests" / "parameter_values.yaml").read_text(encoding="utf-8"))
SMOKE = collection.run_parameters(ROOT, list(NOTEBOOKS.values()), "smoke")
PAPER = collection.run_parameters(ROOT, list(NOTEBOOKS.values()), "paper")
OTHERS = {
    name: {parameter: one["other"] for parameter, one in values.items() if "other" in one}
    for name, values in VALUES.items()
}
WRONG_TYPE = {int: "many", float: "many", bool: "perhaps", str: 3, list: "a", dict: "a"}
FIGURE = r"plt\.(subplots|figure|subplot_mosaic)\(|sns\.(relplot|catplot|displot|lmplot)\("
HIDES = r"^\s*[!%].*\bpip\b|filterwarnings|simplefilter|catch_warnings"


def check_anatomy(path: Path) -> None:
    """Check the order and tags of a notebook's cells, their lengths, captions and formulas."""
    notebook, cells = collection.read(path), nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    tags = [cell.metadata.get("tags", []) for cell in code]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert notebook.question, "its first cell asks **Question.** ..."
    title = rf"#\s+{notebook.number}\b"
    assert re.match(title, notebook.cells[0][1]), "its title begins with its number"
    assert "parameters" in tags[0], "its first code cell is tagged parameters"
    assert "setup" in tags[1], "its second code cell is tagged setup"
    ends = [n for n, cell in enumerate(code) if "report.verdict(" in cell.source]
    assert ends == [len(code) - 1], "the last code cell, and no other, ends the report"
    assert len(cells) <= 60
    # the card of a test computes what each kind of answers has
    most = 550 if notebook.name == "02_test_card" else 450
    assert sum(len(cell.source.splitlines()) for cell in code) <= most
    for cell in code:
        assert len(cell.source.splitlines()) <= 20, cell.source  # a step is three to eight lines
        assert not re.search(HIDES, cell.source, flags=re.MULTILINE), cell.source
        if re.search(FIGURE, cell.source):  # a caption, and words for who cannot see it
            described = cell.metadata.get("psychlm", {})
            assert described.get("caption") and described.get("alt"), cell.source
    for cell in cells:
        formulas = re.findall(r"\$+[^$]+\$+", cell.source) if cell.cell_type == "markdown" else []
        assert not re.search(r"\\\\[a-zA-Z]", " ".join(formulas)), f"double backslashes: {formulas}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_its_anatomy_and_no_outputs(name: str) -> None:
    check_anatomy(NOTEBOOKS[name].path)


def test_each_stored_verdict_is_a_wording_of_its_notebook() -> None:
    stored = pd.read_csv(ROOT / "data" / "facts" / "verdicts_by_seed.csv")

    def wordings(sources: list[str]) -> list[list[str]]:
        nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        split = [re.split(r"\{[^{}]+\}", text) for text in texts if isinstance(text, str)]
        return [parts for parts in split if len("".join(parts)) > 20]

    files = (ROOT / "notebooks" / "analyses").glob("*.py")
    of_analyses = wordings([file.read_text(encoding="utf-8") for file in files])
    for name, rows in stored.groupby("notebook"):
        own = [*wordings(NOTEBOOKS[name].code), *of_analyses]
        for sentence in rows["verdict"].unique():
            fitting = [parts for parts in own if all(part in sentence for part in parts)]
            patterns = [".+".join(map(re.escape, parts)) for parts in fitting]
            assert any(re.fullmatch(one, sentence) for one in patterns), f"{name}: {sentence}"


# runs


def value_of_commit(name: str) -> dict[str, object]:
    """Return another value of one parameter of a notebook: another parameter each day of commits,
    so that a commit's tests end alike whenever they run.
    """
    quick = [key for key in OTHERS[name] if "minutes" not in VALUES[name][key]]
    if not quick:
        return {}
    run = subprocess.run(
        ["git", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True
    )
    day = datetime.date.fromisoformat(run.stdout.strip() or "2026-01-01")
    parameter = quick[day.toordinal() % len(quick)]
    return {parameter: OTHERS[name][parameter]}


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict]:
    """Run the whole collection once, in one run: its kernels share the imports."""
    reports = tmp_path_factory.mktemp("reports")
    given = {name: SMOKE[name] | value_of_commit(name) for name in NOTEBOOKS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "run_parameters", lambda *_: given)
        outcomes = site.run(profile="smoke", root=ROOT, reports=reports)
    return reports, {outcome.notebook: outcome for outcome in outcomes}, given


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_the_smoke_profile_and_leaves_a_complete_report(name, smoke_run) -> None:
    if IN_CI and not (SHARE / "data").is_dir():
        absent("the data share")
    reports, outcomes, given = smoke_run
    content = completed(outcomes[name], reports)
    assert content["numbers"], "it records at least one number"
    assert content["provenance"]["parameters"] == NOTEBOOKS[name].parameters | given[name]
    # pages show figures at their size, 6.5 inches of 110 pixels at most
    executed = nbformat.read(reports / f"{name}.ipynb", as_version=4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    sizes = [o.metadata["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert all(size["width"] <= 730 for size in sizes), sizes
    picture = content["headline"]["file"]
    assert (reports / picture).is_file(), "the index shows the picture of its verdict"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n in OTHERS for p in OTHERS[n]])
def test_a_notebook_runs_with_another_value(name: str, parameter: str, tmp_path: Path) -> None:
    given = {parameter: OTHERS[name][parameter]}
    options = {"profile": "smoke", "root": ROOT, "reports": tmp_path}
    (outcome,) = site.run([name], parameters=given, **options)
    expected = NOTEBOOKS[name].parameters | SMOKE[name] | given
    assert completed(outcome, tmp_path)["provenance"]["parameters"] == expected


def test_plain_papermill_records_into_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    path = site.new("My study", root=tmp_path)
    check_anatomy(path)
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / f"{path.stem}.json").write_text("the report that the HTML page shows")
    command = [sys.executable, "-m", "papermill", str(path), "out.ipynb", "--no-progress-bar"]
    environment = os.environ | {"PSYCHLM_REPORTS": str(reports)}
    command += ["-p", "n_draws", "20"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    content = json.loads((reports / "interactive" / f"{path.stem}.json").read_text())
    assert content["status"] == "complete"
    assert content["provenance"]["parameters"]["n_draws"] == 20
    assert (reports / f"{path.stem}.json").read_text().startswith("the report")


@pytest.mark.slow
def test_a_new_notebook_has_the_anatomy_of_the_others_and_runs_as_it_is(tmp_path) -> None:
    (tmp_path / "notebooks").mkdir()
    path = site.new("My corpus: a début!", root=tmp_path, kind="reading-times")
    assert [path] == [file for file in tmp_path.rglob("*") if file.is_file()]
    assert path.name == "01_my_corpus_a_d_but.ipynb"
    check_anatomy(path)
    (outcome,) = site.run(["01"], profile="smoke", root=tmp_path)
    assert outcome.status == "done", outcome.error


# parameters


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_parameter_has_another_value(name: str) -> None:
    defaults = NOTEBOOKS[name].parameters
    assert list(VALUES[name]) == list(defaults)
    for parameter, values in VALUES[name].items():
        assert set(values) <= {"other", "untried", "refused", "minutes"}, parameter
        tried = "other" in values
        assert tried != bool(values.get("untried")), f"{parameter}: a value or why not"
        smoke = SMOKE[name].get(parameter, defaults[parameter])
        assert values.get("other") != smoke, f"{parameter}: the same value as in smoke.yaml"


def begin(name: str, **given: Any) -> None:
    """Run the cells of a notebook up to report.begin, with values given as papermill does."""
    parameters, *others = NOTEBOOKS[name].code
    injected = "# Parameters\n" + "".join(f"{key} = {value!r}\n" for key, value in given.items())
    session = type("Session", (), {"user_ns": {"In": [""]}})()
    with pytest.MonkeyPatch.context() as patch, plt.rc_context():
        patch.setattr(IPython, "get_ipython", lambda: session)
        for source in [parameters, injected, *others]:
            session.user_ns["In"].append(source)
            exec(compile(source, name, "exec"), session.user_ns)
            if "report.begin(" in source:
                return


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_senseless_values_are_refused_in_one_line_and_those_of_the_papers_taken(name: str) -> None:
    """run_parameters refuses names and types, report.begin what breaks the notebook's rules."""
    defaults = NOTEBOOKS[name].parameters
    for parameter, values in VALUES[name].items():
        refused = list(values.get("refused", []))
        if defaults[parameter] is not None:
            refused += [WRONG_TYPE[type(defaults[parameter])], None]
        for value in refused:
            with pytest.raises(ValueError, match=rf"^{name}: {parameter}=") as caught:
                begin(name, **{parameter: value})
            assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"^{name}: there is no parameter not_a_parameter"):
        begin(name, not_a_parameter=1)
    for given in (OTHERS[name], PAPER[name]):
        begin(name, **given)
        assert report._current is not None and report._current.notebook == name
        assert report._current.parameters == defaults | given


# the papers


def test_each_experiment_of_the_papers_names_keys_of_its_notebook_or_a_reason() -> None:
    numbered = {name[:2]: one.path.read_text(encoding="utf-8") for name, one in NOTEBOOKS.items()}
    for _, row in data.published("experiments").fillna({"keys": "", "why": ""}).iterrows():
        keys = [key.removesuffix(".*").removesuffix("*") for key in row["keys"].split(";") if key]
        assert (row["data"] != "none") == bool(keys), row["experiment"]
        assert row["data"] in ("own", "published", "other", "simulated", "none")
        assert keys or row["why"], f"{row['experiment']} is not repeated, and no reason is given"
        for key in keys:
            source = numbered[f"{int(row['notebook']):02d}"]
            assert key.split(".")[-1] in source, f"{row['experiment']}: {key}"
