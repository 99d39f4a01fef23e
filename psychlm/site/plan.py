"""What a run of the notebooks takes: models, data, memory and hours, before anything is fetched.

With N parameters, a model does 2 N floating-point operations for each token that it reads and 6 N
for each that it learns from (Kaplan et al. 2020, section 2.1), at :data:`SHARE_OF_PEAK` of what a
GPU's maker states or a product of matrices reaches here. Memory is 4 bytes a parameter to read; to
learn 16 (weights, gradients, two moments of AdamW) and the states of a batch, s b h (34 + 5 a s /
h) bytes a layer (Korthikanti et al. 2022, equation 2). Hours of a notebook without such a model are
those of its last run under the profile, what its first cell says, or at full size what it took on
two cores (``data/facts/full_runs.csv``).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm import data
from psychlm._parameters import entries
from psychlm.site import collection, html, index
from psychlm.site.collection import Notebook, Profile

SHARE_OF_PEAK = 0.35  # of a GPU's peak that training of such models reaches
TOKENS_A_WORD = 1.3  # of running text
TOKENS_A_CHOICE = 60  # of a question with one of its choices
BATCH = 32  # items of a step of lm.fine_tune
EMPTY = {"kind": "", "name": "", "gb": 0.0, "here": True, "gpu_gb": 0.0, "seconds": 0.0}
EMPTY |= {"known_from": "", "note": "", "problem": ""}  # a need: see :func:`plan`
MODEL_PARAMETERS = ("model", "models", "against", "encoder", "encoders")


@dataclass(frozen=True)
class Work:
    """What one language model does in a notebook."""

    read: float  # tokens
    learnt: float = 0.0  # tokens, over all epochs and repetitions
    choices: int = 1  # texts of an item, which are in memory together


@cache
def facts(name: str) -> pd.DataFrame:
    """Return a table of ``data/facts/`` that is a CSV file, by its first column."""
    table = pd.read_csv(data.folder() / "facts" / f"{name}.csv", index_col=0)
    return table.fillna({"package": "", "absent": ""})


def word_tokens(*corpora: str) -> Callable[[str, Mapping[str, Any]], Work]:
    """Return what models read of reading-time corpora; only causal ones read a text once."""

    def work(model: str, parameters: Mapping[str, Any]) -> Work:
        tokens, causal = 0.0, facts("hub_models").at[model, "kind"] == "causal"
        for corpus in corpora:
            texts = data.facts(f"models/surprisal_{corpus}").groupby("text_id").size()
            # other kinds read the text before each token again, in windows of 512 tokens at most
            passes = 1.0 if causal else (TOKENS_A_WORD * texts / 2).clip(1, 512)
            tokens += float((TOKENS_A_WORD * texts * passes).sum())
        return Work(tokens)

    return work


def inoculation(model: str, p: Mapping[str, Any]) -> Work:
    """Return what notebook 41 lets its encoder learn: science, then questions of five probes."""
    from analyses.richardson2020 import MOST_ADDED

    if not p["fine_tune"] or model != p["encoder"]:
        return Work(0.0)
    item, probes, epochs = 5 * TOKENS_A_CHOICE, 5, (8, 3)
    runs = len(p["learning_rates"]) * p["n_seeds"] * probes
    sizes = [(size, times) for size in p["sizes"] for times in p["add_some"]]
    added = sum(size + min(times * size, MOST_ADDED) for size, times in sizes)
    learnt = p["n_science"] * len(p["learning_rates"]) * epochs[0] + added * runs * epochs[1]
    read = len(sizes) * runs * (p["n_check"] + probes * p["n_test"])
    return Work(read * item, learnt * item, choices=5)


def confusion(model: str, p: Mapping[str, Any]) -> Work:
    """Return what notebook 50 lets its encoder learn, and the presentations that it reads."""
    from analyses.stored_results import TRAINING_SETS

    item, presentations = 4 * TOKENS_A_CHOICE, 4 + p["n_wrong"]
    read = len(p["benchmarks"]) * p["n_items"] * presentations * item
    learns = p["fine_tune"] and model == p["encoder"]
    most = {bank: n for bank, (_, n) in TRAINING_SETS.items()} if p["training_sets"] else {}
    n_items = sum(min(p["n_train"], most.get(bank, p["n_train"])) for bank in p["benchmarks"])
    return Work(read, n_items * p["epochs"] * item if learns else 0.0, choices=4)


def regimes(model: str, p: Mapping[str, Any]) -> Work:
    """Return what an encoder learns in notebook 20: two of the four regimes train it."""
    learnt = 2 * p["n_models"] * p["epochs"] * p["n_train"] * TOKENS_A_CHOICE
    return Work(learnt / 5, learnt)  # after each epoch it reads the items that end the training


WORK = {
    "10": word_tokens("ucl2023"),
    "11": word_tokens("ucl2023"),
    "12": word_tokens("sap2024"),
    "15": word_tokens("ucl2023", "naturalstories", "provo"),
    "20": regimes,
    "41": inoculation,
    "50": confusion,
}


def hub_models(parameters: Mapping[str, Any]) -> list[str]:
    """Return the names among a notebook's parameters that are neither here nor in a package."""
    names = [str(name) for key in MODEL_PARAMETERS for name in entries(parameters.get(key, []))]
    return [name for name in dict.fromkeys(names) if "/" in name and not Path(name).exists()]


