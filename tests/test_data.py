"""Reading data: verified, fetched, or refused with a clear error. Reference: hashlib's SHA-256."""

import hashlib
import io
import os
import re
import shutil
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import command
import pandas as pd
import pytest
from conftest import shared
from killed import kill_this_process, run_until_killed
from serving import serving

from psychlm import data
from psychlm.data import ChecksumError, DataError, DataMissingError

CONTENT = b"item_id,correct\n1,1\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def new_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Return a function that makes a checkout which has a registry and nothing else."""

    def make(registry: pd.DataFrame) -> Path:
        monkeypatch.delenv("PSYCHLM_DATA", raising=False)
        monkeypatch.setenv("PSYCHLM_ROOT", str(tmp_path / "checkout"))
        (tmp_path / "checkout" / "data" / "published").mkdir(parents=True)
        registry.to_csv(tmp_path / "checkout" / "data" / "registry.csv")
        for cached in (data.root, data.registry):
            cached.cache_clear()
        return tmp_path / "checkout"

    yield make
    for cached in (data.root, data.registry):
        cached.cache_clear()


@pytest.fixture
def raw(new_checkout: Callable) -> Path:
    """Make a small checkout: a plain file, a member of an archive, and a file without address."""
    urls = {
        "toy/answers": "https://example.org/abc/answers.csv",
        "toy/member": "https://example.org/abc/toy.zip#inside/member.csv",
        "toy/shelf": "",
    }
    registry = pd.DataFrame({"url": urls}).rename_axis("name")
    fields = {"sha256": DIGEST, "bytes": len(CONTENT), "note": "made from toys", "recipe": ""}
    fields |= dict.fromkeys(["licence", "citation", "what"], "toy")
    root = new_checkout(registry.assign(file=registry.index + ".csv", **fields))
    return root / "data" / "raw"


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let every address give some bytes."""
    monkeypatch.setattr(data, "_download", lambda address, file: file.write_bytes(content))


def put(folder: Path) -> Path:
    (folder / "toy").mkdir(parents=True, exist_ok=True)
    (folder / "toy" / "answers.csv").write_bytes(CONTENT)
    return folder / "toy" / "answers.csv"


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_places_are_looked_into_in_their_order(raw, tmp_path, monkeypatch):
    shared = put(tmp_path / "shared" / "data")
    assert data.path("toy/answers") == shared
    in_raw = put(raw)
    assert data.path("toy/answers") == in_raw
    monkeypatch.setenv("PSYCHLM_DATA", str(tmp_path / "mine"))
    mine = put(tmp_path / "mine")
    assert data.path("toy/answers") == mine


def test_a_changed_file_is_refused_on_every_read(raw: Path) -> None:
    assert data.fingerprint(["toy/answers", "no/such"]) == {"toy/answers": None, "no/such": None}
    file = put(raw)
    data.path("toy/answers")
    assert data.fingerprint(["toy/answers"]) == {"toy/answers": DIGEST}
    file.write_bytes(CONTENT + b"2,0\n")
    message = r"expected [0-9a-f]{64}, found [0-9a-f]{64}.*Delete or replace.*pull"
    with pytest.raises(ChecksumError, match=message) as error:
        data.path("toy/answers")
    assert not isinstance(error.value, DataMissingError)  # nothing may be left out because of it
    assert data.asked()["toy/answers"] is None


def test_a_file_whose_checksum_is_unknown_is_checked_by_its_size(raw: Path, monkeypatch) -> None:
    registry = raw.with_name("registry.csv")
    registry.write_text(registry.read_text().replace(DIGEST, ""))
    data.registry.cache_clear()
    give(monkeypatch, CONTENT + b"2,0\n")
    with pytest.raises(ChecksumError, match=f"{len(CONTENT)} bytes expected, found"):
        data.fetch("toy/answers")
    assert not leftovers(raw)
    give(monkeypatch, CONTENT)
    assert data.path("toy/answers").read_bytes() == CONTENT
    assert data.asked()["toy/answers"] == DIGEST


def test_a_folder_named_by_psychlm_data_that_is_absent_is_an_error(raw, tmp_path, monkeypatch):
    put(raw)
    monkeypatch.setenv("PSYCHLM_DATA", str(tmp_path / "nowhere"))
    message = "PSYCHLM_DATA names .*nowhere, which is no folder"
    with pytest.raises(DataError, match=message) as error:
        data.path("toy/answers")
    assert not isinstance(error.value, DataMissingError)  # nothing may be left out because of it
    for words in ("data list", "data where toy/answers", "data pull toy/answers", "run 00"):
        assert "psychlm: PSYCHLM_DATA names" in command.refused(*words.split())


def test_what_cannot_be_had_is_named_with_near_names_or_its_origin(raw, monkeypatch) -> None:
    with pytest.raises(DataError, match=r"'toy/answer'; near it: \['toy/answers'"):
        data.path("toy/answer")
    with pytest.raises(DataMissingError, match="no public address in this form: made from toys"):
        data.path("toy/shelf")
    give(monkeypatch, CONTENT)
    raw.write_text("a file where a folder is due")  # root may write to any folder
    with pytest.raises(DataError, match="cannot be stored under .*raw.*PSYCHLM_DATA"):
        data.fetch("toy/answers")


@pytest.mark.usefixtures("one_thread")
def test_the_rest_of_a_killed_download_is_no_dataset_and_goes_after_a_day(raw, monkeypatch):
    def killed(address: str, file: Path) -> None:
        file.write_bytes(CONTENT[:5])
        kill_this_process()

    monkeypatch.setattr(data, "_download", killed)
    run_until_killed(lambda: data.fetch("toy/answers"))
    (rest,) = (raw / "toy").glob(".fetching-*")
    give(monkeypatch, CONTENT)
    for age_days, left in ((0, True), (2, False)):  # younger: another process may be at work
        then = time.time() - age_days * 24 * 3600
        os.utime(rest, (then, then))
        assert data.verify("toy/answers") is None
        assert data.fetch("toy/answers").read_bytes() == CONTENT
        assert rest.exists() is left
        (raw / "toy" / "answers.csv").unlink()


@pytest.mark.parametrize(
    ("sent", "says"), [(CONTENT[:5], "did not answer"), (b"x" * len(CONTENT), "thrown away")]
)
def test_a_download_that_breaks_off_or_is_another_file_leaves_nothing(raw, sent, says):
    """A server that announces the whole file, sends these bytes and hangs up."""

    class HangsUp(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(sent)

    with serving(HangsUp) as address:
        registry = raw.with_name("registry.csv")
        registry.write_text(registry.read_text().replace("https://example.org/abc/", address))
        data.registry.cache_clear()
        assert says in command.refused("data", "pull", "toy/answers")
    assert not leftovers(raw)


def archives(content: bytes) -> list[bytes]:
    """Return a zip and a tar archive with the member of the toy dataset."""
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("inside/member.csv", content)
        opened.writestr("../escaped.csv", b"no")
    with tarfile.open(fileobj=tarred, mode="w:gz") as opened_tar:
        member = tarfile.TarInfo("inside/member.csv")
        member.size = len(content)
        opened_tar.addfile(member, io.BytesIO(content))
    return [zipped.getvalue(), tarred.getvalue()]


@pytest.mark.parametrize("kind", [0, 1], ids=["zip", "tar"])
def test_a_member_is_taken_from_its_archive(raw, monkeypatch, kind) -> None:
    archive = archives(CONTENT)[kind]
    give(monkeypatch, archive)
    data.fetch("toy/member")
    assert leftovers(raw) == [raw / "toy" / "member.csv"] and data.verify("toy/member")
    (raw / "toy" / "member.csv").unlink()
    give(monkeypatch, archive[: len(archive) // 2])
    with pytest.raises(DataError, match=r"toy\.zip holds no readable 'inside/member\.csv'"):
        data.fetch("toy/member")
    n_bytes = 5 * 10**7
    give(monkeypatch, archives(bytes(n_bytes))[kind])
    tracemalloc.start()
    with pytest.raises(DataError, match="more than .* bytes, which the dataset has not"):
        data.fetch("toy/member")
    assert tracemalloc.get_traced_memory()[1] < n_bytes / 5, "it is not unpacked"
    tracemalloc.stop()
    assert not leftovers(raw)


PUBLIC = re.compile("https://raw.githubusercontent.com/[^/]+/[^/]+/[0-9a-f]{40}/(.*/)?")
ORIGINALS = {  # dataset: where its original lies beside the checkout
    "comprehenotes/responses": "data/comprehenotes",
    "comprehenotes/items": "data/comprehenotes",
    "provo/provo_texts": "originals/provo",
    "lm/novels/A-Room-with-a-View": "originals/novels",
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_recipe_makes_the_registered_file_from_the_original_that_is_served(name, new_checkout):
    if name.startswith("comprehenotes") and shutil.which("Rscript") is None:
        pytest.skip("no R on PATH, which reads the release")
    registry = data.registry().copy()
    with serving(shared(ORIGINALS[name])) as address:
        registry["url"] = registry["url"].str.replace(PUBLIC, address, regex=True)
        root = new_checkout(registry)
        pulled = command.run("data", "pull", name)
    assert pulled.exit_code == 0, pulled.output
    made = root / "data" / "raw" / registry.loc[name, "file"]
    assert hashlib.sha256(made.read_bytes()).hexdigest() == registry.loc[name, "sha256"]


def test_the_novels_come_with_the_project_and_other_numbers_are_facts(new_checkout, monkeypatch):
    monkeypatch.setattr(data, "_download", lambda *_: pytest.fail("this needs the network"))
    registry, project = data.registry(), data.root() / "data"
    root = new_checkout(registry)
    for part in ("novels.zip", "facts"):
        (root / "data" / part).symlink_to(project / part)
    here = registry.index.str.startswith("lm/novels/") | registry["url"].str.startswith("facts/")
    assert here.sum() == 28
    for name in registry.index[here]:
        data.fetch(name)
        assert data.verify(name) == root / "data" / "raw" / registry.loc[name, "file"]


def test_published_tables_name_their_source(raw: Path) -> None:
    tables = raw.with_name("published")
    (tables / "paper.table1.csv").write_text("r,source\n0.5,Table 1\n")
    (tables / "paper.table2.csv").write_text("r\n0.5\n")
    assert data.published("paper.table1")["r"].item() == 0.5
    with pytest.raises(ValueError, match="no column 'source'"):
        data.published("paper.table2")
    with pytest.raises(DataError, match=r"no published table 'paper\.table9'.*paper\.table1"):
        data.published("paper.table9")


def test_every_file_of_the_share_is_the_registered_one() -> None:
    shared("data")
    states, notes = list(data.state()), data.registry()["note"]
    assert not [row["error"] for row in states if row["error"]]
    # what was released once, and not in a repository, is fetched when somebody wants it
    kept = [row for row in states if not notes[row["name"]].startswith("released once")]
    assert len(kept) >= 96 and all(row["state"] == "verified" for row in kept)
