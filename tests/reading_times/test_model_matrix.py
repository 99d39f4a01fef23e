"""Model matrices. Linear terms are coded as R codes them: random formulas against R's ``lm``,
beside smooths against mgcv, and in the baselines of a sweep; and cross-products from distinct
values against those of the whole matrix, row by row."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_programs import both

from psychlm import reading_times as reading
from psychlm.frames import FrameError
from psychlm.reading_times import mgcv
from psychlm.reading_times.design import place
from psychlm.reading_times.formula import parse

# R's poly() refuses missing values; here it is that of the others.
LM = """
function(formula, data, contrasts) {
  ns <- splines::ns
  poly <- function(x, degree) {
    found <- matrix(NA, length(x), degree, dimnames = list(NULL, seq_len(degree)))
    found[!is.na(x), ] <- stats::poly(x[!is.na(x)], degree)
    found
  }
  fit <- stats::lm(stats::as.formula(formula, environment()), data,
                   contrasts = if (length(contrasts)) contrasts)
  kept <- !is.na(stats::coef(fit))
  list(names = names(stats::coef(fit))[kept], loglik = as.numeric(stats::logLik(fit)),
       estimate = unname(stats::coef(fit)[kept]), n = stats::nobs(fit), dropped = sum(!kept))
}
"""


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    n = 240
    numbers = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("wvz"))
    factors = {"f": list("abc"), "q": list("xy"), "g": list("klmn")}
    drawn = {name: rng.choice(levels, n) for name, levels in factors.items()}
    table = numbers.assign(**drawn, old=rng.random(n) < 0.4, rt_ms=rng.normal(300, 20, n))
    table["subject"] = rng.choice([f"s{i}" for i in range(9)], n)
    table["text_id"], table["word_id"] = np.repeat(list("ABCDEFGH"), 30), np.tile(range(1, 31), 8)
    return table.assign(rt_ms=table["rt_ms"] + 9 * table["w"] * (table["f"] == "a"))


@pytest.fixture(scope="module")
def in_lm(frame, r):
    """What R's lm makes of a formula and the frame, or another one, and contrasts."""

    def fit(formula, readings=frame, contrasts=()):
        data = mgcv.to_r(readings, ["rt_ms", *"wvzfqg", "old"])
        with mgcv.in_r() as robjects:
            named = {name: f"contr.{scheme}" for name, scheme in dict(contrasts).items()}
            found = mgcv.r_function(LM)(formula, data, robjects.ListVector(named))
            return {name: np.array(part) for name, part in mgcv.named(found).items()}

    return fit


VARIABLES = st.sampled_from(["w", "v", "f", "q", "g", "old", "exp(w)", "poly(z, 2)", "I(v^2)"])
OPERATORS = st.sampled_from(["+", ":", ":", "*", "/"])
OF_THE_FRAME = ["scale(w)", "ns(w, df=3)", "ns(v, df=2)", "scale(log(v^2))", "poly(v, 2)"]
TERMS = st.recursive(
    st.one_of(VARIABLES, st.sampled_from(OF_THE_FRAME)),
    lambda inner: st.tuples(inner, OPERATORS, inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
    max_leaves=4,
)


def test_terms_and_groups_whose_names_would_be_one_are_refused(frame):
    wide = frame.assign(**{"w:v": frame["z"]})
    with pytest.raises(FrameError, match=r"terms \['w:v'\] have one name"):
        reading.fit(wide, "rt_ms ~ w * v + `w:v`")
    wide["k"] = np.where(frame["q"] == "x", "x:x", "x")
    wide["h"] = np.where(frame["f"] == "a", "x", "x:x")
    with pytest.raises(FrameError, match=r"\| h:k\): levels with a colon give several groups one"):
        reading.fit(wide, "rt_ms ~ w + (1 | h:k)")


@pytest.mark.filterwarnings("ignore:coefficients .* were dropped")
@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("terms", ["w:f", "f + q:w", "f:q", "f:q:w", "old/v"])
def test_interactions_without_margins_beside_smooths_equal_mgcv(terms, frame):
    ours, theirs = both(frame, f'rt_ms ~ {terms} + s(z, k=5) + s(subject, bs="re")')
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-3)
    assert ours.edf == pytest.approx(theirs.edf, abs=1e-2)
    assert ours.predict(frame).to_numpy() == pytest.approx(theirs.predict(frame), abs=0.02)


@pytest.mark.parametrize("terms", ["w:f", "f + q:w", "f:q", "f:q:w", "w + v:f:old"])
def test_interactions_without_margins_in_the_baseline_of_a_sweep(terms, frame):
    # f and w belong to the word, q and old to the reading: terms mix both
    shuffled = [frame["q"].sample(frac=1, random_state=i).to_numpy() for i in range(2)]
    people = pd.concat(
        frame.assign(subject=f"p{i}", q=q, rt_ms=frame["rt_ms"] + i) for i, q in enumerate(shuffled)
    )
    bits = frame[["text_id", "word_id"]].assign(model=frame["z"])
    row = reading.delta_loglik(people, bits, "rt_ms", terms, lags=0, folds=None).iloc[0]
    alone = reading.fit(people, f"rt_ms ~ z + {terms}")
    assert row["loglik"] == pytest.approx(alone.loglik, abs=1e-6)
    without = reading.fit(people, f"rt_ms ~ {terms}").loglik
    assert row["gain"] == pytest.approx(alone.loglik - without, abs=1e-6)


