"""The numbers of a figure, read off its drawing. Reference: the numbers that were given to matplotlib and seaborn."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import seaborn as sns

from psychlm import figures


@pytest.fixture
def panels():
    figure, panels = plt.subplots(1, 2)
    yield figure, panels
    plt.close(figure)


def test_lines_errors_and_points_come_back_under_their_labels(panels) -> None:
    figure, (ax, other) = panels
    ax.plot([0, 1, 2], [1, 4, 9], label="squares")
    ax.errorbar([1, 2], [1, 2], yerr=[0.1, 0.2], fmt="o", label="with errors")
    ax.axhline(3)  # a mark across the axes, no data of theirs
    other.set_title("cloud")
    other.scatter([1, 2], [3, 4], c=[0.5, 0.7])
    data = figures.data_of(figure)
    squares = data[data["label"] == "squares"]
    assert squares[["x", "y"]].to_numpy(float).tolist() == [[0, 1], [1, 4], [2, 9]] and set(
        squares["panel"]
    ) == {"1"}
    ends = data[(data["kind"] == "segment") & (data["label"] == "with errors")]
    np.testing.assert_allclose(ends["y"].astype(float), [0.9, 1.1, 1.8, 2.2])
    points = data[data["panel"] == "cloud"]
    assert points["kind"].unique().tolist() == ["point"]
    np.testing.assert_allclose(points["value"].astype(float), [0.5, 0.7])


def test_bars_and_heat_maps_carry_the_names_of_their_categories(panels) -> None:
    figure, (ax, other) = panels
    ax.barh(["a", "b"], [3, 4])
    table = pd.DataFrame([[1.0, 2.0], [3.0, np.nan]], index=["r1", "r2"], columns=["c1", "c2"])
    sns.heatmap(table, ax=other)
    data = figures.data_of(figure)
    bars = data[data["kind"] == "bar"]
    assert bars[["y", "x"]].to_numpy().tolist() == [["a", 3], ["b", 4]]
    cells = data[data["kind"] == "cell"].pivot(index="y", columns="x", values="value").astype(float)
    np.testing.assert_allclose(cells.to_numpy(), table.to_numpy())
    assert list(cells.index) == ["r1", "r2"] and list(cells.columns) == ["c1", "c2"]


def test_an_empty_figure_has_no_numbers() -> None:
    figure = plt.figure()
    assert figures.data_of(figure).empty and list(figures.data_of(figure)) == figures.COLUMNS
    assert figures._csv_if_small(figure) is None
    plt.close(figure)


def test_the_same_figure_gives_the_same_drawing(panels) -> None:
    figure, (ax, _) = panels
    ax.plot([0, 1], [1, 0])
    assert figures.svg_of(figure) == figures.svg_of(figure)
    assert "<svg" in figures.svg_of(figure)


def test_a_drawing_of_very_many_marks_is_left_to_the_picture(panels, monkeypatch) -> None:
    figure, (ax, _) = panels
    ax.plot(np.arange(50), np.arange(50))
    monkeypatch.setattr(figures, "MOST_ROWS", 49)
    assert figures._svg_if_small(figure) is None
    assert figures._csv_if_small(figure) is not None


def test_outside_a_notebook_nothing_is_changed() -> None:
    figures.register_figure()  # no kernel here: no formatter to find, and no error
