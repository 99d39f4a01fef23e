r"""What a run of the notebooks takes: models, data, memory and hours, before anything is fetched.

The cost of a language model is counted as in Kaplan et al. (2020, section 2.1): with N parameters,
2 N floating-point operations for each token that is read and 6 N for each that is learnt from. A
GPU (``data/facts/gpus.csv``) does :data:`SHARE_OF_PEAK` of the operations that its maker states,
this machine that share of what a product of two matrices reaches here. Memory is 4 bytes a
parameter to read; to learn 16 (weights, gradients, two moments of AdamW) and the states of a batch,
s b h (34 + 5 a s / h) bytes a layer (Korthikanti et al. 2022, equation 2). Hours of a notebook
without such a model are those of its last run under the profile, or what its first cell says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from psychlm import data
from psychlm._parameters import entries
from psychlm.site import collection, index
from psychlm.site.collection import Notebook, Profile

SHARE_OF_PEAK = 0.35  # of a GPU's peak that training of such models reaches
TOKENS_A_WORD = 1.3  # of running text
TOKENS_A_CHOICE = 60  # of a question with one of its choices
BATCH = 32  # items of a step of lm.fine_tune
MODEL_PARAMETERS = ("model", "models", "against", "encoder", "encoders")
ABSENT = {  # models of the papers that cannot be opened
    "transfo-xl/transfo-xl-wt103": "transformers 5 has no Transformer-XL (its tokenizer is a "
    "pickle); its printed results are in data/published/hao2020.table2.csv"
}
LIMITS = {  # what a run of the papers' profile does not do of a paper
    "20": "20 trains four of Laverghetta et al.'s ten architectures in their four regimes; add "
    "others to encoders, where the hub has their weights as safetensors. It does not pre-train a "
    "BERT, as they did with the One Billion Words",
    "31": "31 to 34 train the LSTMs of Lalor (2020), who trains no BERT (section 5.4.1 names it as "
    "a next step); lm.fine_tune trains one on SNLI or SST. The 131 phrases of SST need "
    "dictionary.txt of the treebank, which has no address here: -p sst_dictionary=FILE",
}
LICENSED = {  # parameters that name data which need a licence
    "dundee": "the Dundee Corpus needs a licence: ask its authors (Kennedy 2003, University of "
    "Dundee), then give its folder, -p dundee=./FOLDER; that part is left out without"
}


@dataclass(frozen=True)
class Work:
    """What one language model does in a notebook."""

    model: str
    read: float  # tokens
    learnt: float = 0.0  # tokens, over all epochs and repetitions
    choices: int = 1  # texts of an item, which are in memory together


@dataclass
class Row:
    """The plan of one notebook."""

    notebook: str
    models: list[str] = field(default_factory=list)  # of the hub
    data: list[str] = field(default_factory=list)  # names in the registry
    gpu_bytes: float = 0.0
    hours: float | None = None
    hours_from: str = ""  # "computed", "last run" or "stated"; empty where nothing is known
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what cannot work


@cache
def facts(name: str) -> pd.DataFrame:
    """Return a table of ``data/facts/`` that is a CSV file, by ``name``."""
    return pd.read_csv(data.folder() / "facts" / f"{name}.csv").set_index("name")


def word_tokens(*corpora: str) -> Callable[[str, Mapping[str, Any]], list[Work]]:
    """Return what models read of reading-time corpora; only causal ones read a text once."""

    def work(model: str, parameters: Mapping[str, Any]) -> list[Work]:
        tokens, causal = 0.0, facts("hub_models")["kind"].get(model, "causal") == "causal"
        for corpus in corpora:
            texts = data.facts(f"models/surprisal_{corpus}").groupby("text_id").size()
            # other kinds read the text before each token again, in windows of 512 tokens at most
            passes = 1.0 if causal else (TOKENS_A_WORD * texts / 2).clip(1, 512)
            tokens += float((TOKENS_A_WORD * texts * passes).sum())
        return [Work(model, tokens)]

    return work


def inoculation(model: str, p: Mapping[str, Any]) -> list[Work]:
    """Return what notebook 41 lets its encoder learn: science, then questions of five probes."""
    from psychlm.papers.richardson2020 import MOST_ADDED

    if not p["fine_tune"] or model != p["encoder"]:
        return []
    item, probes, epochs = 5 * TOKENS_A_CHOICE, 5, (8, 3)
    seeds = len(p["learning_rates"]) * p["n_seeds"] * probes
    added = [min(times * k, MOST_ADDED) for k in p["sizes"] for times in p["add_some"]]
    sizes = [k for k in p["sizes"] for _ in p["add_some"]]
    learnt = p["n_science"] * len(p["learning_rates"]) * epochs[0]
    learnt += (sum(sizes) + sum(added)) * seeds * epochs[1]
    read = len(sizes) * seeds * (p["n_check"] + probes * p["n_test"])
    return [Work(model, read * item, learnt * item, choices=5)]


def confusion(model: str, p: Mapping[str, Any]) -> list[Work]:
    """Return what notebook 50 lets its encoder learn, and the presentations that it reads."""
    from psychlm.papers.model_facts import TRAINING_SETS

    item, presentations = 4 * TOKENS_A_CHOICE, 4 + p["n_wrong"]
    read = len(p["benchmarks"]) * p["n_items"] * presentations * item
    learns = p["fine_tune"] and model == p["encoder"]
    most = {bank: n for bank, (_, n) in TRAINING_SETS.items()} if p["training_sets"] else {}
    n_items = sum(min(p["n_train"], most.get(bank, p["n_train"])) for bank in p["benchmarks"])
    return [Work(model, read, n_items * p["epochs"] * item if learns else 0.0, choices=4)]


def regimes(model: str, p: Mapping[str, Any]) -> list[Work]:
    """Return what an encoder learns in notebook 20: two of the four regimes train it."""
    learnt = 2 * p["n_models"] * p["epochs"] * p["n_train"]
    stopped_by = 2 * p["n_models"] * p["epochs"] * p["n_train"] / 5
    return [Work(model, stopped_by * TOKENS_A_CHOICE, learnt * TOKENS_A_CHOICE)]


WORK: dict[str, Callable[[str, Mapping[str, Any]], list[Work]]] = {
    "10_surprisal": word_tokens("ucl2023"),
    "11_reading_times": word_tokens("ucl2023"),
    "12_garden_paths": word_tokens("sap2024"),
    "15_gains_across_corpora": word_tokens("ucl2023", "naturalstories", "provo"),
    "20_psychometric_properties": regimes,
    "41_inoculation": inoculation,
    "50_confusion_probes": confusion,
}


def hub_models(parameters: Mapping[str, Any]) -> list[str]:
    """Return the names among a notebook's parameters that are neither here nor in a package."""
    names = [str(name) for key in MODEL_PARAMETERS for name in entries(parameters.get(key, []))]
    return [name for name in dict.fromkeys(names) if "/" in name and not Path(name).exists()]


