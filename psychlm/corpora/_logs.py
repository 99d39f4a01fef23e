"""Logs of evaluation programs: rows of answers of models to items, with every metric."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from psychlm.corpora._formats import Format, read_each
from psychlm.frames import FrameError, format_names

# An archive that grows to so many bytes, and so many times its own size, is none of texts.
LARGE_MEMBER = 2**26
MOST_GROWTH = 60
ZSTANDARD = 93  # compression of zip members that Python reads from 3.14 on
INSPECT_GRADES = {"C": 1.0, "I": 0.0, "N": 0.0, "P": 0.5}  # correct, incorrect, no answer, partly
# The metric by which a task is ranked: Open LLM Leaderboard 1 and 2 (Hugging Face, 2023, 2024)
RANKED_BY = dict.fromkeys(
    "arc_challenge hellaswag leaderboard_bbh leaderboard_gpqa leaderboard_musr".split(), "acc_norm"
) | dict.fromkeys(["leaderboard_ifeval", "ifeval"], "prompt_level_strict_acc")
# keys of a sample of the harness that are no metrics
NO_METRICS = """doc_id doc target arguments resps filtered_resps doc_hash prompt_hash target_hash
filter metrics task_name sample_id idx index""".split()
GRADE_NAMES = re.compile(r"match|acc|correct|pass|equal|score|em\b|mc1|grade", re.IGNORECASE)

Row = dict[str, Any]


def most_bytes(n_compressed: int) -> int:
    """Return how many bytes a compressed text may become."""
    return max(LARGE_MEMBER, MOST_GROWTH * n_compressed)


def check_growth(file: Path, n_bytes: int, n_compressed: int) -> None:
    """Refuse a compressed text that grows as no text does."""
    if n_bytes > most_bytes(n_compressed):
        raise ValueError(
            f"{file} holds {n_compressed / 1e6:.1f} MB that become more than "
            f"{min(n_bytes, 2**40) / 1e6:.0f} MB, which no text does; check where it is from, and "
            "unpack it yourself if it is right"
        )


# ---- formats: each yields the answers of a file, and notes what it leaves out ----


def _row(person: Any, task: Any, number: Any, metric: str, score: Any, **about: Any) -> Row:
    """Return one answer; its score is NaN where it is not numeric."""
    score = INSPECT_GRADES.get(score, score) if isinstance(score, str) else score
    try:
        value = float("nan") if score is None else float(score)
    except (TypeError, ValueError):
        value = float("nan")
    row: Row = {"person": str(person), "task": str(task), "number": str(number), "metric": metric}
    row |= {"score": value, "date": "", "document": "", "filter": "none", "epoch": 1}
    return row | {"prompt": "", "setting": ()} | about


def _harness(file: Path, samples: Iterable[Row], left_out: Counter) -> Iterator[Row]:
    """Yield the answers of ``<model>/samples_<task>_<date>.jsonl``."""
    # Without a date behind it, all of the name is the task: "arc_easy" is no task "arc" of "easy".
    named = re.fullmatch(r"(?:samples_)?(.*?)(?:_(\d{4}-\d\d-\d\d\S*))?", file.stem)
    task, date = named.groups(default="") if named else (file.stem, "")
    model = file.parent.name.replace("__", "/")
    setting: tuple[str, ...] = ()
    results = file.with_name(f"results_{date}.json")
    if results.exists():  # tells how the run was asked
        run = json.loads(results.read_text(encoding="utf-8"))
        shots = (run.get("n-shot") or {}).get(task)
        if shots is None:
            shots = (run.get("configs") or {}).get(task, {}).get("num_fewshot")
        setting = (f"{shots or 0} shots",)
        for name in ("chat template", "system instruction"):
            digest = run.get(f"{name.replace(' ', '_')}_sha")
            setting += (f"{name} {digest}" if digest else f"no {name}",)
    for sample in samples:
        metrics = sample.get("metrics") or [name for name in sample if name not in NO_METRICS]
        metrics = [n for n in metrics if isinstance(sample.get(n), bool | int | float | NoneType)]
        if not metrics:
            raise ValueError(f"task {task!r} in {file.name} has no metric; it has {sorted(sample)}")
        about = {"date": date, "setting": setting, "filter": sample.get("filter") or "none"}
        about["document"] = str(sample.get("doc_hash") or "")
        about["prompt"] = str(sample.get("prompt_hash") or "")
        for metric in metrics:
            yield _row(model, task, sample["doc_id"], metric, sample[metric], **about)


def _inspect(file: Path, records: Any, left_out: Counter) -> Iterator[Row]:
    """Yield the answers of an Inspect log: each scorer is a metric, epochs are repeats."""
    records = records[0] if isinstance(records, list) else records
    run = records["eval"]
    date = run.get("created")
    date = str(pd.to_datetime(date, utc=True)) if date else ""  # clocks of several places
    setting = tuple(f"{name}={value}" for name, value in (run.get("task_args") or {}).items())
    for sample in records["samples"] or []:
        scores = sample.get("scores") or {}
        left_out["samples without a score"] += not scores  # it ended in an error
        for scorer, score in scores.items():
            value = score["value"]
            values = {scorer: value}
            if isinstance(value, dict):
                values = {f"{scorer}.{name}": part for name, part in value.items()}
            for metric, one in values.items():
                about = {"date": date, "epoch": sample.get("epoch", 1), "setting": setting}
                yield _row(run["model"], run["task"], sample["id"], metric, one, **about)


def _every_eval_ever(file: Path, records: Iterable[Row], left_out: Counter) -> Iterator[Row]:
    """Yield instances in the schema of the EvalEval Coalition."""
    for record in records:
        outcome = record["evaluation"] or {}
        graded = "is_correct" in outcome
        score = outcome.get("is_correct", outcome.get("score"))
        task = record.get("evaluation_name", record.get("evaluation_id", ""))
        metric = record.get("evaluation_result_id") or ("is_correct" if graded else "score")
        sample = record["sample_id"]
        yield _row(record["model_id"], task, sample, metric, score, graded=graded)


def _helm(file: Path, records: Iterable[Row], left_out: Counter) -> Iterator[Row]:
    """Yield the answers of a HELM run; trials are repeats."""
    run = file.with_name("run_spec.json")
    spec = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
    name = spec.get("name", file.parent.name)
    asked = spec.get("adapter_spec", {})
    model = asked.get("model") or name.rpartition("model=")[2]
    task = re.sub(r"[,:]?model=[^,]*", "", name)
    shots = asked.get("max_train_instances")
    setting = () if shots is None else (f"{shots} shots",)
    for record in records:
        if record.get("perturbation"):
            left_out["perturbed instances"] += 1
            continue
        about = {"epoch": 1 + record.get("train_trial_index", 0), "setting": setting}
        for stat in record["stats"]:
            metric = stat["name"]["name"]
            yield _row(model, task, record["instance_id"], metric, stat.get("mean"), **about)


FORMATS = [
    Format(
        "Inspect",
        "`.eval` (also with Zstandard, or of a crashed run), or `.json`",
        "eval samples",
        answers=_inspect,
    ),
    Format(
        "HELM",
        "`per_instance_stats.json` beside `run_spec.json`",
        "instance_id stats",
        answers=_helm,
        never="Reads perturbed instances.",
    ),
    Format(
        "every eval ever",
        "`.jsonl` with model_id, sample_id, evaluation",
        "model_id sample_id evaluation",
        answers=_every_eval_ever,
    ),
    Format(
        "lm-evaluation-harness",
        "`samples_<task>_<date>.jsonl` in a folder for each model; "
        "`results_<date>.json` tells shots and chat template",
        "doc_id",
        answers=_harness,
    ),
]
ELSE = "of other programs write one table with the columns model, item and correct, a row an answer"
EXPECTED = "; ".join(f"{form.name} ({form.recognised_by})" for form in FORMATS)


def _archive(file: Path, left_out: Counter) -> Row:
    """Return header and samples of Inspect's archive; a crashed run has a journal only."""
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
        samples = [Path(name) for name in by_name if re.fullmatch(r"samples/.*\.json", name)]
        read, unread = read_each(samples, lambda name: content(by_name[name.as_posix()]))
        left_out.update(f"sample {note}" for note in unread)
        return {"eval": content(about)["eval"], "samples": list(read.values())}


