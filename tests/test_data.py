"""Reading data: verified, fetched, or refused with a clear error. Reference: hashlib's SHA-256."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest
from click.testing import CliRunner
from conftest import shared
from killed import kill_this_process, run_until_killed

from psychlm import cli, data
from psychlm._recipes import RECIPES, RecipeError
from psychlm.data import ChecksumError, DataError, DataMissingError

CONTENT = b"item_id,correct\n1,1\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small checkout with a registry: a plain file, and a member of an archive."""
    address = "https://example.org/abc/"
    rows = {
        "toy/answers": ("toy/answers.csv", f"{address}answers.csv"),
        "toy/member": ("toy/member.csv", f"{address}toy.zip#inside/member.csv"),
        "toy/shelf": ("toy/shelf.csv", ""),
    }
    registry = pd.DataFrame.from_dict(rows, orient="index", columns=["file", "url"])
    registry = registry.rename_axis("name").assign(
        recipe="",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        bytes=len(CONTENT),
        note="made from toys",
        **dict.fromkeys(["licence", "citation", "what"], "toy"),
    )
    root = tmp_path / "checkout"
    (root / "data" / "published").mkdir(parents=True)
    registry.to_csv(root / "data" / "registry.csv")
    monkeypatch.setenv("PSYCHLM_ROOT", str(root))
    monkeypatch.delenv("PSYCHLM_DATA", raising=False)
    data.root.cache_clear()
    data.registry.cache_clear()
    yield root
    data.root.cache_clear()
    data.registry.cache_clear()


def put(folder: Path, content: bytes = CONTENT, file: str = "toy/answers.csv") -> Path:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(content)
    return folder / file


def gives(content: bytes):
    return lambda url, file: Path(file).write_bytes(content)


def leftovers(root: Path) -> list[Path]:
    return [path for path in (root / "data" / "raw").rglob("*") if path.is_file()]


def test_places_are_looked_into_in_their_order(checkout, tmp_path, monkeypatch):
    shared = put(checkout.parent / "shared" / "data")
    assert data.path("toy/answers") == shared
    raw = put(checkout / "data" / "raw")
    assert data.path("toy/answers") == raw
    monkeypatch.setenv("PSYCHLM_DATA", str(tmp_path / "mine"))
    mine = put(tmp_path / "mine")
    assert data.path("toy/answers") == mine


def test_a_changed_file_is_refused_on_every_read(checkout: Path) -> None:
    file = put(checkout / "data" / "raw")
    data.path("toy/answers")
    file.write_bytes(CONTENT + b"2,0\n")
    message = r"expected [0-9a-f]{64}, found [0-9a-f]{64}.*Delete or replace.*pull"
    with pytest.raises(ChecksumError, match=message) as error:
        data.path("toy/answers")
    assert not isinstance(error.value, DataMissingError)  # nothing may be left out because of it
    assert data.asked()["toy/answers"] is None


def test_a_folder_named_by_psychlm_data_that_is_absent_is_an_error(checkout, tmp_path, monkeypatch):
    put(checkout / "data" / "raw")
    monkeypatch.setenv("PSYCHLM_DATA", str(tmp_path / "nowhere"))
    message = "PSYCHLM_DATA names .*nowhere, which is no folder"
    with pytest.raises(DataError, match=message) as error:
        data.path("toy/answers")
    assert not isinstance(error.value, DataMissingError)  # nothing may be left out because of it
    for words in ("data list", "data where toy/answers", "data pull toy/answers", "run 00"):
        run = CliRunner().invoke(cli.main, words.split())
        assert run.exit_code == 1
        assert "psychlm: PSYCHLM_DATA names" in run.output


def test_an_unknown_name_is_answered_with_near_ones(checkout: Path) -> None:
    with pytest.raises(DataError, match=r"'toy/answer'; near it: \['toy/answers'"):
        data.path("toy/answer")


def test_what_is_fetched_is_verified_then_moved(checkout: Path) -> None:
    assert data.fetch("toy/answers", download=gives(CONTENT)).read_bytes() == CONTENT
    assert leftovers(checkout) == [checkout / "data" / "raw" / "toy" / "answers.csv"]


def test_a_download_that_is_interrupted_leaves_nothing_half_written(checkout: Path) -> None:
    def download(url: str, file: str) -> None:
        Path(file).write_bytes(CONTENT[:5])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.fetch("toy/answers", download=download)
    assert not leftovers(checkout)


