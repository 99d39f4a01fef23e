"""Figures of item response theory: what their axes say, and that curves are the model's."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from psychlm import corpora, irt, plots


@pytest.fixture(scope="module")
def fits():
    ratings = corpora.lalor2018_ratings().iloc[:, :5]
    data = corpora.lsat6()
    return data, irt.fit(data, "2PL"), ratings, irt.fit(ratings, "graded", standard_errors=False)


def test_each_figure_is_one_call_with_units_on_its_axes(fits):
    data, fit, ratings, graded = fits
    group = np.where(np.arange(len(data)) % 2, "a", "b")
    theta = fit.score(data)["theta"]
    item, items = ratings.columns[0], ratings.columns
    calls = [
        (plots.item_curves, (fit, data.columns[:3], data), "P(correct)"),
        (plots.item_curves, (graded, items, ratings), "expected category"),
        (plots.option_curves, (graded, item, ratings), "probability"),
        (plots.information, (graded, items[:2]), "1 / logits"),
        (plots.wright_map, (theta, fit.items["b"]), "logits"),
        (plots.item_fit, (irt.s_x2(fit, data),), "item"),
        (plots.item_fit, (irt.infit_outfit(fit, data),), "item"),
        (plots.dif, (irt.dif_logistic(data, group),), "item"),
        (plots.dif, (irt.mantel_haenszel(data, group).items,), "item"),
    ]
    for draw, arguments, label in calls:
        _, ax = plt.subplots()
        assert draw(*arguments, ax=ax) is ax
        assert label in ax.get_ylabel()
        assert ax.get_xlabel()
        plt.close()


def test_drawn_curves_are_those_of_the_model_and_points_the_observed_shares(fits):
    data, fit, *_ = fits
    item = data.columns[2]
    _, ax = plt.subplots()
    plots.item_curves(fit, [item], data, ax=ax)
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, irt.curves.probability(x, fit.items.loc[[item]])[:, 0])
    points = np.asarray(ax.containers[0].lines[0].get_ydata(), dtype=float)
    theta = fit.score(data)["theta"]
    tenths = np.unique(np.quantile(theta, np.linspace(0, 1, 11)))
    group = np.clip(np.searchsorted(tenths, theta) - 1, 0, None)
    np.testing.assert_allclose(points, [data[item][group == g].mean() for g in np.unique(group)])
    plt.close()