def _rows(file: Path, left_out: Counter) -> list[Row] | None:
    """Return the answers of a file, whose format is recognised by its keys; None if it is none."""
    records: Any = []
    if file.suffix == ".eval":
        records = _archive(file, left_out)
    else:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix == ".json" or text.lstrip().startswith("["):
            records = json.loads(text)
            text = ""
        # a text may hold characters that only str.splitlines takes for the end of a line
        for line in filter(str.strip, text.split("\n")):
            try:
                records.append(json.loads(line))
            except ValueError:
                left_out[f"lines of {file.name} that are no JSON (an end that is cut off?)"] += 1
    first = records[0] if isinstance(records, list) and records else records
    keys = set(first) if isinstance(first, dict) else set()
    if keys >= {"results", "versions"}:
        raise ValueError(
            "it holds totals; answers are in the samples that `lm_eval --log_samples` writes"
        )
    form = next((form for form in FORMATS if keys.issuperset(form.needs.split())), None)
    # py-irt's lines have responses, and may have a key doc_id
    if form is None or form.answers is None or "responses" in keys:
        return None
    rows = form.answers(file, records, left_out)
    return [{"layout": form.name, "file": str(file)} | row for row in rows]


def read(path: Path) -> tuple[pd.DataFrame, list[str]] | None:
    """Return every graded answer in a log or folder of logs, and notes; None where none is a log.

    Columns are ``layout``, ``person`` (the model), ``task``, ``number`` (of the item in its task),
    ``document`` (a hash of its text), ``filter``, ``metric``, ``score`` (NaN where not graded),
    ``run`` (its date, and its file), ``epoch``, ``prompt`` (a hash) and ``setting`` (how the run
    was asked: shots, chat template ...). A log without any answer is a ValueError.
    """
    files = [path]
    if path.is_dir():
        names = ("samples_*.jsonl", "*.eval", "per_instance_stats.json")
        files = sorted({file for name in names for file in path.rglob(name)})
        files = files or sorted([*path.rglob("*.jsonl"), *path.rglob("*.json")])
    elif path.suffix not in (".json", ".jsonl", ".eval"):
        return None
    left_out: Counter = Counter()
    found, notes = read_each(files, lambda file: _rows(file, left_out))
    notes += [f"left out: {n} {what}" for what, n in left_out.items() if n]
    rows = [row for of_file in found.values() for row in of_file or []]
    notes += [
        f"{name.name} is left out (no answers are in it)" for name, of in found.items() if of == []
    ]
    no_logs = [file.name for file, of_file in found.items() if of_file is None]
    if not rows:
        has_tables = any(path.glob("*.[ctdx]*")) if path.is_dir() else bool(no_logs)
        if has_tables and not notes:
            return None
        why = "; ".join(notes) or f"a folder holds logs of {EXPECTED}; {ELSE}"
        raise ValueError(f"no graded answers are in it: {why}")
    notes += [f"{name} is left out (no log)" for name in no_logs]
    table = pd.DataFrame(rows)
    table["run"] = table.pop("date") + " " + table.pop("file")
    return table, notes


