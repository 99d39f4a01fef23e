"""The pages in a real browser (headless Chromium): no network, narrow windows, dark mode.

The pages are made from hand-written outputs, so no kernel runs here. Reference: what Chromium
computes (console, requests, dialogs, widths, colours), through its DevTools protocol."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from toy_notebooks import write_notebook

from psychlm import terminal
from psychlm.report import Table
from psychlm.site import html, index

EVIL = "<script>alert(1)</script>"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
PIXEL += "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WIDE_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="500"></svg>'
WIDE_TABLE = f'<table class="dataframe"><tr>{"<td>0.1429</td>" * 30}</tr></table>'
TABLE = "panel,x\n1,0.25\n"
PAGES = ["index.html", "10_items.html", "20_fails.html"]


def shown(data: dict[str, str], source: str = "shown", **metadata: Any) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=[new_output("display_data", data)], metadata=metadata)


def notebook_with_everything() -> nbformat.NotebookNode:
    """Return a notebook with every kind of output, each wide or hostile."""
    question = "# 10 Items\n\n**Question.** Is $x < 1$ & *readable*?"
    data = "## Data\n\nHere $y = \\delta[\\text{difficult}] + f(\\text{trial}) + u_i + v_j + "
    data += "(u_i' + v_j')[\\text{difficult}]$.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    data += "$$\\theta_p = \\frac{1}{1 + e^{-x}}$$"
    hostile = f"<style>td {{ color: red }}</style><p onclick='alert(2)'>{EVIL}"
    hostile += "<img src='https://example.org/x.png' onerror='alert(3)'></p>"
    computed = f"It holds **twice**. An item reads {EVIL} and [a link](javascript:alert(4))."
    wide = {"alt": "A wide bar", "caption": "A bar, $2000$ wide."}
    warning = "/tmp/ipykernel_1/2.py:3: UserWarning: few items\n  fit(x)\n"
    printed = new_output("stream", name="stderr", text=f"\x1b[31m{EVIL}\x1b[0m\n{warning}")
    verdict = [
        new_output("display_data", {mime: content}, metadata={"psychlm": {"verdict": True}})
        for mime, content in {"text/markdown": "**It holds.** Twice", "image/png": PIXEL}.items()
    ]
    traceback = [f"\x1b[31mE\x1b[0m: {EVIL}", "x" * 300]
    error = new_output("error", ename="E", evalue="x", traceback=traceback)
    cells = [
        new_markdown_cell(question),
        new_markdown_cell(data),
        shown({"text/html": WIDE_TABLE, "text/csv": TABLE}),
        shown({"text/html": hostile}),
        shown({"text/markdown": computed}),
        shown({"text/plain": f"'{EVIL}' " + "long " * 100}),
        shown({"image/svg+xml": WIDE_SVG}, psychlm=wide),
        shown({"image/png": PIXEL, "text/csv": TABLE}, psychlm={"alt": f"A point {EVIL}"}),
        shown({"text/latex": "$\\displaystyle \\sigma^2$"}),
        new_code_cell("report.verdict()", outputs=verdict),
        shown({"text/markdown": "recorded"}, "report.record()", tags=["record"]),
        new_code_cell("x = 1  # parameter", metadata={"tags": ["parameters"]}),
        new_code_cell("print()", outputs=[printed]),
        new_code_cell("1 / 0", outputs=[error]),
    ]
    return new_notebook(cells=cells)


def report_of(name: str, status: str, **more: Any) -> dict[str, Any]:
    verdict = {"sentence": "It holds.", "support": f"**Twice** {EVIL}.", "outcome": "reproduced"}
    verdict |= {"rests_on": "simulated people", "by_seed": {"Nearly.": 2, "No.": 1}}
    number = {"key": "paper.table1.PP.r", "value": 0.861, "published": 0.86, "data": "real"}
    number["source"] = f"Table 1 {EVIL}"
    other = number | {"key": "paper.table1.MN.r", "value": 0.12}
    simulated = number | {"key": "paper.table1.WK.r", "data": "simulated"}
    made = {"notebook": name, "title": "Items", "status": status, "profile": "quick"}
    made |= {"seconds": 83.2, "finished": "2025-01-01T00:00:00", "verdict": verdict}
    made |= {"numbers": [simulated, number, other], "slowest_cells": [(9.5, "x" * 90 + EVIL)]}
    return made | {"provenance": {"data": {"x": None, EVIL: "1f" * 32}}} | more


def page_of(report: dict[str, Any], folder: Path) -> str:
    return html.report_page(notebook_with_everything(), folder, report, index.compare(report))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return reports: one complete, one failed, one truncated, and a notebook not run."""
    root = tmp_path_factory.mktemp("site")
    for name in ("10_items", "20_fails", "30_truncated", "40_not_run"):
        write_notebook(root, name, question=f"Does {EVIL} show as text?")
    reports = root / "reports"
    reports.mkdir()
    _, picture, alt = html.verdict_figure(notebook_with_everything().cells)
    failure = {"cell": 11, "message": f"E: {EVIL}"}
    failed = report_of("20_fails", "failed", error=failure)
    for report in (report_of("10_items", "complete"), failed):
        file = reports / report["notebook"]
        file.with_suffix(".html").write_text(page_of(report, root))
        file.with_suffix(".png").write_bytes(picture)
        report["headline"] = {"file": f"{file.name}.png", "alt": alt}
        file.with_suffix(".json").write_text(json.dumps(report))
    (reports / "30_truncated.json").write_text('{"status": "complete", "numbers": [{"ke')
    index.build_index(root, reports)
    return reports


