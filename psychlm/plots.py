"""Figures of tidy frames; every function takes ``ax`` (by default the current) and returns it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy
from matplotlib.axes import Axes

from psychlm import report
from psychlm._shaded_text import text as text  # noqa: PLC0414
from psychlm.frames import refuse
from psychlm.stats import holm

# colour-blind safe: Okabe & Ito (2008)
MODEL_COLOURS = {
    "people": "#444444",
    "transformer": "#0072B2",
    "GPT-2": "#0072B2",
    "BERT": "#0072B2",
    "LSTM": "#D55E00",
    "n-gram": "#CC79A7",
    "RNNG": "#CC79A7",
    "SmolLM2": "#E69F00",
    "MiniLM": "#009E73",
    "psychlm's small model": "#56B4E9",
    "random": "#999999",
    "untrained": "#999999",
}
POPULATION_COLOURS = {name: MODEL_COLOURS[name] for name in ("transformer", "random")}
POPULATION_COLOURS |= {"human": MODEL_COLOURS["people"], "lstm": MODEL_COLOURS["LSTM"]}
CATEGORIES = ("#444444", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def use_style() -> None:
    """Use the package's style for all figures; in a notebook, figures also carry SVG and CSV.

    >>> use_style()
    >>> plt.rcParams["axes.spines.top"]
    False
    """
    plt.style.use(Path(__file__).with_name("psychlm.mplstyle"))
    report.register_figure()


def model_name(key: str) -> str:
    """Return the readable name of a model, which all notebooks use in figures, tables and text.

    >>> model_name("smollm2")
    'SmolLM2-135M'
    """
    return report.label(key)


def model_colour(key: str) -> str:
    """Return the colour of a model's kind, which all notebooks use; black for an unknown one.

    >>> model_colour("lstm-64") == model_colour("LSTM"), model_colour("smollm2")
    (True, '#E69F00')
    """
    name = model_name(key).lower()
    name = "n-gram" if name.endswith("gram") else name
    colours = [colour for kind, colour in MODEL_COLOURS.items() if kind.lower() in name]
    return colours[0] if colours else "#000000"


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

    The table has one row per category (in the column ``y``) and group (``hue``), with the estimate
    (``x``), its interval (``low``, ``high``) and perhaps the published value (``published``).

    >>> table = pd.DataFrame({"r": [0.5, 0.2], "low": [0.3, 0.0], "high": [0.7, 0.4]})
    >>> table = table.assign(category=["PP", "NP"], population="human")
    >>> ax = intervals(table, x="r", y="category", hue="population", ax=plt.figure().gca())
    >>> print(*(text.get_text() for text in ax.get_yticklabels()))
    PP NP
    """
    ax = ax or plt.gca()
    categories = list(dict.fromkeys(table[y]))
    groups = list(dict.fromkeys(table[hue]))
    for offset, group in zip(np.linspace(0.22, -0.22, len(groups)), groups, strict=True):
        rows = table[table[hue] == group]
        height = np.array([categories.index(category) for category in rows[y]]) - offset
        ax.hlines(height, rows["low"], rows["high"], color=colours[group], alpha=0.45, linewidth=3)
        ax.plot(rows[x], height, "o", color=colours[group], label=model_name(group))
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

    ``label`` says what the numbers are, with their unit. Colours run from -limit to limit, the
    largest absolute value unless given.

    >>> table = pd.DataFrame({"people": [1.0, 0.5], "models": [0.5, 1.0]}, ["people", "models"])
    >>> ax = heat_map(table, label="correlation", ax=plt.figure().gca())
    >>> print(*(text.get_text() for text in ax.texts))
    +1.00 +0.50 +0.50 +1.00
    """
    import seaborn as sns  # here, since it takes a second to import

    ax = ax or plt.gca()
    limit = limit or float(np.nanmax(np.abs(table.to_numpy(dtype=float))))
    style: dict[str, Any] = {"cmap": "vlag", "linewidths": 1.5, "annot_kws": {"size": 9}}
    style |= {"annot": table.map(lambda value: report.number(value, "+.2f")), "fmt": ""}
    colours = {"vmin": -limit, "vmax": limit, "center": 0, "cbar_kws": {"label": label}}
    sns.heatmap(table, **colours, **style, ax=ax)
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    return ax


ABILITIES = np.linspace(-4, 4, 201)  # standard deviations around the mean, for curves
LABEL_SIZE = 8  # points
LABELLED_ITEMS = 40  # more names would not fit


def _abilities(fit: Any) -> np.ndarray:
    """Return the abilities at which the curves of a fit are drawn, on its scale."""
    return fit.ability_mean + fit.ability_sd * ABILITIES


def _with_unit(quantity: str, unit: str) -> str:
    return f"{quantity} ({unit})" if unit else quantity


def _groups(fit: Any, responses: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return every person's expected ability, and their group of ten of similar ability."""
    theta = fit.score(responses)["theta"]
    return theta, pd.qcut(theta, 10, labels=False, duplicates="drop")