N_GAPS = st.sampled_from([0, 1, 9, 40])
SCHEME = st.sampled_from(["treatment", "sum", "helmert", "poly"])


@pytest.mark.filterwarnings("ignore:coefficients .* were dropped")
@pytest.mark.filterwarnings("ignore:rows without a predictor:RuntimeWarning")
@settings(max_examples=2 * settings.default.max_examples)
@given(
    terms=st.lists(TERMS, min_size=1, max_size=3),
    n_gaps=st.fixed_dictionaries(dict.fromkeys(["rt_ms", "w", "v", "f", "q", "old"], N_GAPS)),
    schemes=st.fixed_dictionaries({"f": SCHEME, "q": SCHEME, "g": SCHEME}),
    seed=st.integers(0, 99),
)
def test_fits_of_random_formulas_are_those_of_r_which_evaluates_functions_before_gaps_go(
    terms, n_gaps, schemes, seed, frame, in_lm
):
    draw = np.random.default_rng(seed)
    gaps = frame.astype({"old": object})
    for name, n in n_gaps.items():
        gaps.loc[draw.choice(len(gaps), n, replace=False), name] = np.nan
    formula = f"rt_ms ~ {' + '.join(terms)}"
    contrasts = {name: x for name, x in schemes.items() if name in re.findall(r"\w+", formula)}
    theirs = in_lm(formula, gaps, contrasts)
    try:
        ours = reading.fit(gaps, formula, contrasts=contrasts)
    except FrameError as error:  # where R drops a column of numbers
        assert "is a combination of predictors" in str(error)
        assert theirs["dropped"] > 0
        return
    assert ours.n == theirs["n"]
    used = [name for name in gaps if name == "rt_ms" or name in re.findall(r"\w+", formula)]
    assert ours.missing == missing_by_hand(gaps, used)
    assert ours.loglik == pytest.approx(theirs["loglik"], rel=1e-9)
    estimates = dict(zip(theirs["names"], theirs["estimate"], strict=True))
    size = np.abs(theirs["estimate"]).max()
    assert ours.coefficients["estimate"].to_dict() == pytest.approx(estimates, abs=1e-6 * size)
    some = ours.data.head(20)
    np.testing.assert_allclose(ours.predict(some), ours.predict(ours.data).head(20))


def missing_by_hand(readings, used):
    """Return how many rows lack each variable and none before it, the response first."""
    order = sorted(used, key=lambda name: name != "rt_ms")
    lacks = readings[order].isna()
    first = lacks.idxmax(axis=1)[lacks.any(axis=1)]
    return {name: n for name in order if (n := int((first == name).sum()))}


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore:rows without a predictor:RuntimeWarning")
def test_all_backends_leave_out_and_count_the_same_rows(frame, rng):
    gaps = frame.astype({"old": object})
    for name in ("rt_ms", "w", "f", "old"):
        gaps.loc[rng.choice(len(gaps), 40, replace=False), name] = np.nan
    formula = "rt_ms ~ old:w + scale(log(w^2)) + C(f, sdif) * v"
    fits = [
        *both(gaps, formula),
        *both(gaps, f"{formula} + (1 | subject)", "lme4", method="ML"),
    ]
    assert len({fit.n for fit in fits}) == 1
    assert all(fit.missing == fits[0].missing for fit in fits)
    assert fits[0].loglik == pytest.approx(fits[1].loglik, abs=1e-7)
    assert fits[2].loglik == pytest.approx(fits[3].loglik, abs=1e-5)


SMOOTHS = ["s(x, k=6)", 's(few, k=4, bs="cr")', "s(x, by=group, k=6)", "te(other, z, k=3)"]
SMOOTHS += ["ti(few, x, k=3)", 's(group, bs="re")', 's(group, z, bs="re")', "z", "group"]


@given(
    terms=st.lists(st.sampled_from(SMOOTHS), min_size=1, max_size=4, unique=True),
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
    design, columns = place(parse(f"z ~ {' + '.join(terms)}"), frame, at_least=np.inf)
    dense = np.hstack([term.columns(frame) for term in design.terms])
    centred = np.concatenate([np.full(len(x.names), x.centred) for x in design.terms])
    centred[0] = False
    dense_mean = np.where(centred, dense.mean(axis=0), 0)
    dense = dense - dense_mean
    dense_scale = np.sqrt(np.square(dense).mean(axis=0))
    dense /= dense_scale
    close = {"rtol": 1e-9, "atol": 1e-9 * np.abs(dense).max() ** 2 * n}
    np.testing.assert_allclose(design.centre, dense_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(design.units, dense_scale, rtol=1e-9)
    products = dense.T @ (dense * weights[:, None])
    np.testing.assert_allclose(columns.products(weights), products, **close)
    sums = np.eye(30)[level].T @ (dense * weights[:, None])
    np.testing.assert_allclose(columns.sums(level, 30, weights), sums, **close)
