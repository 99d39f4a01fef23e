"""Killed runs, full disks, little memory, invalid input. Reference: an undisturbed run."""

from __future__ import annotations

import bz2
import os
import resource
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import refused, run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from psychlm import data, simulate
from psychlm.corpora import item_banks

ON_LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs Linux's limits of memory"
)
LIMITED = """\
import resource, sys
from psychlm import cli, frames, irt  # what they take is not what is tested
import io, pandas
table = io.BytesIO()
pandas.DataFrame({"a": [0.5]}).to_parquet(table)
pandas.read_parquet(table)  # it starts its threads
small = pandas.DataFrame({"a": [0, 1, 0, 1], "b": [0, 1, 1, 0], "c": [1, 0, 1, 0]})
irt.fit(small, standard_errors=False)
kind, allowance = sys.argv.pop(1), int(sys.argv.pop(1))
pages = int(open("/proc/self/statm").read().split()[0]) if kind == "AS" else 0
used = pages * resource.getpagesize()
resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (used + allowance,) * 2)
cli.main()
"""


def psychlm(
    *arguments: str, limit: tuple[str, int] | None = None, **environment: str
) -> subprocess.CompletedProcess:
    """Run the command in a process of its own; a limit is a name of RLIMIT_ and bytes."""
    start = ["from psychlm import cli; cli.main()"]
    if limit:
        start = [LIMITED, limit[0], str(limit[1])]
    options = {"capture_output": True, "text": True, "timeout": 300}
    options["env"] = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, "-c", *start, *arguments], **options)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("answers") / "answers.csv"
    simulate.responses(rng.normal(size=200), simulate.items(10, rng), rng).to_csv(file)
    return file


# archives and lines that grow


def bombs(folder: Path) -> dict[str, Path]:
    """Write files of under 2 MB that become hundreds of megabytes."""
    files = {name: folder / name for name in ("bomb.zip", "bomb.jsonl.bz2", "line.jsonl")}
    with (
        zipfile.ZipFile(files["bomb.zip"], "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("items.jsonl", "w") as member,
    ):
        for _ in range(600):
            member.write(b" " * 10**6)
    files["bomb.jsonl.bz2"].write_bytes(bz2.compress(b"{}\n" * 10**6) * 200)  # 200 streams
    files["line.jsonl"].write_bytes(b'{"id": [' + b"{}," * 600_000 + b"{}]}")
    return files


@ON_LINUX
def test_archives_and_lines_that_grow_as_no_text_does_are_refused_within_little_memory(tmp_path):
    for name, file in bombs(tmp_path).items():
        assert file.stat().st_size < 2 * 10**6
        source = f"{file}#items.jsonl" if name == "bomb.zip" else str(file)
        arguments = ["--probe", "no-question", "--out", str(tmp_path / "out.jsonl")]
        done = psychlm("probes", "confuse", source, *arguments, limit=("AS", 4 * 10**8))
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        says = "has at most 1,048,576" if name == "line.jsonl" else "which no text does"
        assert says in done.stderr


def test_texts_of_several_streams_and_of_ordinary_growth_are_read(tmp_path: Path) -> None:
    line = b'{"question": "Who fell on day %d?", "a": "the horse", "b": "the man"}\n'
    text = b"".join(line % i for i in range(2000))
    (tmp_path / "two.jsonl.bz2").write_bytes(bz2.compress(text) + bz2.compress(text))
    assert len(item_banks.read_records(tmp_path / "two.jsonl.bz2")) == 4000
    for broken in (bz2.compress(text)[:-20], b"no archive"):
        (tmp_path / "cut.jsonl.bz2").write_bytes(broken)
        with pytest.raises(data.DataError, match="no complete bz2 file"):
            item_banks.read_records(tmp_path / "cut.jsonl.bz2")


# starved


@ON_LINUX
def test_too_little_memory_is_an_error_and_no_hang(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((4000, 4000)) < 0.5).rename(columns=str)
    table.insert(0, "person", [f"p{i}" for i in range(len(table))])
    table.to_parquet(tmp_path / "answers.parquet")
    arguments = ["irt", "fit", str(tmp_path / "answers.parquet"), "--out", str(tmp_path / "f.json")]
    done = psychlm(*arguments, limit=("AS", 200_000_000))
    assert done.returncode == 1, done.stderr
    assert "psychlm: out of memory" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "f.json").exists()


