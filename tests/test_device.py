"""Computation off the CPU. Reference: a stand-in device whose numbers are the CPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, SHARE

from psychlm.device import torch_device


@pytest.mark.slow
@pytest.mark.needs_share
def test_a_device_gets_the_cpus_results_and_no_tensor_of_the_host(tmp_path) -> None:
    script = ROOT / "tests" / "stand_in_paths.py"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PSYCHLM_CACHE": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(script), str(SHARE / "tools")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    planted = [row for row in rows if row["path"].startswith("planted")]
    assert len(rows) - len(planted) == 14
    for row in rows:
        if row in planted:
            assert "mixes tensors" in row["error"] or "numpy" in row["error"], row
        else:
            assert not row["error"] and row["difference"] < 1e-5, row


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta", "", torch.device("cuda:99")])
def test_a_device_that_is_not_here_is_named(name) -> None:
    with pytest.raises(ValueError, match="cannot be used: .*; use device='cpu' or device='auto'"):
        torch_device(name)


def test_auto_and_a_torch_device_are_devices() -> None:
    assert torch_device(torch.device("cpu")) == torch_device("cpu") == torch.device("cpu")
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
