"""The runner: what is run, and what remains when a run dies. Reference: the process table, /tmp."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command import run
from toy_notebooks import write_notebook

from psychlm import report, site
from psychlm.site import runner

RECORD = "report.record('paper.table1.r', draws / 100, published=0.5, source='Table 1')"
END = "report.verdict('It runs.', support='Once.', outcome='reproduced', rests_on='toy numbers')"
RUN = """
import signal
from pathlib import Path
from psychlm import site
from psychlm.site import runner
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
runner.SHARE_FROM, runner.LIBRARIES = 1, ["colorsys"]
site.run(root=Path({root!r}))
"""


def read_json(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, runner.Outcome]]:
    """Run, two at a time, notebooks that pass, fail, lack data, end early, or die."""
    root = tmp_path_factory.mktemp("collection")
    missing = "from psychlm import data\nraise data.DataMissingError('no SAP;\\n`data pull sap`')"
    checksum = "from psychlm import data\nraise data.ChecksumError('\\x1b[31mcorrupt')"
    write_notebook(root, "10_passes", RECORD, END)
    write_notebook(root, "20_fails", RECORD, "", "1 / (draws - draws)", END)
    write_notebook(root, "30_ends_early", RECORD)
    write_notebook(root, "40_dies", "import os; os._exit(3)")
    write_notebook(root, "50_lacks_data", RECORD, missing)
    write_notebook(root, "60_corrupt_data", checksum)
    facts = root / "data" / "facts"
    facts.mkdir(parents=True)
    rows = ["10_passes,quick,1,It runs.", "10_passes,quick,2,No.", "10_passes,quick,3,It runs."]
    rows += ["10_passes,smoke,1,Other.", "20_fails,quick,1,Other."]
    (facts / "verdicts_by_seed.csv").write_text("\n".join(["notebook,profile,seed,verdict", *rows]))
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(runner, "LIBRARIES", ())
        outcomes = site.run(root=root, jobs=2, parameters={"draws": 49})
    assert not [*temporary.rglob("*.json")], "connection files of kernels"
    left = {file.suffix or file.name for file in (root / "reports").iterdir()}
    assert left <= {".json", ".html", ".ipynb", ".lock"}, "only reports and the lock are left"
    return root, {outcome.notebook: outcome for outcome in outcomes}


def test_a_notebook_that_passes_leaves_its_report_with_the_parameters_given(ran) -> None:
    root, outcomes = ran
    content = read_json(root / "reports", "10_passes")
    assert outcomes["10_passes"].status == "done"
    assert (content["status"], content["title"]) == ("complete", "Passes")
    assert (content["numbers"][0]["value"], content["provenance"]["profile"]) == (0.49, "quick")
    modules = content["provenance"]["modules"]
    assert {"report.py", "data.py"} <= modules.keys() and "cli.py" not in modules
    assert modules == report.checksums(modules)
    page = (root / "reports" / "10_passes.html").read_text()
    assert "Does it run?" in page and "longest cells: " in page
    took, lines = zip(*content["slowest_cells"], strict=True)
    assert sorted(took, reverse=True) == [*took] and "from psychlm import report" in lines


FAILURES = [  # notebook, cell, what the error says
    ("20_fails", 6, "ZeroDivisionError: division by zero"),
    ("30_ends_early", None, "report.verdict(...)"),
    ("40_dies", 4, "Kernel died"),
    ("60_corrupt_data", 4, "ChecksumError"),
]


@pytest.mark.parametrize(("name", "cell", "says"), FAILURES)
def test_a_failure_names_the_cell_and_the_error_while_the_others_run(ran, name, cell, says) -> None:
    root, outcomes = ran
    failed = outcomes[name]
    assert (failed.status, failed.cell) == ("failed", cell) and says in failed.error
    assert read_json(root / "reports", name)["status"] == "failed"
    page = (root / "reports" / f"{name}.html").read_text()
    assert "\x1b" not in page and "This notebook failed" in page
    in_cell = f", cell {cell}" if cell else ""
    assert runner.summary([failed]).endswith(f"{in_cell}: {failed.error}")


def test_missing_data_leave_a_notebook_out_with_its_reason_and_corrupt_data_fail(ran) -> None:
    root, outcomes = ran
    left_out = outcomes["50_lacks_data"]
    assert (left_out.status, left_out.error) == ("left out", "no SAP; `data pull sap`")
    assert runner.summary([left_out]).endswith(": no SAP; `data pull sap`")
    page = (root / "reports" / "50_lacks_data.html").read_text()
    assert "This notebook is left out.</strong> no SAP;" in page and "Traceback" not in page
    index = (root / "reports" / "index.html").read_text()
    assert "no SAP; `data pull sap`" in index and '<em class="left-out">1 left out</em>' in index


def test_the_command_fails_for_failures_and_not_for_missing_data(ran, monkeypatch) -> None:
    root, _ = ran
    monkeypatch.setenv("PSYCHLM_REPORTS", str(root / "r"))
    monkeypatch.chdir(root)
    for name, expected, said in (("50", 0, "no SAP"), ("60", 1, "ChecksumError")):
        done = run("run", name)
        assert done.exit_code == expected and said in done.output, done.output
        assert "\x1b" not in done.output, "terminal escapes of an error are not printed"


def test_what_did_not_change_is_not_run_again_unless_forced_and_a_change_is_run(ran) -> None:
    root, _ = ran

    def again(**options) -> str:
        return site.run(["10"], root=root, **options)[0].status

    assert again(parameters={"draws": 49}) == "unchanged"
    (root / "reports" / "10_passes.json").write_text('{"status": "complete", ')
    assert again() == "done"
    content = read_json(root / "reports", "10_passes")
    assert content["numbers"][0]["value"] == 0.5
    assert again() == "unchanged"
    content["provenance"]["modules"]["frames.py"] = "of another version"
    (root / "reports" / "10_passes.json").write_text(json.dumps(content))
    assert again() == "done", "a module that the notebook loads has changed"
    assert again(force=True) == "done"


def runner_of(root: Path, profile: str = "quick", **parameters: object) -> runner.Runner:
    staging = Path(tempfile.mkdtemp(dir=root))
    return runner.Runner(root, root, staging, profile, {"10_items": parameters}, 1)


def test_cells_parameters_profile_cited_tables_and_data_count(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("psychlm.data.fingerprint", lambda names: dict.fromkeys(names, "now"))
    path = write_notebook(tmp_path, "10_items", "data.published('paper2020.table1')")
    table = tmp_path / "data" / "published" / "paper2020.table1.csv"
    table.parent.mkdir(parents=True)

    def digest(profile: str = "quick", text: str = "1", **parameters) -> str:
        table.write_text(text)
        return runner_of(tmp_path, profile, **parameters).fingerprint(site.find(tmp_path)[0])

    digests = [digest(), digest("smoke"), digest(text="2"), digest(draws=51)]
    write_notebook(tmp_path, path.stem, "1 + 1")
    assert len({*digests, digest()}) == 5
    # a file, or a folder beside the notebook, that a parameter names counts by what is in it
    file, folder = tmp_path / "given.csv", tmp_path / "notebooks" / "given"
    folder.mkdir()
    digests = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        (folder / f"{text}.csv").touch()
        digests.append([digest(draws=f"{file}#member"), digest(draws="given")])
    (of_file, of_folder), second, third = digests
    assert of_file == third[0] != second[0] and of_folder != second[1]
    assert third[1] == digest(draws="given")
    assert digest(draws="long " * 100)
    one, notebook = runner_of(tmp_path), site.find(tmp_path)[0]
    content = {"status": "complete", "numbers": [], "fingerprint": one.fingerprint(notebook)}
    (tmp_path / "10_items.html").touch()
    for used, expected in (({"a": "now"}, True), ({"a": "then"}, False), ({"a": None}, False)):
        modules = report.checksums(["data.py"])
        stamp = {"data": used, "modules": modules}
        (tmp_path / "10_items.json").write_text(json.dumps(content | {"provenance": stamp}))
        assert one.unchanged(notebook) is expected


def runs(pid: int) -> bool:
    """Return whether a process is alive (one that waits to be collected is not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 120.0) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs the process table of Linux")
