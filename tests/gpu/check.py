"""Are the numbers of a GPU right, and how fast is it? ``make gpu``

    PYTHONPATH=. python3 tests/gpu/check.py --out OUT [--device cpu] [--small]

Nothing is installed or fetched: a checkout, torch, transformers with accelerate, scikit-learn,
statsmodels, pyarrow, seaborn and lazy-loader are enough. First every case of ``device_paths`` is
compared with the CPU. Then seconds and peak memory of large jobs are measured beside the CPU of the
same machine on two threads, and beside a limit: work that no program could leave out, at a speed
measured before. The two jobs farthest from their limit are profiled.

OUT/gpu.json (gpu-small.json of ``--small``) is written whole after each result, and the same
command goes on from there. Checks run in a process of their own: one that fails, or takes longer
than it may, is named, and the others follow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests", "notebooks")]

from psychlm.data import atomic_write  # noqa: E402 - torch is imported where it computes

ALL_SECONDS = 420  # that all checks may take; the limit of each is in proportion
THREADS = 2  # of the CPU; --small takes one, since two wait for each other in small products
CHECKS = ("agrees", "speed", "profile")


class Results:
    """What was found, by the name of a check, in a file that is written after each result."""

    def __init__(self, file: Path, head: dict[str, Any]) -> None:
        self.file = file
        self.content = head | {"date": f"{datetime.now(UTC):%Y-%m-%d}", "checks": {}}
        if file.exists():
            before = json.loads(file.read_text("utf-8"))
            if head.items() <= before.items():  # go on from there
                self.content = before
        self.found: dict[str, dict[str, Any]] = self.content["checks"]

    def keep(self) -> None:
        """Write the file."""
        with atomic_write(self.file) as part:
            part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def end(self, key: str, **more: Any) -> None:
        """Keep how a check ended, and print it."""
        self.found[key] |= {"done": True, **more}
        self.keep()
        print(line_of(key, self.found[key]), flush=True)


def work(asked: argparse.Namespace, results: Results) -> None:
    """Run the checks that are not done; one that takes longer than it may ends this process."""
    if asked.stand_in:
        sys.path.insert(0, asked.stand_in)
        import stand_in_device  # noqa: F401 - before torch is used
    from measures import checks

    warnings.simplefilter("ignore")
    patience = asked.seconds / ALL_SECONDS
    for key, seconds, check in checks(asked.device, results.found):
        if results.found.get(key, {}).get("done") or not key.startswith(asked.only):
            continue
        results.found[key] = {}
        results.keep()
        begin = time.perf_counter()
        signal.alarm(math.ceil(patience * seconds))
        error = {}
        try:
            for part in check():
                results.found[key] |= part
                results.keep()
        except Exception as problem:
            error = {"error": f"{type(problem).__name__}: {problem}"[:500]}
        signal.alarm(0)
        results.end(key, **error, took=time.perf_counter() - begin)


def line_of(key: str, row: dict[str, Any]) -> str:
    """Return a result in one line."""
    if "error" in row:
        return f"{key}: FAILED, {row['error']}"
    if "agrees" in row:
        verdict = "agrees" if row["agrees"] else "DIFFERS"
        return f"{key}: {verdict} ({row['difference']:.2g} of {row['tolerance']:g})"
    names = ("seconds", "cpu_seconds", "limits", "rates")
    return f"{key}: {json.dumps({name: row[name] for name in names if name in row})}"


def code_digest() -> str:
    """Return a digest of the code that a result rests on."""
    digest = hashlib.sha256()
    for folder in ("psychlm", "notebooks/analyses", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Run all checks; return 1 if one failed, differs or was not run."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="everything in its smallest size")
    parser.add_argument("--seconds", type=float, default=ALL_SECONDS, help="that all may take")
    parser.add_argument("--stand-in", default="", help="folder of a stand-in device's module")
    parser.add_argument("--only", default=CHECKS, nargs="+", help="beginnings of names of checks")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.only = ("machine", *asked.only)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / ("gpu-small.json" if asked.small else "gpu.json")
    head = {"device": asked.device, "small": asked.small, "code": code_digest()}
    results = Results(file, head)
    if asked.worker:
        work(asked, results)
        return 0
    for key in [key for key, row in results.found.items() if "error" in row]:
        del results.found[key]  # what failed is tried again
    results.keep()
    n_threads = str(1 if asked.small else THREADS)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), n_threads)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    last = time.monotonic() + asked.seconds
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    ended, goes_on = False, True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PSYCHLM_CACHE"] = folder
        while goes_on and not ended:
            try:
                run = subprocess.run(command, timeout=max(last - time.monotonic(), 0))
                ended = run.returncode == 0
            except subprocess.TimeoutExpired:
                print("stopped before the end: all checks took longer than they may", flush=True)
            results = Results(file, head)
            cut_off = [key for key, row in results.found.items() if not row.get("done")]
            for key in cut_off:
                results.end(key, error="it took longer than it may, or its process ended")
            goes_on = bool(cut_off) and time.monotonic() < last
    wrong = [k for k, row in results.found.items() if "error" in row or not row.get("agrees", True)]
    print(f"{len(results.found)} checks in {file}; not right: {', '.join(wrong) or 'none'}")
    return int(bool(wrong) or not ended)


if __name__ == "__main__":
    sys.exit(main())
