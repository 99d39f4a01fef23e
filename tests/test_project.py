"""The project's own files agree with each other. Reference: pyproject.toml."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from command import run
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONDA_NAME = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}
CONDA_ONLY = {"python", "pip", "r-base", "r-mgcv", "r-lme4", "r-lmertest", "pandoc"}
TOP_LEVEL = {"notebooks", "psychlm", "data", "reports", "tests", "docs", "environment.yml"}
TOP_LEVEL |= {"README.md"}
CONFIGURATION = {"Makefile", "mkdocs.yml", "pyproject.toml", "constraints.txt", "LICENSE"}
CONFIGURATION |= {"CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])


def split(requirement: str) -> tuple[str, str]:
    name, bounds = re.match(r"([\w.-]+)\s*(.*)", requirement).groups()  # type: ignore[union-attr]
    return name, bounds


def output_of(*command: str, **options: Any) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, **options)
    return done.stdout


def test_environment_and_pyproject_name_the_same_packages_and_bounds() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, by_pip = environment["dependencies"]
    conda = dict(map(split, packages + by_pip["pip"]))
    wanted = {CONDA_NAME.get(name, name): bounds for name, bounds in map(split, REQUIREMENTS)}
    assert {name: conda[name] for name in conda if name not in CONDA_ONLY} == wanted
    assert set(conda) >= CONDA_ONLY
    assert conda["python"] == PROJECT["requires-python"]


def test_constraints_pin_every_dependency_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if re.match(r"\w", line)]
    pins = {canonicalize_name(name): version for name, version in pinned}
    for requirement in map(Requirement, REQUIREMENTS):
        if requirement.name != "torch":  # the Makefile chooses it
            pin = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), requirement


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


def test_the_top_level_of_the_repository_holds_the_agreed_folders_and_files() -> None:
    top = {line.split("/")[0] for line in output_of("git", "ls-files").splitlines()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL | CONFIGURATION
    assert top >= TOP_LEVEL


def test_registry_names_files_addresses_and_checksums() -> None:
    registry = pd.read_csv(ROOT / "data" / "registry.csv", keep_default_na=False)
    assert registry["name"].is_unique and registry["file"].is_unique
    assert registry["sha256"].str.fullmatch("[0-9a-f]{64}").all()
    # an address pins a commit, or holds a file that was released once; else a note says its origin
    noted = registry["note"].str.startswith(("made from", "released once"))
    assert (registry["url"].str.contains(r"/[0-9a-f]{40}/") | noted).all()
    assert (registry[["licence", "citation"]] != "").all().all()


def test_every_make_target_documents_itself() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.M)
    for target in " ".join(phony).split():
        assert re.search(rf"^{target}:.*## \w", makefile, flags=re.M), target


def test_the_robustness_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+)::(test_\w+)`", (ROOT / "docs" / "robustness.md").read_text())
    assert len(named) > 25
    files = {file.stem: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    for module, test in named:
        assert f"def {test}(" in files.get(module, ""), f"{module}::{test}"


def test_links_and_options_of_the_command_in_the_documentation_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    names = r"run|new|irt fit|irt score|surprisal|responses"
    used = re.findall(rf"psychlm ({names})([^`\n#]*)", text)
    assert len(used) > 8
    for command, arguments in used:
        shown = run(*command.split(), "--help").output
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in shown, f"psychlm {command} has no {option}"


# BSD's paste wants its standard input named; its tr refuses bytes that are no character
BSD_PASTE = 'case " $* " in *" - "*) exec /usr/bin/paste "$@";; *) exit 1;; esac'


BSD_TR = '[ "${LC_ALL:-}" = C ] || { cat > /dev/null; echo "tr: Illegal byte" >&2; exit 1; }\n'
BSD_TR += 'exec /usr/bin/tr "$@"'


def run_script(folder: Path, name: str, *arguments: object, **programs: str) -> tuple[Any, list]:
    """Run a script of .ci with scripts in place of programs; return its result and the calls."""
    calls = folder / "calls"
    for program, body in programs.items():
        script = folder / program
        script.write_text(f'#!/bin/bash\necho "{program} $*" >> {calls}\n{body}\n')
        script.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("LC_ALL", None)
    command = ["bash", str(ROOT / ".ci" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    return done, calls.read_text().splitlines()


def install(folder: Path, extras: str, **programs: str) -> tuple[Any, list]:
    """Install with a pip that is a script; the settings are read by Python."""
    pip = f'"-m pip") shift 2; exec {folder}/pip "$@"'
    python = f'case "$1 $2" in {pip};; *) exec {sys.executable} "$@";; esac'
    programs |= {"python": python, "paste": BSD_PASTE}
    return run_script(folder, "install_python", folder / "python", "torch", extras, **programs)


BUILDS = """
case "$*" in
  *,r]*) echo "Failed to build rpy2-rinterface"; echo "ld: cannot find -lblas: no file"; exit 1;;
  *models*) echo "Built rpy2"; echo "Failed to build gguf"
    echo "fatal error: Python.h: No such file"; exit 1;;