@pytest.mark.usefixtures("one_thread")
def test_a_killed_download_is_not_taken_for_the_file_and_its_rest_goes_after_a_day(checkout):
    def download(url: str, file: str) -> None:
        Path(file).write_bytes(CONTENT[:5])
        kill_this_process()

    run_until_killed(lambda: data.fetch("toy/answers", download=download))
    folder = checkout / "data" / "raw" / "toy"
    (rest,) = folder.glob(".fetching-*")
    for age_days, left in ((0, True), (2, False)):  # younger: another process may be at work
        then = time.time() - age_days * 24 * 3600
        os.utime(rest, (then, then))
        with pytest.raises(data.DataMissingError):
            data.path("toy/answers")
        assert data.fetch("toy/answers", download=gives(CONTENT)).read_bytes() == CONTENT
        assert rest.exists() is left
        (folder / "answers.csv").unlink()


@pytest.mark.parametrize(
    ("sent", "says"), [(CONTENT[:5], "did not answer"), (b"x" * len(CONTENT), "thrown away")]
)
def test_a_download_that_breaks_off_or_is_another_file_leaves_nothing(checkout, sent, says):
    """A server that announces the whole file, sends these bytes and hangs up."""

    class HangsUp(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), HangsUp) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        registry = checkout / "data" / "registry.csv"
        here = f"http://127.0.0.1:{server.server_port}/"
        registry.write_text(registry.read_text().replace("https://example.org/abc/", here))
        run = CliRunner().invoke(cli.main, ["data", "pull", "toy/answers"])
        server.shutdown()
    assert run.exit_code == 1 and says in run.output and "Traceback" not in run.output
    assert not leftovers(checkout)


def test_a_member_is_taken_from_its_archive(checkout: Path) -> None:
    zipped, tarred, other = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as opened:
        opened.writestr("inside/member.csv", CONTENT)
        opened.writestr("../escaped.csv", b"no")
    with tarfile.open(fileobj=tarred, mode="w:gz") as opened_tar:
        member = tarfile.TarInfo("inside/member.csv")
        member.size = len(CONTENT)
        opened_tar.addfile(member, io.BytesIO(CONTENT))
    with zipfile.ZipFile(other, "w") as opened:
        opened.writestr("other.csv", CONTENT)
    for archive in (zipped, tarred):
        data.fetch("toy/member", download=gives(archive.getvalue()))
        target = checkout / "data" / "raw" / "toy" / "member.csv"
        assert leftovers(checkout) == [target] and target.read_bytes() == CONTENT
        target.unlink()
    with pytest.raises(DataError, match=r"toy\.zip holds no readable 'inside/member\.csv'"):
        data.fetch("toy/member", download=gives(other.getvalue()))


def test_a_member_larger_than_the_dataset_is_refused_and_not_unpacked(checkout: Path) -> None:
    zipped, tarred, n_bytes = io.BytesIO(), io.BytesIO(), 5 * 10**7
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("inside/member.csv", bytes(n_bytes))
    with tarfile.open(fileobj=tarred, mode="w:gz") as opened_tar:
        member = tarfile.TarInfo("inside/member.csv")
        member.size = n_bytes
        opened_tar.addfile(member, io.BytesIO(bytes(n_bytes)))
    for archive in (zipped, tarred):
        tracemalloc.start()
        with pytest.raises(DataError, match="more than .* bytes, which the dataset has not"):
            data.fetch("toy/member", download=gives(archive.getvalue()))
        assert tracemalloc.get_traced_memory()[1] < n_bytes / 5
        tracemalloc.stop()
        assert not leftovers(checkout)


def test_a_dataset_without_an_address_says_where_it_comes_from(checkout: Path) -> None:
    with pytest.raises(DataMissingError, match="no public address in this form: made from toys"):
        data.path("toy/shelf")


PUBLIC = re.compile("https://raw.githubusercontent.com/[^/]+/[^/]+/[0-9a-f]{40}/(.*/)?")
ORIGINALS = {  # dataset: where its original lies beside the checkout
    "comprehenotes/responses": "data/comprehenotes",
    "comprehenotes/items": "data/comprehenotes",
    "provo/provo_texts": "originals/provo",
    "lm/novels/A-Room-with-a-View": "originals/novels",
}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP on the loopback address; yield the address."""
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def checkout_of(folder: Path, registry: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout that has a registry and nothing else."""
    (folder / "data").mkdir(parents=True)
    registry.to_csv(folder / "data" / "registry.csv")
    monkeypatch.setenv("PSYCHLM_ROOT", str(folder))
    monkeypatch.delenv("PSYCHLM_DATA", raising=False)
    for cached in (data.root, data.registry):
        cached.cache_clear()
    return folder


@pytest.fixture
def no_caches() -> Iterator[None]:
    yield
    for cached in (data.root, data.registry):
        cached.cache_clear()


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_recipe_makes_the_registered_file_from_the_original_that_is_served(
    name, no_caches, tmp_path, monkeypatch
):
    if name.startswith("comprehenotes") and shutil.which("Rscript") is None:
        pytest.skip("no R on PATH, which reads the release")
    registry = data.registry().copy()
    with serving(shared(ORIGINALS[name])) as address:
        registry["url"] = registry["url"].str.replace(PUBLIC, address, regex=True)
        root = checkout_of(tmp_path / "checkout", registry, monkeypatch)
        run = CliRunner().invoke(cli.main, ["data", "pull", name])
    assert run.exit_code == 0, run.output
    made = root / "data" / "raw" / registry.loc[name, "file"]
    assert hashlib.sha256(made.read_bytes()).hexdigest() == registry.loc[name, "sha256"]


