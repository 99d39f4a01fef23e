"""Runs with the papers' models, packed and merged. Reference: the run's own report."""

import json
import runpy
import zipfile
from pathlib import Path

import pytest
from command import refused, run
from conftest import ROOT
from toy_notebooks import write_notebook

from psychlm import site
from psychlm.site import bundles

NUMBERS = """
from psychlm import data
data.opened_models["lab/large"] = "0123456789abcdef0123456789abcdef01234567"
report.record("toy.r", 0.5)
report.record("toy.text", "The old man the boat.")
report.verdict("It runs.", support="Once.", outcome="partly", rests_on="toys")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout of one notebook, run under the profile of the papers."""
    root = tmp_path_factory.mktemp("checkout")
    cell = 'draws = 50  # draws\nmodels = ["default"]\ndundee = ""'
    write_notebook(root, "10_items", NUMBERS, parameters=cell)
    (root / "notebooks" / "paper.yaml").write_text("10_items: {models: [lab/large]}")
    given = {"dundee": "/home/somebody/dundee"}
    (outcome,) = site.run(profile="paper", root=root, reports=root / "reports", parameters=given)
    assert outcome.status == "done", outcome.error
    return root


@pytest.fixture
def bundle(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundles, "folder", lambda: tmp_path / "paper_runs")
    assert bundles.pack(tmp_path / "mine.zip", ran / "reports") == ["10_items"]
    return tmp_path / "mine.zip"


def test_a_bundle_holds_numbers_verdict_and_provenance_and_neither_texts_nor_folders(bundle, ran):
    content = bundles.unpack(bundle)["10_items"]
    whole = json.loads((ran / "reports" / "10_items.json").read_text())
    assert content["numbers"] == [n for n in whole["numbers"] if n["key"] == "toy.r"]
    assert content["verdict"] == whole["verdict"]
    assert content["verdict"]["models"] == "with the paper's models"
    assert content["provenance"]["versions"] == whole["provenance"]["versions"]
    assert "old man" not in json.dumps(content) and "somebody" not in json.dumps(content)


def test_a_merged_bundle_fills_the_column_of_the_results(bundle, ran):
    tables = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    mine = {"sentence": "No.", "support": "Once.", "outcome": "not", "rests_on": "toys"}
    before = tables["verdict_table"]({"10_items": mine | {"models": "with stand-ins"}}, {})
    assert "| not with stand-ins |  | toys |" in before
    assert bundles.merge(bundle, ran) == ["10_items"]
    papers = {name: run["verdict"] for name, run in bundles.merged_runs().items()}
    assert "| partly: It runs. | toys |" in tables["verdict_table"]({"10_items": mine}, papers)


TAMPERED = {
    "modules": ("provenance", "modules", {"data.py": "0" * 16}, r"other code.*data\.py"),
    "models": ("provenance", "models", {"lab/large": "main"}, "no commit of lab/large"),
    "data": ("provenance", "data", {"mcqa/piqa/valid": "0" * 64}, "its data differ: mcqa/piqa"),
    "facts": ("provenance", "data", {"facts/provo/words": "0" * 64}, "data differ: facts/provo"),
    "parameters": ("provenance", "parameters", {"draws": 5}, "other values of draws, models"),
    "profile": (None, "profile", "quick", "of the profile quick"),
    "status": (None, "status", "failed", "it is failed"),
    "numbers": (None, "numbers", [{"value": 1}], "malformed"),
    "outcome": ("verdict", "outcome", "proved", "its outcome is 'proved'"),
    "name": (None, "notebook", "11_other", "no such notebook"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_run_of_other_code_data_or_parameters_is_refused(what, bundle, ran, tmp_path):
    part, key, value, says = TAMPERED[what]
    content = bundles.unpack(bundle)["10_items"]
    (content[part] if part else content)[key] = value
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as opened:
        opened.writestr("runs.json", json.dumps({"10_items": content}))
    with pytest.raises(bundles.BundleError, match=f"10_items: .*{says}"):
        bundles.merge(tmp_path / "other.zip", ran)
    assert not (tmp_path / "paper_runs").exists()


@pytest.mark.parametrize("raw", [b"[", b'{"10_items": {}}'], ids=["half", "empty"])
def test_a_file_that_is_no_bundle_is_refused(raw, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as opened:
        opened.writestr("runs.json", raw)
    with pytest.raises(bundles.BundleError, match="no bundle"):
        bundles.unpack(tmp_path / "bad.zip")


def test_the_command_packs_and_says_what_is_missing(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_REPORTS", str(ran / "reports"))
    assert "10_items" in run("report", "--bundle", tmp_path / "a.zip").output
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    lacking = refused("report", "--bundle", tmp_path / "b.zip")
    assert "no complete report of the profile paper" in lacking
    assert "name one of --bundle" in refused("report")
