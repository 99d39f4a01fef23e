"""Texts shaded by numbers: what ``plots.text`` shows, read back from its HTML."""

import html
import re

import numpy as np
import pandas as pd
import pytest

from psychlm import plots
from psychlm.frames import FrameError
from psychlm.site.html import output_html

SPAN = re.compile(r'<span class="(?:shade(\d+)|none)" title="(.*?)">')


@pytest.fixture
def words():
    printed = ["“The", "old", "<man>", "the", "boat.”", "&"]
    words = pd.DataFrame({"text_id": "t", "word_id": range(1, 7), "word": printed})
    return words.assign(a=[1.0, 5, 2, np.nan, 9, 0], b=[4.0, 1, 1, 1, 20, -3])


def grey(page, match):
    """Return the luminance of a shade, which is what a print without colours shows."""
    rgb = re.search(rf"\.shade{match[1]} \{{ background: rgb\((\d+),(\d+),(\d+)\)", page)
    return np.dot([0.2126, 0.7152, 0.0722], [int(part) for part in rgb.groups()])


def test_shades_have_the_order_of_the_numbers_in_grey_and_hover_shows_them(words):
    page = plots.text(words, {"a": "first", "b": "second"})._repr_html_()
    spans = list(SPAN.finditer(page))
    assert len(spans) == 12
    for column, found in (("a", spans[:6]), ("b", spans[6:])):
        known = [(x, grey(page, m)) for x, m in zip(words[column], found, strict=True) if m[1]]
        assert len(known) == words[column].notna().sum()
        assert np.all(np.diff([shade for _, shade in sorted(known)]) <= 0)
        assert len({shade for _, shade in known}) > 2
    assert html.unescape(spans[2][2]) == "<man>: first 2.00; second 1.00"
    assert "&lt;man&gt;</span>" in page and "<man>" not in page
    # a report's page keeps the shades and the numbers
    assert output_html(page).count('title="') == 12 and "shade15" in output_html(page)
    # one file: nothing is fetched, nothing is run
    assert not re.search(r"<script|<link|src=|https?:|url\(", page)


def test_columns_share_one_scale_and_what_cannot_be_shaded_is_named(words):
    same = plots.text(words.assign(b=words["a"]), ["a", "b"])._repr_html_()
    shades = [match[1] for match in SPAN.finditer(same)]
    assert shades[:6] == shades[6:]
    apart = plots.text(words.assign(b=words["a"] * 100), ["a", "b"], one_scale=False)._repr_html_()
    shades = [match[1] for match in SPAN.finditer(apart)]
    assert shades[:6] == shades[6:]
    with pytest.raises(FrameError, match=r"no columns \['c'\] to shade words by; there are"):
        plots.text(words, "c")
    with pytest.raises(FrameError, match="holds no number"):
        plots.text(words.assign(a=np.nan), "a")
