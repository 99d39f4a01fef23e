"""From a dataset's name to a verified local file; facts; printed numbers; files written at once.

A dataset is looked for in ``$PSYCHLM_DATA``, ``data/raw/``, a lab share ``../shared/data/`` beside
the checkout, the texts that come with the project, and at its address in ``data/registry.csv``. A
file is checked against its SHA-256 on every read. An installed wheel holds the registry and
``data/facts/``, the numbers of public studies; its downloads go to the user's cache folder.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COMMITTED = "novels.zip"  # public-domain texts, under their names in the registry
INSTALLED = Path(__file__).parent / "_data"  # where pyproject.toml puts the data into the wheel
ABANDONED_SECONDS = 24 * 3600  # age of a temporary folder whose process no longer runs
_asked: dict[str, str | None] = {}  # what this process asked for: see asked()
opened_models: dict[str, str] = {}  # language models that this process opened: their revisions


class DataError(RuntimeError):
    """A dataset cannot be had: the message says which, why, and what to do."""


class DataMissingError(DataError):
    """A dataset is not on this machine and cannot be fetched."""


class ChecksumError(DataError):
    """A file is not the dataset that the registry names."""


class OtherParametersError(DataMissingError):
    """A table of facts belongs to other parameters than those of the run."""


@cache
def root() -> Path:
    """Return the checkout: ``$PSYCHLM_ROOT``, or the folder around the package or this one."""
    candidates = [Path(__file__).resolve().parents[1], Path.cwd(), *Path.cwd().parents]
    if "PSYCHLM_ROOT" in os.environ:
        candidates = [Path(os.environ["PSYCHLM_ROOT"]).expanduser()]
    for candidate in candidates:
        if (candidate / "data" / "registry.csv").is_file():
            return candidate
    tried = [str(candidate) for candidate in candidates[:3]]
    raise DataError(f"no data/registry.csv in {tried}; set PSYCHLM_ROOT to a clone of the project")


def folder() -> Path:
    """Return the folder of registry and facts: ``data/`` of the checkout, or the wheel's."""
    try:
        return root() / "data"
    except DataError:
        if "PSYCHLM_ROOT" in os.environ or not (INSTALLED / "registry.csv").is_file():
            raise
        return INSTALLED