def test_a_run_shuts_out_others_dies_without_half_a_report_and_is_resumed(tmp_path) -> None:
    gate, pid_file = tmp_path / "gate", tmp_path / "pid"
    gate.touch()
    slow = f"""
import os, sys, time, pathlib
assert 'colorsys' in sys.modules  # it is a copy of the process that imported it
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
while pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)
"""
    write_notebook(tmp_path, "00_quick", END)
    write_notebook(tmp_path, "20_slow", RECORD, slow, END)
    reports, command = tmp_path / "reports", RUN.format(root=str(tmp_path))
    for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):  # each run resumes the last
        pid_file.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", command], stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: pid_file.is_file() and pid_file.read_text())
        with pytest.raises(runner.RunLockedError, match="another run is at work"):
            site.run(root=tmp_path)
        os.kill(process.pid, sent)
        try:
            _, printed = process.communicate(timeout=120)
        finally:
            process.kill()  # one that did not end must not outlive the tests
        assert process.returncode != 0 and (sent != signal.SIGINT or "interrupted" in printed)
        assert read_json(reports, "00_quick")["status"] == "complete"
        assert not list(reports.glob("20_slow*"))
        wait_until(lambda: not runs(int(pid_file.read_text())), seconds=60)

    gate.unlink()
    write_notebook(tmp_path, "20_slow", RECORD, END)  # its kernel is no copy
    assert [outcome.status for outcome in site.run(root=tmp_path)] == ["unchanged", "done"]
    assert read_json(reports, "20_slow")["numbers"][0]["value"] == 0.5
    assert not list(reports.glob(".staging-*"))