@ON_LINUX
@pytest.mark.parametrize("megabytes", [250, 700])
def test_a_library_or_model_that_does_not_fit_into_memory_is_an_error(megabytes: int) -> None:
    arguments = "-m psychlm.cli surprisal 'Nobody scored this.' --no-cache"
    limited = f"ulimit -v {1000 * megabytes}; exec {shlex.quote(sys.executable)} {arguments}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(["bash", "-c", limited], env=environment, **options)
    assert done.returncode == 1 and done.stderr.startswith("psychlm: out of memory"), done.stderr
    assert len(done.stderr.splitlines()) == 1


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """Let the system refuse to write more bytes to a file, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_leaves_no_half_of_a_file(answers, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in ("registry.csv", data.COMMITTED):
        shutil.copy(data.folder() / name, tmp_path / "data" / name)
    (tmp_path / "out").mkdir()
    (tmp_path / "text.txt").write_text("The old man the boat. " * 200)
    commands = (
        ["irt", "fit", answers, "--out", tmp_path / "out" / "fit.json"],
        ["surprisal", tmp_path / "text.txt", "--out", tmp_path / "out" / "words.csv"],
        ["data", "pull", "lm/novels/A-Room-with-a-View"],
    )
    monkeypatch.setenv("PSYCHLM_ROOT", str(tmp_path))
    monkeypatch.delenv("PSYCHLM_DATA", raising=False)
    for cached in (data.root, data.registry):
        cached.cache_clear()
    with largest_file(500):
        printed = [refused(*command) for command in commands]
    for cached in (data.root, data.registry):
        cached.cache_clear()
    assert all("File too large" in text and "Free the disk" in text for text in printed)
    left = [*(tmp_path / "out").iterdir(), *(tmp_path / "data" / "raw").rglob("*.*")]
    assert left == []


def test_without_a_home_that_can_be_written_surprisal_is_computed_and_not_kept() -> None:
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME"), "/dev/null/nowhere")
    nowhere["PSYCHLM_CACHE"] = ""  # the platform's folder, whatever the tests run under
    done = psychlm("surprisal", "The old man the boat.", **nowhere)
    assert done.returncode == 0, done.stderr
    assert (
        "boat." in done.stdout
        and "results are not cached" in done.stderr
        and "Traceback" not in done.stderr
    )


# fed with garbage


FUZZED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_files_are_named(answers: Path, tmp_path: Path, share: float) -> None:
    parquet, fit = tmp_path / "answers.parquet", tmp_path / "fit.json"
    pd.read_csv(answers, index_col=0).to_parquet(parquet)
    assert run("irt", "fit", answers, "--out", fit).exit_code == 0
    reading_it = {
        parquet: ["fit", parquet, "--out", tmp_path / "o.json"],
        fit: ["score", fit, answers],
    }
    for file, arguments in reading_it.items():
        whole = file.read_bytes()
        file.write_bytes(whole[: int(share * len(whole))])
        assert file.name in refused("irt", *arguments)
        file.write_bytes(whole)


TABLES = st.one_of(
    st.binary(max_size=300), st.text(alphabet='01,\n"x. NaN;\t-', max_size=200).map(str.encode)
)
ITEMS = st.one_of(
    st.binary(max_size=200), st.text(alphabet='{}[]":,ab01 \n', max_size=120).map(str.encode)
)


@settings(FUZZED, max_examples=30)
@given(TABLES, ITEMS)
@example(b"\x00\n\x00", b"")  # a table without items
@example(b"p,N,N ,x\na,1,0,1\n", b"")  # two columns of one name, but for a space
def test_no_file_whatever_brings_a_traceback(tmp_path: Path, table: bytes, items: bytes) -> None:
    (tmp_path / "answers.csv").write_bytes(table)
    run("irt", "fit", tmp_path / "answers.csv", "--out", tmp_path / "fit.json")
    (tmp_path / "items.jsonl").write_bytes(items)
    arguments = ["--probe", "no-question", "--out", tmp_path / "out.jsonl"]
    run("probes", "confuse", tmp_path / "items.jsonl", *arguments)


def test_a_missing_or_unknown_thing_is_one_line() -> None:
    assert "nowhere.csv does not exist" in refused("irt", "fit", "nowhere.csv", "--out", "fit.json")
    assert "no dataset is named 'nothing'" in refused("data", "where", "nothing")
    assert "no notebook is 'zz'" in refused("run", "zz")