def cache_folder() -> Path:
    """Return the cache folder: ``$PSYCHLM_CACHE`` if it is set, else the platform's."""
    if os.environ.get("PSYCHLM_CACHE"):
        return Path(os.environ["PSYCHLM_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("psychlm"))


def downloads() -> Path:
    """Return where datasets are fetched to: ``data/raw/``, or a cache folder outside a checkout."""
    return cache_folder() / "data" if folder() == INSTALLED else folder() / "raw"


@cache
def registry() -> pd.DataFrame:
    """Return the registry, indexed by name: ``file``, ``url``, ``sha256``, ``licence`` ..."""
    import pandas as pd

    return pd.read_csv(folder() / "registry.csv", index_col="name", keep_default_na=False)


def _entry(name: str) -> pd.Series:
    """Return the registry's row of a dataset; an error suggests similar names."""
    if name not in registry().index:
        near = difflib.get_close_matches(name, registry().index, n=3, cutoff=0.4)
        raise DataError(
            f"no dataset is named {name!r}; near it: {near}. `psychlm data list` shows all of them"
        )
    return registry().loc[name]


def places() -> dict[str, Path]:
    """Return the folders that a read looks into, in order, by the name that messages give them."""
    folders = {"downloads": downloads()}
    if folder() != INSTALLED:
        folders = {"data/raw": downloads(), "lab share": folder().parents[1] / "shared" / "data"}
    if named := os.environ.get("PSYCHLM_DATA"):
        first = Path(named).expanduser()
        if not first.is_dir():
            raise DataError(f"PSYCHLM_DATA names {first}, which is no folder; correct or unset it")
        folders = {"PSYCHLM_DATA": first} | folders
    return folders


def where(name: str) -> tuple[str, Path] | None:
    """Return place and path of a dataset on this machine (unverified), or None if it is absent."""
    file = _entry(name)["file"]
    for folder_name, directory in places().items():
        if (directory / file).is_file():
            return folder_name, directory / file
    return None


def digest(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of texts and bytes, one after the other.

    >>> digest(["what a result ", b"depends on"]) == digest(["what a result depends on"])
    True
    """
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return sha.hexdigest()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); correct its rights") from error


def _difference(entry: pd.Series, file: Path) -> str:
    """Return how a file differs from the registry's: by SHA-256, or by size where none is known."""
    if expected := entry["sha256"]:
        actual = sha256(file)
        return "" if actual == expected else f"SHA-256 expected {expected}, found {actual}"
    size = file.stat().st_size
    return "" if size == entry["bytes"] else f"{entry['bytes']:,} bytes expected, found {size:,}"


def verify(name: str) -> Path | None:
    """Return the path of a dataset whose checksum is right, None where it is not here."""
    folder_name, file = where(name) or ("", None)
    if file is not None and (difference := _difference(_entry(name), file)):
        said = f"{file} (in {folder_name}) is not the registered {name!r}: {difference}"
        raise ChecksumError(f"{said}. Delete or replace it (`psychlm data pull {name}`)")
    return file


def path(name: str) -> Path:
    """Return the verified local path of a dataset; fetch it where it is not on this machine.

    ``name`` is one of ``data/registry.csv``. An unknown one is a :class:`DataError`, a file that
    cannot be had a :class:`DataMissingError`, and another file a :class:`ChecksumError`.

    >>> path("laverghetta2021/human_panel").suffix
    '.csv'
    """
    _asked[name] = None
    file = verify(name) or fetch(name)
    _asked[name] = _entry(name)["sha256"] or sha256(file)
    return file


def facts(name: str, **parameters: Any) -> pd.DataFrame:
    """Return a table of ``data/facts/``: numbers that come with the project.

    ``name`` is a file there without its suffix (sources and licences: ``data/README.md``), and
    ``parameters`` the run's values of all that the table depends on (:func:`facts_parameters`); if
    it belongs to others, it is an :class:`OtherParametersError`.

    >>> table = "models/science_check"
    >>> facts(table, **facts_parameters(table) | {"seed": 7})
    Traceback (most recent call last):
    psychlm.data.OtherParametersError: models/science_check is stored for seed=2020, not for seed=7
    """
    tables = folder() / "facts"
    file = tables / f"{name}.parquet"
    if not file.is_file():
        names = sorted(p.relative_to(tables).as_posix()[:-8] for p in tables.rglob("*.parquet"))
        raise DataError(f"no table of facts {name!r}; there are {names}")
    import pandas as pd

    stored = facts_parameters(name)
    if stored.keys() != parameters.keys():
        missing = sorted(stored.keys() - parameters)
        more = sorted(parameters.keys() - stored)
        raise TypeError(f"facts({name!r}) needs the parameters {missing}, and does not take {more}")
    broken = {key: _broken(rule, parameters[key]) for key, rule in stored.items()}
    if differ := [key for key, words in broken.items() if words]:
        said = ", ".join(f"{key}{broken[key]}" for key in differ)
        run = ", ".join(f"{key}={parameters[key]!r}" for key in differ)
        raise OtherParametersError(f"{name} is stored for {said}, not for {run}")
    _asked[f"facts/{name}"] = sha256(file)
    return pd.read_parquet(file)


def facts_parameters(name: str) -> dict[str, Any]:
    """Return the parameters that a table of facts depends on, from the ``index.csv`` beside it:
    values, or rules, ``{"at most": 100}``, ``{"any of": [...]}`` (some of these)."""
    index = (folder() / "facts" / name).parent / "index.csv"
    if not index.is_file():
        return {}
    import pandas as pd

    rows = pd.read_csv(index, keep_default_na=False).drop_duplicates("table")
    return json.loads(rows.set_index("table")["parameters"].get(Path(name).name, "{}"))


def _broken(rule: Any, value: Any) -> str:
    """Return in words the rule that a parameter's value breaks, "" where it keeps it."""
    entries = value if isinstance(value, list) else [value]
    if not isinstance(rule, dict):
        return "" if type(value) is type(rule) and value == rule else f"={rule!r}"
    if "at most" in rule:
        most = rule["at most"]
        return "" if all(0 < entry <= most for entry in entries) else f" at most {most}"
    among = rule["any of"]
    return "" if entries and all(entry in among for entry in entries) else f" among {among}"


def asked() -> dict[str, str | None]:
    """Return the datasets this process asked for, with their SHA-256 (None: could not be had)."""
    return dict(_asked)


def forget_asked() -> None:
    """Begin fresh lists of the datasets asked for and the models opened, as report.begin does."""
    _asked.clear()
    opened_models.clear()


def fingerprint(names: Iterable[str]) -> dict[str, str | None]:
    """Return the present SHA-256 of each dataset or table of facts, None where it is absent."""
    hashes: dict[str, str | None] = {}
    for name in names:
        file: Path | None = folder() / f"{name}.parquet"
        if name in registry().index:
            _, file = where(name) or ("", None)
        hashes[name] = sha256(file) if file and file.is_file() else None
    return hashes


def fetch(name: str) -> Path:
    """Put a dataset into ``data/raw/``: take it from the project, download it, or make it.

    The registry's ``url`` is an address, where ``#member`` names a member of an archive and
    ``{1..55}`` many files, or another dataset or table of facts, of which a ``recipe``
    (:mod:`psychlm._recipes`) makes the dataset.
    """
    from psychlm._recipes import RecipeError

    entry = _entry(name)
    if not entry["url"]:
        said = f"{name!r} ({entry['file']}) is in none of {', '.join(map(str, places().values()))}"
        said += f", and has no public address in this form: {entry['note']} ({entry['licence']})"
        raise DataMissingError(f"{said}; set PSYCHLM_DATA to a folder with it")
    places()  # a folder that PSYCHLM_DATA names but is absent is an error here, too
    target = downloads() / entry["file"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(".fetching-*"):  # by processes that were killed
            with suppress(FileNotFoundError):  # another process has just ended with it
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as temporary:
            fresh = Path(temporary) / target.name
            _make(name, fresh)
            if difference := _difference(entry, fresh):
                said = f"{entry['url']} gave something else than {name!r} ({difference})"
                raise ChecksumError(f"{said}, which was thrown away; try it in a browser")
            os.replace(fresh, target)
    except RecipeError as error:
        raise DataMissingError(f"{name!r} cannot be made from its original: {error}") from error
    except OSError as error:
        said = f"{name!r} cannot be stored under {target.parent} ({error.strerror}); nothing is "
        said += "left there. Free the disk, correct the rights, or set PSYCHLM_DATA to a folder"
        raise DataError(f"{said} with it") from error
    return target


def comes_with_project(name: str) -> bool:
    """Return whether a dataset is in ``data/novels.zip`` of this checkout."""
    archive = folder() / COMMITTED
    if not archive.is_file():
        return False
    with zipfile.ZipFile(archive) as opened:
        return _entry(name)["file"] in opened.namelist()


def _make(name: str, fresh: Path) -> None:
    """Write a dataset into a new file: from the project, or from originals in the same folder."""
    from psychlm._recipes import RECIPES, read_member

    entry = _entry(name)
    address, _, member = entry["url"].partition("#")
    if comes_with_project(name):
        content = read_member(folder() / COMMITTED, entry["file"])
    else:
        if address.startswith("facts/"):
            originals = [folder() / f"{address}.parquet"]
        elif address in registry().index:
            originals = [verify(address) or fetch(address)]
        else:
            originals = _downloaded(name, address, fresh.parent)
        if member:
            content = read_member(originals[0], member, int(entry["bytes"]))
        elif entry["recipe"]:
            content = RECIPES[entry["recipe"]](originals)
        else:
            os.replace(originals[0], fresh)
            return
    with atomic_write(fresh) as part:
        part.write_bytes(content)


def _downloaded(name: str, address: str, temporary: Path) -> list[Path]:
    """Return the files of an address, of which ``{1..55}`` are many, downloaded into a folder."""
    from requests.exceptions import RequestException

    addresses = [address]
    if many := re.search(r"\{(\d+)\.\.(\d+)\}", address):
        numbers = range(int(many[1]), int(many[2]) + 1)
        addresses = [address.replace(many[0], str(number)) for number in numbers]
    files = []
    for one in addresses:
        files.append(temporary / f"original-{Path(one).name}")
        try:
            _download(one, files[-1])
        except (RequestException, ImportError) as error:  # the second: a Python without ssl
            said = f"{name!r} is not on this machine and {one} did not answer "
            said += f"({type(error).__name__}); check the network, or put the file into "
            raise DataMissingError(f"{said}{downloads()}") from error
    return files


def _download(address: str, file: Path) -> None:
    """Write what an address gives into a file; a terminal shows the progress."""
    import pooch

    pooch.HTTPDownloader(sys.stderr.isatty(), timeout=20)(address, str(file), None)


def published(name: str) -> pd.DataFrame:
    """Return a table of numbers printed in a paper; its column ``source`` names table and page.

    ``name`` is a file of ``data/published/`` without its suffix.

    >>> published("laverghetta2021.table1").columns.tolist()
    ['category', 'population', 'r', 'p', 'source']
    """
    tables = folder() / "published"
    file = tables / f"{name}.csv"
    if not file.is_file():
        names = sorted(file.stem for file in tables.glob("*.csv"))
        raise DataError(f"no published table {name!r}; there are {names}")
    import pandas as pd

    table = pd.read_csv(file)
    if "source" not in table.columns:
        raise ValueError(f"{file} has no column 'source' that names table and page of a number")
    return table


def state(names: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """Check where datasets are and whether their checksums are right; all unless named.

    Yields
    ------
    dict
        The registry's row, with ``name``, ``place``, ``state`` and ``error``.
    """
    for name in registry().index if names is None else names:
        row = _entry(name).to_dict() | {"name": name, "place": (where(name) or ("",))[0]}
        absent = "can be fetched" if row["url"] else "only from a lab share"
        absent = "comes with the project" if comes_with_project(name) else absent
        try:
            yield row | {"state": "verified" if verify(name) else absent, "error": ""}
        except DataError as problem:
            yield row | {"state": "corrupt", "error": str(problem)}


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Write a file at once: a reader sees the old one or the new one, and errors leave no part.

    Yields
    ------
    Path
        A temporary path beside ``path``, moved into place when the block succeeds.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
