"""An executed notebook becomes one HTML file: math as MathML, pictures and styles inside, no script, no network."""

from __future__ import annotations

import base64
import html
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from latex2mathml.converter import convert as latex_to_mathml
from markupsafe import Markup
from nbconvert.exporters import TemplateExporter
from nbconvert.filters import Highlight2HTML, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbconvert.preprocessors.sanitize import SanitizeHTML

from psychlm import data
from psychlm.site.comparison import compare

TEMPLATES = Path(__file__).parent / "templates"
IMAGES = {"image/png": "png", "image/svg+xml": "svg", "image/jpeg": "jpg"}
# What the HTML of an output may hold; every other tag in it is shown as text.
TAGS = list(
    {
        "a",
        "abbr",
        "b",
        "blockquote",
        "br",
        "caption",
        "code",
        "col",
        "colgroup",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "em",
    }
    | {
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "img",
        "kbd",
        "li",
        "mark",
        "ol",
        "p",
        "pre",
        "s",
        "small",
        "span",
    }
    | {
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "u",
        "ul",
    }
)
# What a cell of a table holds if its column is one of numbers.
NUMBER = re.compile(r"[<>≈~]?\s*[-−+]?[\d.,\s]*(?:[eE][-+]?\d+)?\s*%?|nan|NaN|None|-?inf|[–—]")
ATTRIBUTES = {
    "*": ["class", "colspan", "rowspan", "scope", "title", "alt"],
    "a": ["href"],
    "img": lambda tag, name, value: (
        name in ("width", "height") or name == "src" and value.startswith("data:image/")
    ),
}


@dataclass(frozen=True)
class Picture:
    """The headline figure of a notebook, as a file beside its report."""

    file: str
    content: bytes
    alt: str


@dataclass(frozen=True)
class Page:
    """A rendered report."""

    html: str
    picture: Picture | None
    finding: str  # the sentence that was computed for the headline figure, as Markdown


@dataclass
class _Markdown:
    """Render Markdown to HTML; the headings of the second level are gathered as a table of contents."""

    folder: Path
    contents: list[tuple[str, str]] = field(default_factory=list)

    def __call__(
        self, source: str, trusted: bool = False, attachments: dict[str, Any] | None = None
    ) -> Markup:
        """Render one text; only what the author of a notebook wrote may hold raw HTML, never what was computed."""
        renderer = _Renderer(
            escape=not trusted,
            allow_harmful_protocols=False,
            embed_images=trusted,
            exclude_anchor_links=True,
            path=str(self.folder),
            attachments=attachments or {},
        )
        renderer.contents = self.contents if trusted else []
        return Markup(MarkdownWithMath(renderer=renderer).render(source))


class _Renderer(IPythonRenderer):
    """nbconvert's renderer of Markdown, with math turned into MathML, tables in boxes that scroll, and anchors."""

    contents: list[tuple[str, str]]

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        anchor = (
            re.sub(r"\W+", "-", html.unescape(re.sub(r"<[^>]*>", "", text)).lower()).strip("-")
            or "section"
        )
        taken = [name for name, _ in self.contents]
        anchor = anchor if anchor not in taken else f"{anchor}-{len(taken)}"
        if level == 2:
            self.contents.append((anchor, text))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll prose"><table>{text}</table></div>\n'

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return f'<span class="equation">{mathml(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def mathml(latex: str, display: str = "block") -> str:
    """Turn LaTeX into MathML; what cannot be turned is shown as it was written."""
    latex = re.sub(
        r"\{(align|gather|equation)(ed)?\*?\}",
        lambda m: "{gather*}" if m[1] == "gather" else "{align*}",
        latex,
    )
    latex = re.sub(
        r"\\arg\s*\\?(max|min)", r"\\mathrm{arg\\,\1}", latex
    )  # the converter does not know \arg
    try:
        found = latex_to_mathml(latex.strip(), display=display)
    except Exception:  # the converter has no common base for its errors
        return f'<code class="latex">{html.escape(latex)}</code>'
    found = found.replace(
        "<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"
    )  # \sim is a relation, not an ASCII tilde
    return re.sub(
        r"<mi>(log|ln|exp|min|max)</mi>", r'<mo lspace="0" rspace="0.1667em">\1</mo>', found
    )


def code_html(source: str) -> Markup:
    """Highlight Python (IPython's kind)."""
    return Markup(Highlight2HTML(pygments_lexer="ipython3")(source))


def output_html(source: str) -> Markup:
    """Return the HTML of an output with nothing in it that could run or reach out; tables scroll in their box.

    Style sheets are left out: those of pandas would fight with ours, and with the dark mode.
    """
    source = re.sub(r"<style\b[^>]*>.*?</style\s*>", "", source, flags=re.DOTALL | re.IGNORECASE)
    clean = SanitizeHTML(tags=TAGS, attributes=ATTRIBUTES).sanitize_html_tags(source)
    clean = re.sub(r"<img\b(?![^>]*\bsrc=)[^>]*>", "", clean)  # its source was elsewhere
    tables = re.compile(r"<table\b.*?</table>", flags=re.DOTALL)
    return Markup(
        tables.sub(lambda table: f'<div class="scroll">{_aligned(table[0])}</div>', clean)
    )


