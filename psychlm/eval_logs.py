"""Logs of evaluation programs: one row for each answer of a model to an item.

Layouts: lm-evaluation-harness (``samples_<task>_<date>.jsonl``, one folder a model), Inspect
(``.eval``, a zip archive, or ``.json``), "every eval ever" (instances as JSON lines) and HELM
(``per_instance_stats.json`` beside ``run_spec.json``).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

# An archive that grows to so many bytes, and so many times its own size, is none of texts.
LARGE_MEMBER, MOST_GROWTH = 2**26, 60
METRICS = ("acc", "exact_match", "quasi_exact_match", "prefix_exact_match")
INSPECT_GRADES = {"C": 1.0, "I": 0.0, "N": 0.0}  # correct, incorrect, no answer; P is half right
EXPECTED = (
    "a log of lm-evaluation-harness (samples_*.jsonl with doc_id and acc), Inspect (.eval, or "
    ".json with eval and samples), every eval ever (.jsonl with model_id, sample_id, evaluation) "
    "or HELM (per_instance_stats.json, a list with instance_id and stats)"
)

Row = dict[str, Any]


def check_growth(file: Path, n_bytes: int, n_compressed: int) -> None:
    """Refuse a compressed text that grows as no text does."""
    if n_bytes > LARGE_MEMBER and n_bytes > MOST_GROWTH * n_compressed:
        raise ValueError(
            f"{file} holds {n_compressed / 1e6:.1f} MB that become more than "
            f"{min(n_bytes, 2**40) / 1e6:.0f} MB, which no text does; check where it is from, and "
            "unpack it yourself if it is right"
        )


def is_log(path: Path) -> bool:
    """Return whether a path is a folder, or a file that only evaluation programs write."""
    return path.is_dir() or path.suffix in (".jsonl", ".json", ".eval")


def read(path: Path) -> pd.DataFrame:
    """Return the answers in a log, or in all logs of a folder; the latest run counts.

    Columns are ``layout``, ``person`` (the model), ``item`` (task and number; where the harness
    used a filter, ``task:filter:number``) and ``correct``. Without a log, or a grade of 0 or 1, a
    ValueError is raised.
    """
    files = [path]
    if path.is_dir():
        names = ("samples_*.jsonl", "*.eval", "per_instance_stats.json")
        files = sorted({file for name in names for file in path.rglob(name)})
        files = files or sorted([*path.rglob("*.jsonl"), *path.rglob("*.json")])
    rows = [row | {"file": str(file)} for file in files for row in _rows(file)]
    if not rows:
        raise ValueError(f"no graded answers are in it; a folder holds {EXPECTED}")
    table = pd.DataFrame(rows)
    # A later run replaces an earlier one; within a file an answer has one grade.
    answer = ["file", "person", "item"]
    differs = table.duplicated(answer) & ~table.duplicated([*answer, "correct"])
    if differs.any():
        file, person, item = table.loc[differs.idxmax(), answer]
        raise ValueError(
            f"{file} grades the answer of {person!r} to {item!r} twice, and differently; keep one "
            "sample of each item"
        )
    table = table.drop(columns="file").sort_values("date", kind="stable")  # dates sort as text
    table = table.drop_duplicates(["person", "item"], keep="last").sort_index()
    documents = table.groupby("item")["document"].nunique()
    if (documents > 1).any():
        raise ValueError(
            "the models read different documents as items "
            f"{list(documents.index[documents > 1])[:5]}; their runs differ in the version or the "
            "sample of the task, and cannot be one test"
        )
    return table


def _rows(file: Path) -> Iterator[Row]:
    """Yield the answers of a file, whose layout is recognised by its keys."""
    if file.suffix == ".eval":
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            n_bytes = sum(member.file_size for member in members)
            check_growth(file, n_bytes, sum(member.compress_size for member in members))
            header = json.loads(archive.read("header.json"))
            names = [m.filename for m in members if re.fullmatch(r"samples/.*\.json", m.filename)]
            samples = [json.loads(archive.read(name)) for name in names]
        yield from _inspect(header, samples)
        return
    text = file.read_text(encoding="utf-8-sig")
    if file.suffix == ".jsonl":
        # a text may hold characters that only str.splitlines takes for the end of a line
        records = [json.loads(line) for line in text.split("\n") if line.strip()]
    else:
        records = json.loads(text)
    first = records[0] if isinstance(records, list) and records else records
    first = first if isinstance(first, dict) else {}
    keys = set(first)
    if {"eval", "samples"} <= keys:
        yield from _inspect(first, first["samples"])
    elif {"instance_id", "stats"} <= keys:
        yield from _helm(file, records)
    elif {"model_id", "sample_id", "evaluation"} <= keys:
        yield from _every_eval_ever(records)
    elif "doc_id" in keys:
        yield from _harness(file, records)
    else:
        raise ValueError(f"{file.name} has the keys {sorted(keys)[:12]}; expected {EXPECTED}")


def _row(layout: str, person: Any, item: str, correct: Any, **more: Any) -> Row:
    grade = float("nan") if correct is None else float(correct)
    names = {"layout": layout, "person": str(person), "item": item, "correct": grade}
    return {"date": "", "document": None, **names, **more}


def _grade(values: Row, what: str) -> Any:
    """Return the value of the first metric that is there."""
    for metric in METRICS:
        if metric in values:
            return values[metric]
    raise ValueError(
        f"{what} has none of the metrics {list(METRICS)}; it has {sorted(values)[:12]}"
    )


def _harness(file: Path, samples: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of ``<model>/samples_<task>_<date>.jsonl``."""
    # Without a date behind it, all of the name is the task: "arc_easy" is no task "arc" of "easy".
    named = re.fullmatch(r"(?:samples_)?(.*?)(?:_(\d{4}-\d\d-\d\d\S*))?", file.stem)
    task, date = named.groups(default="") if named else (file.stem, "")
    model = file.parent.name.replace("__", "/")
    for sample in samples:
        grade = _grade(sample, f"task {task!r} in {file.name}")
        number = f"{sample.get('filter', 'none')}:{sample['doc_id']}".removeprefix("none:")
        more = {"date": date, "document": sample.get("doc_hash")}
        yield _row("lm-evaluation-harness", model, f"{task}:{number}", grade, **more)


