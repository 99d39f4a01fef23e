"""Logs of evaluation programs: rows of answers of models to items, with every metric.

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

import numpy as np
import pandas as pd
import pyarrow as pa

from psychlm.frames import FrameError, format_names

# An archive that grows to so many bytes, and so many times its own size, is none of texts.
LARGE_MEMBER = 2**26
MOST_GROWTH = 60
ZSTANDARD = 93  # compression of zip members that Python reads from 3.14 on
INSPECT_GRADES = {"C": 1.0, "I": 0.0, "N": 0.0, "P": 0.5}  # correct, incorrect, no answer, partly
# The metric by which a task is ranked: Open LLM Leaderboard 1 and 2 (Hugging Face, 2023, 2024)
RANKED_BY = {
    "arc_challenge": "acc_norm",
    "hellaswag": "acc_norm",
    "leaderboard_bbh": "acc_norm",
    "leaderboard_gpqa": "acc_norm",
    "leaderboard_musr": "acc_norm",
    "leaderboard_ifeval": "prompt_level_strict_acc",
    "ifeval": "prompt_level_strict_acc",
}
# keys of a sample of the harness that are no metrics
NO_METRICS = """doc_id doc target arguments resps filtered_resps doc_hash prompt_hash target_hash
filter metrics task_name sample_id idx index""".split()  # noqa: SIM905
GRADE_NAMES = re.compile(r"match|acc|correct|pass|equal|score|em\b|mc1|grade", re.IGNORECASE)
FORMATS = {
    "lm-evaluation-harness": "`samples_<task>_<date>.jsonl` in a folder for each model",
    "Inspect": "`.eval` (also with Zstandard, or of a crashed run), or `.json`",
    "every eval ever": "`.jsonl` with model_id, sample_id, evaluation",
    "HELM": "`per_instance_stats.json` beside `run_spec.json`",
}
EXPECTED = (
    "a log of lm-evaluation-harness (samples_*.jsonl with doc_id and a metric), Inspect (.eval, or "
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


def read(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return every graded answer in a log, or in all logs of a folder, and notes of what is not.

    Columns are ``layout``, ``person`` (the model), ``task``, ``number`` (of the item in its task),
    ``document`` (a hash of its text), ``filter``, ``metric``, ``score`` (NaN where not graded),
    ``run`` (its date, and its file), ``epoch``, and ``prompt`` (a hash, or how many examples it
    has). Without any row a ValueError is raised.
    """
    files = [path]
    if path.is_dir():
        names = ("samples_*.jsonl", "*.eval", "per_instance_stats.json")
        files = sorted({file for name in names for file in path.rglob(name)})
        files = files or sorted([*path.rglob("*.jsonl"), *path.rglob("*.json")])
    rows: list[Row] = []
    unread: dict[str, Exception] = {}
    for file in files:
        try:
            found, n_unread = _rows(file)
            rows += [{"file": str(file), **row} for row in found]
            if n_unread:
                unread[f"{file.name}, {n_unread} lines"] = ValueError(
                    "no JSON; an end that is cut off?"
                )
        except (ValueError, KeyError, TypeError, AttributeError, OSError, zipfile.BadZipFile,
                NotImplementedError) as error:  # fmt: skip
            unread[str(file.relative_to(path) if path.is_dir() else file.name)] = error
    if not rows:
        first = next(iter(unread.values()), f"a folder holds {EXPECTED}")
        raise ValueError(f"no graded answers are in it ({first})")
    notes = [f"file {name} is not read ({error})" for name, error in unread.items()]
    table = pd.DataFrame(rows)
    table["run"] = table.pop("date") + " " + table.pop("file")
    return table, notes


def _rows(file: Path) -> tuple[list[Row], int]:
    """Return the answers of a file, whose layout is recognised by its keys, and lines not read."""
    if file.suffix == ".eval":
        return list(_inspect(*_archive(file))), 0
    text = file.read_text(encoding="utf-8-sig")
    n_unread = 0
    if file.suffix == ".jsonl":
        records = []
        # a text may hold characters that only str.splitlines takes for the end of a line
        for line in filter(str.strip, text.split("\n")):
            try:
                records.append(json.loads(line))
            except ValueError:
                n_unread += 1
    else:
        records = json.loads(text)
    first = records[0] if isinstance(records, list) and records else records
    first = first if isinstance(first, dict) else {}
    keys = set(first)
    if {"eval", "samples"} <= keys:
        rows = _inspect(first, first["samples"] or [])
    elif {"instance_id", "stats"} <= keys:
        rows = _helm(file, records)
    elif {"model_id", "sample_id", "evaluation"} <= keys:
        rows = _every_eval_ever(records)
    elif "doc_id" in keys:
        rows = _harness(file, records)
    else:
        raise ValueError(f"{file.name} has the keys {sorted(keys)[:12]}; expected {EXPECTED}")
    return list(rows), n_unread