def is_fetched(model: str) -> bool:
    """Return whether all weights of a model of the hub are in its local cache."""
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = model.partition("@")

    def cached(file: str) -> str | None:
        path = try_to_load_from_cache(name, file, revision=revision or None)
        return path if isinstance(path, str) else None

    index = cached("model.safetensors.index.json")  # names the files of a model in several
    files = ["model.safetensors"]
    if index is not None:
        files = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
    return all(cached(file) is not None for file in set(files))


def datasets(notebook: Notebook, parameters: Mapping[str, Any]) -> list[str]:
    """Return the datasets that a notebook's first cell says it reads, and that parameters name."""
    reads = re.search(r"\*Reads\*(.*?)(?:\*Writes\*|$)", notebook.cells[0][1], re.DOTALL)
    names = re.findall(r"`([\w./…-]+)`", reads[1]) if reads else []
    names += [str(value).partition("#")[0] for value in entries(dict(parameters))]
    beginnings = tuple(name.partition("…")[0] for name in names if "…" in name)
    return [n for n in data.registry().index if n in names or n.startswith(beginnings)]


def plan(
    select: Sequence[str] = (),
    *,
    profile: Profile = "paper",
    parameters: Mapping[str, Any] | None = None,
    teraflops: float,
    gpu_memory_gb: float | None = None,
    root: Path | None = None,
) -> pd.DataFrame:
    """Return what notebooks need under a profile, on a device of a peak and a memory.

    Each model of the hub, each dataset and the notebook itself has a row with :data:`EMPTY`'s
    columns. The first arguments are those of :func:`psychlm.site.run`. Nothing is fetched or run.
    """
    root = (root or data.root()).resolve()
    chosen = collection.select(collection.find(root), select)
    given = collection.run_parameters(root, chosen, profile, parameters)
    rows = []
    for notebook in chosen:
        values = notebook.parameters | given[notebook.name]
        needs = [dataset_need(name) for name in datasets(notebook, values)]
        for model in hub_models(values):
            needs.append(model_need(model, notebook.number, values, teraflops, gpu_memory_gb))
        seconds, known_from = index.known_seconds(notebook, profile, index.reports_folder())
        computed = sum(need.get("seconds", 0.0) for need in needs)
        if known_from != "last run" and (computed or profile != "quick"):  # stated: of quick runs
            seconds, known_from = computed, "computed" if computed else ""
        if not seconds and profile == "full" and notebook.name in facts("full_runs").index:
            seconds, known_from = facts("full_runs").at[notebook.name, "seconds"], "measured"
        limits = facts("paper_limits")["note"]
        lacking = [limit for limit in limits.index if values.get(limit) == ""]
        lacking += [notebook.number] if profile == "paper" else []
        note = " ".join(limits[limits.index.isin(lacking)])
        itself = {"kind": "notebook", "name": notebook.name, "note": note}
        needs.append(itself | {"seconds": seconds, "known_from": known_from})
        rows += [{"notebook": notebook.name} | EMPTY | need for need in needs]
    return pd.DataFrame(rows, columns=["notebook", *EMPTY])


def dataset_need(name: str) -> dict[str, Any]:
    """Return the need of a dataset."""
    entry, here = data.registry().loc[name], data.where(name) or data.comes_with_project(name)
    problem = "" if here or entry["url"] else f"{name} has no public address: {entry['note']}"
    size = {"gb": float(entry["bytes"]) / 1e9, "here": bool(here)}
    return {"kind": "data", "name": name, "problem": problem} | size