def _inspect(header: Row, samples: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of an Inspect log: the first scorer's, epochs as items of their own."""
    about = header["eval"]
    for sample in samples:
        scores = sample.get("scores") or {}
        if not scores:
            continue  # a sample that ended in an error was not graded
        scorer, score = next(iter(scores.items()))
        value = score["value"]
        grade = INSPECT_GRADES.get(value, value) if isinstance(value, str) else value
        if isinstance(grade, str) or grade not in (0, 1):
            raise ValueError(
                f"sample {sample['id']!r} has the score {value!r} by {scorer!r}, which is neither "
                "right (C, 1) nor wrong (I, N, 0)"
            )
        epoch = f":{sample['epoch']}" if sample.get("epoch", 1) > 1 else ""
        item, date = f"{about['task']}:{sample['id']}{epoch}", about.get("created")
        date = str(pd.to_datetime(date, utc=True)) if date else ""  # clocks of several places
        yield _row("Inspect", about["model"], item, grade, date=date)


def _every_eval_ever(records: Iterable[Row]) -> Iterator[Row]:
    """Yield instances in the schema of the EvalEval Coalition."""
    for record in records:
        outcome = record["evaluation"]
        grade = outcome.get("is_correct", outcome.get("score"))
        task = record.get("evaluation_name", record.get("evaluation_id", ""))
        item = f"{task}:{record['sample_id']}"
        yield _row("every eval ever", record["model_id"], item, grade)


def _helm(file: Path, records: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of a HELM run; perturbed instances and later trials are left out."""
    run = file.with_name("run_spec.json")
    spec = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
    name = spec.get("name", file.parent.name)
    model = spec.get("adapter_spec", {}).get("model") or name.rpartition("model=")[2]
    task = re.sub(r",?model=[^,]*", "", name)
    for record in records:
        if record.get("perturbation") or record.get("train_trial_index", 0) > 0:
            continue
        means = {stat["name"]["name"]: stat.get("mean") for stat in record["stats"]}
        grade = _grade(means, f"instance {record['instance_id']} of {name!r}")
        yield _row("HELM", model, f"{task}:{record['instance_id']}", grade)
