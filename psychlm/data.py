"""From a dataset's name to a verified local file; the numbers that the papers printed.

A read looks in ``$PSYCHLM_DATA``, in ``data/raw/``, in a lab share ``../shared/data/`` beside the checkout, and then
at the dataset's address in ``data/registry.csv``. What is found is checked against its SHA-256 on every read, and
what is fetched is moved into place only when it has been verified: nothing half-written is ever left behind.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pandas as pd

from psychlm.frames import FrameError

_asked: dict[str, str | None] = {}


class DataError(RuntimeError):
    """A dataset cannot be had: the message says which, why, and what to do."""


class DataMissingError(DataError):
    """A dataset lies nowhere on this machine and cannot be fetched."""


class ChecksumError(DataError):
    """A file was found, but it is not the dataset that the registry names."""


@cache
def root() -> Path:
    """Return the checkout: ``$PSYCHLM_ROOT``, the folder around the package, or one above the working directory."""
    candidates = [Path(__file__).resolve().parents[1], Path.cwd(), *Path.cwd().parents]
    if "PSYCHLM_ROOT" in os.environ:
        candidates = [Path(os.environ["PSYCHLM_ROOT"]).expanduser()]
    for candidate in candidates:
        if (candidate / "data" / "registry.csv").is_file():
            return candidate
    raise DataError(
        f"no psychlm checkout at {[str(c) for c in candidates[:3]]} (one that holds data/registry.csv); "
        "run inside a clone of the project, or set PSYCHLM_ROOT to one"
    )


@cache
def registry() -> pd.DataFrame:
    """Return the registry, indexed by name: ``file``, ``url``, ``sha256``, ``bytes``, ``licence``, ``citation`` ..."""
    return pd.read_csv(root() / "data" / "registry.csv", index_col="name", keep_default_na=False)


def _entry(name: str) -> pd.Series:
    """Return the registry's row of a dataset, or say which names come near."""
    if name not in registry().index:
        import difflib

        near = difflib.get_close_matches(name, registry().index, n=3, cutoff=0.4)
        raise DataError(
            f"no dataset is named {name!r}; near it: {near}. `psychlm data list` shows all of them"
        )
    return registry().loc[name]


def places() -> dict[str, Path]:
    """Return the folders that a read looks into, in their order, each under the name users know it by."""
    folders = {"PSYCHLM_DATA": os.environ.get("PSYCHLM_DATA"), "data/raw": root() / "data" / "raw"}
    folders["lab share"] = root().parent / "shared" / "data"
    return {place: Path(folder).expanduser() for place, folder in folders.items() if folder}


def where(name: str) -> tuple[str, Path] | None:
    """Return the place and path of a dataset on this machine (unverified), or None where only its url is left."""
    file = _entry(name)["file"]
    for place, folder in places().items():
        if (folder / file).is_file():
            return place, folder / file
    return None


def _sha256(path: Path) -> str:
    """Hash a file; one that cannot be read is a data error like any other."""
    import hashlib

    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); mend its permissions"
        ) from error


def verify(name: str) -> Path | None:
    """Return the path of a dataset whose checksum is right, or None where it is not on this machine.

    Raises
    ------
    ChecksumError
        If the file found first is not the registered one.
    """
    found, entry = where(name), _entry(name)
    if found is None:
        return None
    place, path = found
    actual = _sha256(path)
    if actual != entry["sha256"]:
        size = path.stat().st_size
        raise ChecksumError(
            f"{path} (found in {place}) is not the registered {name!r}: SHA-256 expected {entry['sha256']}, found "
            f"{actual}; bytes expected {entry['bytes']}, found {size}. Nothing was read. Delete or replace that file; "
            f"`psychlm data pull {name}` fetches a fresh one where it has an address"
        )
    return path


def path(name: str) -> Path:
    """Return the verified local path of a dataset, fetching it where it is on no shelf of this machine.

    Parameters
    ----------
    name : str
        A name of ``data/registry.csv``, for instance ``"laverghetta2021/human_panel"``.

    Raises
    ------
    DataError
        If the name is unknown, or the file cannot be read or stored.
    DataMissingError
        If the dataset is nowhere on this machine and cannot be fetched.
    ChecksumError
        If what was found or fetched is not the registered file.
    """
    _asked[name] = None
    found = verify(name) or fetch(name)
    _asked[name] = _entry(name)["sha256"]
    return found


def asked() -> dict[str, str | None]:
    """Return the datasets this process asked for, each with its SHA-256, or None where it could not be had."""
    return dict(_asked)


def forget_asked() -> None:
    """Begin a fresh list of the datasets asked for (a notebook does so in its setup cell)."""
    _asked.clear()