def _row(layout: str, person: Any, task: Any, number: Any, metric: str, score: Any) -> Row:
    """Return one answer; its score is NaN where it is not numeric."""
    if isinstance(score, str):
        score = INSPECT_GRADES.get(score, score)
    try:
        value = float("nan") if score is None else float(score)
    except (TypeError, ValueError):
        value = float("nan")
    row: Row = {"layout": layout, "person": str(person), "task": str(task), "number": str(number)}
    row |= {"metric": metric, "score": value}
    return row | {"date": "", "document": "", "filter": "none", "epoch": 1, "prompt": ""}


def _harness(file: Path, samples: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of ``<model>/samples_<task>_<date>.jsonl``."""
    # Without a date behind it, all of the name is the task: "arc_easy" is no task "arc" of "easy".
    named = re.fullmatch(r"(?:samples_)?(.*?)(?:_(\d{4}-\d\d-\d\d\S*))?", file.stem)
    task, date = named.groups(default="") if named else (file.stem, "")
    model = file.parent.name.replace("__", "/")
    for sample in samples:
        metrics = sample.get("metrics") or [name for name in sample if name not in NO_METRICS]
        metrics = [name for name in metrics if _is_score(sample.get(name))]
        if not metrics:
            raise ValueError(f"task {task!r} in {file.name} has no metric; it has {sorted(sample)}")
        about = {
            "date": date,
            "document": str(sample.get("doc_hash") or ""),
            "filter": sample.get("filter") or "none",
            "prompt": str(sample.get("prompt_hash") or ""),
        }
        for metric in metrics:
            row = _row(
                "lm-evaluation-harness", model, task, sample["doc_id"], metric, sample[metric]
            )
            yield row | about


def _is_score(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _archive(file: Path) -> tuple[Row, list[Row]]:
    """Return the header and the samples of Inspect's archive; a crashed run has a journal only."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        n_bytes = sum(member.file_size for member in members)
        check_growth(file, n_bytes, sum(member.compress_size for member in members))

        def content(member: zipfile.ZipInfo) -> Any:
            if member.compress_type != ZSTANDARD:
                return json.loads(archive.read(member))
            with file.open("rb") as opened:
                # a local header has 30 bytes, then the name and extra fields
                opened.seek(member.header_offset + 26)
                n_name, n_extra = np.frombuffer(opened.read(4), "<u2")
                opened.seek(int(n_name) + int(n_extra), 1)
                compressed = opened.read(member.compress_size)
            text = pa.decompress(compressed, member.file_size, codec="zstd", asbytes=True)
            return json.loads(text)

        by_name = {member.filename: member for member in members}
        about = by_name.get("header.json") or by_name.get("_journal/start.json")
        if about is None:
            raise ValueError(f"{file.name} has neither header.json nor _journal/start.json")
        names = [name for name in by_name if re.fullmatch(r"samples/.*\.json", name)]
        return content(about), [content(by_name[name]) for name in names]


def _inspect(header: Row, samples: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of an Inspect log: each scorer is a metric, epochs are repeats."""
    about = header["eval"]
    date = about.get("created")
    date = str(pd.to_datetime(date, utc=True)) if date else ""  # clocks of several places
    for sample in samples:
        # a sample that ended in an error was not graded
        for scorer, score in (sample.get("scores") or {}).items():
            value = score["value"]
            if isinstance(value, dict):
                values = {f"{scorer}.{name}": part for name, part in value.items()}
            else:
                values = {scorer: value}
            for metric, one in values.items():
                row = _row("Inspect", about["model"], about["task"], sample["id"], metric, one)
                yield row | {"date": date, "epoch": sample.get("epoch", 1)}


def _every_eval_ever(records: Iterable[Row]) -> Iterator[Row]:
    """Yield instances in the schema of the EvalEval Coalition."""
    for record in records:
        outcome = record["evaluation"] or {}
        score = outcome.get("is_correct", outcome.get("score"))
        task = record.get("evaluation_name", record.get("evaluation_id", ""))
        default = "is_correct" if "is_correct" in outcome else "score"
        metric = record.get("evaluation_result_id") or default
        row = _row("every eval ever", record["model_id"], task, record["sample_id"], metric, score)
        yield row | {"graded": "is_correct" in outcome}


def _helm(file: Path, records: Iterable[Row]) -> Iterator[Row]:
    """Yield the answers of a HELM run, without perturbed instances; trials are repeats."""
    run = file.with_name("run_spec.json")
    spec = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
    name = spec.get("name", file.parent.name)
    model = spec.get("adapter_spec", {}).get("model") or name.rpartition("model=")[2]
    task = re.sub(r"[,:]?model=[^,]*", "", name)
    for record in records:
        if record.get("perturbation"):
            continue
        for stat in record["stats"]:
            metric = stat["name"]["name"]
            row = _row("HELM", model, task, record["instance_id"], metric, stat.get("mean"))
            yield row | {"epoch": 1 + record.get("train_trial_index", 0)}


def select(
    rows: pd.DataFrame,
    notes: list[str],
    *,
    metric: str | None = None,
    filter: str | None = None,
    task: list[str] | None = None,
    repeat: str | None = None,
    fractional: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Return rows of ``person``, ``item``, ``repeat`` and ``score`` by one metric and one filter.

    Without ``metric`` a task is graded by the metric by which leaderboards rank it, or else by its
    first metric of 0 and 1; without ``filter`` by the first filter of its file. ``fractional``
    keeps tasks whose scores are other numbers. Runs of one model with other prompts are persons of
    their own; other runs are repeats, of which ``repeat`` ("first", "latest") takes one.
    """
    notes = list(notes)
    if task:
        unknown = [name for name in task if not (rows["task"] == name).any()]
        if unknown:
            there = format_names(rows["task"].unique(), 12)
            raise FrameError(f"there is no task {format_names(unknown)}; the logs have {there}")
        rows = rows[rows["task"].isin(task)]
    chosen = []
    n_partly = 0
    for name, part in rows.groupby("task", sort=False):
        used_filter = _choice(part, "filter", filter, str(name))
        if used_filter is None:
            notes.append(f"task {name} is left out: it has no filter {filter!r}")
            continue
        part = part[part["filter"] == used_filter]
        used_metric = _metric(part, metric, str(name))
        of_metric = part[part["metric"] == used_metric]
        scores = of_metric["score"].dropna()
        others = [one for one in part["metric"].unique() if one != used_metric]
        if used_metric is None or not len(scores):
            have = format_names(part["metric"].unique())
            notes.append(f"task {name} is left out: no metric {metric or 'of numbers'} ({have})")
            continue
        share = float(scores.isin((0, 1)).mean())
        if share < 1 and not fractional:
            if share < 0.5:
                notes.append(
                    f"task {name} is left out: its {used_metric} is not 0 or 1 "
                    "(psychlm.compare takes fractional scores)"
                )
                continue
            partly = ~of_metric["score"].isin((0, 1)) & of_metric["score"].notna()
            n_partly += int(partly.sum())
            notes.append(
                f"{int(partly.sum())} answers to {name} that are partly right count as missing "
                "(level=scores takes them as they are)"
            )
            of_metric = of_metric.assign(score=of_metric["score"].mask(partly))
        said = f"{used_metric}" + (f" (not {', '.join(others[:3])})" if others else "")
        if part["filter"].iloc[0] != "none":
            left = [one for one in rows.loc[rows["task"] == name, "filter"].unique()
                    if one != used_filter]  # fmt: skip
            said += f", filter {used_filter}" + (f" (not {', '.join(left)})" if left else "")
        chosen.append((name, said, of_metric))
    if not chosen:
        raise FrameError("no task is left: " + "; ".join(notes))
    by_choice: dict[str, list[str]] = {}
    for name, said, _ in chosen:
        by_choice.setdefault(said, []).append(str(name))
    for said, names in by_choice.items():
        of_tasks = f" of {format_names(names, 3)}" if len(by_choice) > 1 else ""
        notes.insert(0, f"metric {said}{of_tasks}")
    table = pd.concat([part for _, _, part in chosen], ignore_index=True)
    ungraded = int(table["score"].isna().sum()) - n_partly
    if ungraded:
        notes.append(f"{ungraded} answers that were not graded are missing")
    table = _apart(table, notes)
    table["item"] = table["task"] + ":" + table["number"]
    # other documents under one number are other items
    document = table["document"].where(table["document"] != "")
    n_documents = document.groupby(table["item"]).transform("nunique")
    if (n_documents > 1).any():
        several = n_documents > 1
        names = table["item"] + " (document " + table["document"].str[:6] + ")"
        n_items = table.loc[several, "item"].nunique()
        table["item"] = table["item"].mask(several, names)
        notes.append(
            f"{n_items} items have other documents in some runs (another version or sample of the "
            "task) and are items of their own"
        )
    return _repeats(table, notes, repeat), notes


def _choice(part: pd.DataFrame, column: str, wanted: str | None, task: str) -> str | None:
    """Return the value of a column that is wanted, or its first one."""
    there = list(dict.fromkeys(part[column]))
    if wanted is None:
        return there[0]
    return wanted if wanted in there else None


def _metric(part: pd.DataFrame, wanted: str | None, task: str) -> str | None:
    """Return the metric of a task: the wanted one, the ranked one, or the first of 0 and 1."""
    there = list(dict.fromkeys(part["metric"]))
    if wanted is not None:
        return wanted if wanted in there else None
    for ranked, name in RANKED_BY.items():
        if (task == ranked or task.startswith(f"{ranked}_")) and name in there:
            return name
    if "graded" in part and part["graded"].eq(True).any():
        there = list(dict.fromkeys(part.loc[part["graded"].eq(True), "metric"]))
    binary = [
        name
        for name, scores in part.groupby("metric", sort=False)["score"]
        if name in there and scores.notna().any() and scores.dropna().isin((0, 1)).all()
    ]
    named = [name for name in binary if GRADE_NAMES.search(name)]
    graded = [name for name in there if GRADE_NAMES.search(name)]
    return (named or binary or graded or there)[0]


def _apart(table: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return rows in which runs of one model with other prompts are persons of their own."""
    has_prompt = table["prompt"] != ""
    of_item = table[has_prompt].groupby(["person", "task", "number", "document"])["prompt"]
    mixed = of_item.nunique()
    persons = list(mixed.index[mixed > 1].get_level_values("person").unique())
    if persons:
        rows = table["person"].isin(persons)
        date = table["run"].str.split(" ").str[0]
        table = table.assign(person=table["person"].mask(rows, table["person"] + ", run " + date))
        notes.append(
            f"{len(persons)} models have runs with other prompts, which are persons of their own: "
            f"{format_names(persons)}"
        )
    if has_prompt.any():
        by_item = table[has_prompt].groupby(["task", "number", "document"])["prompt"].nunique()
        n_items = int((by_item > 1).sum())
        if n_items:
            notes.append(f"prompts differ between persons in {n_items} items")
    return table


def _repeats(table: pd.DataFrame, notes: list[str], repeat: str | None) -> pd.DataFrame:
    """Return rows whose runs and epochs are numbered as repeats, or of one run of each task."""
    run = table.groupby(["person", "task"])["run"].rank("dense").astype(int)
    n_runs = int(run.max())
    in_order = table.assign(run_number=run).sort_values(["run_number", "epoch"], kind="stable")
    answer = ["person", "item"]
    if repeat in ("first", "latest"):
        # a run of a part of the items does not hide another run's answers to the others
        kept = "first" if repeat == "first" else "last"
        table = in_order.drop_duplicates(answer, keep=kept).sort_index()
        notes.append(f"of runs and epochs the {repeat} one counts")
    elif n_runs > 1:
        by_run = in_order.drop_duplicates([*answer, "epoch", "score"]).groupby([*answer, "epoch"])
        if by_run.size().max() == 1:
            table = in_order.drop_duplicates([*answer, "epoch"], keep="last").sort_index()
            notes.append(f"up to {n_runs} runs of a task by one model agree: one counts")
        else:
            notes.append(
                f"up to {n_runs} runs of a task by one model are repeats; repeat=latest takes one"
            )
    table["repeat"] = table.groupby(answer).cumcount() + 1
    return table
