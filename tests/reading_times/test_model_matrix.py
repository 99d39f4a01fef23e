"""Cross-products from distinct values against those of the whole model matrix, row by row."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psychlm.reading_times.formula import parse
from psychlm.reading_times.model_matrix import build_matrix, rows_of
from psychlm.reading_times.smooths import radial

TERMS = ["s(x, k=6)", 's(few, k=4, bs="cr")', "s(x, by=group, k=6)", "te(other, z, k=3)"]
TERMS += ["ti(few, x, k=3)", 's(group, bs="re")', 's(group, z, bs="re")', "z", "group"]


@settings(max_examples=40, deadline=None)
@given(
    terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=4, unique=True),
    n_values=st.sampled_from([12, 40, 1000]),
    n=st.sampled_from([200, 700]),
    seed=st.integers(0, 1000),
)
def test_cross_products_and_sums_equal_those_of_all_rows(terms, n_values, n, seed):
    rng = np.random.default_rng(seed)
    values = {"few": [-1.0, 0.0, 0.5, 2.0, 7.0], "other": [0.0, 1.0, 3.0, 4.0], "group": [*"abc"]}
    values["x"] = rng.standard_t(2, n_values)
    frame = pd.DataFrame({name: rng.choice(some, n) for name, some in values.items()})
    frame["z"] = rng.normal(size=n)
    weights, level = rng.uniform(0.1, 3, n), rng.integers(0, 30, n)
    matrix = build_matrix(parse(f"z ~ {' + '.join(terms)}"), frame)
    scaled = np.arange(len(matrix.names)) % 5 > 0
    columns, mean, scale = matrix.distinct(frame, rows_of(frame)).standardise(
        matrix.centred, scaled
    )
    dense = matrix.block(matrix.terms, frame, None).values
    dense_mean = np.where(matrix.centred, dense.mean(axis=0), 0)
    dense = dense - dense_mean
    dense_scale = np.where(scaled, np.sqrt(np.square(dense).mean(axis=0)), 1)
    dense /= dense_scale
    close = {"rtol": 1e-9, "atol": 1e-9 * np.abs(dense).max() ** 2 * n}
    np.testing.assert_allclose(mean, dense_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scale, dense_scale, rtol=1e-9)
    products = dense.T @ (dense * weights[:, None])
    np.testing.assert_allclose(columns.products(weights), products, **close)
    sums = np.eye(30)[level].T @ (dense * weights[:, None])
    np.testing.assert_allclose(columns.sums(level, 30, weights), sums, **close)


@pytest.mark.parametrize("tail", [0.7, 1.5, 30])
def test_radial_bases_equal_their_definition(tail, rng):
    values = np.unique(np.r_[rng.standard_t(tail, 800), -0.0, 3.0])
    knots = (values - values.mean()) / values.std()
    weights = np.linalg.qr(rng.normal(size=(len(knots), 8)))[0]
    x = np.r_[knots[::7], rng.normal(size=50), knots[0] - 5, knots[-1] + 5]
    expected = np.abs(x[:, None] - knots) ** 3 / 12 @ weights
    found = radial(x, knots)(weights)
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