def is_fetched(model: str) -> bool:
    """Return whether the weights of a model of the hub are in its local cache."""
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = model.partition("@")
    files = ("model.safetensors", "model.safetensors.index.json")
    return any(
        isinstance(try_to_load_from_cache(name, file, revision=revision or None), str)
        for file in files
    )


def datasets(notebook: Notebook, parameters: Mapping[str, Any]) -> list[str]:
    """Return the datasets that a notebook's first cell says it reads, and that parameters name."""
    registry = data.registry().index
    reads = re.search(r"\*Reads\*(.*?)(?:\*Writes\*|$)", notebook.cells[0][1], re.DOTALL)
    patterns = re.findall(r"`([\w./…-]+)`", reads[1]) if reads else []
    names = {str(value).partition("#")[0] for value in entries(dict(parameters))}
    for pattern in patterns:
        beginning = pattern.partition("…")[0]
        if "…" in pattern:
            names |= {name for name in registry if name.startswith(beginning)}
    names |= set(patterns)
    return [name for name in registry if name in names]


def gpu_bytes(work: Work) -> float:
    """Return the memory that a model takes while it reads or learns."""
    sizes = facts("hub_models").loc[work.model]
    weights = sizes["million_parameters"] * 1e6
    if not work.learnt:
        return 4 * weights
    length, hidden = TOKENS_A_CHOICE, sizes["hidden"]
    states = length * BATCH * work.choices * hidden * (34 + 5 * sizes["heads"] * length / hidden)
    return 16 * weights + states * sizes["layers"]


