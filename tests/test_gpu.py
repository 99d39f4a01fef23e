"""``make gpu``: what it needs, what it finds, what it keeps. No GPU is needed here.

Reference: the CPU, and a stand-in device whose numbers are the CPU's."""

import argparse
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from gpu_machine import MISSING, hidden_modules, python_path

CHECK = ROOT / "tests" / "gpu" / "check.py"
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the check in its smallest size, with time for a busy machine."""
    command = [sys.executable, str(CHECK), "--small", "--seconds", "14000", *options]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
    )


def checks_in(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "gpu-small.json").read_text("utf-8"))["checks"]


@pytest.mark.slow
def test_speed_is_measured_where_no_other_package_is_installed(tmp_path) -> None:
    """``test_device`` computes the cases that are compared in the same environment."""
    hidden = hidden_modules()
    assert {name for name in MISSING if name not in hidden} <= {"rpy2"}  # where R is not
    assert not {"torch", "patsy", "threadpoolctl", "psychlm"} & hidden
    path, out = python_path(tmp_path, ROOT), tmp_path / "out"
    tried = subprocess.run(
        [sys.executable, "-c", "import pooch"], env=os.environ | {"PYTHONPATH": path}
    )
    assert tried.returncode == 1
    only = ("--only", "agrees: irt score", "speed", "profile")
    done = run("--device", "cpu", "--out", str(out), *only, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = checks_in(out)
    assert all(row["done"] for row in found.values())
    parts = [name.partition(": ")[0] for name in found]
    assert (parts.count("agrees"), parts.count("speed"), parts.count("profile")) == (6, 9, 2)
    for name, row in found.items():
        if name.startswith("profile"):
            assert len(row["torch"]) == 10 and len(row["python"]) == 10
        if name.startswith("speed"):
            assert 0 < max(row["limits"].values()) < np.inf and row["seconds"] > 0


def test_a_device_with_other_numbers_than_the_cpus_is_not_right() -> None:
    from device_paths import difference

    def off_by(amount: float, device: str) -> np.ndarray:
        return np.array([np.nan, np.inf, 2.0, 2000.0]) + amount * (device != "cpu")

    assert difference(partial(off_by, 0.0), "other") == 0
    assert difference(partial(off_by, 1.0), "other") == 0.5
    assert difference(lambda device: np.array([np.nan if device == "cpu" else 1]), "x") == np.inf
    assert difference(lambda device: np.array([np.inf if device == "cpu" else 1]), "x") == np.inf
    check = runpy.run_path(str(CHECK))
    row = {"agrees": False, "difference": 0.5, "tolerance": 0.1}
    assert check["line_of"]("agrees: irt", row) == "agrees: irt: DIFFERS (0.5 of 0.1)"


def some_checks(connection, asked: argparse.Namespace, found: dict) -> None:
    """Stand for the process that computes: one check hangs, one ends the process."""
    for name in ("good", "hangs", "ends", "last"):
        if "done" in found.get(name, {}):
            continue
        connection.send(("begin", name, 1 if name == "hangs" else 60))
        connection.send(("found", name, {"half": 1}))
        if name == "hangs":
            time.sleep(600)
        if name == "ends":
            os._exit(9)
        connection.send(("found", name, {"half": 1, "done": True, "took": 0.1}))
    connection.send(("end", "", 0))


def test_a_check_that_hangs_or_ends_its_process_is_named_and_the_others_are_kept(capsys) -> None:
    check = runpy.run_path(str(CHECK))
    context = multiprocessing.get_context("fork")
    kept: list[str] = []
    found: dict[str, dict] = {}

    def start(found):
        ours, theirs = context.Pipe()
        process = context.Process(target=some_checks, args=(theirs, None, found))
        process.start()
        theirs.close()
        return process, ours

    complete = check["supervise"](start, found, lambda: kept.append(json.dumps(found)), 420)
    assert complete and all(row["half"] == 1 for row in found.values())
    assert {name: row.get("error", "") for name, row in found.items()} == {
        "good": "",
        "hangs": "cut off: it took longer than it may",
        "ends": "its process ended",
        "last": "",
    }
    assert json.loads(kept[0]) == {"good": {"half": 1}} and json.loads(kept[-1]) == found
    assert "hangs: FAILED, cut off" in capsys.readouterr().out


def test_the_page_on_speed_says_what_was_measured_on_a_gpu(tmp_path) -> None:
    table = TABLES["on_a_gpu"]
    page = (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert page.endswith(table(ROOT / "reports" / "bench") + "\n"), "python docs/tables.py speed"
    assert "None was measured" in table(tmp_path)
    speed = {"cpu_size": [10, 20], "size": [100, 2000], "unit": "persons x items"}
    speed |= {"cpu_seconds": 8.0, "seconds_at_cpu_size": 2.0, "seconds": 3.0, "peak_gb": 1.25}
    speed |= {"limits": {"memory": 1.0, "matrix products": 1.5}}
    checks = {"machine": {"device": "GPU X", "processor": "CPU Y"}, "speed: 2PL": speed}
    checks |= {"agrees: irt": {"agrees": True}, "agrees: crowd": {"agrees": False}}
    checks |= {"speed: sweep": {"unit": "readings", "error": "cut off"}}
    content = {"date": "2026-12-01", "checks": checks}
    (tmp_path / "gpu.json").write_text(json.dumps(content))
    *_, first, second = table(tmp_path).splitlines()
    assert "GPU X with CPU Y, 2026-12-01. 1 of 2 cases agree" in table(tmp_path)
    assert first == (
        "| 2PL | 100 x 2,000 persons x items | 3 | 2 (matrix products) | 1.2 "
        "| 4 (10 x 20 persons x items) |"
    )
    assert second == "| sweep | cut off | | | | |"