def _aligned(table: str) -> str:
    """Mark the columns of a table that hold text, heading and cells, so that they are set flush left."""
    cell = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</\1>", flags=re.DOTALL)
    rows = re.findall(r"<tr\b.*?</tr>", table, flags=re.DOTALL)
    texts = {
        column
        for row in rows
        for column, (kind, _, content) in enumerate(cell.findall(row))
        if kind == "td"
        and not NUMBER.fullmatch(html.unescape(re.sub(r"<[^>]*>", "", content)).strip())
    }

    def marked(row: re.Match[str]) -> str:
        columns = itertools.count()
        return cell.sub(
            lambda c: f'<{c[1]} class="text">{c[3]}</{c[1]}>' if next(columns) in texts else c[0],
            row[0],
        )

    if re.search(
        r"\b(?:row|col)span=", table
    ):  # there a cell's place in its row does not tell its column
        return table
    return re.sub(r"<tr\b.*?</tr>", marked, table, flags=re.DOTALL)


def image_uri(data: str, mime: str) -> str:
    """Return a picture as a data URI."""
    encoded = (
        base64.b64encode(data.encode()).decode()
        if mime == "image/svg+xml"
        else "".join(data.split())
    )
    return f"data:{mime};base64,{encoded}"


def downloads(data: dict[str, str], name: str) -> list[tuple[str, str, str]]:
    """Return what a figure can be saved as: a word for it, its file name, and the file as a data URI."""
    found = [
        (suffix.upper(), f"{name}.{suffix}", image_uri(data[m], m))
        for m, suffix in IMAGES.items()
        if m in data
    ]
    if "text/csv" in data:
        table = base64.b64encode(data["text/csv"].encode()).decode()
        found.append(("CSV", f"{name}.csv", f"data:text/csv;charset=utf-8;base64,{table}"))
    return found


def style() -> Markup:
    """Return the style sheet of all pages."""
    return Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))


def filters(folder: Path) -> dict[str, Callable[..., Any]]:
    """Return the Jinja filters that the templates of reports and index share."""
    markdown = _Markdown(folder)
    return {
        "markdown": markdown,
        "inline": lambda source: Markup(re.sub(r"^<p>|</p>\s*$", "", markdown(source).strip())),
        "duration": duration,
        "plain": strip_ansi,
    }


def duration(seconds: float | None) -> str:
    """Say how long something took: ``"12 s"``, ``"3 min 05 s"``."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def data_kind(report: dict[str, Any]) -> str:
    """Return what a report's numbers rest on: real, simulated, published, mixed, or nothing yet."""
    kinds = {str(number.get("data")) for number in report["numbers"]}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""


def report_page(notebook: Path, report: dict[str, Any]) -> Page:
    """Render an executed notebook and the report of its numbers.

    Parameters
    ----------
    notebook : Path
        The notebook with its outputs, as papermill left it; a failed one may stop in the middle.
    report : dict
        The report as :mod:`psychlm.report` wrote it, with the runner's title, question, status, error and seconds.
    """
    content = nbformat.read(notebook, as_version=4)
    content.cells = [
        cell for cell in content.cells if "papermill-error-cell-tag" not in _tags(cell)
    ]
    exporter = TemplateExporter(
        template_paths=[str(TEMPLATES)],
        template_file="report.html.j2",
        file_extension=".html",
        preprocessors=[CoalesceStreamsPreprocessor(enabled=True)],
        filters=filters(notebook.parent)
        | {
            "code": code_html,
            "output_html": output_html,
            "mathml": lambda latex: Markup(_display_math(latex)),
        },
    )
    markdown = exporter.environment.filters["markdown"]
    exporter.environment.autoescape = True
    exporter.environment.globals.update(
        style=style(),
        image_uri=image_uri,
        downloads=downloads,
        addresses=_addresses(report),
        images=list(IMAGES),
        report=report,
        numbers=compare(report),
        kind=data_kind(report),
        contents=markdown.contents,  # fills while the cells are rendered
    )
    page, _ = exporter.from_notebook_node(content)
    return Page(page, _headline(content, report["notebook"]), _finding(content))


def _addresses(report: dict[str, Any]) -> dict[str, str]:
    """Return where the datasets that a run asked for can be had, of those that have an address."""
    registry = data.registry()
    asked = [name for name in report["provenance"].get("data") or {} if name in registry.index]
    return {
        name: url
        for name, url in registry.loc[asked, "url"].items()
        if str(url).startswith("https://")
    }


def _display_math(latex: str) -> str:
    return f'<span class="equation">{mathml(latex.strip().strip("$"), "block")}</span>'


def _tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _headline(notebook: nbformat.NotebookNode, name: str) -> Picture | None:
    """Return the first picture of the cell tagged ``headline``."""
    for cell in notebook.cells:
        if "headline" not in _tags(cell):
            continue
        for output in cell.get("outputs", []):
            for mime, suffix in IMAGES.items():
                if mime in output.get("data", {}):
                    data = output["data"][mime]
                    content = data.encode() if mime == "image/svg+xml" else base64.b64decode(data)
                    described = cell.metadata.get("psychlm", {})
                    alt = described.get("alt") or described.get("caption") or "The headline figure"
                    return Picture(f"{name}.{suffix}", content, alt)
    return None


def _finding(notebook: nbformat.NotebookNode) -> str:
    """Return the first Markdown that was computed in the cell tagged ``headline`` or after it."""
    tagged = [at for at, cell in enumerate(notebook.cells) if "headline" in _tags(cell)]
    for cell in notebook.cells[tagged[0] :] if tagged else []:
        for output in cell.get("outputs", []):
            if text := output.get("data", {}).get("text/markdown", "").strip():
                return text
    return ""


def environment(folder: Path) -> jinja2.Environment:
    """Return the Jinja environment of the pages that are no notebooks."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(filters(folder))
    found.globals.update(style=style())
    return found
