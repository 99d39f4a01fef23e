"""The pages in a real browser (headless Chromium): no network, narrow windows, dark mode.

The pages are made from hand-written outputs, so no kernel runs here. Reference: what Chromium
computes (console, requests, dialogs, widths, colours), through its DevTools protocol.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from psychlm.site import html, index

EVIL = "<script>alert(1)</script>"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
PIXEL += "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WIDE_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="500">'
WIDE_SVG += '<rect width="2000" height="500"/></svg>'
TABLE = "panel,x\n1,0.25\n"
PAGES = ["index.html", "10_items.html", "20_fails.html"]


# the pages


def shown(data: dict[str, str], source: str = "shown", **metadata: Any) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=[new_output("display_data", data)], metadata=metadata)


def notebook_with_everything() -> nbformat.NotebookNode:
    """Return a notebook with every kind of output, each wide or hostile."""
    header = "".join(f"<th>column_{i}</th>" for i in range(30))
    table = '<style>td { color: red }</style><table class="dataframe">'
    table += f"<thead><tr>{header}</tr></thead><tbody><tr>{'<td>0.1429</td>' * 30}</tr></tbody>"
    hostile = f"<p onclick='alert(2)'>{EVIL}"
    hostile += "<img src='https://example.org/x.png' onerror='alert(3)'></p>"
    question = "# 10 Items\n\n**Question.** Is $x < 1$ & *readable*?"
    data = "## Data\n\nHere $y = \\delta[\\text{difficult}] + f(\\text{trial}) + u_i + v_j + "
    data += "(u_i' + v_j')[\\text{difficult}]$.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    data += "$$\\theta_p = \\frac{1}{1 + e^{-x}}$$"
    computed = f"An item reads {EVIL} and [a link](javascript:alert(4))."
    wide = {"alt": "A wide bar", "caption": "A bar, $2000$ wide."}
    warning = "/tmp/ipykernel_1/2.py:3: UserWarning: few items\n  fit(x)\n"
    printed = new_output("stream", name="stderr", text=f"\x1b[31m{EVIL}\x1b[0m\n{warning}")
    again = [
        new_output("display_data", {mime: content}, metadata={"psychlm": {"verdict": True}})
        for mime, content in {"text/markdown": "**It holds.** Twice", "image/png": PIXEL}.items()
    ]
    traceback = [f"\x1b[31mE\x1b[0m: {EVIL}", "x" * 300]
    error = new_output("error", ename="E", evalue="x", traceback=traceback)
    cells = [
        new_markdown_cell(question),
        new_markdown_cell(data),
        shown({"text/html": f"{table}</table>"}),
        shown({"text/html": hostile}),
        shown({"text/markdown": computed}),
        shown({"text/plain": f"'{EVIL}' " + "long " * 100}),
        shown({"image/svg+xml": WIDE_SVG}, psychlm=wide),
        shown({"image/png": PIXEL, "text/csv": TABLE}, psychlm={"alt": f"A point {EVIL}"}),
        shown({"text/markdown": f"It holds **twice**. {EVIL}"}),
        shown({"text/latex": "$\\displaystyle \\sigma^2$"}),
        new_code_cell("report.verdict()", outputs=again),
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
    made |= {"numbers": [simulated, number, other]}
    return made | {"provenance": {"data": {"x": None, EVIL: "1f" * 32}}} | more


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return reports: one complete, one failed, one truncated, and a notebook not run."""
    root = tmp_path_factory.mktemp("site")
    reports, folder = root / "reports", root / "notebooks"
    reports.mkdir(), folder.mkdir()
    for name in ("10_items", "20_fails", "30_truncated", "40_not_run"):
        title = name[3:].replace("_", " ").title()
        head = new_markdown_cell(f"# {name[:2]} {title}\n\n**Question.** Does {EVIL} show as text?")
        nbformat.write(new_notebook(cells=[head]), folder / f"{name}.ipynb")
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


def text_of(chromium: Any, selector: str) -> str:
    """Return the text of an element as it shows."""
    return chromium.says(f"document.querySelector({json.dumps(selector)}).innerText")


def page_of(report: dict[str, Any], folder: Path) -> str:
    return html.report_page(notebook_with_everything(), folder, report, index.compare(report))


def test_the_page_of_a_card_says_what_it_is_of_and_links_to_its_own_numbers_only(tmp_path) -> None:
    title = "A card: my answers"
    page = page_of(report_of("02_test_card", "complete", card="my answers", title=title), tmp_path)
    assert re.findall(r'href="([^"#:]+)"', page) == ["my%20answers.json"]
    assert f"{title}</h1>" in page and "quick profile" not in page


