"""What each capability launches on a GPU, moves there and waits for, counted on a stand-in device.

No seconds: counts, which ``tests/test_device.py`` compares with those of ``reports/bench/``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import shared

TESTS = Path(__file__).parents[1]


def test_costs_on_a_stand_in(benchmark, own_environment, tmp_path):
    command = [sys.executable, str(TESTS / "stand_in_paths.py"), str(shared("tools"))]
    folders = os.pathsep.join(map(str, (TESTS.parent, TESTS.parent / "notebooks")))
    here = {"PYTHONPATH": folders, "PSYCHLM_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "check": True, "env": own_environment | here}
    done = benchmark.pedantic(subprocess.run, (command,), options, rounds=1)
    counts = ("launches", "bytes", "waits")
    benchmark.extra_info["paths"] = {
        row["path"]: {name: row[name] for name in counts}
        for row in map(json.loads, done.stdout.splitlines())
        if row.get("error") == ""
    }
