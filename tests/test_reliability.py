"""Full disks, little memory, files that grow, truncated and random ones."""

import bz2
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import refused, run
from hypothesis import example, given
from hypothesis import strategies as st

from psychlm import data, simulate
from psychlm.corpora import item_banks

ON_LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs Linux's limits of memory"
)
COMMAND = "from psychlm import cli; cli.main()"
# the same with 100 MB more than the libraries and their threads take, which is not what is tested
WITHIN_100_MB = """\
import io, resource, sys
import pandas
from psychlm import cli, corpora, frames, irt
table = io.BytesIO()
pandas.DataFrame({"a": [0.5]}).to_parquet(table)
pandas.read_parquet(table)
small = pandas.DataFrame({"a": [0, 1, 0, 1], "b": [0, 1, 1, 0], "c": [1, 0, 1, 0]})
irt.fit(small, standard_errors=False)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 100_000_000
resource.setrlimit(resource.RLIMIT_AS, (most, most))
cli.main()
"""


def psychlm(
    *arguments: object, code: str = COMMAND, ulimit: str = "-c 0", **environment: str
) -> subprocess.CompletedProcess:
    """Run the command in a process of its own, under a limit of the shell."""
    command = ["bash", "-c", f'ulimit {ulimit}; exec "$@"', "-", sys.executable, "-c", code]
    options = {"capture_output": True, "text": True, "timeout": 300}
    options["env"] = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([*command, *map(str, arguments)], **options)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("answers") / "answers.csv"
    simulate.responses(rng.normal(size=200), simulate.items(10, rng), rng).to_csv(file)
    return file


# files of under 2 MB that become hundreds of megabytes


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.jsonl.bz2", "line.jsonl"])
def test_archives_and_lines_that_grow_as_no_text_does_are_refused_within_little_memory(
    name, tmp_path
):
    file, source, says = tmp_path / name, tmp_path / name, "which no text does"
    if name == "bomb.zip":
        source = f"{file}#items.jsonl"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("items.jsonl", b" " * (6 * 10**8))
    elif name == "bomb.jsonl.bz2":
        file.write_bytes(bz2.compress(b"{}\n" * 10**6) * 200)  # 200 streams
    else:
        says = "has at most 1,048,576"
        file.write_bytes(b'{"id": [' + b"{}," * 600_000 + b"{}]}")
    assert file.stat().st_size < 2 * 10**6
    tracemalloc.start()
    assert says in refused("responses", source, "--model", "default")
    assert tracemalloc.get_traced_memory()[1] < 4 * 10**8
    tracemalloc.stop()


def test_texts_of_several_streams_and_of_ordinary_growth_are_read(tmp_path: Path) -> None:
    line = b'{"question": "Who fell on day %d?", "a": "the horse", "b": "the man"}\n'
    text = bz2.compress(b"".join(line % i for i in range(2000)))
    (tmp_path / "two.jsonl.bz2").write_bytes(text + text)
    assert len(item_banks.read_records(tmp_path / "two.jsonl.bz2")) == 4000
    (tmp_path / "cut.jsonl.bz2").write_bytes(text[:-20])
    with pytest.raises(data.DataError, match="no complete bz2 file"):
        item_banks.read_records(tmp_path / "cut.jsonl.bz2")


# starved


@pytest.mark.slow
@ON_LINUX
def test_too_little_memory_is_an_error_and_no_hang(tmp_path: Path) -> None:
    table = pd.DataFrame(np.random.default_rng(0).random((10_000, 800)) < 0.5).rename(columns=str)
    table.insert(0, "person", [f"p{i}" for i in range(len(table))])
    table.to_parquet(tmp_path / "answers.parquet")
    arguments = ["irt", "fit", tmp_path / "answers.parquet", "--out", tmp_path / "fit.json"]
    done = psychlm(*arguments, code=WITHIN_100_MB)
    assert done.returncode == 1, done.stderr
    assert "psychlm: out of memory" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "fit.json").exists()


@ON_LINUX
@pytest.mark.parametrize("megabytes", [250, 700])
def test_a_library_or_model_that_does_not_fit_into_memory_is_an_error(megabytes: int) -> None:
    limit = f"-v {1000 * megabytes}"
    done = psychlm("surprisal", "Nobody scored this.", "--no-cache", ulimit=limit)
    assert done.returncode == 1 and done.stderr.startswith("psychlm: out of memory"), done.stderr
    assert len(done.stderr.splitlines()) == 1


@ON_LINUX
def test_a_full_disk_is_named_and_leaves_no_half_of_a_file(answers, tmp_path, monkeypatch):
    import resource  # not on Windows

    (tmp_path / "data").mkdir()
    for name in ("registry.csv", data.COMMITTED):
        shutil.copy(data.folder() / name, tmp_path / "data" / name)
    (tmp_path / "text.txt").write_text("The old man the boat. " * 200)
    before = {file for file in tmp_path.rglob("*") if file.is_file()}
    monkeypatch.setenv("PSYCHLM_ROOT", str(tmp_path))
    monkeypatch.setenv("PSYCHLM_DATA", "")
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    for command in (
        ["irt", "fit", answers, "--out", tmp_path / "fit.json"],
        ["surprisal", tmp_path / "text.txt", "--out", tmp_path / "words.csv"],
        ["data", "pull", "lm/novels/A-Room-with-a-View"],
    ):
        # the system writes no more than a kilobyte to a file, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, most))
        try:
            printed = refused(*command)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        assert "File too large" in printed and "Free the disk" in printed
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == before


def test_without_a_home_that_can_be_written_surprisal_is_computed_and_not_kept() -> None:
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME"), "/dev/null/nowhere")
    nowhere["PSYCHLM_CACHE"] = ""  # the platform's folder, whatever the tests run under
    done = psychlm("surprisal", "The old man the boat.", **nowhere)
    assert done.returncode == 0 and "boat." in done.stdout, done.stderr
    assert "results are not cached" in done.stderr and "Traceback" not in done.stderr


# fed with garbage


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_truncated_files_are_named(answers: Path, tmp_path: Path, share: float) -> None:
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    pd.read_csv(answers, index_col=0).to_parquet(whole)
    cut.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
    assert "cut.parquet" in refused("irt", "fit", cut, "--out", tmp_path / "fit.json")
    assert run("irt", "fit", answers, "--out", tmp_path / "fit.json").exit_code == 0
    fit = (tmp_path / "fit.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(fit[: int(share * len(fit))])
    assert "cut.json" in refused("irt", "score", tmp_path / "cut.json", answers)


TABLES = st.one_of(
    st.binary(max_size=300), st.text(alphabet='01,\n"x. NaN;\t-', max_size=200).map(str.encode)
)
ITEMS = st.one_of(
    st.binary(max_size=200), st.text(alphabet='{}[]":,ab01 \n', max_size=120).map(str.encode)
)


@given(TABLES, ITEMS)
@example(b"\x00\n\x00", b"")  # a table without items
@example(b"p,N,N ,x\na,1,0,1\n", b"")  # two columns of one name, but for a space
def test_no_file_whatever_brings_a_traceback(tmp_path: Path, table: bytes, items: bytes) -> None:
    (tmp_path / "answers.csv").write_bytes(table)
    run("irt", "fit", tmp_path / "answers.csv", "--out", tmp_path / "fit.json")
    (tmp_path / "items.jsonl").write_bytes(items)
    run("responses", tmp_path / "items.jsonl", "--model", "default")