def wright_map(
    theta: pd.Series, difficulty: pd.Series, *, unit: str = "logits", ax: Axes | None = None
) -> Axes:
    """Draw the abilities of persons and the difficulties of items on one scale (Wright 1977).

    Up to 40 items are named, beside their place where they are close.

    >>> difficulty = pd.Series({"q1": -1.0, "q2": 0.5})
    >>> wright_map(pd.Series([0.0, 1.0]), difficulty, ax=plt.figure().gca()).get_xlabel()
    'persons'
    """
    ax = ax or plt.gca()
    colour = POPULATION_COLOURS["transformer"]
    finite = theta[np.isfinite(theta)]  # of all right or all wrong answers it may be infinite
    n_infinite = theta.notna().sum() - len(finite)
    ax.set_xlabel(
        f"persons (without {n_infinite} of infinite ability)" if n_infinite else "persons"
    )
    theta = finite
    ax.hist(theta, bins=30, orientation="horizontal", color=POPULATION_COLOURS["human"], alpha=0.35)
    ax.set_ylabel(_with_unit("ability, difficulty", unit))
    named = len(difficulty) <= LABELLED_ITEMS
    ticks = ax.twiny()
    ticks.set(xlim=(1.9 if named else 1, -0.02), xticks=[])
    ticks.grid(visible=False)
    ticks.hlines(difficulty, 0, 0.12, color=colour, linewidth=1.5)
    if named:
        ax.set_xlim(0, 2.2 * ax.get_xlim()[1])  # room for the names
        apart = np.ptp([*theta, *difficulty]) / 28  # height of a name
        ordered = difficulty.sort_values()
        n_columns = 1 if len(ordered) <= 20 else 2
        style: dict[str, Any] = {"ha": "right", "va": "center", "size": LABEL_SIZE, "color": colour}
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.6}
        for column in range(n_columns):
            items = ordered.iloc[column::n_columns]
            # The nearest places that leave each name its height: least squares under an order.
            steps = apart * np.arange(len(items))
            places = scipy.optimize.isotonic_regression(items - steps).x + steps
            for (name, value), height in zip(items.items(), places, strict=True):
                place = (0.3 + 0.5 * column, height)
                ticks.annotate(str(name), (0.13, value), place, arrowprops=line, **style)
    ax.annotate("items", (0.99, 0.99), xycoords="axes fraction", ha="right", va="top", color=colour)
    return ax


