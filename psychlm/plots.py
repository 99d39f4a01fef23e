"""Tidy frame and axes in, axes out; units stand on the axes.

Every function draws on the ``ax`` it is given (the current one unless given) and returns it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from psychlm import figures

POPULATION_COLOURS = {
    "human": "#444444",
    "transformer": "#0072B2",
    "lstm": "#D55E00",
    "random": "#999999",
}
CATEGORIES = (
    "#444444",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
)  # Okabe and Ito's, in no order


def use_style() -> None:
    """Use the house style for every figure of this session; in a notebook, figures carry their SVG and numbers."""
    plt.style.use(Path(__file__).with_name("psychlm.mplstyle"))
    figures.register_figure()


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
    """Draw estimates with their intervals, grouped by category, and the published values as hollow marks.

    Parameters
    ----------
    table : DataFrame
        One row per category and group: ``x`` holds the estimate, ``low`` and ``high`` its interval, ``y`` the
        category, ``hue`` the group; ``published``, if given, names the column of the published values.
    """
    ax = ax or plt.gca()
    categories = list(dict.fromkeys(table[y]))
    groups = list(dict.fromkeys(table[hue]))
    for offset, group in zip(np.linspace(0.22, -0.22, len(groups)), groups, strict=True):
        rows = table[table[hue] == group]
        at = np.array([categories.index(category) for category in rows[y]]) - offset
        ax.hlines(at, rows["low"], rows["high"], color=colours[group], alpha=0.45, linewidth=3)
        ax.plot(rows[x], at, "o", color=colours[group], label=group)
        if published is not None:
            ax.plot(rows[published], at, "o", mfc="none", mec="black", ms=9, mew=0.9)
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
        What the numbers are, with their unit: it stands beside the colour bar.
    limit : float, optional
        The colour scale runs from -limit to limit; the largest absolute value unless given.
    """
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
    """Draw persons and items on one scale: how many persons have an ability, and where each item lies (Wright 1977).

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
    """Draw one text word by word: a bar a word, the words below.

    Parameters
    ----------
    words : DataFrame
        The words frame of one text, in order, with ``y`` (surprisal in bits).
    marked : collection of int
        The ``word_id`` of words to be told apart by colour: where a garden path ends, say.
    """
    ax = ax or plt.gca()
    at = np.arange(len(words))
    here = words["word_id"].isin(marked).to_numpy()
    ax.bar(
        at,
        words[y],
        color=np.where(here, POPULATION_COLOURS["lstm"], POPULATION_COLOURS["random"]),
        width=0.7,
    )
    ax.set_ylabel("surprisal (bits)")
    ax.set_xticks(at, words["word"])
    ax.grid(axis="x", visible=False)
    return ax


def ability_over_training(
    history: pd.DataFrame, *, hue: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw ability over the epochs of training, with 95 % of its standard error as a band.

    Parameters
    ----------
    history : DataFrame
        ``epoch``, ``ability`` and ``se`` (logits), as ``AbilityCallback.history`` has them.
    hue : str, optional
        Column that tells several runs apart.
    """
    ax = ax or plt.gca()
    runs = [(None, history)] if hue is None else history.groupby(hue, sort=False)
    for (name, run), colour in zip(runs, CATEGORIES[1:] + CATEGORIES[:1], strict=False):
        half = 1.96 * run["se"]
        ax.fill_between(
            run["epoch"],
            run["ability"] - half,
            run["ability"] + half,
            color=colour,
            alpha=0.2,
            lw=0,
        )
        ax.plot(run["epoch"], run["ability"], "o-", color=colour, label=name)
    ax.set(xlabel="epoch", ylabel="ability θ (logits)")
    if hue is not None:
        ax.legend(title=hue)
    return ax
