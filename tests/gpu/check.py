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
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests", "notebooks")]

from psychlm.data import atomic_write  # noqa: E402 - torch is imported where it computes

ALL_SECONDS = 420  # that all checks may take; the limit of each is in proportion
START_SECONDS = 90  # that imports may take
THREADS = 2  # of the CPU; --small takes one, since two wait for each other in small products
CHECKS = ("agrees", "speed", "profile")
Found = dict[str, dict[str, Any]]  # by the name of a check


def work(connection: Connection, asked: argparse.Namespace, found: Found) -> None:
    """Run the checks that are not done, and send what each begins with and finds."""
    if asked.stand_in:
        sys.path.insert(0, asked.stand_in)
        import stand_in_device  # noqa: F401 - before torch is used
    from measures import checks

    warnings.simplefilter("ignore")
    for key, seconds, check in checks(asked.device, found):
        if found.get(key, {}).get("done") or not key.startswith(asked.only):
            continue
        connection.send(("begin", key, seconds))
        row: dict[str, Any] = {}
        begin = time.perf_counter()
        try:
            for part in check():
                row |= part
                connection.send(("found", key, dict(row)))
            row["done"] = True
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        row["took"] = time.perf_counter() - begin
        found[key] = row
        connection.send(("found", key, row))
    connection.send(("end", "", 0))


def supervise(
    start: Callable[[Found], tuple[multiprocessing.process.BaseProcess, Connection]],
    found: Found,
    keep: Callable[[], None],
    seconds: float,
) -> bool:
    """Collect what a process finds, and start another where a check takes too long or ends it.

    Return whether all checks began before ``seconds`` were over.
    """
    last = time.monotonic() + seconds
    patience = seconds / ALL_SECONDS
    while True:
        process, connection = start(found)
        key = ""
        limit = time.monotonic() + patience * START_SECONDS
        reason = ""
        while not reason:
            try:
                until = min(limit, last) - time.monotonic()
                if not connection.poll(max(until, 0)):
                    reason = "cut off: it took longer than it may"
                    continue
                kind, name, content = connection.recv()
            except (EOFError, OSError):
                reason = "its process ended"
                continue
            if kind == "end":
                process.join()
                return True
            if kind == "begin":
                key = name
                limit = time.monotonic() + patience * content
                found[key] = {}
            elif kind == "found":
                found[name] = content
                keep()
                if "took" in content:  # it is over
                    key = ""
                    print(line_of(name, content), flush=True)
        process.kill()
        process.join()
        if key:
            found[key]["error"] = reason
            found[key]["done"] = True  # for this run: another would end in the same way
            keep()
            print(line_of(key, found[key]), flush=True)
        if not key or time.monotonic() >= last:
            print(f"stopped before the end: {reason}", flush=True)
            return False


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
    asked = parser.parse_args()
    asked.only = ("machine", *asked.only)
    n_threads = str(1 if asked.small else THREADS)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), n_threads)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / ("gpu-small.json" if asked.small else "gpu.json")
    head = {"device": asked.device, "small": asked.small, "code": code_digest()}
    content = head | {"date": f"{datetime.now(UTC):%Y-%m-%d}", "checks": {}}
    if file.exists():
        before = json.loads(file.read_text("utf-8"))
        if head.items() <= before.items():  # go on from there
            content = before
    found = content["checks"]
    for row in found.values():  # what failed is tried again
        if "error" in row:
            row.pop("done", None)

    def keep() -> None:
        with atomic_write(file) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def start(found: Found) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, asked, found))
        process.start()
        theirs.close()
        return process, ours

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PSYCHLM_CACHE"] = folder
        complete = supervise(start, found, keep, asked.seconds)
    wrong = [key for key, row in found.items() if "error" in row or not row.get("agrees", True)]
    print(f"{len(found)} checks in {file}; not right: {', '.join(wrong) or 'none'}")
    return int(bool(wrong) or not complete)


if __name__ == "__main__":
    sys.exit(main())