def item_curves(
    fit: Any, items: Collection, responses: pd.DataFrame | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the probability of a correct answer to a few items (of ratings: the expected category).

    ``responses`` add the observed proportions in ten groups of persons of similar expected ability,
    each point with 95 % of its sampling error. More than six items repeat colours and marks.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> fit = irt.fit(lsat, "1PL")
    >>> item_curves(fit, ["LSAT 1"], lsat, ax=plt.figure().gca()).get_ylabel()
    'P(correct)'
    """
    items = [items] if isinstance(items, str) else list(items)
    refuse("items", [name for name in items if name not in fit.items.index], "are not of this fit")
    ax = ax or plt.gca()
    theta = _abilities(fit)
    table = fit.probability(theta)
    category = np.arange(table.shape[2])
    curves = pd.DataFrame(table @ category, theta, fit.items.index)
    if responses is not None:
        ability, group = _groups(fit, responses)
    for number, item in enumerate(items):
        colour = CATEGORIES[number % len(CATEGORIES)]
        mark = "osD^vP"[number % 6]
        ax.plot(theta, curves[item], color=colour, label=item if responses is None else None)
        if responses is not None:
            # Observed means of groups, with 95 % of their sampling error.
            levels = [0.0, 1.0] if fit.levels is None else fit.levels[item]
            observed = responses[item].map(dict(zip(levels, category, strict=False)))
            by_group = observed.groupby(group)
            error = 1.96 * by_group.std() / by_group.count() ** 0.5
            style = {"fmt": mark, "color": colour, "ms": 4, "lw": 0.8, "label": item}
            ax.errorbar(ability.groupby(group).mean(), by_group.mean(), error, **style)
    says = "P(correct)" if table.shape[2] == 2 else "expected category"
    ax.set(xlabel=_with_unit("ability", fit.unit), ylabel=says, ylim=(-0.02, category[-1] * 1.02))
    ax.legend(fontsize=LABEL_SIZE)
    return ax


def option_curves(
    fit: Any, item: Any, responses: pd.DataFrame | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the probability of every answer to one item; see :func:`item_curves`.

    >>> from psychlm import corpora, irt
    >>> fit = irt.fit(corpora.lsat6(), "1PL")
    >>> ax = option_curves(fit, "LSAT 1", ax=plt.figure().gca())
    >>> len(ax.lines)  # right and wrong
    2
    """
    ax = ax or plt.gca()
    theta = _abilities(fit)
    curves = fit.probability(theta)[:, fit.items.index.get_loc(item)]
    levels = [0, 1] if fit.levels is None else fit.levels[item]
    styles = ("-", "--", "-.", ":")
    for k, level in enumerate(levels):
        colour = CATEGORIES[k % len(CATEGORIES)]
        ax.plot(theta, curves[:, k], styles[k % 4], color=colour, label=f"{level:g}")
        if responses is not None:
            ability, group = _groups(fit, responses)
            answered = responses[item].notna()
            share = (responses[item] == level)[answered].groupby(group[answered]).mean()
            ax.plot(ability.groupby(group).mean()[share.index], share, "o", color=colour, ms=4)
    ax.set(xlabel=_with_unit("ability", fit.unit), ylabel="probability of the answer")
    ax.set_ylim(-0.02, 1.02)
    ax.legend(title=f"answer to {item}", fontsize=LABEL_SIZE, title_fontsize=LABEL_SIZE)
    return ax


def information(fit: Any, items: Collection = (), *, ax: Axes | None = None) -> Axes:
    """Draw the information of the test and of some items, and ability's standard error (right).

    >>> from psychlm import corpora, irt
    >>> fit = irt.fit(corpora.lsat6(), "1PL")
    >>> information(fit, ["LSAT 1"], ax=plt.figure().gca()).get_xlabel()
    'ability (logits)'
    """
    ax = ax or plt.gca()
    theta = _abilities(fit)
    table = pd.DataFrame(fit.information(theta), theta, fit.items.index)
    total = table.sum(axis=1)
    ax.plot(theta, total, color=CATEGORIES[0], label="test")
    for number, item in enumerate(items):
        ax.plot(theta, table[item], "--", color=CATEGORIES[1 + number % 5], lw=1.2, label=item)
    square = f"1 / {fit.unit}\u00b2" * bool(fit.unit)
    ax.set(xlabel=_with_unit("ability", fit.unit), ylabel=_with_unit("information", square))
    ax.set_ylim(0, None)
    errors = ax.twinx()
    error = total**-0.5
    errors.plot(theta, error, ":", color=CATEGORIES[2])
    highest = min(1.1 * error.max(), 2.0 if fit.unit == "logits" else np.inf)
    errors.set(ylabel=f"{_with_unit('standard error', fit.unit)}, dotted", ylim=(0, highest))
    errors.yaxis.label.set_color(CATEGORIES[2])
    errors.spines["right"].set_visible(True)
    errors.grid(visible=False)
    if len(items):
        ax.legend(fontsize=LABEL_SIZE, loc="upper left")
    return ax


def item_fit(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the fit of items: a table of :func:`psychlm.irt.s_x2` or of ``irt.infit_outfit``.

    Of S-X2 the RMSEA, filled where the test is significant at 0.05 after Holm's correction; of mean
    squares infit and outfit, with the range from 0.7 to 1.3 in grey.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> table = irt.s_x2(irt.fit(lsat, "1PL"), lsat)
    >>> item_fit(table, ax=plt.figure().gca()).get_xlabel()
    'RMSEA of S-X²'
    """
    ax = ax or plt.gca()
    rows = np.arange(len(table))
    if "s_x2" in table:
        misfit = (holm(table["p"]) < 0.05).to_numpy()
        no_evidence = "no evidence of misfit"
        bad = table["rmsea"][misfit]
        others = table["rmsea"][~misfit]
        ax.scatter(bad, rows[misfit], c=CATEGORIES[2], label="misfit (Holm, 0.05)")
        ax.scatter(others, rows[~misfit], c="none", edgecolors=CATEGORIES[1], label=no_evidence)
        ax.set(xlabel="RMSEA of S-X\u00b2", xlim=(-0.002, None))
    else:
        ax.axvspan(0.7, 1.3, color="#eeeeee", zorder=0)
        ax.axvline(1, color="#444444", linewidth=0.8)
        for name, mark, shade in (("infit", "o", CATEGORIES[1]), ("outfit", "^", CATEGORIES[2])):
            ax.plot(table[name], rows, mark, color=shade, label=name)
        ax.set(xlabel="mean square (expected: 1)")
    return _items_down(ax, table.index)


def dif(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much harder each item is for the focal group, in logits, with 95 % intervals.

    The table is of ``irt.mantel_haenszel``, ``dif_logistic`` or ``dif_likelihood_ratio``.

    >>> from psychlm import corpora, irt
    >>> lsat = corpora.lsat6()
    >>> table = irt.mantel_haenszel(lsat, pd.Series(["a", "b"] * 500, lsat.index))
    >>> dif(table.items, ax=plt.figure().gca()).get_xlabel()
    'harder for the focal group (logits)'
    """
    ax = ax or plt.gca()
    if "b_difference" in table:
        harder = table["b_difference"]
        se = pd.Series(0.0, table.index)
        classes = pd.Series(np.where(table["p_adjusted"] < 0.05, "B", "A"), table.index)
        names = {"A": "not significant", "B": "significant at 0.05"}
    else:
        # the log odds of Mantel and Haenszel are the reference group's, of regression the focal's
        sign, column = (1, "ets") if "ets" in table else (-1, "class")
        harder = sign * table["log_odds"]
        se = table["se"]
        classes = table[column]
        names = {"A": "A: negligible", "B": "B: moderate", "C": "C: large"}
    for name, mark, colour in zip("ABC", "osD", CATEGORIES, strict=False):
        chosen = (classes == name).to_numpy()
        label = names.get(name) if chosen.any() else None
        style: dict[str, Any] = {"fmt": mark, "color": colour, "ms": 4, "lw": 1, "label": label}
        ax.errorbar(harder[chosen], np.flatnonzero(chosen), xerr=1.96 * se[chosen], **style)
    ax.axvline(0, color="#444444", linewidth=0.8)
    ax.set(xlabel="harder for the focal group (logits)")
    return _items_down(ax, table.index)


def _items_down(ax: Axes, items: pd.Index) -> Axes:
    """Name items on the vertical axis, the first on top; of many, every so many."""
    step = int(np.ceil(len(items) / LABELLED_ITEMS))
    ax.set_yticks(range(0, len(items), step), [str(item) for item in items[::step]])
    ax.tick_params(axis="y", labelsize=LABEL_SIZE)
    ax.invert_yaxis()
    ax.set(ylabel="item")
    ax.legend(fontsize=LABEL_SIZE, loc="upper left", bbox_to_anchor=(1.01, 1))
    return ax


def partial_effect(fit: Any, term: str, *, ax: Axes | None = None) -> Axes:
    """Draw what a term of one variable of a reading-time model adds, with its pointwise 95 % band.

    Terms are labelled as ``"s(position)"`` or ``"bits"``. Up to 1,000 values of the data are marked
    at the lower edge.

    >>> from psychlm import reading_times
    >>> x = np.linspace(0, 1, 200)
    >>> fit = reading_times.fit(pd.DataFrame({"x": x, "ms": 300 + np.sin(9 * x)}), "ms ~ s(x)")
    >>> partial_effect(fit, "s(x)", ax=plt.figure().gca()).get_xlabel()
    'x'
    """
    ax = ax or plt.gca()
    table = fit.effect(term)
    if table.shape[1] != 5:
        raise ValueError(f"{term} has several variables; draw it with plots.effect_surface")
    x = table.columns[0]
    colour = POPULATION_COLOURS["transformer"]
    if table[x].dtype == object or len(table) < 10:
        errors = [table["effect"] - table["low"], table["high"] - table["effect"]]
        ax.errorbar(table[x].astype(str), table["effect"], errors, fmt="o", color=colour, capsize=3)
    else:
        ax.fill_between(table[x], table["low"], table["high"], color=colour, alpha=0.2, lw=0)
        ax.plot(table[x], table["effect"], color=colour)
        values = fit.data[x].drop_duplicates().to_numpy()
        values = values[:: max(1, len(values) // 1000)]
        ax.plot(values, 0 * values, "|", color="#444444", ms=5, transform=ax.get_xaxis_transform())
    edf = f", {fit.smooths['edf'][term]:.1f} edf" if term in fit.smooths.index else ""
    ax.set(xlabel=x, ylabel=f"effect, {term}{edf}")
    return ax


def effect_surface(fit: Any, term: str, *, ax: Axes | None = None) -> Axes:
    """Draw a smooth of two variables, as ``"te(length_chars,log_frequency)"``, as a map.

    Points of the grid farther from any data than a tenth of the plot are left empty.

    >>> from psychlm import reading_times
    >>> x = np.linspace(0, 1, 200)
    >>> table = pd.DataFrame({"x": x, "z": np.roll(x, 70), "ms": 300 + np.sin(9 * x)})
    >>> fit = reading_times.fit(table, "ms ~ te(x, z, k=4)")
    >>> effect_surface(fit, "te(x,z)", ax=plt.figure().gca()).get_ylabel()
    'z'
    """
    ax = ax or plt.gca()
    table = fit.effect(term, n=40)
    if table.shape[1] != 6:
        raise ValueError(f"{term} has not two variables; draw it with plots.partial_effect")
    names = list(table.columns[:2])
    low = fit.data[names].min()
    span = np.ptp(fit.data[names], axis=0)
    observed = ((fit.data[names] - low) / span).drop_duplicates()
    points = (table[names] - low) / span
    distance = scipy.spatial.cKDTree(observed.to_numpy()).query(points.to_numpy())[0]
    z = table["effect"].where(distance < 0.1).to_numpy().reshape(40, 40)
    x, y = (np.unique(table[name]) for name in names)
    limit = float(np.nanmax(np.abs(z)))
    shades = ax.pcolormesh(x, y, z.T, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="nearest")
    ax.clabel(ax.contour(x, y, z.T, colors="#444444", linewidths=0.7), fmt="%g", fontsize=8)
    ax.figure.colorbar(shades, ax=ax, label=f"effect, {term}")
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.grid(visible=False)
    return ax


def residual_qq(fit: Any, *, ax: Axes | None = None) -> Axes:
    """Draw standardised residuals of a fit against the quantiles of the normal distribution.

    >>> from psychlm import reading_times
    >>> fit = reading_times.fit(pd.DataFrame({"x": [1, 2, 3, 4], "ms": [3, 5, 4, 6]}), "ms ~ x")
    >>> residual_qq(fit, ax=plt.figure().gca()).get_xlabel()
    'normal quantile'
    """
    ax = ax or plt.gca()
    (theory, standard), _ = scipy.stats.probplot(scipy.stats.zscore(fit.residuals))
    shown = np.unique(np.linspace(0, len(theory) - 1, 5000).round().astype(int))
    ax.plot(theory[shown], standard[shown], ".", color=POPULATION_COLOURS["transformer"], ms=4)
    ax.axline((0, 0), slope=1, color="#444444", linewidth=0.8)
    ax.set(xlabel="normal quantile", ylabel="residual (standard deviations)")
    return ax


def residuals_by_fit(fit: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the residuals of a fit against its expected values, as counts of a hexagonal grid.

    >>> from psychlm import reading_times
    >>> fit = reading_times.fit(pd.DataFrame({"x": [1, 2, 3, 4], "ms": [3, 5, 4, 6]}), "ms ~ x")
    >>> residuals_by_fit(fit, ax=plt.figure().gca()).get_xlabel()
    'expected value'
    """
    ax = ax or plt.gca()
    fitted = fit.predict(fit.data)
    cells = ax.hexbin(fitted, fit.residuals, gridsize=40, cmap="Blues", mincnt=1, bins="log")
    ax.axhline(0, color="#444444", linewidth=0.8)
    ax.figure.colorbar(cells, ax=ax, label="readings")
    ax.set(xlabel="expected value", ylabel="residual")
    return ax
