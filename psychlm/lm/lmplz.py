"""KenLM's programs: found on PATH, or built from the source distribution of ``kenlm`` into the user's cache.

``pip install kenlm`` brings only the module that asks models. ``lmplz``, which trains them, and ``query``, which checks
them, come from the same source with cmake and boost; the build takes about a minute of CPU time and is kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from psychlm.lm import cache

VERSION = "0.3.0"
SHA256 = "c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8"
PROGRAMS = ("lmplz", "query", "build_binary")
PACKAGES = (
    "cmake g++ make zlib1g-dev libbz2-dev liblzma-dev libboost-program-options-dev libboost-system-dev "
    "libboost-thread-dev libboost-test-dev"
)


class KenlmError(RuntimeError):
    """KenLM is missing, cannot be built, or refused its input: the message says which, why, and what to do."""


def built() -> Path:
    """Return the folder where built programs are kept: ``kenlm-VERSION/bin`` in the cache folder."""
    return cache.folder() / f"kenlm-{VERSION}" / "bin"


def program(name: str = "lmplz", *, build_missing: bool = True) -> Path:
    """Return one of KenLM's programs, from PATH, from the cache, or freshly built.

    Parameters
    ----------
    name : {"lmplz", "query", "build_binary"}
    build_missing : bool
        Build it where it is not found.

    Raises
    ------
    KenlmError
        If it is not here and cannot be, or must not be, built.
    """
    found = shutil.which(name) or shutil.which(name, path=str(built()))
    if found:
        return Path(found)
    if not build_missing:
        raise KenlmError(
            f"KenLM's {name} is neither on PATH nor in {built()}; psychlm.lm.lmplz.build() builds it"
        )
    return build() / name


def build(source: Path | None = None) -> Path:
    """Build KenLM's programs from its source distribution; return their folder.

    Parameters
    ----------
    source : Path, optional
        A ``kenlm-0.3.0.tar.gz`` that is here already; fetched with pip unless given.
    """
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        raise KenlmError(
            f"lmplz needs cmake and a C++ compiler to be built; on Debian: apt-get install {PACKAGES}"
        )
    target = built()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        work = Path(folder)
        archive = source or _fetch(work)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise KenlmError(
                f"{archive.name} is not kenlm {VERSION} (SHA-256 expected {SHA256}, found {found})"
            )
        with tarfile.open(archive) as opened:
            opened.extractall(work, filter="data")
        code, binaries = work / f"kenlm-{VERSION}", work / "build"
        _run(
            ["cmake", "-S", str(code), "-B", str(binaries), "-DCMAKE_BUILD_TYPE=Release"],
            "configure",
        )
        jobs = str(os.cpu_count() or 1)
        _run(
            ["cmake", "--build", str(binaries), "--parallel", jobs, "--target", *PROGRAMS],
            "compile",
        )
        if not target.exists():  # another process may have been faster
            (binaries / "bin").rename(target)
    return target


def _fetch(folder: Path) -> Path:
    """Let pip fetch the source distribution."""
    options = ["--no-deps", "--no-binary", "kenlm", "--quiet", "--dest", str(folder)]
    _run(
        [sys.executable, "-m", "pip", "download", *options, f"kenlm=={VERSION}"],
        "fetch the source of",
    )
    return folder / f"kenlm-{VERSION}.tar.gz"


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise KenlmError(
            f"could not {what} KenLM ({command[0]} returned {done.returncode}): {' | '.join(said)}. "
            f"On Debian its build needs: apt-get install {PACKAGES}. Or put an lmplz on PATH"
        )
