"""An executed notebook as one HTML file: MathML, pictures and styles inside, no script."""

from __future__ import annotations

import base64
import copy
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import pandas as pd
from latex2mathml.converter import convert as latex_to_mathml
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import Highlight2HTML, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors.sanitize import SanitizeHTML

from psychlm import data

TEMPLATES = Path(__file__).parent / "templates"
IMAGES = {"image/png": "png", "image/svg+xml": "svg", "image/jpeg": "jpg"}
DOWNLOADS = IMAGES | {"text/csv": "csv"}
# tags that the HTML of an output may hold; every other tag is shown as text
TAGS = re.findall(
    r"\w+",
    """a abbr b blockquote br caption code col colgroup dd details div dl dt em h2 h3 h4 h5 h6 hr
    i img kbd li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr
    u ul""",
)
ATTRIBUTES = {
    "*": ["class", "colspan", "rowspan", "scope", "title", "alt"],
    "a": ["href"],
    "img": lambda tag, name, value: name == "src" and value.startswith("data:image/"),
}


@dataclass(frozen=True)
class Page:
    """A rendered report."""

    html: str
    picture_file: str  # name of the figure of the verdict; empty without one
    picture: bytes
    alt: str


class _Renderer(IPythonRenderer):
    """nbconvert's Markdown renderer, with math as MathML, scrolling tables and anchors."""

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        anchor = re.sub(r"\W+", "-", html.unescape(re.sub(r"<[^>]*>", "", text)).lower()).strip("-")
        return f'<h{level} id="{anchor or "section"}">{text}</h{level}>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll prose"><table>{text}</table></div>\n'

    def inline_math(self, body: str) -> str:
        formula = mathml(body, "inline")
        # a formula does not break into lines, so that a long one scrolls in a narrow window
        return f'<span class="formula">{formula}</span>' if len(body) > 40 else formula

    def block_math(self, body: str) -> str:
        return f'<span class="equation">{mathml(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def markdown(source: str, folder: Path, trusted: bool = False, attachments: Any = None) -> Markup:
    """Render Markdown; only what an author wrote may hold raw HTML, not what was computed."""
    if trusted:  # links between notebooks lead to their pages
        source = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](\1.html)", source)
    renderer = _Renderer(
        escape=not trusted,
        allow_harmful_protocols=False,
        embed_images=trusted,
        exclude_anchor_links=True,
        path=str(folder),
        attachments=attachments or {},
    )
    return Markup(MarkdownWithMath(renderer=renderer).render(source))


def mathml(latex: str, display: str = "block") -> str:
    """Turn LaTeX into MathML; what cannot be converted is shown as it was written."""
    # the converter knows neither these environments nor \arg
    latex = re.sub(r"\{(align|equation)(ed)?\*?\}", "{align*}", latex)
    latex = re.sub(r"\{gather(ed)?\*?\}", "{gather*}", latex)
    latex = re.sub(r"\\arg\s*\\?(max|min)", r"\\mathrm{arg\\,\1}", latex)
    try:
        converted = latex_to_mathml(latex.strip(), display=display)
    except Exception:  # the converter has no common base for its errors
        return f'<code class="latex">{html.escape(latex)}</code>'
    # \sim is a relation, and names of functions are operators
    converted = converted.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    operator = r'<mo lspace="0" rspace="0.1667em">\1</mo>'
    return re.sub(r"<mi>(log|ln|exp|min|max)</mi>", operator, converted)


def output_html(source: str) -> Markup:
    """Return the HTML of an output without anything that could run or ask the network.

    Tables scroll in a box. Style sheets are left out: those of pandas conflict with dark mode.
    """
    source = re.sub(r"<style\b[^>]*>.*?</style\s*>", "", source, flags=re.DOTALL | re.IGNORECASE)
    clean = SanitizeHTML(tags=TAGS, attributes=ATTRIBUTES).sanitize_html_tags(source)
    clean = re.sub(r"<img\b(?![^>]*\bsrc=)[^>]*>", "", clean)  # an image from elsewhere
    scrolling = r'<div class="scroll">\1</div>'
    return Markup(re.sub(r"(<table\b.*?</table>)", scrolling, clean, flags=re.DOTALL))


def image_uri(content: str | bytes, mime: str) -> str:
    """Return a file as a data URI; text of a bitmap image is base64 already."""
    if isinstance(content, str) and mime in ("image/png", "image/jpeg"):
        return f"data:{mime};base64,{''.join(content.split())}"
    raw = content.encode() if isinstance(content, str) else content
    return f"data:{mime};base64,{base64.b64encode(raw).decode()}"


def duration(seconds: float | None) -> str:
    """Return a time as text.

    Examples
    --------
    >>> duration(12), duration(185)
    ('12 s', '3 min 05 s')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def plain_text(text: str) -> str:
    """Return text without terminal escapes and other control characters, but tabs and newlines."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", strip_ansi(text))


def quiet(text: str) -> str:
    """Return what a cell printed without what only says where and how it ran.

    Left out are progress bars, the file and line of a warning with the line of code below it,
    messages of the kernel, and the folders of absolute paths.

    Examples
    --------
    >>> quiet("/tmp/ipykernel_7/12.py:3: UserWarning: few\\n  fit(x)\\nin /home/me/data/a.csv")
    'UserWarning: few\\nin a.csv'
    >>> quiet("\\r 20%|##   | 1/5 [00:01<00:04, 1.2it/s]\\rdone")
    'done'
    """
    # a carriage return begins the line anew, so that what stood there is gone
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = re.sub(r"^.*\d+%\|.*$\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\[IPKernelApp\].*$\n?", "", text, flags=re.MULTILINE)
    warning = r"^\S[^\n]*?:\d+: (\w*Warning: .*)$(?:\n  \S.*$)?"
    text = re.sub(warning, r"\1", text, flags=re.MULTILINE)
    return without_folders(plain_text(text)).strip("\n")


