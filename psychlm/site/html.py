"""An executed notebook as one HTML file: MathML, pictures and styles inside, no script."""

from __future__ import annotations

import base64
import copy
import html
import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import pandas as pd
from latex2mathml.converter import convert as latex_to_mathml
from markupsafe import Markup
from nbconvert.filters import Highlight2HTML, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors.sanitize import SanitizeHTML

from psychlm import _shaded_text, data

TEMPLATES = Path(__file__).parent / "templates"
IMAGES = {"image/png": "png", "image/svg+xml": "svg", "image/jpeg": "jpg"}
DOWNLOADS = IMAGES | {"text/csv": "csv"}
# tags that the HTML of an output may hold; every other tag is shown as text
TAGS = """a abbr b blockquote br caption code col colgroup dd details div dl dt em h2 h3 h4 h5 h6 hr
i img kbd li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr u
ul"""
ATTRIBUTES = {
    "*": ["class", "colspan", "rowspan", "scope", "title", "alt"],
    "a": ["href"],
    "img": lambda tag, name, value: name == "src" and value.startswith("data:image/"),
}


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


def markdown(source: str, folder: Path, trusted: bool = False) -> Markup:
    """Render Markdown; only what an author wrote may hold raw HTML, not what was computed."""
    if trusted:  # links between notebooks lead to their pages
        source = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](\1.html)", source)
    renderer = _Renderer(
        escape=not trusted,
        allow_harmful_protocols=False,
        embed_images=trusted,
        exclude_anchor_links=True,
        path=str(folder),
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
    """Return the HTML of an output without what could run or ask the network; tables scroll."""
    # the style sheets of pandas conflict with dark mode
    source = re.sub(r"<style\b[^>]*>.*?</style\s*>", "", source, flags=re.DOTALL | re.IGNORECASE)
    clean = SanitizeHTML(tags=TAGS.split(), attributes=ATTRIBUTES).sanitize_html_tags(source)
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

    >>> duration(12), duration(185), duration(1200), duration(7.2e6)
    ('12 s', '3 min 05 s', '20 min', '2,000 h')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def quiet(text: str) -> str:
    """Return what a cell printed without what only says where it ran.

    Left out are the file and line of a warning with the line of code below it, messages of the
    kernel, control characters, and the folders of absolute paths.

    >>> quiet("/tmp/ipykernel_7/12.py:3: UserWarning: few\\n  fit(x)\\nin /home/me/data/a.csv")
    'UserWarning: few\\nin a.csv'
    """
    text = re.sub(r"^\[IPKernelApp\].*$\n?", "", text, flags=re.MULTILINE)
    warning = r"^\S[^\n]*?:\d+: (\w*Warning: .*)$(?:\n  \S.*$)?"
    text = strip_ansi(re.sub(warning, r"\1", text, flags=re.MULTILINE))
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text).strip("\n")
    absolute = r"(?<![\w./:<>~\\-])(?:/|[A-Z]:\\)(?:[\w.@+-]+[/\\])+(?=[\w.])"
    return re.sub(absolute, "", text)


