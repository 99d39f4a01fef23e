"""Figures as tables and pictures: what a shown figure draws, beside a PNG as SVG and as CSV."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_MARKS = 20_000  # a figure of more marks is shown as PNG alone: its SVG would take megabytes


def figure_data(figure: Figure) -> pd.DataFrame:
    """Return the lines, points, bars, intervals and cells that a figure draws, one row per mark.

    Columns are ``panel`` (title or number), ``kind`` (line, point, bar, segment or cell), ``label``
    (of the legend), ``x`` and ``y`` in units of the axes, ``value`` of a heat map's cell.
    """
    import pandas as pd
    from matplotlib.collections import LineCollection, PathCollection, QuadMesh

    frames = [pd.DataFrame(columns=["panel", "kind", "label", "x", "y", "value"])]
    for position, ax in enumerate(figure.axes, 1):
        # the style of the package puts titles at the left
        title = ax.get_title() or ax.get_title(loc="left") or str(position)
        marks: list[tuple[str, Any, Any, Any, Any]] = []
        for bars in ax.containers:
            horizontal = getattr(bars, "orientation", "vertical") == "horizontal"
            for box in [patch.get_bbox() for patch in getattr(bars, "patches", ())]:
                x = (box.x0 + box.x1) / 2
                y = box.y1
                if horizontal:
                    x = box.x1
                    y = (box.y0 + box.y1) / 2
                marks.append(("bar", bars, [x], [y], None))
        marks += [("line", line, *line.get_data(orig=False), None) for line in ax.get_lines()]
        for artist in ax.collections:
            if isinstance(artist, PathCollection):
                marks.append(("point", artist, *np.ma.filled(artist.get_offsets(), np.nan).T, None))
            elif isinstance(artist, LineCollection):
                drawn = [segment for segment in artist.get_segments() if len(segment)]
                points = np.concatenate(drawn) if drawn else np.empty((0, 2))
                marks.append(("segment", artist, *points.T, None))
            elif isinstance(artist, QuadMesh) and ax.get_label() != "<colorbar>":
                cells: Any = np.ma.filled(np.ma.asarray(artist.get_array(), float), np.nan)
                cells = cells.reshape(np.asarray(artist.get_coordinates()).shape[0] - 1, -1)
                y, x = np.indices(cells.shape) + 0.5
                marks.append(("cell", artist, x.ravel(), y.ravel(), cells.ravel()))
        for kind, artist, x, y, value in marks:
            label = str(artist.get_label() or "")
            frame = pd.DataFrame({"x": x, "y": y, "value": value})
            frame["label"] = "" if label.startswith("_") else label
            frames.append(frame.assign(panel=title, kind=kind))
    return pd.concat(frames[1:] or frames, ignore_index=True)[frames[0].columns]


def csv_of_table(table: pd.DataFrame) -> str:
    """Return a table as CSV, its row labels as columns unless they only count.

    >>> import pandas as pd
    >>> csv_of_table(pd.DataFrame({"b": [0.25]}, pd.Index(["q1"], name="item")))
    'item,b\\nq1,0.25\\n'
    """
    only_counts = table.index.name is None and table.index.tolist() == list(range(len(table)))
    return table.to_csv(index=not only_counts)


def register_figure() -> None:
    """In a notebook, let shown figures carry SVG and CSV beside a PNG of twice the pixels.

    Tables that are shown carry CSV as well.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import pandas as pd
    from IPython.core.formatters import BaseFormatter
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib.figure import Figure
    from traitlets import ObjectName, Unicode

    class CsvFormatter(BaseFormatter):
        """Tell IPython about a format that it does not know."""

        format_type = Unicode("text/csv")
        print_method = ObjectName("_repr_csv_")

    def csv_of(figure: Figure) -> str | None:
        table = figure_data(figure)
        return table.to_csv(index=False) if 0 < len(table) <= 5 * MAX_MARKS else None

    def svg_of(figure: Figure) -> str | None:
        if len(figure_data(figure)) > MAX_MARKS:
            return None
        out = io.StringIO()
        engine: Any = layout_of.get(figure) or figure.get_layout_engine() or "none"
        figure.set_layout_engine(engine)  # of a figure that was shown before and may have changed
        with mpl.rc_context({"svg.hashsalt": "psychlm"}):  # the same text for the same figure
            figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
        layout_of[figure] = engine
        figure.set_layout_engine("none")  # it is laid out: for the PNG that takes half of the time
        return out.getvalue()

    def register(*_: Any) -> None:
        formatters["text/csv"].for_type(Figure, csv_of)
        formatters["text/csv"].for_type(pd.DataFrame, csv_of_table)
        formatters["image/svg+xml"].for_type(Figure, svg_of)

    layout_of: WeakKeyDictionary[Figure, Any] = WeakKeyDictionary()
    formatters = shell.display_formatter.formatters
    if "text/csv" not in formatters:
        formatters["text/csv"] = CsvFormatter(parent=shell.display_formatter)
        # choosing the backend clears what is registered for figures, so choose it first
        plt.switch_backend(mpl.get_backend())
        select_figure_formats(shell, {"retina"})
        register()
        shell.events.register("pre_run_cell", register)