# what people see


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
def test_a_page_opens_without_complaint_and_fits_its_window(
    site, chromium, page, width, dark
) -> None:
    chromium.open(site / page, width, dark)
    assert chromium.says("document.documentElement.scrollWidth") <= width
    assert chromium.says("innerWidth") == width
    colours = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    ground, ink = map(brightness, chromium.says(colours))
    assert ground < 0.2 and ink > 0.7 if dark else ground > 0.9 > ink
    assert chromium.complaints() == []


@pytest.mark.parametrize("page", PAGES)
def test_text_from_data_shows_as_text_and_nothing_in_it_runs(site, chromium, page) -> None:
    chromium.open(site / page)
    assert EVIL in chromium.says("document.body.innerText")
    foreign = "script:not(:last-child, [type='application/json']), [onclick], [onerror]"
    foreign += ", a[href^=javascript], img:not([src^='data:'])"
    assert chromium.says(f'document.querySelectorAll("{foreign}").length') == 0
    assert chromium.complaints() == []


def test_a_report_shows_math_and_figures_that_can_be_taken(site, chromium) -> None:
    chromium.open(site / "10_items.html", dark=True)
    assert chromium.says("document.querySelectorAll('math').length") == 5
    fraction = "document.querySelector('math[display=block] mfrac').getBoundingClientRect()"
    assert chromium.says(f"{fraction}.height") > 20
    loaded = "[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)"
    assert chromium.says(loaded)
    assert text_of(chromium, "figcaption").startswith("A bar")
    plate = chromium.says("getComputedStyle(document.querySelector('.plate')).backgroundColor")
    assert brightness(plate) > 0.9, "a figure lies on a light plate in the dark"
    links = "[...document.querySelectorAll('.downloads a')].map(a => [a.innerText, a.download])"
    assert [word for word, _ in chromium.says(links)] == ["SVG", "PNG", "CSV"]
    assert all(file.startswith("10_items-figure-") for _, file in chromium.says(links))
    numbers = "document.querySelector('.downloads a[download$=csv]').href"
    assert base64.b64decode(chromium.says(numbers).partition(",")[2]).decode() == TABLE


def test_code_parameters_and_numbers_are_folded(site, chromium) -> None:
    chromium.open(site / "10_items.html")
    lines = "[...document.querySelectorAll('.highlight')].filter(e => e.checkVisibility())"
    assert chromium.says(f"{lines}.map(e => e.innerText)") == ["1 / 0\n"], "the cell that failed"
    assert text_of(chromium, "details.code:not([open]) summary") == "Parameters"
    chromium.says("document.querySelector('#show-code').click()")
    assert chromium.says(f"{lines}.length") > 10
    assert chromium.says("document.querySelector('details.numbers').open") is False
    summary = text_of(chromium, "details.numbers summary")
    assert summary == "3 numbers, 2 of them beside published ones"
    keys = "[...document.querySelectorAll('table.numbers tbody th')].map(h => h.textContent)"
    assert chromium.says(keys) == [f"paper, Table 1, {cell}, r" for cell in ("PP", "MN", "WK")]


def test_the_verdict_stands_above_the_question_with_its_figure(site, chromium) -> None:
    chromium.open(site / "10_items.html")
    first = "[...document.querySelector('main').children].slice(0, 3).map(e => e.tagName)"
    assert chromium.says(first) == ["H1", "SECTION", "P"]
    assert text_of(chromium, ".verdict .sentence") == "It holds."
    assert f"Twice {EVIL}." in text_of(chromium, ".verdict")
    assert "Rests on simulated people." in text_of(chromium, ".verdict")
    assert chromium.says("document.querySelector('.verdict img').alt") == f"A point {EVIL}"
    of_seeds = "3 seeds at this size, with all data: Nearly. (2) No. (1)"
    assert of_seeds in text_of(chromium, ".verdict")
    pictures = f"[...document.images].filter(i => i.src.endsWith('{PIXEL}')).length"
    assert chromium.says(pictures) == 2, "in the box and where it was made, not at the end"
    assert text_of(chromium, "main").count("It holds.") == 1, "in the box, not at the end"