def test_the_novels_come_with_the_project_and_other_numbers_are_facts(
    no_caches, tmp_path, monkeypatch
):
    registry, project = data.registry(), data.root() / "data"
    root = checkout_of(tmp_path / "checkout", registry, monkeypatch)
    (root / "data" / "novels.zip").symlink_to(project / "novels.zip")
    (root / "data" / "facts").symlink_to(project / "facts")
    here = registry.index.str.startswith("lm/novels/") | registry["url"].str.startswith("facts/")
    assert here.sum() == 28

    def refused(url: str, file: str) -> None:
        raise AssertionError(f"{url} is not needed")

    for name in registry.index[here]:
        data.fetch(name, download=refused)
        assert data.verify(name) == root / "data" / "raw" / registry.loc[name, "file"]


def test_every_dataset_made_from_another_file_has_a_recipe_or_says_that_it_has_none() -> None:
    registry = data.registry()
    assert set(registry["recipe"]) - {""} == set(RECIPES)
    made = registry["note"].str.startswith("made from")
    without = registry.index[made & (registry["url"] == "")]
    # their originals are words, or files that another program wrote
    assert set(without) == {
        "metabench/leaderboard",
        "sap2024/sentences",
        "wilcox2023/words",
        "frank2013/eyetracking_readings",
    }


def test_a_novel_without_marks_of_its_start_and_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1-0.txt").write_text("a page of errors")
    with pytest.raises(RecipeError, match="1-0.txt has no lines that mark its start"):
        RECIPES["gutenberg"]([tmp_path / "1-0.txt"])
    old = b"\xff\r\n***START OF THE PROJECT***\r\n\r\nCaf\xe9.\r\n*** END OF THE PROJECT ***\r\n"
    (tmp_path / "1-8.txt").write_bytes(old)
    assert RECIPES["gutenberg"]([tmp_path / "1-8.txt"]) == "Café.\n".encode()


def test_a_cache_that_cannot_be_written_is_named(checkout: Path) -> None:
    # root may write to any folder
    (checkout / "data" / "raw").write_text("a file where a folder is due")
    with pytest.raises(DataError, match="cannot be stored under .*raw.*PSYCHLM_DATA"):
        data.fetch("toy/answers", download=gives(CONTENT))


def test_fingerprints_follow_the_files(checkout: Path) -> None:
    assert data.fingerprint(["toy/answers"]) == {"toy/answers": None}
    put(checkout / "data" / "raw")
    assert data.fingerprint(["toy/answers"]) == {"toy/answers": hashlib.sha256(CONTENT).hexdigest()}
    assert data.fingerprint(["no/such"]) == {"no/such": None}


def test_published_tables_name_their_source(checkout: Path) -> None:
    (checkout / "data" / "published" / "paper.table1.csv").write_text("r,source\n0.5,Table 1\n")
    assert data.published("paper.table1")["r"].item() == 0.5
    (checkout / "data" / "published" / "paper.table2.csv").write_text("r\n0.5\n")
    with pytest.raises(ValueError, match="no column 'source'"):
        data.published("paper.table2")
    with pytest.raises(DataError, match=r"no published table 'paper\.table9'.*paper\.table1"):
        data.published("paper.table9")


def test_the_command_lists_verifies_and_finds(checkout: Path) -> None:
    file = put(checkout / "data" / "raw")
    run = CliRunner().invoke
    listing = run(cli.main, ["data", "list"])
    assert listing.exit_code == 0
    assert "verified" in listing.output
    assert "can be fetched" in listing.output
    assert run(cli.main, ["data", "where", "toy/answers"]).output.strip() == str(file)
    assert run(cli.main, ["data", "verify"]).exit_code == 0
    file.write_bytes(b"spoilt")
    for words in ("verify", "where toy/answers", "pull toy/shelf"):
        spoilt = run(cli.main, ["data", *words.split()])
        assert spoilt.exit_code == 1
        assert "psychlm: " in spoilt.output
        assert "Traceback" not in spoilt.output


def test_every_file_of_the_share_is_the_registered_one() -> None:
    shared("data")
    states = list(data.state())
    assert not [row["error"] for row in states if row["error"]]
    registry = data.registry()
    # what was released once, and not in a repository, is fetched when somebody wants it
    registered = [
        row for row in states if not registry.loc[row["name"], "note"].startswith("released once")
    ]
    assert len(registered) >= 96
    assert all(row["state"] == "verified" for row in registered)
