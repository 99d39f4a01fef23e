"""Numbers of runs with the papers' models: packed where they were run, checked and kept elsewhere.

A bundle is a zip file of reports: numbers, verdicts, versions and hardware; no weights, pages and
texts. :func:`merge` takes it only if it was run by this code, on these data, under the parameters
of the profile ``paper``, with models of a known commit. It writes ``data/facts/paper_runs/``, from
which ``make results`` fills a column of docs/results.md.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from psychlm import __version__, data, report
from psychlm._parameters import entries
from psychlm.site import collection, index, plan
from psychlm.site.collection import Notebook, NotebookError

KEPT = ("notebook", "status", "profile", "seconds", "finished", "verdict", "numbers", "provenance")
LOCAL = ("device", "folder", "cluster", "dundee")  # parameters that differ between machines
MEMBER = re.compile(r"\d\d_\w+\.json")
MOST_MEMBERS, MOST_BYTES = 99, 5_000_000  # of a bundle, of a report


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

    Raises
    ------
    BundleError
        If there is no such report.
    """
    source = reports or index.reports_folder()
    members = {}
    for content in filter(None, map(index.read_report, index.report_files(source))):
        if (content["status"], content.get("profile")) != ("complete", "paper"):
            continue
        kept = {name: content.get(name) for name in KEPT}
        kept["numbers"] = [
            number
            for number in content["numbers"]
            if not any(isinstance(value, str) for value in entries(number["value"]))
        ]
        provenance = dict(content["provenance"])
        given = provenance.get("parameters") or {}
        provenance["parameters"] = {
            name: Path(value).name
            if isinstance(value, str) and Path(value).is_absolute()
            else value
            for name, value in given.items()
        }
        members[f"{content['notebook']}.json"] = kept | {"provenance": provenance}
    if not members:
        raise BundleError(
            f"{source} holds no complete report of the profile paper; "
            "run `psychlm run --profile paper` first"
        )
    with (
        data.atomic_write(out) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        for name, kept in members.items():
            bundle.writestr(name, json.dumps(kept, indent=1, ensure_ascii=False))
    return [name.removesuffix(".json") for name in members]


def unpack(file: Path) -> dict[str, dict[str, Any]]:
    """Return the reports of a bundle by notebook; nothing is written to disk.

    Raises
    ------
    BundleError
        If the file is no zip file, or a member has another name, is too large or no report.
    """
    reports = {}
    try:
        with zipfile.ZipFile(file) as bundle:
            members = bundle.infolist()
            if len(members) > MOST_MEMBERS:
                raise BundleError(f"{file} holds {len(members)} files, of {MOST_MEMBERS} at most")
            for member in members:
                name = member.filename
                if not MEMBER.fullmatch(name):
                    raise BundleError(f"{file} holds {name!r}, which is no report's name")
                with bundle.open(member) as opened:
                    raw = opened.read(MOST_BYTES + 1)  # whatever size the file states
                if len(raw) > MOST_BYTES:
                    raise BundleError(f"{name} of {file} is larger than {MOST_BYTES / 1e6:.0f} MB")
                content = json.loads(raw)
                if not isinstance(content, dict) or not set(KEPT) <= content.keys():
                    raise BundleError(f"{name} of {file} is no report: it lacks some of {KEPT}")
                reports[name.removesuffix(".json")] = {key: content[key] for key in KEPT}
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{file} is no bundle ({error}); send it again") from error
    return reports


def differences(content: dict[str, Any], notebook: Notebook, root: Path) -> list[str]:
    """Return in what a report differs from a run of this code, on these data, of the papers."""
    problems = []
    if (content["status"], content["profile"]) != ("complete", "paper"):
        problems.append(f"it is {content['status']}, of the profile {content['profile']}")
    try:
        index.compare(content)
        verdict = {key: str(content["verdict"][key]) for key in ("sentence", "outcome")}
        ran: dict[str, dict[str, Any]] = {
            part: dict(content["provenance"][part])
            for part in ("parameters", "data", "models", "modules")
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [*problems, f"it is malformed: {type(error).__name__}: {error}"]
    if verdict["outcome"] not in report.OUTCOMES:
        problems.append(f"its outcome is {verdict['outcome']!r}")
    given = collection.run_parameters(root, [notebook], "paper")[notebook.name]
    parameters = notebook.parameters | given
    changed = [
        name
        for name in parameters.keys() | ran["parameters"].keys()
        if name not in LOCAL and parameters.get(name) != ran["parameters"].get(name)
    ]
    if changed:
        problems.append(f"it ran with other values of {', '.join(sorted(changed))}")
    for model in plan.hub_models(parameters):
        name = model.partition("@")[0]
        if not re.fullmatch(r"[0-9a-f]{40}", str(ran["models"].get(name))):
            problems.append(f"it states no commit of {name}")
    here = {n: data.registry()["sha256"].get(n) for n in ran["data"] if not n.startswith("facts/")}
    here |= data.fingerprint([name for name in ran["data"] if name.startswith("facts/")])
    others = sorted(n for n, digest in ran["data"].items() if digest and digest != here[n])
    if others:
        problems.append(f"its data differ: {', '.join(others)}")
    version = content["provenance"].get("psychlm")
    modules = ran["modules"]
    old = sorted(n for n, digest in report.checksums(modules).items() if digest != modules[n])
    if version != __version__ or old or not modules:
        named = ", ".join(old[:3]) or "no module is stated"
        problems.append(
            f"it was run by other code, psychlm {version} ({named}): check out its commit, "
            f"{content['provenance'].get('commit')}, or run it again"
        )
    return problems


def merge(file: Path, root: Path | None = None) -> list[str]:
    """Check the reports of a bundle and keep them under :func:`folder`; return their notebooks.

    Raises
    ------
    BundleError
        If the file is no bundle, or a report is not of this code, these data and the papers'
        parameters; then nothing is kept.
    """
    root = (root or data.root()).resolve()
    notebooks = {notebook.name: notebook for notebook in collection.find(root)}
    reports, problems = unpack(file), []
    for name, content in reports.items():
        if name not in notebooks or content["notebook"] != name:
            problems.append(f"{name}: there is no such notebook here")
            continue
        problems += [f"{name}: {text}" for text in differences(content, notebooks[name], root)]
    if problems:
        raise BundleError("; ".join(problems))
    folder().mkdir(parents=True, exist_ok=True)
    for name, content in reports.items():
        with data.atomic_write(folder() / f"{name}.json") as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return list(reports)