def plan(
    select: Sequence[str] = (),
    *,
    profile: Profile = "paper",
    parameters: Mapping[str, Any] | None = None,
    teraflops: float,
    gpu_memory_gb: float | None = None,
    root: Path | None = None,
) -> list[Row]:
    """Return what each notebook takes under a profile; nothing is fetched or run.

    Parameters
    ----------
    select, profile, parameters, root
        As :func:`psychlm.site.run` takes them.
    teraflops : float
        Peak of the device, in 10^12 operations per second.
    gpu_memory_gb : float, optional
        Its memory; a model whose weights do not fit to learn is a problem.

    Raises
    ------
    NotebookError
        If a notebook, the profile or a parameter is unknown or of the wrong type.
    """
    root = (root or data.root()).resolve()
    chosen = collection.select(collection.find(root), select)
    given = collection.run_parameters(root, chosen, profile, parameters)
    return [
        _row(
            notebook, notebook.parameters | given[notebook.name], profile, teraflops, gpu_memory_gb
        )
        for notebook in chosen
    ]


def _row(
    notebook: Notebook,
    values: Mapping[str, Any],
    profile: str,
    teraflops: float,
    memory: float | None,
) -> Row:
    row = Row(notebook.name, hub_models(values), datasets(notebook, values))
    row.notes += [text for name, text in LICENSED.items() if values.get(name) == ""]
    if profile == "paper" and notebook.number in LIMITS:
        row.notes.append(LIMITS[notebook.number])
    for name in row.data:
        entry = data.registry().loc[name]
        if not (data.where(name) or data.comes_with_project(name) or entry["url"]):
            row.problems.append(f"{name} has no public address: {entry['note']}")
    sizes, seconds = facts("hub_models"), 0.0
    for model in row.models:
        name = model.partition("@")[0]
        if name in ABSENT:
            row.problems.append(f"{name} cannot be opened: {ABSENT[name]}")
        elif name not in sizes.index:
            row.notes.append(f"the size of {name} is not known (data/facts/hub_models.csv)")
        else:
            package = sizes.at[name, "package"]
            if isinstance(package, str) and find_spec(package) is None:
                row.problems.append(f"{name} needs a package: pip install {package}")
            for work in WORK.get(notebook.name, lambda *_: [])(model, values):
                work = Work(name, work.read, work.learnt, work.choices)
                weights = 1e6 * sizes.at[name, "million_parameters"]
                seconds += (
                    weights * (2 * work.read + 6 * work.learnt) / (teraflops * 1e12 * SHARE_OF_PEAK)
                )
                row.gpu_bytes = max(row.gpu_bytes, gpu_bytes(work))
                least = (16 if work.learnt else 4) * weights / 1e9
                if memory and least > memory:
                    row.problems.append(f"{name} needs {least:.0f} GB of memory, of {memory:.0f}")
    last = index.read_report(index.reports_folder() / f"{notebook.name}.json") or {}
    if (last.get("status"), last.get("profile")) == ("complete", profile):
        row.hours, row.hours_from = float(last["seconds"]) / 3600, "last run"
    elif seconds:
        row.hours, row.hours_from = seconds / 3600, "computed"
    elif profile == "quick" and notebook.seconds:
        row.hours, row.hours_from = notebook.seconds / 3600, "stated"
    return row