# ---- one score for each answer ----


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

    Unless told, the metric is that of leaderboards, or the first of 0 and 1, and the filter the
    first of its file. ``fractional`` keeps scores that are other numbers. Runs that were asked
    otherwise are persons of their own; of others ``repeat`` ("first", "latest") takes one.
    """
    notes = list(notes)
    unknown = [name for name in task or () if not (rows["task"] == name).any()]
    if unknown:
        there = format_names(rows["task"].unique(), 12)
        raise FrameError(f"there is no task {format_names(unknown)}; the logs have {there}")
    rows = rows[rows["task"].isin(task)] if task else rows
    chosen: list[pd.DataFrame] = []
    tasks_by_choice: dict[str, list[str]] = {}
    n_partly = 0
    for name, of_task in rows.groupby("task", sort=False):
        filters = list(dict.fromkeys(of_task["filter"]))
        used = filter or filters[0]
        if used not in filters:
            notes.append(f"task {name} is left out: it has no filter {filter!r}")
            continue
        part = of_task[of_task["filter"] == used]
        metrics = list(dict.fromkeys(part["metric"]))
        used_metric = metric or _metric(part, str(name))
        of_metric = part[part["metric"] == used_metric]
        scores = of_metric["score"]
        if not scores.notna().any():
            have = format_names(metrics)
            notes.append(f"task {name} is left out: no metric {metric or 'of numbers'} ({have})")
            continue
        partly = ~scores.isin((0, 1)) & scores.notna()
        if partly.any() and not fractional:
            if partly.sum() > scores.notna().sum() / 2:
                notes.append(
                    f"task {name} is left out: its {used_metric} is not 0 or 1 "
                    "(compare takes fractional scores)"
                )
                continue
            n_partly += int(partly.sum())
            notes.append(
                f"{int(partly.sum())} answers to {name} that are partly right count as missing "
                "(level=scores takes them as they are)"
            )
            of_metric = of_metric.assign(score=scores.mask(partly))
        others = ", ".join([one for one in metrics if one != used_metric][:3])
        said = f"{used_metric}" + (f" (not {others})" if others else "")
        if used != "none":
            others = ", ".join(one for one in filters if one != used)
            said += f", filter {used}" + (f" (not {others})" if others else "")
        tasks_by_choice.setdefault(said, []).append(str(name))
        chosen.append(of_metric)
    if not chosen:
        raise FrameError("no task is left: " + "; ".join(notes))
    for said, names in tasks_by_choice.items():
        of_tasks = f" of {format_names(names, 3)}" if len(tasks_by_choice) > 1 else ""
        notes.insert(0, f"metric {said}{of_tasks}")
    table = pd.concat(chosen, ignore_index=True)
    if ungraded := int(table["score"].isna().sum()) - n_partly:
        notes.append(f"{ungraded} answers that were not graded are missing")
    table = _apart(table, notes)
    table["item"] = table["task"] + ":" + table["number"]
    # other documents under one number are other items
    document = table["document"].where(table["document"] != "")
    several = document.groupby(table["item"]).transform("nunique") > 1
    if several.any():
        notes.append(
            f"{table.loc[several, 'item'].nunique()} items have other documents in some runs "
            "(another version or sample of the task) and are items of their own"
        )
        named = table["item"] + " (document " + table["document"].str[:6] + ")"
        table["item"] = table["item"].mask(several, named)
    return _repeats(table, notes, repeat), notes


def _metric(part: pd.DataFrame, task: str) -> str:
    """Return the metric of a task: the ranked one, or the first of 0 and 1."""
    there = list(dict.fromkeys(part["metric"]))
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
    """Return rows in which runs of one model that were asked otherwise are persons of their own.

    Their names say what differs: a setting ("5 shots"), or else, where prompts do, the date.
    """
    person = table["person"].copy()
    runs = table[["person", "task", "setting"]].drop_duplicates()
    # tasks may differ in their settings; runs of one task may not
    for name in runs.loc[runs.duplicated(["person", "task"]), "person"].unique():
        of_person = runs.loc[runs["person"] == name, "setting"].unique()
        known = [setting for setting in of_person if setting]
        if len(known) == 1:  # prompts tell whether a run without results was asked otherwise
            continue
        differ = {part for setting in of_person for part in setting}
        differ -= set.intersection(*map(set, of_person))
        for setting in of_person:
            label = ", ".join(part for part in setting if part in differ) or "setting not known"
            person[(table["person"] == name) & (table["setting"] == setting)] = f"{name} ({label})"
    has_prompt = table["prompt"] != ""
    of_item = [person, table["task"], table["number"], table["document"]]
    mixed = table["prompt"].where(has_prompt).groupby(of_item).transform("nunique").gt(1)
    rows = person.isin(person[mixed].unique())
    person = person.mask(rows, person + ", run " + table["run"].str.split(" ").str[0])
    apart = table["person"][person != table["person"]].unique()
    if len(apart):
        named = person[table["person"].isin(apart)].unique()
        notes.append(
            f"{len(apart)} models have runs with other prompts, which are persons of their own: "
            f"{format_names(named, 8)}"
        )
    by_item = table[has_prompt].groupby(["task", "number", "document"])["prompt"].nunique()
    if n_items := int((by_item > 1).sum()):
        asked = [set(setting) for setting in runs["setting"].unique()]
        other = sorted(set.union(*asked) - set.intersection(*asked))
        by = f": {', '.join(other[:6])}" if other else ""
        notes.append(f"prompts differ between persons in {n_items} items{by}")
    return table.assign(person=person)


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
        said = "are repeats; repeat=latest takes one"
        if by_run.size().max() == 1:
            table = in_order.drop_duplicates([*answer, "epoch"], keep="last").sort_index()
            said = "agree: one counts"
        notes.append(f"up to {n_runs} runs of a task by one model {said}")
    table["repeat"] = table.groupby(answer).cumcount() + 1
    return table