def test_machine_noise_is_folded_and_a_wide_table_scrolls_in_its_own_box(site, chromium) -> None:
    chromium.open(site / "10_items.html", 390)
    text = chromium.says("document.documentElement.textContent")
    assert not re.search("ipykernel|/tmp/|recorded", text)
    notes = "[...document.querySelectorAll('details.notes')]"
    folded = f"{notes}.map(d => [d.open, d.querySelector('summary').innerText, d.textContent])"
    ((is_open, summary, content),) = chromium.says(folded)
    assert (is_open, summary) == (False, "1 warning of the libraries")
    assert "UserWarning: few items" in content and "fit(x)" not in content
    box = "document.querySelector('.dataframe').parentElement"
    assert chromium.says(f"{box}.scrollWidth > {box}.clientWidth && {box}.clientWidth <= 390")
    assert chromium.says(f"getComputedStyle({box}).overflowX") == "auto"


def test_a_failed_report_says_so_first_and_shows_the_error(site, chromium) -> None:
    chromium.open(site / "20_fails.html")
    assert "failed in cell 11" in text_of(chromium, "main > :first-child")
    assert text_of(chromium, ".traceback").startswith("E: ")
    assert chromium.says("document.querySelector('.traceback').previousElementSibling.open")


def test_the_index_tells_the_state_of_every_notebook_and_what_agrees(site, chromium) -> None:
    chromium.open(site / "index.html")
    chips = "document.querySelectorAll('.card .facts .chip:first-child')"
    states = chromium.says(f"[...{chips}].map(c => c.innerText)")
    assert states == ["done", "failed", "broken", "not run"]
    assert "30_truncated.json is broken" in text_of(chromium, ".card.broken")
    links = "[...document.querySelectorAll('.card a')].map(a => a.getAttribute('href'))"
    assert chromium.says(links) == PAGES[1:]
    assert chromium.says("document.querySelector('.card.done img').alt") == f"A point {EVIL}"
    assert "1 min 23 s" in text_of(chromium, ".card.done")
    verdicts = "Object.fromEntries([...document.querySelectorAll('table.numbers tbody tr')].map("
    verdicts += "r => [r.dataset.key, r.cells[4].innerText]))"
    assert chromium.says(verdicts) == {
        "paper.table1.PP.r": "agrees at 2 decimals",
        "paper.table1.MN.r": "differs at 2 decimals",
        "paper.table1.WK.r": "not compared",
    }
    assert "1 of 2 printed numbers" in text_of(chromium, ".tally")
    assert text_of(chromium, ".finding") == "It holds."


def test_notebooks_are_searched_and_the_table_is_sorted_and_filtered(site, chromium) -> None:
    chromium.open(site / "index.html")
    ours = "[...document.querySelectorAll('tbody tr:not([hidden])')].map(r => r.cells[1].innerText)"
    sort = f"document.querySelectorAll('thead button')[1].click(), {ours}"
    assert chromium.says(sort) == ["0.1200", "0.8610", "0.8610"]
    assert chromium.says(sort)[-1] == "0.1200"
    typed = "((i, text) => {i.value = text; i.dispatchEvent(new Event('input', {bubbles: true}))})"
    field = "document.querySelector('.filter input')"
    assert chromium.says(f"{typed}({field}, 'table1.mn'), {ours}") == ["0.1200"]
    assert chromium.says("document.querySelector('.filter output').value") == "1 of 3"
    assert chromium.complaints() == []
    typed = f"((text, i = document.querySelector('.search input')) => {typed}(i, text))"
    cards = "[...document.querySelectorAll('li.card:not([hidden])')].map(card => card.dataset.name)"
    assert chromium.says(f"{typed}('TRUNCATED question'), {cards}") == ["30_truncated"]
    assert chromium.says("document.querySelector('.search output').value") == "1 of 4"
    assert chromium.says(f"{typed}('no such word'), {cards}") == []
    assert "no notebook" in chromium.says("document.querySelector('.search output').value")
    assert len(chromium.says(f"{typed}(''), {cards}")) == 4
    assert chromium.complaints() == []


# what needs no browser


def test_nothing_in_a_page_points_to_the_network_and_links_lead_to_pages(site) -> None:
    linked = html.markdown("[a](10_items.ipynb), [b](other.ipynb)", site, trusted=True)
    assert 'href="10_items.html"' in linked and 'href="other.ipynb"' in linked
    for page in PAGES:
        text = (site / page).read_text()
        assert "default-src 'none'" in text
        assert "https://" not in text.replace("https://example.org/x.png", ""), page


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