def model_need(
    name: str, number: str, values: Mapping[str, Any], teraflops: float, memory_gb: float | None
) -> dict[str, Any]:
    """Return the need of a model of the hub in a notebook, which is named by its number."""
    need: dict[str, Any] = {"kind": "model", "name": name, "here": is_fetched(name)}
    model = name.partition("@")[0]
    if model not in facts("hub_models").index:
        return need | {"note": f"the size of {model} is not known (data/facts/hub_models.csv)"}
    sizes = facts("hub_models").loc[model]
    if sizes["absent"]:
        return need | {"here": True, "problem": f"{model} cannot be opened: {sizes['absent']}"}
    need["gb"], problems = 4e-3 * sizes["million_parameters"], []
    if sizes["package"] and find_spec(sizes["package"]) is None:
        problems.append(f"{model} needs a package: pip install {sizes['package']}")
    if number in WORK:
        work, weights = WORK[number](model, values), 1e6 * sizes["million_parameters"]
        operations = weights * (2 * work.read + 6 * work.learnt)
        need["seconds"] = operations / (teraflops * 1e12 * SHARE_OF_PEAK)
        need["gpu_gb"], least = 4 * weights / 1e9, (16 if work.learnt else 4) * weights / 1e9
        if work.learnt:
            texts, length, width = BATCH * work.choices, TOKENS_A_CHOICE, sizes["hidden"]
            states = texts * length * width * (34 + 5 * sizes["heads"] * length / width)
            need["gpu_gb"] = (16 * weights + states * sizes["layers"]) / 1e9
        if memory_gb and least > memory_gb:
            problems.append(f"{model} needs {least:.0f} GB of memory, of {memory_gb:.0f}")
    return need | {"problem": "; ".join(problems)}


def table(needs: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the table that is printed; counts are "here / all"."""
    header = ["notebook", "models", "data", "GB to\nfetch", "GB\nkept", "GPU\nGB", "time", "from"]
    cells = []
    for name, of_notebook in needs.groupby("notebook", sort=False):
        here = [of_notebook.loc[of_notebook["kind"] == kind, "here"] for kind in ("model", "data")]
        counts = [f"{one.sum()}/{len(one)}" if len(one) else "" for one in here]
        sizes = of_notebook.loc[~of_notebook["here"], "gb"].sum(), of_notebook["gb"].sum()
        memory, itself = of_notebook["gpu_gb"].max(), of_notebook.iloc[-1]
        shown = [f"{gb:.2f}" if gb else "" for gb in sizes] + [f"{memory:.1f}" if memory else ""]
        took = html.duration(itself["seconds"] or None)
        cells.append([str(name), *counts, *shown, took, itself["known_from"]])
    return header, cells


def summary(needs: pd.DataFrame) -> list[str]:
    """Return the sums, where each model and dataset counts once, and a line for each model."""
    once = needs.drop_duplicates(["kind", "name"])
    absent, itself = once[~once["here"]], needs[needs["kind"] == "notebook"]
    counts = absent["kind"].value_counts().reindex(["model", "data"], fill_value=0)
    timed = itself.loc[itself["seconds"] > 0, "seconds"]
    lines = [
        f"in all {absent['gb'].sum():.2f} GB to fetch ({counts['model']} models, {counts['data']} "
        f"datasets), {once['gb'].sum():.2f} GB kept, {html.duration(timed.sum())} for {len(timed)} "
        f"of {len(itself)} notebooks"
    ]
    for name, uses in needs[needs["kind"] == "model"].groupby("name", sort=False):
        first, numbers = uses.iloc[0], ", ".join(uses["notebook"].str[:2])
        state = "here" if first["here"] else "to fetch"
        state = "cannot be opened" if "cannot be opened" in first["problem"] else state
        lines.append(f"model {name}: {first['gb']:.2f} GB, {state}, in {numbers}")
    return lines


def lacks_disk(needs: pd.DataFrame) -> list[str]:
    """Return a line for each folder whose disk is too small for what is to be fetched there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    absent, lacking = needs[~needs["here"]].drop_duplicates(["kind", "name"]), []
    for kind, folder in {"model": Path(HF_HUB_CACHE), "data": data.downloads()}.items():
        gb = absent.loc[absent["kind"] == kind, "gb"].sum()
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(existing).free / 1e9
        if gb > free:
            lacking.append(f"{gb:.1f} GB are to be fetched to {folder}, {free:.1f} GB are free")
    return lacking