def model_gb(models: Sequence[str]) -> float:
    """Return the gigabytes of models of the hub, each once, in float32."""
    names = {model.partition("@")[0] for model in models}
    sizes = facts("hub_models")["million_parameters"]
    return float(4e-3 * sizes.reindex(list(names)).fillna(0).sum())


def data_gb(names: Sequence[str]) -> float:
    """Return the gigabytes of datasets, each once."""
    return float(data.registry().loc[list(dict.fromkeys(names)), "bytes"].astype(float).sum() / 1e9)


def to_fetch(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the models and the datasets of some notebooks that are not on this machine."""
    models = dict.fromkeys(model for row in rows for model in row.models)
    names = dict.fromkeys(name for row in rows for name in row.data)
    absent = [n for n in names if not (data.where(n) or data.comes_with_project(n))]
    return [m for m in models if m not in ABSENT and not is_fetched(m)], absent


def shown_time(hours: float | None) -> str:
    """Return hours as seconds, minutes or hours.

    >>> shown_time(0.01), shown_time(0.25), shown_time(1240.0), shown_time(None)
    ('36 s', '15 min', '1,240 h', '')
    """
    if hours is None:
        return ""
    if hours < 2:
        return f"{60 * hours:.0f} min" if hours >= 1 / 60 else f"{max(3600 * hours, 1):.0f} s"
    return f"{hours:,.0f} h"


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the cells of the table that ``psychlm plan`` prints.

    Models and data are counted as "here / all". A time is that of the last run under the profile,
    computed from the cost model, or stated in the notebook's first cell.
    """
    header = ["notebook", "models", "data", "GB to\nfetch", "GB\nkept", "GPU\nGB", "time", "from"]
    cells = []
    for row in rows:
        models, names = to_fetch([row])
        fetched, kept = model_gb(models) + data_gb(names), model_gb(row.models) + data_gb(row.data)
        counts = [(len(row.models), len(models)), (len(row.data), len(names))]
        shown = [f"{n - absent}/{n}" if n else "" for n, absent in counts]
        shown += [f"{fetched:.2f}" if fetched else "", f"{kept:.2f}" if kept else ""]
        shown += [f"{row.gpu_bytes / 1e9:.1f}" if row.gpu_bytes else ""]
        shown += [shown_time(row.hours), row.hours_from]
        cells.append([row.notebook, *shown])
    return header, cells


def model_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each model of the hub: gigabytes, whether it is here, who reads it."""
    absent, _ = to_fetch(rows)
    lines = []
    for model in dict.fromkeys(model for row in rows for model in row.models):
        numbers = ", ".join(row.notebook[:2] for row in rows if model in row.models)
        state = "to fetch" if model in absent else "cannot be opened" if model in ABSENT else "here"
        lines.append(f"model {model}: {model_gb([model]):.2f} GB, {state}, in {numbers}")
    return lines


def total(rows: Sequence[Row]) -> str:
    """Return the sums over notebooks, where each model and dataset counts once."""
    models, names = to_fetch(rows)
    kept = model_gb([m for row in rows for m in row.models])
    kept += data_gb([n for row in rows for n in row.data])
    hours = [row.hours for row in rows if row.hours is not None]
    return (
        f"in all {model_gb(models) + data_gb(names):.2f} GB to fetch ({len(models)} models, "
        f"{len(names)} datasets), {kept:.2f} GB kept, {shown_time(sum(hours))} for {len(hours)} of "
        f"{len(rows)} notebooks"
    )


def lacks_disk(rows: Sequence[Row]) -> list[str]:
    """Return a line for each folder whose disk is too small for what is to be fetched there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    models, names = to_fetch(rows)
    lacking = []
    for folder, gb in ((HF_HUB_CACHE, model_gb(models)), (data.downloads(), data_gb(names))):
        here = next(p for p in (Path(folder), *Path(folder).parents) if p.exists())
        free = shutil.disk_usage(here).free / 1e9
        if gb > free:
            lacking.append(f"{gb:.1f} GB are to be fetched to {folder}, {free:.1f} GB are free")
    return lacking