@cache
def environment(folder: Path) -> jinja2.Environment:
    """Return the Jinja environment of the pages; Markdown finds its pictures in ``folder``."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)

    def prose(source: str, trusted: bool = False) -> Markup:
        return markdown(source, folder, trusted)

    pages.filters.update(
        prose=prose,
        inline=lambda source: Markup(re.sub(r"^<p>|</p>\s*$", "", prose(source).strip())),
        duration=duration,
        plain=quiet,
        output_html=output_html,
        code=lambda source: Markup(Highlight2HTML(pygments_lexer="ipython3")(source)),
        equation=lambda latex: Markup(_Renderer().block_math(latex.strip().strip("$"))),
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8") + _shaded_text.STYLE
    pages.globals.update(style=Markup(style), image_uri=image_uri)
    pages.globals.update(images=list(IMAGES), downloads=DOWNLOADS)
    return pages


def report_page(
    notebook: nbformat.NotebookNode, folder: Path, report: dict[str, Any], numbers: pd.DataFrame
) -> str:
    """Render an executed notebook, in ``folder``, and its report with its compared numbers."""
    mime, picture, alt = verdict_figure(notebook.cells)
    notebook = copy.deepcopy(notebook)
    cells = notebook.cells
    title = report["title"]
    # the verdict is in the box above; the banner says what a notebook that is left out lacks
    hidden = "error" if report["status"] == "left out" else ""
    for cell in cells:
        if cell.cell_type == "code":
            shown = [o for o in cell.outputs if not is_verdict(o) and o.output_type != hidden]
            for output in shown:
                if output.output_type == "stream":
                    output.text = quiet(output.text)
            cell.outputs = [o for o in shown if o.output_type != "stream" or o.text.strip()]
    cells[:] = present(cells)
    if cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# "):
        heading, _, cells[0]["source"] = cells[0].source.removeprefix("# ").partition("\n")
        title = title if report.get("card") else heading  # a card says what it is of
    prose = (markdown(c.source, folder, trusted=True) for c in cells if c.cell_type == "markdown")
    headings = re.findall(r'<h2 id="(.*?)">(.*?)</h2>', "".join(prose), flags=re.DOTALL)
    used = list(report["provenance"].get("data") or {})
    urls = data.registry()["url"].reindex(used).fillna("")
    is_compared = numbers["verdict"].isin(["agrees", "differs"])
    template = environment(folder).get_template("report.html.j2")
    return template.render(
        nb=notebook,
        report=report,
        title=title,
        verdict=report.get("verdict") if report["status"] == "complete" else None,
        picture=image_uri(picture, mime) if mime else "",
        name=report.get("card") or report["notebook"],
        has_tables=bool(tables(cells)),
        alt=alt,
        contents=[(anchor, Markup(text).striptags()) for anchor, text in headings],
        addresses=urls[urls.str.startswith("https://")].to_dict(),
        numbers=pd.concat([numbers[is_compared], numbers[~is_compared]]).to_dict("records"),
    )


def tables(cells: list[nbformat.NotebookNode]) -> dict[str, pd.DataFrame]:
    """Return the tables of a page by the heading above each and, from the second on, a number."""
    found: dict[str, pd.DataFrame] = {}
    heading = "Tables"
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            heading = cell.source.partition("\n")[0].removeprefix("## ")
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "text/html" in shown and "text/csv" in shown:
                options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
                texts = pd.read_csv(io.StringIO(shown["text/csv"]), dtype=str, **options)
                # ids that a number would change: 007, and those of more digits than it holds
                ids = [n for n in texts if texts[n].str.fullmatch(r"0\d+|\d{16,}").any()]
                types = dict.fromkeys(ids, str)
                table = pd.read_csv(io.StringIO(shown["text/csv"]), dtype=types, **options)
                table = table.rename(columns=lambda name: re.sub(r"^Unnamed: \d+$", "", name))
                # a sheet of Excel has a name of 31 characters at most
                names = [heading[:31], *(f"{heading[:28]} {n}" for n in range(2, 100))]
                found[next(name for name in names if name not in found)] = table
    return found


def present(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the cells without the sections that ``report.left_out`` named."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    said = [output.get("metadata", {}).get("psychlm", {}) for output in outputs]
    absent = {f"## {name}" for shown in said for name in shown.get("left_out", ())}
    kept = []
    is_absent = False
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            is_absent = cell.source.partition("\n")[0] in absent
        failed = any(output.output_type == "error" for output in cell.get("outputs", []))
        if failed or not is_absent:
            kept.append(cell)
    return kept


def verdict_figure(cells: list[nbformat.NotebookNode]) -> tuple[str, bytes, str]:
    """Return type, content and alternative text of the picture that ``report.verdict`` shows,
    described by the cell that showed it first; all empty without one."""
    described: dict[str, dict[str, Any]] = {}  # by picture: the metadata of its first cell
    for cell in cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            for mime, content in [(mime, shown[mime]) for mime in IMAGES if mime in shown]:
                words = described.setdefault(content, cell.metadata.get("psychlm", {}))
                if is_verdict(output):
                    alt = words.get("alt") or words.get("caption") or "The verdict"
                    vector = mime == "image/svg+xml"
                    return mime, content.encode() if vector else base64.b64decode(content), alt
    return "", b"", ""


def is_verdict(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is the text or the figure that ``report.verdict`` shows."""
    return bool(output.get("metadata", {}).get("psychlm", {}).get("verdict"))
