"""What a reader may take from a figure: the drawing itself as SVG, and the numbers that were drawn as CSV.

In a notebook's kernel :func:`offer` adds both to every figure that is shown, beside its PNG; the reports turn them into
downloads. The numbers are read off the drawing, so that what is downloaded is what is seen.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import (
    Collection,
    LineCollection,
    PathCollection,
    PolyCollection,
    QuadMesh,
)
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

COLUMNS = ["panel", "kind", "label", "x", "y", "value"]
MOST_ROWS = 20_000  # a drawing of more marks is given as PNG alone: as SVG it would take megabytes


def data_of(figure: Figure) -> pd.DataFrame:
    """Return the numbers that a figure draws, one row a mark.

    Returns
    -------
    DataFrame
        ``panel`` (its title, else its number), ``kind`` (line, point, bar, segment, area or cell), ``label`` (that of
        the legend, else the colour), ``x`` and ``y`` in the units of the axes (names where an axis has categories),
        ``value`` (what a heat map's cell or a point's colour stands for, else missing). The corners of areas and the
        two ends of segments are rows of their own.
    """
    rows = [part for number, ax in enumerate(figure.axes, 1) for part in _parts(ax, number)]
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(rows, ignore_index=True)[COLUMNS]


def _parts(ax: Axes, number: int) -> Iterator[pd.DataFrame]:
    """Yield a frame for each artist of a panel that stands for data."""
    if ax.get_label() == "<colorbar>":
        return
    panel = " ".join(ax.get_title().split()) or str(number)
    for kind, label, x, y, value in _marks(ax):
        frame = pd.DataFrame({"x": _names(ax, "x", x), "y": _names(ax, "y", y), "value": value})
        yield frame.assign(panel=panel, kind=kind, label=label)


def _marks(ax: Axes) -> Iterator[tuple[str, str, Any, Any, Any]]:
    for container in ax.containers:
        if isinstance(container, BarContainer):
            boxes = [patch.get_bbox() for patch in container]
            upright = container.orientation != "horizontal"
            middle = [(b.x0 + b.x1) / 2 if upright else (b.y0 + b.y1) / 2 for b in boxes]
            length = [b.y1 if upright else b.x1 for b in boxes]
            label = _label(container, container[0].get_facecolor() if len(container) else None)
            yield (
                ("bar", label, middle, length, np.nan)
                if upright
                else ("bar", label, length, middle, np.nan)
            )
    named = {part: container for container in ax.containers for part in container.get_children()}
    for line in ax.get_lines():
        x, y = (np.asarray(along) for along in line.get_data(orig=False))
        if len(x) and line.get_transform().contains_branch(ax.transData):
            yield "line", _label(named.get(line, line), line.get_color()), x, y, np.nan
    for collection in ax.collections:
        yield from _of_collection(collection, named.get(collection, collection))
    for image in ax.get_images():
        values: np.ndarray = np.ma.filled(np.ma.asarray(image.get_array(), float), np.nan)
        if values.ndim == 2:
            row, column = np.indices(values.shape)
            yield "cell", "", column.ravel(), row.ravel(), values.ravel()


def _of_collection(collection: Collection, named: Any) -> Iterator[tuple[str, str, Any, Any, Any]]:
    colours = to_rgba_array(collection.get_facecolor()), to_rgba_array(collection.get_edgecolor())
    label = _label(named, next((colour[0] for colour in colours if len(colour)), None))
    if isinstance(collection, QuadMesh):
        cells: np.ndarray = np.ma.filled(np.ma.asarray(collection.get_array(), float), np.nan)
        cells = cells.reshape(np.asarray(collection.get_coordinates()).shape[0] - 1, -1)
        row, column = np.indices(cells.shape)
        yield "cell", "", column.ravel() + 0.5, row.ravel() + 0.5, cells.ravel()
    elif isinstance(collection, PathCollection):
        points, value = np.ma.filled(collection.get_offsets(), np.nan), collection.get_array()
        yield (
            "point",
            label,
            points[:, 0],
            points[:, 1],
            np.nan if value is None else np.asarray(value, float),
        )
    elif isinstance(collection, (LineCollection, PolyCollection)):
        kind = "segment" if isinstance(collection, LineCollection) else "area"
        corners = [
            np.asarray(path.vertices)
            for path in collection.get_paths()
            if path.vertices is not None
        ]
        if corners:
            x, y = np.concatenate(corners).T
            yield kind, label, x, y, np.nan


def _label(artist: Any, colour: Any) -> str:
    said = str(artist.get_label() or "")
    if said and not said.startswith("_"):
        return said
    return "" if colour is None else to_hex(colour)


def _names(ax: Axes, which: str, positions: Any) -> np.ndarray:
    """Turn positions on an axis of categories into their names; leave those of numbers as they are."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    positions = np.asarray(positions)
    texts = [text.get_text() for text in axis.get_ticklabels()]
    if positions.dtype.kind not in "iuf" or not any(re.search(r"[^\W\d_]", text) for text in texts):
        return positions
    names = {round(float(at), 6): text for at, text in zip(axis.get_ticklocs(), texts, strict=True)}
    return np.array([names.get(round(float(at), 6)) or at for at in positions], dtype=object)


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG, the same text for the same figure."""
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "psychlm"}):
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    return out.getvalue()


def register_figure() -> None:
    """In a notebook's kernel, have every figure that is shown carry its SVG and its numbers; elsewhere, do nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class _Csv(BaseFormatter):
        format_type = Unicode("text/csv")
        print_method = ObjectName("_repr_csv_")

    formatters = shell.display_formatter.formatters
    if "text/csv" in formatters:
        return
    formatters["text/csv"] = _Csv(parent=shell.display_formatter)

    def register(*_: Any) -> None:
        formatters["text/csv"].for_type(Figure, _csv_if_small)
        formatters["image/svg+xml"].for_type(Figure, _svg_if_small)

    # the backend for notebooks clears what is registered for figures when it is chosen, so it is chosen first
    plt.switch_backend(mpl.get_backend())
    register()
    shell.events.register("pre_run_cell", register)


def _csv_if_small(figure: Figure) -> str | None:
    data = data_of(figure)
    return data.to_csv(index=False) if 0 < len(data) <= 5 * MOST_ROWS else None


def _svg_if_small(figure: Figure) -> str | None:
    return svg_of(figure) if len(data_of(figure)) <= MOST_ROWS else None
