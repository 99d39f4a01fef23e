"""Time until a new process of ``psychlm`` has done something: help, doctor, an import, a small fit.

Processor seconds of the child processes, beside an empty Python.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from benchmarks import of_group

SMALL_FIT = """
import numpy as np
from psychlm import irt
rng = np.random.default_rng(0)
chance = 1 / (1 + np.exp(rng.normal(size=50) - rng.normal(size=(1000, 1))))
irt.fit((rng.random((1000, 50)) < chance).astype(np.uint8), "2PL")
"""
PROGRAMS = {
    "python": "pass",
    "import psychlm": "import psychlm",
    "psychlm --help": "from psychlm.cli import main; main(['--help'])",
    "psychlm doctor": "from psychlm.cli import main; main(['doctor'])",
    "irt.fit of 1,000 x 50": SMALL_FIT,
}


def children_seconds() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@of_group("start", timer=children_seconds)
@pytest.mark.parametrize("name", PROGRAMS)
def test_start(benchmark, own_environment, name):
    command = [sys.executable, "-c", PROGRAMS[name]]
    options = {"check": True, "capture_output": True, "env": own_environment}
    benchmark.pedantic(subprocess.run, (command,), options, rounds=3, warmup_rounds=1)