def brightness(colour: str) -> float:
    """Return how bright a computed ``rgb(r, g, b)`` is, from 0 to 1."""
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def each(chromium: Any, selector: str, what: str = "innerText") -> list[Any]:
    """Return a property of every element that a selector finds: the text that shows."""
    found = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return chromium.says(f"{found}.map(element => element.{what})")


def test_the_browser_notices_scripts_requests_and_errors(tmp_path, chromium) -> None:
    page = tmp_path / "careless.html"
    page.write_text(
        "<img src='https://example.invalid/x.png'><script>console.log('here'); missing()</script>"
    )
    chromium.open(page)
    noticed = {event["method"] for event in chromium.complaints()}
    expected = {"Network.requestWillBeSent", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
    assert noticed >= expected


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_window_and_text_from_data_neither_runs_nor_is_fetched(
    site, chromium, page, width, dark
) -> None:
    chromium.open(site / page, width, dark)
    assert chromium.says("document.documentElement.scrollWidth") <= width
    assert chromium.says("innerWidth") == width
    colours = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    ground, ink = map(brightness, chromium.says(colours))
    assert ground < 0.2 and ink > 0.7 if dark else ground > 0.9 > ink
    assert EVIL in chromium.says("document.body.innerText")
    foreign = "script:not(:last-child, [type='application/json']), [onclick], [onerror]"
    foreign += ", a[href^=javascript], img:not([src^='data:'])"
    assert each(chromium, foreign) == []
    assert chromium.complaints() == []
    text = (site / page).read_text()
    assert "default-src 'none'" in text
    assert "https://" not in text.replace("https://example.org/x.png", "")


def test_a_report_shows_math_and_figures_that_can_be_taken(site, chromium) -> None:
    chromium.open(site / "10_items.html", dark=True)
    assert len(each(chromium, "math")) == 5
    (height,) = each(chromium, "math[display=block] mfrac", "getBoundingClientRect().height")
    assert height > 20
    assert all(each(chromium, "img", "complete && element.naturalWidth > 0 && element.alt"))
    assert each(chromium, "figcaption")[0].startswith("A bar")
    plate = chromium.says("getComputedStyle(document.querySelector('.plate')).backgroundColor")
    assert brightness(plate) > 0.9, "a figure lies on a light plate in the dark"
    assert each(chromium, ".downloads a") == ["CSV", "SVG", "PNG", "CSV"]
    names = each(chromium, ".downloads a", "download")
    assert names[0].startswith("10_items-table-")
    assert all(name.startswith("10_items-figure-") for name in names[1:])
    for numbers in each(chromium, ".downloads a[download$=csv]", "href"):
        assert base64.b64decode(numbers.partition(",")[2]).decode() == TABLE


def test_a_page_prints_on_a4_and_tables_of_fifteen_columns_are_not_cut(tmp_path, chromium) -> None:
    row = "<tr>" + "<td>−0.1429</td>" * 15 + "</tr>"
    table = f'<table class="dataframe formatted"><thead>{row}</thead><tbody>{row}</tbody></table>'
    wide = new_notebook(cells=[shown({"text/html": table})])
    report = report_of("10_items", "complete")
    page = html.report_page(wide, tmp_path, report, index.compare(report))
    (tmp_path / "wide.html").write_text(page)
    chromium.open(tmp_path / "wide.html")
    pdf = base64.b64decode(chromium.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    (box,) = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+ [\d.]+)\]", pdf))
    width, height = map(float, box.split())
    assert (width, height) == pytest.approx((595, 842), abs=1.5)  # points
    chromium.call("Emulation.setEmulatedMedia", media="print")
    inside = round((210 - 2 * 15) / 25.4 * 96)  # pixels between the margins
    edges = each(chromium, ".html table", "getBoundingClientRect().width")
    assert max(edges) <= inside