def without_folders(text: str) -> str:
    """Return text with the file's name in place of each absolute path."""
    absolute = r"(?<![\w./:<>~\\-])(?:/|[A-Z]:\\)(?:[\w.@+-]+[/\\])+(?=[\w.])"
    return re.sub(absolute, "", text)


def streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the outputs of a cell with neighbouring prints of one stream joined and quiet."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            joined[-1] = nbformat.NotebookNode(last | {"text": last["text"] + output.text})
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output["text"] = quiet(output.text)
    return [o for o in joined if o.output_type != "stream" or o.text.strip()]


def environment(folder: Path) -> jinja2.Environment:
    """Return the Jinja environment of the pages, with its filters."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    add_filters(pages, folder)
    return pages


def add_filters(pages: jinja2.Environment, folder: Path) -> None:
    """Give the filters and globals of the templates to a Jinja environment."""

    def prose(source: str, trusted: bool = False, attachments: Any = None) -> Markup:
        return markdown(source, folder, trusted, attachments)

    pages.filters.update(
        prose=prose,
        inline=lambda source: Markup(re.sub(r"^<p>|</p>\s*$", "", prose(source).strip())),
        duration=duration,
        plain=lambda text: without_folders(plain_text(text)),
        output_html=output_html,
        code=lambda source: Markup(Highlight2HTML(pygments_lexer="ipython3")(source)),
        equation=lambda latex: Markup(_Renderer().block_math(latex.strip().strip("$"))),
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    pages.globals.update(style=Markup(style), image_uri=image_uri)
    pages.globals.update(images=list(IMAGES), downloads=DOWNLOADS)


def report_page(
    notebook: nbformat.NotebookNode, folder: Path, report: dict[str, Any], numbers: pd.DataFrame
) -> Page:
    """Render an executed notebook and the report of its numbers.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook with its outputs; a failed one may stop in the middle.
    folder : Path
        Where the notebook lies: pictures that its Markdown names are looked for there.
    report : dict
        The report of :mod:`psychlm.report`, with the runner's title, question, status, error,
        seconds and finishing time. With ``card``, the name of its files, the page stands alone: it
        links neither to an index nor to a notebook.
    numbers : DataFrame
        Its numbers, as :func:`psychlm.site.compare` returns them.
    """
    mime, content, alt = verdict_figure(notebook.cells)
    picture = content.encode() if mime == "image/svg+xml" else base64.b64decode(content)
    notebook = copy.deepcopy(notebook)
    cells = notebook.cells
    if report["status"] == "left out":  # the banner says why; a traceback adds nothing
        for cell in cells:
            cell["outputs"] = [o for o in cell.get("outputs", []) if o.output_type != "error"]
    for cell in cells:
        if cell.cell_type == "code":  # the verdict is in the box above
            cell["outputs"] = [o for o in streams(cell.outputs) if not is_verdict(o)]
    title = ""
    if cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# "):
        title, _, cells[0]["source"] = cells[0].source.removeprefix("# ").partition("\n")
    if report.get("card"):  # it says what it is of
        title = report["title"]
    verdict = report.get("verdict") if report["status"] == "complete" else None
    used = report["provenance"].get("data") or {}
    prose = (markdown(c.source, folder, trusted=True) for c in cells if c.cell_type == "markdown")
    headings = re.findall(r'<h2 id="(.*?)">(.*?)</h2>', "".join(prose), flags=re.DOTALL)
    urls = data.registry()["url"].reindex(list(used)).fillna("")
    exporter = HTMLExporter(template_paths=[str(TEMPLATES)], template_file="report.html.j2")
    add_filters(exporter.environment, folder)
    exporter.environment.autoescape = True
    exporter.environment.globals.update(
        report=report,
        title=title,
        verdict=verdict,
        picture=image_uri(content, mime) if mime else "",
        alt=alt,
        contents=[(anchor, Markup(text).striptags()) for anchor, text in headings],
        addresses=urls[urls.str.startswith("https://")].to_dict(),
        # compared numbers first
        numbers=numbers.sort_values(
            "verdict", key=lambda v: ~v.isin(["agrees", "differs"]), kind="stable"
        ).to_dict("records"),
    )
    page, _ = exporter.from_notebook_node(notebook)
    picture_file = f"{report['notebook']}.{IMAGES[mime]}" if mime else ""
    return Page(page, picture_file, picture, alt)


def verdict_figure(cells: list[nbformat.NotebookNode]) -> tuple[str, str, str]:
    """Return the type, content and alternative text of the verdict's picture; empty without one.

    It is the picture that ``report.verdict(..., figure=)`` shows again, described by the cell that
    showed it first.
    """
    described: dict[str, dict[str, Any]] = {}  # by picture: the metadata of its first cell
    for cell in cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            mime = next((mime for mime in IMAGES if mime in shown), None)
            if mime is None:
                continue
            words = described.setdefault(shown[mime], cell.metadata.get("psychlm", {}))
            if is_verdict(output):
                return mime, shown[mime], words.get("alt") or words.get("caption") or "The verdict"
    return "", "", ""


def is_verdict(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is the text or the figure that ``report.verdict`` shows."""
    return bool(output.get("metadata", {}).get("psychlm", {}).get("verdict"))
