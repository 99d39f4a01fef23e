"""A text whose words are shaded by a number: surprisal, a reading time, a residual."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm import _formatting, frames
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
    """A shaded text, which a notebook shows; it needs no other file and no network."""

    body: str

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.body}"


def text(
    words: pd.DataFrame,
    columns: str | Sequence[str] | Mapping[str, str] = "surprisal_bits",
    *,
    one_scale: bool = True,
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

    Examples
    --------
    >>> words = pd.DataFrame({"text_id": "t", "word_id": [1, 2], "word": ["the", "horse"]})
    >>> shown = text(words.assign(surprisal_bits=[4.0, 9.5]), "surprisal_bits")
    >>> "horse: surprisal (bits) 9.50" in shown.body
    True
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    labels = columns if isinstance(columns, Mapping) else {n: _formatting.label(n) for n in names}
    absent = [name for name in names if name not in words]
    if absent or not names:
        raise FrameError(f"no columns {absent} to shade words by; there are {list(words.columns)}")
    words = frames.check_words(words, whole_texts=False)
    numbers = words[names].astype(float)
    known = numbers.where(np.isfinite(numbers))
    if known.isna().all().any():
        raise FrameError(f"one of the columns {names} holds no number")
    low = known.min().clip(upper=0)
    high = known.quantile(0.99).clip(lower=low + 1e-12)
    if one_scale:
        low[:] = low.min()
        high[:] = high.max()
    shades = ((known - low) / (high - low)).clip(0, 1) * (N_SHADES - 1)
    hover = words["word"].astype(str) + ":"
    for name in names:
        values = numbers[name].map(lambda value: _formatting.number(value, ".2f"))
        hover += f"{';' * (name != names[0])} {labels[name]} " + values
    # without columns of spaces one space stands between words
    before = words["space_before"].fillna("") if "space_before" in words else ""
    after = words["space_after"].fillna(" ") if "space_after" in words else " "
    panels = []
    for name in names:
        kinds = shades[name].map(lambda shade: f"shade{round(shade)}", "ignore").fillna("none")
        spans = before + '<span class="' + kinds + '" title="' + hover.map(html.escape)
        spans += '">' + words["word"].map(html.escape) + "</span>" + after
        texts = spans.groupby(words["text_id"], sort=False).agg("".join)
        paragraphs = [
            f"<h3>{html.escape(text_id)}</h3>" * (len(texts) > 1) + f"<p>{paragraph}</p>"
            for text_id, paragraph in texts.items()
        ]
        steps = "".join(
            f'<span class="shade{round(share * (N_SHADES - 1))}">'
            f"{_formatting.number(low[name] + share * (high[name] - low[name]), '.1f')}</span>"
            for share in np.linspace(0, 1, 5)
        )
        scale = f'<p class="scale">{html.escape(labels[name])}: {steps}</p>'
        panels.append(f"<div>{scale}{''.join(paragraphs)}</div>")
    body = f'<div class="shaded"><div class="columns">{"".join(panels)}</div></div>'
    return ShadedText(body)
