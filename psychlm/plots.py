"""Figures of tidy frames; every function takes ``ax`` (by default the current) and returns it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats
from scipy.spatial import cKDTree

from psychlm import report

POPULATION_COLOURS = {
    "human": "#444444",
    "transformer": "#0072B2",
    "lstm": "#D55E00",
    "random": "#999999",
}
# colour-blind safe: Okabe & Ito (2008)
CATEGORIES = ("#444444", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def use_style() -> None:
    """Use the package's style for all figures; in a notebook, figures also carry SVG and CSV."""
    plt.style.use(Path(__file__).with_name("psychlm.mplstyle"))
    report.register_figure()


def intervals(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str,
    published: str | None = None,
    colours: Mapping[str, str] = POPULATION_COLOURS,
    ax: Axes | None = None,
) -> Axes:
    """Draw estimates with their intervals, grouped, and the published values as hollow marks.

    Parameters
    ----------
    table : DataFrame
        One row per category and group: ``x`` holds the estimate, ``low`` and ``high`` its interval,
        ``y`` the category, ``hue`` the group; ``published``, if given, names the column of the
        published values.
    """
    ax = ax or plt.gca()
    categories = list(dict.fromkeys(table[y]))
    groups = list(dict.fromkeys(table[hue]))
    for offset, group in zip(np.linspace(0.22, -0.22, len(groups)), groups, strict=True):
        rows = table[table[hue] == group]
        height = np.array([categories.index(category) for category in rows[y]]) - offset
        ax.hlines(height, rows["low"], rows["high"], color=colours[group], alpha=0.45, linewidth=3)
        ax.plot(rows[x], height, "o", color=colours[group], label=group)
        if published is not None:
            ax.plot(rows[published], height, "o", mfc="none", mec="black", ms=9, mew=0.9)
    if published is not None:
        ax.plot([], [], "o", mfc="none", mec="black", ms=9, mew=0.9, label="published")
    ax.axvline(0, color="#444444", linewidth=0.8)
    ax.set(yticks=range(len(categories)), yticklabels=categories)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return ax


