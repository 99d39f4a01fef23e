"""Numbers of runs with the papers' models: packed where they were run, checked and kept elsewhere.

A bundle is a zip file with reports, without weights, pages and texts. :func:`merge` takes it only
if it was run by this code, on these data, under the profile ``paper``, with models of a known
commit, and writes ``data/facts/paper_runs/``, a column of docs/results.md.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from psychlm import __version__, data, report
from psychlm._parameters import entries
from psychlm.site import collection, index, plan
from psychlm.site.collection import Notebook, NotebookError

KEPT = ("notebook", "status", "profile", "seconds", "finished", "verdict", "numbers", "provenance")
LOCAL = ("device", "folder", "cluster", "dundee")  # parameters that differ between machines
MEMBER, MOST_BYTES = "runs.json", 50_000_000  # the file in a bundle


class BundleError(NotebookError):
    """A bundle cannot be made or merged; the message says which report, why, and what to do."""


def folder() -> Path:
    """Return where merged runs are kept."""
    return data.folder() / "facts" / "paper_runs"


def merged_runs() -> dict[str, dict[str, Any]]:
    """Return the merged runs by notebook."""
    files = sorted(folder().glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def pack(out: Path, reports: Path | None = None) -> list[str]:
    """Write the complete reports of the profile ``paper`` as a bundle; return their notebooks.

    Numbers that are texts are left out, and folders among the parameters keep their last part only.
    """
    runs = {}
    for content in index.read_reports(reports):
        if (content["status"], content.get("profile")) == ("complete", "paper"):
            kept = runs[content["notebook"]] = {key: content.get(key) for key in KEPT}
            kept["numbers"] = [
                number
                for number in content["numbers"]
                if not any(isinstance(value, str) for value in entries(number["value"]))
            ]
            parameters = content["provenance"].get("parameters") or {}
            for name, value in parameters.items():
                if isinstance(value, str) and Path(value).is_absolute():
                    parameters[name] = Path(value).name
    if not runs:
        raise BundleError(
            f"{reports or index.reports_folder()} holds no complete report of the profile paper; "
            "run `psychlm run --profile paper` first"
        )
    with data.atomic_write(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(MEMBER, json.dumps(runs, indent=1, ensure_ascii=False))
    return list(runs)


def unpack(file: Path) -> dict[str, dict[str, Any]]:
    """Return the reports of a bundle by notebook; nothing is written to disk."""
    try:
        with zipfile.ZipFile(file) as bundle, bundle.open(MEMBER) as opened:
            raw = opened.read(MOST_BYTES + 1)  # whatever size the file states
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES / 1e6:.0f} MB")
        runs = json.loads(raw)
        return {name: {key: content[key] for key in KEPT} for name, content in runs.items()}
    except Exception as error:  # of zipfile, zlib and json, and of texts where mappings should be
        raise BundleError(f"{file} is no bundle ({error}); send it again") from error


def differing(ran: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the first names whose values differ, separated by commas."""
    names = sorted(name for name in ran.keys() | here.keys() if ran.get(name) != here.get(name))
    return ", ".join(names[:5])


def problems_of(content: dict[str, Any], notebook: Notebook, root: Path) -> Iterator[str]:
    """Yield in what a report differs from a run of this code, on these data, of the papers."""
    if (content["status"], content["profile"]) != ("complete", "paper"):
        yield f"it is {content['status']}, of the profile {content['profile']}"
    try:
        index.compare(content)
        outcome, stamp = content["verdict"]["outcome"], content["provenance"]
        parameters, used, models, modules = (
            dict(stamp[part]) for part in ("parameters", "data", "models", "modules")
        )
        str(content["verdict"]["sentence"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"it is malformed: {type(error).__name__}: {error}"
        return
    if outcome not in report.OUTCOMES:
        yield f"its outcome is {outcome!r}"
    given = collection.run_parameters(root, [notebook], "paper")[notebook.name]
    wanted = notebook.parameters | given
    local = {name: parameters.get(name) for name in LOCAL if name in wanted}
    if changed := differing(parameters, wanted | local):
        yield f"it ran with other values of {changed}"
    for model in plan.hub_models(wanted):
        name = model.partition("@")[0]
        if not re.fullmatch(r"[0-9a-f]{40}", str(models.get(name))):
            yield f"it states no commit of {name}"
    present = {name: digest for name, digest in used.items() if digest}  # others were not there
    facts = data.fingerprint([name for name in present if name.startswith("facts/")])
    registered = data.registry()["sha256"]
    here = {name: facts.get(name) or registered.get(name) for name in present}
    if others := differing(present, here):
        yield f"its data differ: {others}"
    version, old = stamp.get("psychlm"), differing(modules, report.checksums(modules))
    if version != __version__ or old or not modules:
        yield (
            f"it was run by other code, psychlm {version} ({old or 'no module is stated'}): check "
            f"out its commit, {stamp.get('commit')}, or run it again"
        )


def merge(file: Path, root: Path | None = None) -> list[str]:
    """Check the reports of a bundle and keep all or none of them; return their notebooks."""
    root = (root or data.root()).resolve()
    notebooks = {notebook.name: notebook for notebook in collection.find(root)}
    reports, problems = unpack(file), []
    for name, content in reports.items():
        if name not in notebooks or content["notebook"] != name:
            problems.append(f"{name}: there is no such notebook here")
        else:
            found = problems_of(content, notebooks[name], root)
            problems += [f"{name}: {problem}" for problem in found]
    if problems:
        raise BundleError("; ".join(problems))
    folder().mkdir(parents=True, exist_ok=True)
    for name, content in reports.items():
        with data.atomic_write(folder() / f"{name}.json") as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return list(reports)
