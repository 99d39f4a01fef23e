"""The wheel outside a clone, share and network. References: README, mirt, a local server."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from serving import serving

import psychlm
from psychlm import ctt, irt

MAX_BYTES = 15e6
REFERENCE = ROOT / "tests" / "reference" / "irt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -e '.[test]'")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("psychlm-*.whl"))


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside the packages of this environment, but not beside its checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # a path alone: the files *.pth there, of which one names the checkout, are not read
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return packages


@pytest.fixture
def outside(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Return a function that runs a program of the environment in the present, empty folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    dropped = ("PYTHONPATH", "PSYCHLM_", "PYTEST_")
    environment = {name: os.environ[name] for name in os.environ if not name.startswith(dropped)}
    environment |= {"PSYCHLM_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg"}

    def run(program: str, *arguments: str) -> str:
        command = [str(packages.parents[2] / "bin" / program), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_is_small_and_says_what_it_is(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    metadata = Parser().parsestr(text)
    for licence in ("MIT", "CC-BY-SA-4.0", "CC-BY-NC-SA-4.0"):
        assert licence in metadata["License-Expression"].split(" AND ")
    assert metadata.get_all("License-File") == ["LICENSE", "data/LICENSES.md"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert not [extra for extra in metadata.get_all("Provides-Extra") if f"`{extra}`" not in page]
    facts = {f"psychlm/_{f.relative_to(ROOT)}" for f in (ROOT / "data" / "facts").rglob("*.*")}
    assert facts <= set(names)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert metadata["Version"] == psychlm.__version__ == citation["version"]
    heading = f"## {citation['version']} - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_surprisal_irt_and_a_card_run_from_the_shell_outside_a_clone(outside) -> None:
    Path("story.txt").write_text("The old man the boat.")
    outside("psychlm", "surprisal", "story.txt", "--out", "words.csv")
    assert pd.read_csv("words.csv")["word"].tolist() == ["The", "old", "man", "the", "boat."]
    lsat = pd.read_csv(REFERENCE / "data_LSAT6.csv")
    lsat.rename_axis("person").to_csv("lsat.csv")
    outside("psychlm", "irt", "fit", "lsat.csv", "--out", "fit.json")
    wanted = "dataset == 'LSAT6' and model == '2PL' and fit == 'tight_TOL1e-6'"
    mirt = pd.read_csv(REFERENCE / "items.csv").query(wanted)
    items = irt.IRTFit.from_json("fit.json").items
    np.testing.assert_allclose(items[["a", "b"]], mirt[["a", "b"]], atol=0.005)
    printed = outside("psychlm", "card", "test", "lsat.csv", "-p", "fast=True")
    assert "reliability alpha" in printed
    numbers = json.loads(Path("lsat.json").read_text())["numbers"]
    alpha = next(row for row in numbers if row["key"] == "card.reliability_alpha")
    assert alpha["value"] == pytest.approx(ctt.cronbach_alpha(lsat))
    assert "<html" in Path("lsat.html").read_text()


def test_data_are_listed_pulled_and_found_outside_a_clone(outside, packages, tmp_path) -> None:
    content, file = b"person,item\n1,1\n", packages / "psychlm" / "_data" / "registry.csv"
    (tmp_path / "items.csv").write_bytes(content)
    registry = pd.read_csv(file, index_col="name", keep_default_na=False)
    assert len(outside("psychlm", "data", "list").splitlines()) > len(registry)
    name = "ucl2023/item-set"
    with serving(tmp_path) as address:
        registry.loc[name, "url"] = f"{address}items.csv"
        registry.loc[name, "sha256"] = hashlib.sha256(content).hexdigest()
        registry.to_csv(file)
        outside("psychlm", "data", "pull", name)
    stored = Path(outside("psychlm", "data", "where", name).strip())
    assert stored.is_relative_to(tmp_path / "cache") and stored.read_bytes() == content
    # and what is made from facts needs no network
    outside("psychlm", "data", "pull", "laverghetta2021/human_panel")
    assert "laverghetta2021" in outside("psychlm", "data", "where", "laverghetta2021/human_panel")