def heat_map(
    table: pd.DataFrame, *, label: str, limit: float | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a table of signed numbers as a heat map centred on zero, each cell with its value.

    Parameters
    ----------
    label : str
        What the numbers are, with their unit: the label of the colour bar.
    limit : float, optional
        The colour scale runs from -limit to limit; the largest absolute value unless given.
    """
    import seaborn as sns  # here, since it takes a second to import

    ax = ax or plt.gca()
    limit = limit or float(np.nanmax(np.abs(table.to_numpy(dtype=float))))
    sns.heatmap(
        table,
        vmin=-limit,
        vmax=limit,
        center=0,
        cmap="vlag",
        annot=True,
        fmt="+.2f",
        linewidths=1.5,
        annot_kws={"size": 9},
        cbar_kws={"label": label},
        ax=ax,
    )
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    return ax


def wright_map(theta: pd.Series, difficulty: pd.Series, *, ax: Axes | None = None) -> Axes:
    """Draw the abilities of persons and the difficulties of items on one scale (Wright 1977).

    Parameters
    ----------
    theta : Series, by person
        Abilities in logits.
    difficulty : Series, by item
        Difficulties in logits.
    """
    ax = ax or plt.gca()
    ax.hist(theta, bins=30, orientation="horizontal", color=POPULATION_COLOURS["human"], alpha=0.35)
    ax.set(xlabel="persons", ylabel="ability, difficulty (logits)")
    ticks = ax.twiny()
    ticks.plot(
        np.zeros(len(difficulty)),
        difficulty,
        "_",
        color=POPULATION_COLOURS["transformer"],
        ms=18,
        mew=1.5,
    )
    ticks.set(xlim=(1, -0.08), xticks=[])
    ticks.grid(visible=False)
    colour = POPULATION_COLOURS["transformer"]
    ax.annotate("items", (1, 1), xycoords="axes fraction", ha="right", va="bottom", color=colour)
    return ax


def word_by_word(
    words: pd.DataFrame,
    *,
    y: str = "surprisal_bits",
    marked: Collection[int] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw one text word by word: one bar per word, labelled with the word.

    Parameters
    ----------
    words : DataFrame
        The words frame of one text, in order, with ``y`` (surprisal in bits).
    marked : collection of int
        The ``word_id`` of words to highlight, for instance where a garden path ends.
    """
    ax = ax or plt.gca()
    place = np.arange(len(words))
    highlighted = words["word_id"].isin(marked).to_numpy()
    ax.bar(
        place,
        words[y],
        color=np.where(highlighted, POPULATION_COLOURS["lstm"], POPULATION_COLOURS["random"]),
        width=0.7,
    )
    ax.set_ylabel("surprisal (bits)")
    ax.set_xticks(place, words["word"])
    ax.grid(axis="x", visible=False)
    return ax


def partial_effect(
    fit: Any, term: str, *, level: float = 0.95, rug: bool = True, ax: Axes | None = None
) -> Axes:
    """Draw what a smooth or linear term of a reading-time model adds, with its pointwise band.

    Parameters
    ----------
    fit : GAMFit
        Of :func:`psychlm.reading_times.fit`, by either backend.
    term : str
        The label of a term of one variable: ``"s(position)"``, ``"bits"``.
    level : float
        Coverage of the band.
    rug : bool
        Mark the values of the data at the lower edge, at most 1,000 of them.
    """
    ax = ax or plt.gca()
    table = fit.effect(term, level=level)
    if table.shape[1] != 5:
        raise ValueError(f"{term} has several variables; draw it with plots.effect_surface")
    x, colour = table.columns[0], POPULATION_COLOURS["transformer"]
    if table[x].dtype == object or len(table) < 10:
        errors = [table["effect"] - table["low"], table["high"] - table["effect"]]
        ax.errorbar(table[x].astype(str), table["effect"], errors, fmt="o", color=colour, capsize=3)
    else:
        ax.fill_between(table[x], table["low"], table["high"], color=colour, alpha=0.2, lw=0)
        ax.plot(table[x], table["effect"], color=colour)
        if rug:
            values = fit.data[x].drop_duplicates().to_numpy()
            values = values[:: max(1, len(values) // 1000)]
            height = np.zeros(len(values))
            ax.plot(values, height, "|", color="#444444", ms=5, transform=ax.get_xaxis_transform())
    edf = f", {fit.smooths['edf'][term]:.1f} edf" if term in fit.smooths.index else ""
    ax.set(xlabel=x, ylabel=f"effect, {term}{edf}")
    return ax


def effect_surface(fit: Any, term: str, *, ax: Axes | None = None) -> Axes:
    """Draw a tensor product of two variables as a map of its contours.

    Points of the grid farther from any data than a tenth of the plot are left empty.

    Parameters
    ----------
    fit : GAMFit
        Of :func:`psychlm.reading_times.fit`, by either backend.
    term : str
        The label of a smooth of two variables: ``"te(length_chars,log_frequency)"``.
    """
    ax = ax or plt.gca()
    table = fit.effect(term, n=40)
    if table.shape[1] != 6:
        raise ValueError(f"{term} has not two variables; draw it with plots.partial_effect")
    names = list(table.columns[:2])
    low, span = fit.data[names].min(), np.ptp(fit.data[names], axis=0)
    known = ((fit.data[names] - low) / span).drop_duplicates()
    points = (table[names] - low) / span
    distance = cKDTree(known.to_numpy()).query(points.to_numpy())[0]
    z = table["effect"].where(distance < 0.1).to_numpy().reshape(40, 40)
    x, y = (np.unique(table[name]) for name in names)
    limit = float(np.nanmax(np.abs(z)))
    shades = ax.pcolormesh(x, y, z.T, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="nearest")
    lines = ax.contour(x, y, z.T, colors="#444444", linewidths=0.7)
    ax.clabel(lines, fmt="%g", fontsize=8)
    ax.figure.colorbar(shades, ax=ax, label=f"effect, {term}")
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.grid(visible=False)
    return ax


def residual_qq(fit: Any, *, ax: Axes | None = None) -> Axes:
    """Draw standardised residuals of a fit against the quantiles of the normal distribution."""
    ax = ax or plt.gca()
    residuals = np.sort(fit.residuals.to_numpy())
    theory = stats.norm.ppf((np.arange(len(residuals)) + 0.5) / len(residuals))
    shown = np.unique(np.linspace(0, len(theory) - 1, 5000).round().astype(int))
    standard = residuals / residuals.std()
    ax.plot(theory[shown], standard[shown], ".", color=POPULATION_COLOURS["transformer"], ms=4)
    ax.axline((0, 0), slope=1, color="#444444", linewidth=0.8)
    ax.set(xlabel="normal quantile", ylabel="residual (standard deviations)")
    return ax


def residuals_by_fit(fit: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the residuals of a fit against its expected values, as counts of a hexagonal grid."""
    ax = ax or plt.gca()
    fitted = fit.predict(fit.data)
    cells = ax.hexbin(fitted, fit.residuals, gridsize=40, cmap="Blues", mincnt=1, bins="log")
    ax.axhline(0, color="#444444", linewidth=0.8)
    ax.figure.colorbar(cells, ax=ax, label="readings")
    ax.set(xlabel="expected value", ylabel="residual")
    return ax