def fingerprint(names: Iterable[str]) -> dict[str, str | None]:
    """Return the SHA-256 that each dataset has on this machine now, None where it is absent: no fetching, no errors."""
    found = {name: where(name) if name in registry().index else None for name in names}
    return {name: _sha256(place[1]) if place else None for name, place in found.items()}


def fetch(
    name: str, *, progress: bool = False, download: Callable[[str, Path], None] | None = None
) -> Path:
    """Fetch a dataset from its address into ``data/raw/``, verify it, and only then move it into place.

    Parameters
    ----------
    progress : bool
        Show a progress bar.
    download : callable, optional
        Writes a url to a file; pooch's downloader unless given.
    """
    entry = _entry(name)
    if not entry["url"]:
        raise DataMissingError(
            f"{name!r} ({entry['file']}) is in none of {', '.join(map(str, places().values()))}, and has no public "
            f"address in this form: {entry['note']}. Copy it from a lab share, or set PSYCHLM_DATA to a folder with it"
        )
    target = root() / "data" / "raw" / entry["file"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
            fresh = Path(folder) / target.name
            _download(name, entry["url"], fresh, download or _pooch_download(progress))
            actual = _sha256(fresh)
            if actual != entry["sha256"]:
                raise ChecksumError(
                    f"{entry['url']} gave something else than {name!r}: SHA-256 expected {entry['sha256']}, found "
                    f"{actual}. It was thrown away; the address may answer with an error page: try it in a browser"
                )
            os.replace(fresh, target)
    except OSError as error:
        raise DataError(
            f"{name!r} cannot be stored under {target.parent} ({error.strerror}); nothing half-written is left there. "
            "Free the disk or mend the permissions, or set PSYCHLM_DATA to a folder that holds the file"
        ) from error
    return target


def _pooch_download(progress: bool) -> Callable[[str, Path], None]:
    """Return pooch's HTTP downloader as a function of url and file."""
    import pooch

    downloader = pooch.HTTPDownloader(progressbar=progress, timeout=20)
    return lambda url, file: downloader(url, str(file), None)


def _download(name: str, url: str, file: Path, download: Callable[[str, Path], None]) -> None:
    """Write a url to a file; ``archive.zip#member`` gives one member of an archive."""
    from requests.exceptions import RequestException

    address, _, member = url.partition("#")
    archive = file.with_name(Path(address).name)
    try:
        download(address, archive)
    except (RequestException, ImportError) as error:  # a Python without ssl raises the second
        raise DataMissingError(
            f"{name!r} is not on this machine and {address} did not answer ({type(error).__name__}); check the "
            f"network, or put {_entry(name)['file']} into data/raw/ or a folder named by PSYCHLM_DATA"
        ) from error
    if member:
        file.write_bytes(_member(archive, member))
    elif archive != file:
        archive.rename(file)


def _member(archive: Path, member: str) -> bytes:
    """Read one member of a zip or tar archive into memory; no path inside an archive ever touches the disk."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return opened.read(member)
        with tarfile.open(archive) as opened_tar:
            extracted = opened_tar.extractfile(member)
            return (extracted or io.BytesIO()).read()
    except (KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{archive.name} holds no readable {member!r} ({error}); its source may have changed"
        ) from error


def published(name: str) -> pd.DataFrame:
    """Return a table of numbers printed in a paper, with the table and page in its column ``source``.

    Parameters
    ----------
    name : str
        A file of ``data/published/`` without its suffix, for instance ``"laverghetta2021.table1"``.
    """
    folder = root() / "data" / "published"
    file = folder / f"{name}.csv"
    if not file.is_file():
        raise DataError(
            f"no published table {name!r}; there are {sorted(p.stem for p in folder.glob('*.csv'))}"
        )
    table = pd.read_csv(file)
    if "source" not in table.columns:
        raise FrameError(
            f"{file} has no column 'source'; every published number names its table and page"
        )
    return table


def state(names: Iterable[str] | None = None) -> Iterator[dict[str, object]]:
    """Yield for each dataset where it is and whether its checksum is right (``psychlm data list`` and ``verify``)."""
    for name in registry().index if names is None else names:
        entry, found = _entry(name), where(name)
        row = {
            "name": name,
            "bytes": int(entry["bytes"]),
            "place": found[0] if found else "",
            "path": found and found[1],
        }
        try:
            verify(name)
            row["state"] = (
                "verified"
                if found
                else ("can be fetched" if entry["url"] else "only from a lab share")
            )
            row["error"] = ""
        except DataError as error:
            row["state"], row["error"] = "corrupt", str(error)
        yield row


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and move it into place when the block succeeds.

    Every file that the package writes goes through this function: a reader sees the old file or
    the new one, and an error (a full disk, an interrupt) leaves no partial file.

    Examples
    --------
    >>> with atomic_write("fit.json") as part:  # doctest: +SKIP
    ...     part.write_text("{}")
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
