"""Computation off the CPU. Reference: a stand-in device whose numbers are the CPU's."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, shared
from gpu_machine import python_path

from psychlm.device import torch_device


@pytest.mark.slow
def test_a_device_gets_the_cpus_results_and_no_tensor_of_the_host(tmp_path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {  # and no package but those of a machine with a GPU
        "PSYCHLM_CACHE": str(tmp_path),
        "PYTHONPATH": python_path(tmp_path, ROOT, ROOT / "notebooks"),
    }
    command = [sys.executable, str(ROOT / "tests" / "stand_in_paths.py"), str(shared("tools"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows.pop("over two devices")["difference"] < 1e-5
    planted = {name: rows.pop(name) for name in list(rows) if name.startswith("planted")}
    for row in planted.values():
        assert "mixes tensors" in row["error"] or "numpy" in row["error"], row
    recorded = json.loads((ROOT / "reports" / "bench" / "device.json").read_text("utf-8"))
    limits = recorded["benchmarks"][0]["paths"]
    assert limits.keys() == rows.keys() and len(planted) == 2
    for name, row in rows.items():
        assert not row["error"] and row["difference"] < 1e-5, row
        assert row["launches"] > 0 and row["refuses"], row
        for count, limit in limits[name].items():
            assert row[count] <= 1.02 * limit, (
                f"{name}: {row[count]:,} {count} on a device, {limit:,} before; if a result is "
                "worth them, record them with tests/bench/bench_device.py"
            )


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta", "", torch.device("cuda:99")])
def test_a_device_that_is_not_here_is_named(name) -> None:
    assert torch_device(torch.device("cpu")) == torch_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="cannot be used: .*; use device='cpu' or device='auto'"):
        torch_device(name)


def test_what_needs_float64_leaves_an_mps_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as if there were one
    assert torch_device("mps").type == "mps"
    with pytest.warns(RuntimeWarning, match="no float64: this part is computed on the CPU"):
        assert torch_device("mps", float64=True).type == "cpu"
