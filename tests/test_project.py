"""The project's own files agree with each other, and the installer gets the settings of pip.

Reference: pyproject.toml."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from command import run
from conftest import ROOT

from psychlm import data
from psychlm._recipes import RECIPES

# where conda-forge's name is another than PyPI's
CONDA_NAME = {
    "torch": "pytorch",
    "huggingface-hub": "huggingface_hub",
    "lazy-loader": "lazy_loader",
}
CONDA_ONLY = {"python", "pip", "r-base", "r-mgcv", "r-lme4", "r-lmertest", "pandoc"}


def bounds_by_name(requirements: list[str]) -> dict[str, str]:
    return dict(re.match(r"([\w.-]+)\s*(.*)", one).groups() for one in requirements)  # type: ignore[union-attr]


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_environment_and_pyproject_name_the_same_packages_and_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = sum(project["optional-dependencies"].values(), [])
    wanted = bounds_by_name(project["dependencies"] + optional)
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, by_pip = environment["dependencies"]
    conda = bounds_by_name(packages + by_pip["pip"])
    assert len(conda) == len(packages + by_pip["pip"]), "a package stands there twice"
    assert conda["python"] == project["requires-python"]
    of_conda = {name: conda.pop(name) for name in CONDA_ONLY}
    assert conda == {CONDA_NAME.get(name, name): bounds for name, bounds in wanted.items()}
    assert len(of_conda) == len(CONDA_ONLY)


def test_the_top_level_holds_what_is_said_there_and_no_file_that_an_example_wrote() -> None:
    given = "notebooks psychlm data reports tests environment.yml README.md docs LICENSE Makefile "
    given += "CHANGELOG.md CITATION.cff CONTRIBUTING.md constraints.txt mkdocs.yml pyproject.toml"
    there = {name.split("/")[0] for name in output_of("git", "ls-files").splitlines()}
    assert {name for name in there if not name.startswith(".")} == set(given.split())


def test_registry_names_files_addresses_recipes_and_checksums() -> None:
    registry = data.registry()
    assert registry.index.is_unique and registry["file"].is_unique
    assert set(registry["recipe"]) - {""} == set(RECIPES)
    # of files that this project has never held the size is known, and the commit that they are of
    unseen = registry.index.str.startswith("mcqa/richardson2020/")
    assert registry.loc[~unseen, "sha256"].str.fullmatch("[0-9a-f]{64}").all()
    assert (registry["bytes"] > 0).all()
    # an address pins a commit, or holds a file that was released once; else a note says its origin
    noted = registry["note"].str.startswith(("made from", "released once"))
    assert (registry["url"].str.contains(r"/[0-9a-f]{40}/") | noted).all()
    assert (registry[["licence", "citation"]] != "").all().all()


def test_the_robustness_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+)::(test_\w+)`", (ROOT / "docs" / "robustness.md").read_text())
    files = {file.stem: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    assert named
    for module, test in named:
        assert f"def {test}(" in files.get(module, ""), f"{module}::{test}"


def test_links_and_options_of_the_command_in_the_documentation_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    names = r"run|new|irt fit|irt score|surprisal|responses"
    text = "\n".join(page.read_text() for page in pages)
    for command, arguments in re.findall(rf"psychlm ({names})([^`\n#]*)", text):
        shown = run(*command.split(), "--help").output
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in shown, f"psychlm {command} has no {option}"


def test_no_body_of_a_function_is_longer_than_a_hundred_lines() -> None:
    for file in (ROOT / "psychlm").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                short = not body or body[-1].end_lineno - body[0].lineno < 100
                assert short, f"{file.name}: {node.name}"


@pytest.mark.parametrize("hook", ["nbstripout", "codespell", "numpydoc"])
def test_the_hooks_of_pre_commit_would_change_nothing(hook: str) -> None:
    program = Path(sys.executable).with_name(hook)
    if not program.exists():
        pytest.skip(f"{hook} is not installed: make setup")
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (named,) = [one for one in settings["repos"][0]["hooks"] if one["id"] == hook]
    tracked = output_of("git", "ls-files").splitlines()
    files = [name for name in tracked if re.search(named.get("files", ""), name)]
    files = [name for name in files if (ROOT / name).is_file()]
    options = [*named["entry"].split()[1:], *(["--verify"] if hook == "nbstripout" else [])]
    output_of(str(program), *options, *files)


def table_of_files(page: str, files: int, licence: int) -> list[tuple[list[str], str]]:
    """Return from each row of a page's table the patterns of files and the licence."""
    lines = (ROOT / "data" / page).read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [row for row in rows if len(row) > max(files, licence)]
    return [(re.findall(r"`([^`]+)`", row[files]), row[licence].strip()) for row in rows]


def test_every_committed_data_file_has_one_row_with_its_licence_and_no_row_lacks_its_file() -> None:
    tracked = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", "data")
    files = [name.removeprefix("data/") for name in tracked.splitlines()]
    rows = table_of_files("README.md", files=0, licence=3)
    licences = {pattern: licence for patterns, licence in rows for pattern in patterns}
    for file in files:
        same_depth = [one for one in licences if one.count("/") == file.count("/")]
        assert sum(Path(file).match(one) for one in same_depth) == 1, file
    assert not [pattern for pattern in licences if not list((ROOT / "data").glob(pattern))]
    explained = {
        pattern: re.sub(r"\[|\].*", "", licence)
        for patterns, licence in table_of_files("LICENSES.md", files=1, licence=0)
        for pattern in patterns
    }
    free = ("MIT", "numbers made", "licence", "---", "public domain")
    for pattern, licence in licences.items():
        assert licence.startswith(free) or explained.get(pattern) == licence, pattern


def test_uv_gets_what_pip_is_configured_with(tmp_path, monkeypatch) -> None:
    settings = """[global]
index-url = https://packages.example/simple
extra-index-url = https://one.example/simple
    https://two.example/simple
find-links = /wheels
[install]
find-links = /other wheels-too
"""
    (tmp_path / "pip.conf").write_text(settings)
    for variable in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/certificates with a blank.pem")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine.example/simple")
    printed = output_of("bash", "-c", f'eval "$({sys.executable} .ci/uv_settings.py)"; env')
    variables = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert variables["UV_DEFAULT_INDEX"] == "https://mine.example/simple"  # the user's own
    assert variables["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
    assert variables["UV_FIND_LINKS"] == "/other,wheels-too"
    assert variables["SSL_CERT_FILE"] == "/certificates with a blank.pem"
