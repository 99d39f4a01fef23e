"""A text whose words are shaded by a number: surprisal, a reading time, a residual."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from psychlm import _formatting, data, frames
from psychlm.frames import FrameError

N_SHADES = 16
# One hue, from white to a blue on which black letters still have a contrast of 4.5 to 1, so that
# the order of the shades is the same in grey.
LIGHTEST = np.array([255.0, 255.0, 255.0])
DARKEST = np.array([86.0, 150.0, 205.0])
STYLE = """
.shaded { font: 1.05rem/2 Georgia, serif; color: #111; background: #fff; max-width: 75rem; }
.shaded .columns { display: flex; gap: 2.5rem; flex-wrap: wrap; }
.shaded .columns > div { flex: 1 1 22rem; }
.shaded p { white-space: pre-line; }
.shaded h3, .shaded .scale { font: 600 0.9rem/1.5 system-ui, sans-serif; margin: 0.8rem 0 0.2rem; }
.shaded .scale span { font-weight: 400; padding: 0.15rem 0.6rem; }
.shaded span { padding: 0.15em 0.1em; border-radius: 0.15em;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.shaded .none { border-bottom: 1px dotted #555; border-radius: 0; }
@media print { .shaded p { break-inside: avoid-page; } }
"""
for _shade, _share in enumerate(np.linspace(0, 1, N_SHADES)):
    _red, _green, _blue = (LIGHTEST + _share * (DARKEST - LIGHTEST)).round().astype(int)
    STYLE += f".shaded .shade{_shade} {{ background: rgb({_red},{_green},{_blue}); }}\n"


@dataclass(frozen=True, repr=False)
class ShadedText:
    """A shaded text; a notebook shows it, and :meth:`save` writes a page of its own."""

    body: str
    title: str

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.body}"

    def page(self) -> str:
        """Return a whole page of HTML, which needs no other file and no network."""
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title>'
        return f"<!doctype html><html><head>{head}</head><body>{self._repr_html_()}</body></html>"

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        with data.atomic_write(Path(path)) as part:
            part.write_text(self.page(), encoding="utf-8")


def text(
    words: pd.DataFrame,
    columns: str | Sequence[str] | Mapping[str, str] = "surprisal_bits",
    *,
    one_scale: bool = True,
    title: str = "",
) -> ShadedText:
    """Show a text, its words shaded by a column of numbers; several columns stand side by side.

    Hovering over a word shows its numbers. Shades go from 0 (or the lowest number, if some are
    negative) to the 99th percentile; words without a number have a dotted line below. The order of
    shades is the same in grey.

    Parameters
    ----------
    words : DataFrame
        A words frame, as of ``lm.surprisal``; ``space_before`` and ``space_after`` are used.
    columns : str, sequence of str, or mapping
        Columns of numbers, or these with what is written above: ``{"gpt2": "GPT-2 (bits)"}``.
    one_scale : bool
        Whether the columns share their shades, as two models should; not if their units differ.
    title : str
        The title of the page.

    Examples
    --------
    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["the", "horse"]})
    >>> shown = text(words.assign(surprisal_bits=[4.0, 9.5]), "surprisal_bits")
    >>> "horse: surprisal (bits) 9.50" in shown.page()
    True
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    labels = (
        dict(columns) if isinstance(columns, Mapping) else {n: _formatting.label(n) for n in names}
    )
    absent = [name for name in names if name not in words]
    if absent or not names:
        raise FrameError(f"no columns {absent} to shade words by; there are {list(words.columns)}")
    words = frames.check_words(words, whole_texts=False)
    numbers = words[names].to_numpy(np.float64)
    if not np.isfinite(numbers).any(axis=0).all():
        raise FrameError(f"one of the columns {names} holds no number")
    known = np.where(np.isfinite(numbers), numbers, np.nan)
    low = np.minimum(np.nanmin(known, axis=0), 0)
    high = np.maximum(np.nanquantile(known, 0.99, axis=0), low + 1e-12)
    if one_scale:
        low[:] = low.min()
        high[:] = high.max()

    def shade(value: float, column: int) -> str:
        if not np.isfinite(value):
            return "none"
        share = np.clip((value - low[column]) / (high[column] - low[column]), 0, 1)
        return f"shade{round(share * (N_SHADES - 1))}"

    hover = [
        html.escape(
            f"{word}: "
            + "; ".join(
                f"{labels[name]} {_formatting.number(float(x), '.2f')}"
                for name, x in zip(names, row, strict=True)
            ),
            quote=True,
        )
        for word, row in zip(words["word"], numbers, strict=True)
    ]
    # Without columns of spaces one space stands between words.
    spaces = {"space_before": "", "space_after": " "}
    around = [words.get(name, pd.Series(d, words.index)).fillna(d) for name, d in spaces.items()]
    panels = []
    for i, name in enumerate(names):
        lines = []
        for text_id, places in words.groupby("text_id", sort=False).indices.items():
            spans = []
            for place in places:
                kind = shade(numbers[place, i], i)
                word = html.escape(str(words["word"].iloc[place]))
                marked = f'<span class="{kind}" title="{hover[place]}">{word}</span>'
                spans.append(f"{around[0].iloc[place]}{marked}{around[1].iloc[place]}")
            heading = f"<h3>{html.escape(str(text_id))}</h3>" * (words["text_id"].nunique() > 1)
            lines.append(f"{heading}<p>{''.join(spans)}</p>")
        steps = "".join(
            f'<span class="{shade(x, i)}">{_formatting.number(float(x), ".1f")}</span>'
            for x in np.linspace(low[i], high[i], 5)
        )
        scale = f'<p class="scale">{html.escape(labels[name])}: {steps}</p>'
        panels.append(f"<div>{scale}{''.join(lines)}</div>")
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    body = f'<div class="shaded">{heading}<div class="columns">{"".join(panels)}</div></div>'
    return ShadedText(body, title or ", ".join(labels.values()))
