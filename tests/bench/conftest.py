"""Write one small JSON file per module to reports/bench/, with the machine that it ran on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from benchmarks import forget_peak, memory_mb

FOLDER = Path(__file__).resolve().parents[2] / "reports" / "bench"


@pytest.fixture
def own_environment() -> dict[str, str]:
    """Return the environment of a child process, without R's libraries.

    rpy2 puts them before Python's own in ``LD_LIBRARY_PATH``, where a child may not load them.
    """
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


@pytest.fixture(autouse=True)
def _peak_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record the most memory that this process holds during a benchmark, where Linux tells it."""
    benchmark = request.getfixturevalue("benchmark")
    on_linux = Path("/proc/self/clear_refs").exists()
    if on_linux:
        forget_peak()
    yield
    if on_linux:
        benchmark.extra_info["peak_mb"] = round(memory_mb("VmHWM"))


def machine(info: dict[str, Any]) -> dict[str, Any]:
    """Return the processor, cores, system, Python and accelerator, without the machine's name."""
    import torch

    return {
        "processor": info.get("cpu", {}).get("brand_raw", platform.processor()),
        "cores": info.get("cpu", {}).get("count"),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@pytest.hookimpl
def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list, output_json: dict[str, Any]
) -> None:
    """Write each module's benchmarks: the fastest round in seconds, and its ``extra_info``."""
    modules: dict[str, list[dict[str, Any]]] = {}
    for row in output_json["benchmarks"]:
        module = Path(row["fullname"].split("::")[0]).stem.removeprefix("bench_")
        kept = {"name": row["name"], "seconds": row["stats"]["min"]}
        kept |= {"rounds": row["stats"]["rounds"], "group": row["group"] or ""}
        modules.setdefault(module, []).append(kept | row["extra_info"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    ran = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(output_json["machine_info"])}
    for module, rows in modules.items():
        text = json.dumps(ran | {"benchmarks": rows}, indent=1)
        (FOLDER / f"{module}.json").write_text(text + "\n")
