"""The runner: what is run, what is not, and what is left behind when a run dies.

References: the modules that Python itself loads (for the closure of imports), the process table (for what a killed
run leaves).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import psychlm
from psychlm import site as notebooks
from psychlm.site import collection, comparison, fingerprint, processes, storage

BEGIN = "from psychlm import report\nreport.begin('{name}', draws=draws)"
RECORD = "report.record('paper.table1.r', draws / 100, published=0.5, source='Table 1')"


def write_notebook(
    root: Path, name: str, *code: str, parameters: str = "draws = 50  # draws"
) -> Path:
    """Write a notebook of the usual anatomy: title, parameters, setup, the code cells given, the end of the report."""
    cells = [
        new_markdown_cell(f"# {name[:2]} {name[3:].title()}\n\n**Question.** Does it run?"),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        new_code_cell(BEGIN.format(name=name), metadata={"tags": ["setup"]}),
        *(new_code_cell(source) for source in code),
    ]
    path = root / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def read_json(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


# what to run, and with which parameters


@pytest.fixture
def three(tmp_path: Path) -> list[notebooks.Notebook]:
    for name in ("00_start", "10_items", "11_people"):
        write_notebook(tmp_path, name)
    return notebooks.find(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ([], ["00_start", "10_items", "11_people"]),
        (["10"], ["10_items"]),
        (["11_people", "00"], ["00_start", "11_people"]),
        (["notebooks/10_items.ipynb"], ["10_items"]),
        (["1*"], ["10_items", "11_people"]),
    ],
)
def test_notebooks_are_chosen_by_number_name_path_or_pattern(three, chosen, names) -> None:
    assert [notebook.name for notebook in notebooks.select(three, chosen)] == names


def test_an_unknown_notebook_is_answered_with_those_that_come_near(three) -> None:
    with pytest.raises(notebooks.NotebookError, match="10_itms.*10_items"):
        notebooks.select(three, ["10_itms"])


def test_title_question_and_parameters_are_read_from_the_notebook(three) -> None:
    assert (three[1].title, three[1].question, three[1].parameters) == (
        "Items",
        "Does it run?",
        {"draws": 50},
    )


def test_two_notebooks_with_one_number_are_refused(tmp_path) -> None:
    write_notebook(tmp_path, "10_items"), write_notebook(tmp_path, "10_people")
    with pytest.raises(notebooks.NotebookError, match="share a number"):
        notebooks.find(tmp_path)


def test_a_parameters_cell_that_computes_is_refused(tmp_path) -> None:
    write_notebook(tmp_path, "10_items", parameters="draws = 2 * 50")
    with pytest.raises(notebooks.NotebookError, match="name = literal"):
        notebooks.find(tmp_path)


def test_a_file_that_is_no_notebook_is_named(tmp_path) -> None:
    write_notebook(tmp_path, "10_items").write_text('{"cells": [')
    with pytest.raises(notebooks.NotebookError, match=r"10_items\.ipynb is no readable notebook"):
        notebooks.find(tmp_path)


def test_parameters_are_yaml_literals() -> None:
    given = [
        "draws=500",
        "rate=1e-3",
        "name=null",
        "models=[a, b]",
        "flag=true",
        "text='1e-3 of it'",
    ]
    expected = {
        "draws": 500,
        "rate": 0.001,
        "name": None,
        "models": ["a", "b"],
        "flag": True,
        "text": "1e-3 of it",
    }
    assert notebooks.parse_parameters(given) == expected


@pytest.mark.parametrize("malformed", ["draws", "=3", "two words=3", "draws=[1"])
def test_a_malformed_parameter_says_how_it_is_written(malformed) -> None:
    with pytest.raises(notebooks.NotebookError, match="name=value|YAML"):
        notebooks.parse_parameters([malformed])


def test_an_unknown_parameter_is_answered_with_the_known_ones_before_anything_runs(
    three, tmp_path
) -> None:
    with pytest.raises(
        notebooks.NotebookError, match="00_start has no parameter drows; .* draws=50"
    ):
        notebooks.run(root=tmp_path, parameters={"drows": 3})
    assert not (tmp_path / "reports").exists()


def test_given_parameters_come_after_those_of_the_profile(three, tmp_path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "smoke.yaml").write_text("10_items: {draws: 5}\n11_people:\n")
    smoke = notebooks.profile_parameters(tmp_path, three, "smoke")
    assert smoke == {"00_start": {}, "10_items": {"draws": 5}, "11_people": {}}
    assert notebooks.profile_parameters(tmp_path, three, "smoke", {"draws": 7})["10_items"] == {
        "draws": 7
    }
    assert notebooks.profile_parameters(tmp_path, three, "quick")["10_items"] == {}


# what an outcome depends on


def test_the_closure_of_imports_holds_every_module_that_python_loads() -> None:
    source = "from psychlm import ctt, report\nfrom psychlm.text import response_sets"
    shown = "import sys; print(*[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'psychlm'], sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", f"{source}\n{shown}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = fingerprint.imported([source])
    assert {Path(file).resolve() for file in loaded.stdout.split()} <= {
        file.resolve() for file in found
    }
    assert Path(psychlm.__file__).with_name("cli.py") not in found


def test_a_change_of_code_parameters_or_profile_changes_the_fingerprint(three, tmp_path) -> None:
    notebook = three[1]
    digests = [
        fingerprint.of_code(notebook, tmp_path, "quick", {}),
        fingerprint.of_code(notebook, tmp_path, "quick", {"draws": 51}),
        fingerprint.of_code(notebook, tmp_path, "smoke", {}),
    ]
    write_notebook(tmp_path, "10_items", "1 + 1")
    digests.append(fingerprint.of_code(collection.read(notebook.path), tmp_path, "quick", {}))
    assert len(set(digests)) == 4


def test_a_published_table_counts_for_the_notebooks_that_name_its_paper(tmp_path) -> None:
    notebook = collection.read(
        write_notebook(tmp_path, "10_items", "data.published('laverghetta2021.table1')")
    )
    table = tmp_path / "data" / "published" / "laverghetta2021.table1.csv"
    table.parent.mkdir(parents=True)
    digests = []
    for name, text in [
        (table, "value\n1"),
        (table, "value\n2"),
        (table.with_name("other2020.csv"), "value\n3"),
    ]:
        name.write_text(text)
        digests.append(fingerprint.of_code(notebook, tmp_path, "quick", {}))
    assert digests[0] != digests[1] == digests[2]


def test_data_that_changed_appeared_or_vanished_are_noticed(monkeypatch) -> None:
    now = {"a": "11", "b": None}
    monkeypatch.setattr(
        "psychlm.data.fingerprint", lambda names: {name: now[name] for name in names}
    )
    assert fingerprint.data_unchanged({"provenance": {"data": {"a": "11", "b": None}}})
    assert not fingerprint.data_unchanged({"provenance": {"data": {"a": "12"}}})
    assert not fingerprint.data_unchanged({"provenance": {"data": {"b": "22"}}})
    assert not fingerprint.data_unchanged({"provenance": {"data": {"a": None}}})


# reports on disk


@pytest.mark.parametrize(
    "content", ['{"status": "compl', "[]", "{}", '{"status": "complete", "numbers": [3]}', "\xff"]
)
def test_a_report_that_is_truncated_or_none_is_broken_rather_than_an_error(
    tmp_path, content
) -> None:
    (tmp_path / "10_items.json").write_bytes(content.encode("latin-1"))
    report = storage.read(tmp_path / "10_items.json")
    assert report and report["status"] == "broken" and report["notebook"] == "10_items"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
FIELDS = ["error", "seconds", "headline", "profile", "provenance", "title", "finished"]
NUMBER_FIELDS = ["key", "value", "published", "unit", "source", "data", "comparable"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    report=st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, json_values)),
    number=st.fixed_dictionaries({}, optional=dict.fromkeys(NUMBER_FIELDS, json_values)),
)
def test_the_index_is_built_whatever_a_report_holds(tmp_path, report, number) -> None:
    (tmp_path / "notebooks").mkdir(exist_ok=True)
    content = {"status": "complete", "numbers": [{"key": "paper.r", **number}], **report}
    (tmp_path / "10_items.json").write_text(json.dumps(content))
    assert "10" in notebooks.build_index(tmp_path, tmp_path).read_text()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path, monkeypatch
) -> None:
    storage.write(tmp_path / "a.json", "old")
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left on device"))
    )
    with pytest.raises(OSError, match="no space"):
        storage.write(tmp_path / "a.json", "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.json": "old"}


def test_a_second_run_on_the_same_reports_is_refused(three, tmp_path) -> None:
    with (
        storage.locked(tmp_path / "reports"),
        pytest.raises(notebooks.RunLockedError, match="another run is at work"),
    ):
        notebooks.run(root=tmp_path, reports=tmp_path / "reports")


def test_notebooks_that_run_side_by_side_share_the_cores_unless_the_user_says_otherwise(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    shared = processes.environment(tmp_path / "a", tmp_path, "quick", jobs=64)
    assert (shared["OMP_NUM_THREADS"], shared["MKL_NUM_THREADS"]) == ("1", "7")
    assert "OMP_NUM_THREADS" not in processes.environment(tmp_path / "b", tmp_path, "quick", jobs=1)


# ours beside the published


def compared(**number) -> comparison.Comparison:
    report = {
        "notebook": "10_items",
        "numbers": [{"key": "paper.table1.r", "data": "real", **number}],
    }
    return comparison.compare(report)[0]


@pytest.mark.parametrize(
    ("value", "published", "says"),
    [
        (0.8571, 0.86, "agrees at 2 decimals"),
        (0.8549, 0.86, "differs at 2 decimals"),
        (0.8549, 0.9, "agrees at 1 decimal"),
        (0.8549, "0.90", "differs at 2 decimals"),
        (0.855, "0.86", "agrees at 2 decimals"),  # a tie rounds either way
        (-0.3, "−0.30", "agrees at 2 decimals"),
        (3, 3, "agrees"),
        (1e-7, "< .001", "not compared"),
        (None, 0.5, "not compared"),
        ([1, 2], 0.5, "not compared"),
    ],
)
def test_agreement_is_judged_at_the_decimals_that_the_paper_printed(value, published, says) -> None:
    assert compared(value=value, published=published).says == says


def test_a_float_that_lost_its_trailing_zero_is_judged_like_the_rest_of_its_table() -> None:
    numbers = [
        {"key": f"paper.table1.{cell}.r", "value": 0.74, "published": published, "data": "real"}
        for cell, published in [("a", 0.74), ("b", 0.7)]
    ]
    shown = comparison.compare({"notebook": "10_items", "numbers": numbers})
    assert [row.verdict for row in shown] == ["agrees", "differs"]
    assert shown[1].published == "0.70"


def test_a_number_on_simulated_data_never_agrees() -> None:
    row = compared(value=0.86, published=0.86, data="simulated")
    assert (row.verdict, row.difference, row.says) == ("simulated", "", "simulated: not compared")


def test_a_number_of_another_kind_is_shown_beside_the_published_one_without_a_verdict() -> None:
    row = compared(value=0.01, published=-0.14, comparable=False)
    assert (row.published, row.verdict, row.difference) == ("−0.14", "no comparison", "")


# running


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, notebooks.Outcome]]:
    """Run, two at a time, a notebook that passes, one that fails, one without a report, and one whose kernel dies."""
    root = tmp_path_factory.mktemp("collection")
    write_notebook(root, "10_passes", RECORD, "report.finish();")
    write_notebook(root, "20_fails", RECORD, "", "1 / (draws - draws)", "report.finish();")
    write_notebook(root, "30_ends_early", RECORD)
    write_notebook(root, "40_dies", "import os; os._exit(3)")
    outcomes = notebooks.run(root=root, jobs=2, parameters={"draws": 49})
    return root, {outcome.notebook: outcome for outcome in outcomes}


def test_a_notebook_that_passes_leaves_its_report_with_the_parameters_given(ran) -> None:
    root, outcomes = ran
    report = read_json(root / "reports", "10_passes")
    assert outcomes["10_passes"].status == "done"
    assert (report["status"], report["title"], report["question"]) == (
        "complete",
        "Passes",
        "Does it run?",
    )
    assert (report["numbers"][0]["value"], report["provenance"]["profile"]) == (0.49, "quick")
    assert "Does it run?" in (root / "reports" / "10_passes.html").read_text()


def test_a_failure_names_the_cell_of_the_notebook_in_git_and_the_error_while_the_others_run(
    ran,
) -> None:
    root, outcomes = ran
    failed = outcomes["20_fails"]
    assert (failed.status, failed.error, failed.cell) == (
        "failed",
        "ZeroDivisionError: division by zero",
        6,
    )
    assert read_json(root / "reports", "20_fails")["status"] == "failed"
    page = (root / "reports" / "20_fails.html").read_text()
    assert "This notebook failed in cell 6" in page and "ZeroDivisionError" in page
    assert notebooks.summary([failed]).endswith(
        "FAILED 20_fails, cell 6: ZeroDivisionError: division by zero"
    )


def test_a_notebook_that_does_not_finish_its_report_fails(ran) -> None:
    root, outcomes = ran
    assert (
        outcomes["30_ends_early"].status == "failed"
        and "report.finish()" in outcomes["30_ends_early"].error
    )
    assert read_json(root / "reports", "30_ends_early")["status"] == "failed"


def test_a_kernel_that_dies_is_a_failure_that_names_its_cell(ran) -> None:
    _, outcomes = ran
    assert (outcomes["40_dies"].status, outcomes["40_dies"].cell) == ("failed", 4)
    assert "Kernel died" in outcomes["40_dies"].error


def test_nothing_but_reports_and_the_lock_is_left_in_the_folder(ran) -> None:
    left = {file.suffix or file.name for file in (ran[0] / "reports").iterdir()}
    assert left <= {".json", ".html", ".ipynb", ".lock"}


def test_what_did_not_change_is_not_run_again_unless_forced_and_a_change_is_run(ran) -> None:
    root, _ = ran

    def again(**options) -> str:
        return notebooks.run(["10"], root=root, **options)[0].status

    assert again(parameters={"draws": 49}) == "unchanged"
    (root / "reports" / "10_passes.json").write_text('{"status": "complete", ')
    assert again() == "done"
    assert read_json(root / "reports", "10_passes")["numbers"][0]["value"] == 0.5
    assert again() == "unchanged"
    assert again(force=True) == "done"


def runs(pid: int) -> bool:
    """Say whether a process is alive (one that waits to be collected is not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(what, seconds: float = 120.0) -> None:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs the process table of Linux")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_dies_leaves_nothing_that_looks_done_and_the_next_one_goes_on(
    tmp_path, how
) -> None:
    gate, pid_file = tmp_path / "gate", tmp_path / "pid"
    gate.touch()
    slow = f"""
        import os, time, pathlib
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        while pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)"""
    write_notebook(tmp_path, "10_quick", "report.finish();")
    write_notebook(
        tmp_path,
        "20_slow",
        RECORD,
        "\n".join(line[8:] for line in slow.splitlines()),
        "report.finish();",
    )
    reports = tmp_path / "reports"
    command = f"from pathlib import Path; from psychlm import notebooks; notebooks.run(root=Path({str(tmp_path)!r}))"
    runner = subprocess.Popen(
        [sys.executable, "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: pid_file.is_file() and pid_file.read_text())
    os.kill(runner.pid, how)
    _, told = runner.communicate(timeout=120)

    assert runner.returncode != 0 and (how == signal.SIGKILL or "interrupted" in told)
    assert read_json(reports, "10_quick")["status"] == "complete"
    assert not list(reports.glob("20_slow*"))
    wait_until(lambda: not runs(int(pid_file.read_text())), seconds=60)

    gate.unlink()
    outcomes = notebooks.run(root=tmp_path)
    assert [outcome.status for outcome in outcomes] == ["unchanged", "done"]
    assert read_json(reports, "20_slow")["numbers"][0]["value"] == 0.5
    assert not list(reports.glob(".staging-*"))
