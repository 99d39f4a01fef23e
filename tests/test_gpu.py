"""``make gpu``: what it needs, what it finds, what it keeps. No GPU is needed here.

Reference: the CPU, and a stand-in device whose numbers are the CPU's."""

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from gpu_machine import MISSING, hidden_modules, python_path

CHECK = ROOT / "tests" / "gpu" / "check.py"


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
    only = ("--only", "speed", "profile")
    done = run("--device", "cpu", "--out", str(out), *only, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = checks_in(out)
    assert all(row["done"] for row in found.values())
    parts = [name.partition(": ")[0] for name in found]
    assert (parts.count("speed"), parts.count("profile")) == (9, 2)
    for name, row in found.items():
        if name.startswith("profile"):
            assert len(row["torch"]) == 10
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