esac
"""


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_part_that_does_not_build_is_named_with_the_missing_file_and_left_out(
    installer, tmp_path
):
    programs = {"uv": "exit 1", "pip": BUILDS} if installer == "pip" else {"uv": BUILDS}
    done, calls = install(tmp_path, "test,models,encoder,r", Rscript="", **programs)
    assert done.returncode == 0, done.stderr
    assert "rpy2 is left out: cannot find -lblas (apt-get install libblas-dev" in done.stdout
    assert "gguf is left out: fatal error: Python.h" in done.stdout
    assert ("uv could not be had" in done.stdout) == (installer == "pip")
    tried = [call.split()[-1] for call in calls if call.startswith(installer) and " -e " in call]
    extras = ["test,models,encoder,r", "test,models,encoder", "test,encoder"]
    assert tried == [f".[{some}]" for some in extras]


def test_an_error_that_no_optional_part_causes_is_tried_with_pip_and_stops_there(tmp_path) -> None:
    # a log may name optional parts and yet tell of the network
    programs = {
        "uv": '[ "$1" = --version ] || { echo "Building rpy2"; echo "dns error"; exit 1; }',
        "pip": "echo 'collecting rpy2: CERTIFICATE_VERIFY_FAILED; no network'; exit 1",
    }
    done, calls = install(tmp_path, "test,models,r", **programs)
    assert done.returncode == 1 and "no network" in done.stderr
    assert "uv could not install (dns error); pip tries" in done.stdout
    assert "left out" not in done.stdout
    assert sum(call.startswith("pip") for call in calls) == 1


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


def test_a_long_command_says_what_it_is_doing_and_keeps_its_exit_code(tmp_path) -> None:
    work = ["bash", "-c", "echo step 1; sleep 9; exit 3"]
    done, _ = run_script(tmp_path, "progress", tmp_path / "log", "waiting", *work, tr=BSD_TR)
    assert done.returncode == 3
    first, second = done.stdout.splitlines()
    assert first == "psychlm: waiting"
    assert re.fullmatch(r"psychlm: waiting, \d+ s: step 1", second)


def table_of_files(page: Path, columns: tuple[int, int]) -> list[tuple[list[str], str]]:
    """Return of a Markdown table, row by row, the patterns of files and the licence."""
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    files, licence = columns
    cells = [[cell.strip(" |") for cell in row] for row in rows if len(row) > max(columns)]
    return [(re.findall(r"`([^`]+)`", row[files]), row[licence]) for row in cells]


def test_every_committed_data_file_has_one_row_with_source_and_licence() -> None:
    tracked = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", "data")
    files = [name.removeprefix("data/") for name in tracked.splitlines()]
    rows = table_of_files(ROOT / "data" / "README.md", (0, 3))
    licences = [(pattern, licence) for patterns, licence in rows for pattern in patterns]
    for file in files:
        fit = [one for one, _ in licences if Path(file).match(one)]
        assert sum(file.count("/") == one.count("/") for one in fit) == 1, file
    assert not [pattern for pattern, _ in licences if not list((ROOT / "data").glob(pattern))]


def test_files_without_a_free_licence_are_named_in_licenses_with_it() -> None:
    explained = {
        pattern: re.sub(r"\[|\].*", "", licence)
        for patterns, licence in table_of_files(ROOT / "data" / "LICENSES.md", (1, 0))
        for pattern in patterns
    }
    for patterns, licence in table_of_files(ROOT / "data" / "README.md", (0, 3)):
        if not licence.startswith(("MIT", "numbers made", "licence", "---", "public domain")):
            for pattern in patterns:
                assert explained.get(pattern) == licence, pattern