def test_the_tables_of_a_page_are_the_sheets_of_one_file(tmp_path) -> None:
    """Sheets are named by headings, hold numbers as numbers but ids as text, and no formula."""
    of_items = Table("<table></table>", pd.DataFrame({"b": [1 / 3]}, ["NA"]))
    shown_csv = {"text/html": of_items._repr_html_(), "text/csv": of_items._repr_csv_()}
    row = f"=1+1,,007,{2**53 + 1}"
    hostile = {"text/html": "<table></table>", "text/csv": f"word,x,id,long\n{row}\n"}
    cells = [new_markdown_cell("## A heading of more than thirty-one characters"), shown(shown_csv)]
    cells += [shown({"text/html": "no table"}), shown(hostile)]
    tables = html.tables(cells)
    assert list(tables) == ["A heading of more than thirty-o", "A heading of more than thirt 2"]
    terminal.write_workbook(tables, tmp_path / "tables.xlsx")
    read = {"sheet_name": None, "na_values": [], "dtype": {"id": str, "long": str}}
    first, second = pd.read_excel(tmp_path / "tables.xlsx", **read).values()
    assert first["b"].tolist() == [1 / 3] and second["word"].tolist() == ["'=1+1"]
    assert second[["id", "long"]].to_numpy().tolist() == [["007", str(2**53 + 1)]]


def test_code_parameters_numbers_and_warnings_are_folded(site, chromium) -> None:
    chromium.open(site / "10_items.html", 390)
    lines = "[...document.querySelectorAll('.highlight')].filter(e => e.checkVisibility())"
    assert chromium.says(f"{lines}.map(e => e.innerText)") == ["1 / 0\n"], "the cell that failed"
    assert each(chromium, "details.code:not([open]) summary")[0] == "Parameters"
    chromium.says("document.querySelector('#show-code').click()")
    assert chromium.says(f"{lines}.length") > 10
    summary = each(chromium, "details.numbers:not([open]) summary")
    assert summary == ["3 numbers, 2 of them beside published ones"]
    keys = each(chromium, "table.numbers tbody th", "textContent")
    assert keys == [f"paper, Table 1, {cell}, r" for cell in ("PP", "MN", "WK")]
    text = chromium.says("document.documentElement.textContent")
    assert not re.search("ipykernel|/tmp/|recorded", text)
    assert each(chromium, "details.notes summary") == ["1 warning of the libraries"]
    (notes,) = each(chromium, "details.notes:not([open])", "textContent")
    assert "UserWarning: few items" in notes and "fit(x)" not in notes
    box = "document.querySelector('.dataframe').parentElement"
    assert chromium.says(f"{box}.scrollWidth > {box}.clientWidth && {box}.clientWidth <= 390")
    assert chromium.says(f"getComputedStyle({box}).overflowX") == "auto"


def test_the_verdict_stands_above_the_question_with_its_figure(site, chromium) -> None:
    chromium.open(site / "10_items.html")
    assert each(chromium, "main > *", "tagName")[:3] == ["H1", "SECTION", "P"]
    assert each(chromium, ".verdict .sentence") == ["It holds."]
    verdict = each(chromium, ".verdict")[0]
    of_seeds = "3 seeds at this size, with all data: Nearly. (2) No. (1)"
    for part in (f"Twice {EVIL}.", "Rests on simulated people.", of_seeds):
        assert part in verdict
    assert each(chromium, ".verdict img", "alt")[0] == f"A point {EVIL}"
    in_box_and_where_made = each(chromium, f"img[src$='{PIXEL}']")
    assert len(in_box_and_where_made) == 2, "and not again at the end"
    assert each(chromium, "main")[0].count("It holds.") == 1, "in the box, not at the end"


def test_a_failed_report_says_so_first_and_shows_the_error(site, chromium) -> None:
    chromium.open(site / "20_fails.html")
    assert "failed in cell 11" in each(chromium, "main > :first-child")[0]
    assert each(chromium, ".traceback")[0].startswith("E: ")
    assert each(chromium, ".traceback", "previousElementSibling.open") == [True]


def test_the_index_tells_the_state_of_every_notebook_and_what_agrees(site, chromium) -> None:
    chromium.open(site / "index.html")
    states = each(chromium, ".card .facts .chip:first-child")
    assert states == ["done", "failed", "broken", "not run"]
    assert "30_truncated.json is broken" in each(chromium, ".card.broken")[0]
    assert each(chromium, ".card a", "getAttribute('href')") == PAGES[1:]
    assert each(chromium, ".card.done img", "alt") == [f"A point {EVIL}"]
    assert "1 min 23 s" in each(chromium, ".card.done")[0]
    keys = each(chromium, "table.numbers tbody tr", "dataset.key")
    says = each(chromium, "table.numbers tbody tr", "cells[4].innerText")
    assert dict(zip(keys, says, strict=True)) == {
        "paper.table1.PP.r": "agrees at 2 decimals",
        "paper.table1.MN.r": "differs at 2 decimals",
        "paper.table1.WK.r": "not compared",
    }
    assert "1 of 2 printed numbers" in each(chromium, ".tally")[0]
    assert each(chromium, ".finding")[0] == "It holds."


def test_notebooks_are_searched_and_the_table_is_sorted_and_filtered(site, chromium) -> None:
    chromium.open(site / "index.html")

    def typed(field: str, text: str) -> None:
        event = "new Event('input', {bubbles: true})"
        find = f"document.querySelector('{field} input')"
        chromium.says(f"(i => {{i.value = '{text}'; i.dispatchEvent({event})}})({find})")

    rows, cards = "tbody tr:not([hidden])", "li.card:not([hidden])"
    for expected in (["0.1200", "0.8610", "0.8610"], ["0.8610", "0.8610", "0.1200"]):
        chromium.says("document.querySelectorAll('thead button')[1].click()")
        assert each(chromium, rows, "cells[1].innerText") == expected
    typed(".filter", "table1.mn")
    assert each(chromium, rows, "cells[1].innerText") == ["0.1200"]
    assert each(chromium, ".filter output", "value") == ["1 of 3"]
    typed(".search", "TRUNCATED question")
    assert each(chromium, cards, "dataset.name") == ["30_truncated"]
    assert each(chromium, ".search output", "value") == ["1 of 4"]
    typed(".search", "no such word")
    assert each(chromium, cards) == []
    assert "no notebook" in each(chromium, ".search output", "value")[0]
    assert chromium.complaints() == []


# what needs no browser


def test_a_page_links_to_pages_of_the_collection_and_that_of_a_card_to_its_numbers(site) -> None:
    linked = html.markdown("[a](10_items.ipynb), [b](other.ipynb)", site, trusted=True)
    assert 'href="10_items.html"' in linked and 'href="other.ipynb"' in linked
    title = "A card: my answers"
    page = page_of(report_of("02_test_card", "complete", card="my answers", title=title), site)
    linked_files = ["my%20answers.json", "my%20answers-tables.xlsx"]
    assert re.findall(r'href="([^"#:]+)"', page) == linked_files
    assert f"{title}</h1>" in page and "quick profile" not in page


@pytest.mark.parametrize(
    ("latex", "holds"),
    [
        (r"\theta \sim \mathcal{N}(0, 1)", "&#x0223C;"),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "<mtable"),
        (r"\log_2 x", 'rspace="0.1667em">log</mo>'),
        (r"x_{", '<code class="latex">x_{</code>'),
    ],
)
def test_latex_becomes_mathml_or_stays_readable(latex, holds) -> None:
    assert holds in html.mathml(latex)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("see /home/me/a b.csv and https://x.org/a/b", "see a b.csv and https://x.org/a/b"),
        ("C:\\Users\\me\\x.csv, and/or 1/2, n/a", "x.csv, and/or 1/2, n/a"),
        ("[IPKernelApp] WARNING | no encryption\nkept\n", "kept"),
    ],
)
def test_printed_text_is_shown_without_folders_and_kernel_messages(printed, shown) -> None:
    assert html.quiet(printed) == shown


def test_a_section_that_is_left_out_is_one_line_and_stays_where_it_failed() -> None:
    said = {"psychlm": {"left_out": ["Items"]}}
    line = new_output("display_data", {"text/markdown": "**Left out:** Items."}, metadata=said)
    failed = new_output("error", ename="E", evalue="x", traceback=[])
    cells = [
        new_markdown_cell("## Data\n\nHere."),
        new_code_cell("report.left_out(...)", outputs=[line]),
        new_markdown_cell("## Items\n\nThey were asked ..."),
        new_code_cell("if items is not None: ..."),
        new_markdown_cell("More of items."),
        new_markdown_cell("## Items of another kind"),
        new_code_cell("1 / 0", outputs=[failed]),
    ]
    assert html.present(cells) == [*cells[:2], *cells[5:]]
    cells[3]["outputs"] = [failed]
    assert cells[3] in html.present(cells)
    assert html.present(cells[2:]) == cells[2:]
