"""Correlated random effects: the native engine against stored and live fits of R's lme4, beside
smooths against mgcv; and what is R's, through ``backend="lme4"`` and ``"auto"``."""

import itertools

import numpy as np
import pandas as pd
import pytest
from two_programs import both

from psychlm import reading_times as reading
from psychlm.reading_times import formula, mgcv


@pytest.fixture(scope="module")
def crossed():
    """Twenty people read 24 items in two conditions; slopes of both vary between both."""
    rng = np.random.default_rng(21)
    subject, item = (x.ravel() for x in np.meshgrid(np.arange(20), np.arange(24)))
    condition, x = (subject + item) % 3, rng.normal(2, 1, len(subject))
    people = rng.multivariate_normal([0, 0], [[900, 200], [200, 90]], 20)
    items = rng.normal(0, [20, 6], (24, 2))
    mean = 300 + 10 * x + 15 * (condition == 1) + people[subject, 0] + people[subject, 1] * x
    mean += items[item, 0] + items[item, 1] * (condition == 1)
    table = pd.DataFrame({"x": x, "z": rng.uniform(0, 9, len(x)).round(1)})
    table = table.assign(subject=[f"s{i:02d}" for i in subject], item=[f"i{i:02d}" for i in item])
    table["condition"] = np.array(["a", "b", "c"])[condition]
    table["school"] = [f"c{i // 5}" for i in subject]
    table["rt_ms"] = mean + 20 * np.sin(table["z"]) + rng.normal(0, 40, len(x))
    return table.assign(right=(rng.random(len(x)) < 0.7) * 1.0)


def agree(ours, theirs, tolerance=1e-5):
    """Check that a native fit is lme4's, or a better one."""
    assert ours.converged
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-4)
    assert ours.loglik >= theirs.loglik - 1e-7
    # near its optimum the likelihood is flat, so that lme4's search leaves deviations imprecise
    found = ours.variance_components
    scale, expected = found["residual"], theirs.variance_components[found.index]
    assert np.abs(found - expected).max() < 30 * tolerance * scale
    for bar, table in ours.correlations.items():
        assert np.abs(table - theirs.correlations[bar]).max(axis=None) < 100 * tolerance
    for name in ("estimate", "std_error"):
        difference = ours.coefficients[name] - theirs.coefficients[name]
        assert np.abs(difference).max() < 10 * tolerance * ours.coefficients["std_error"].max()
    assert ours.aic == pytest.approx(theirs.aic, abs=1e-3)
    new = ours.data.head(6)
    if "subject" in new:
        new = new.assign(subject=["nobody", *new["subject"][1:]])
    for rows, exclude in ((ours.data, []), (new, []), (new, list(ours.random))):
        predicted = [fit.predict(rows, exclude=exclude).to_numpy() for fit in (ours, theirs)]
        assert predicted[0] == pytest.approx(predicted[1], abs=1e-3 * scale)
    found, expected = (
        fit.random_effects().set_index(["term", "level"])["estimate"].sort_index()
        for fit in (ours, theirs)
    )
    pd.testing.assert_series_equal(found, expected, rtol=0, atol=1e-3 * scale)


STORED = [
    "Reaction ~ Days + (1 | Subject)",
    "Reaction ~ Days + (1 + Days | Subject)",
    "Reaction ~ Days + (1 + Days || Subject)",
    "log_rt ~ surprisal + length + (1 + surprisal | subject) + (1 | item)",
    "log_rt ~ surprisal + length + (1 + surprisal | subject) + (1 + surprisal | item)",
    "rt ~ surprisal + length + (1 + surprisal | subject) + (1 | item)",
]


@pytest.mark.parametrize("method", ["REML", "ML"])
@pytest.mark.parametrize("text", STORED)
def test_stored_fits_of_lme4_are_reproduced(text, method, reference_dir, sap):
    folder = reference_dir / "lme4"
    fits = pd.read_csv(folder / "fits.csv")
    rows = fits[(fits["formula"] == text) & (fits["REML"] == (method == "REML"))]
    rows = rows[rows["data"] != "sap_all"]
    if rows["data"].iloc[0] == "sleepstudy":
        table = pd.read_csv(folder / "data_sleepstudy.csv")
    else:
        table = sap[sap["subject"].isin(sap["subject"].unique()[:200])]
    fit = reading.fit(table, text, method=method, backend="native")
    values = rows.set_index(["quantity", "group", "term"])["value"]
    loglik = rows.loc[rows["quantity"] == "logLik", "value"].iloc[0]
    assert fit.converged
    assert loglik - 1e-7 < fit.loglik < loglik + 1e-4
    for (group, term), value in values.loc["sd"].items():
        factor = group.removesuffix(".1")
        effect = "1" if term == "(Intercept)" else term
        label = "residual" if group == "Residual" else f"({effect} | {factor})"
        assert fit.variance_components[label] == pytest.approx(value, rel=2e-4, abs=2e-5)
    fixed = rows[rows["quantity"] == "fixed"].set_index("term")
    found = fit.coefficients.loc[fixed.index]
    assert ((found["estimate"] - fixed["value"]).abs() < 2e-4 * fixed["se"]).all()
    np.testing.assert_allclose(found["std_error"], fixed["se"], rtol=2e-4)
    for row in rows[rows["quantity"] == "correlation"].itertuples():
        table = next(t for bar, t in fit.correlations.items() if bar.endswith(f"| {row.group})"))
        assert table.iloc[0, 1] == pytest.approx(row.value, abs=5e-4)


BARS = [
    "(1 | subject) + (1 | item)",
    "(1 + x | subject) + (1 | item)",
    "(x | subject) + (0 + x | item)",
    "(1 + x || subject) + (1 + condition | item)",
    "(1 | school/subject)",
    "(0 + condition | subject) + (1 | item)",
    "(1 + scale(x) | subject) + (1 | school:item)",
    "(1 | school/condition:item)",
    "(1 | school:item) + (x || subject)",
]


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of lme4's convergence, of singular fits
@pytest.mark.parametrize(("bars", "method"), [*zip(BARS, itertools.cycle(["REML", "ML"]))])
def test_crossed_and_nested_designs_equal_lme4(crossed, bars, method):
    ours, theirs = both(crossed, f"rt_ms ~ x + condition + {bars}", "lme4", method=method)
    if ours.singular:  # at a boundary lme4's search stops early
        assert theirs.singular and ours.loglik >= theirs.loglik - 1e-6
        return
    agree(ours, theirs)


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of singular fits, and lme4's convergence
@pytest.mark.parametrize("mark", ["|", "||"])
@pytest.mark.parametrize("terms", ["x * old", "0 + x + x:old", "0 + old:z + x", "0 + z:old:right"])
def test_interactions_with_factors_have_the_random_effects_of_lme4(crossed, terms, mark):
    words = {"old": crossed["item"] > "i10", "right": crossed["right"].map({0: "no", 1: "yes"})}
    ours, theirs = both(crossed.assign(**words), f"rt_ms ~ x + ({terms} {mark} subject)", "lme4")
    assert set(ours.variance_components.index) == set(theirs.variance_components.index)
    assert ours.loglik >= theirs.loglik - 1e-6
    assert ours.aic - theirs.aic == pytest.approx(2 * (theirs.loglik - ours.loglik), abs=1e-3)


@pytest.mark.filterwarnings("ignore:singular:RuntimeWarning")
@pytest.mark.parametrize("method", ["REML", "ML"])
@pytest.mark.parametrize("ratio", [0, 0.1, 0.2, 0.5, 2])
def test_the_likelihood_of_random_intercepts_is_highest_of_the_densities_definition(ratio, method):
    """The reference is the profiled deviance from the covariance I + t^2 ZZ' of all rows."""
    rng = np.random.default_rng(int(10 * ratio))
    for _ in range(6):
        group = rng.integers(0, 12, 100)
        x, z = np.c_[np.ones(100), rng.normal(size=100)], np.eye(12)[group]
        y = ratio * rng.normal(size=12)[group] + rng.normal(size=100)

        def loglik(t, x=x, y=y, z=z):
            covariance = np.eye(100) + t**2 * z @ z.T
            inverse = np.linalg.inv(covariance)
            xx = x.T @ inverse @ x
            error = y - x @ np.linalg.solve(xx, x.T @ inverse @ y)
            log_det, n = np.linalg.slogdet(covariance)[1], len(y)
            if method == "REML":
                log_det, n = log_det + np.linalg.slogdet(xx)[1], n - 2
            return -(log_det + n * (1 + np.log(2 * np.pi * error @ inverse @ error / n))) / 2

        frame = pd.DataFrame({"y": y, "x": x[:, 1], "g": group.astype(str)})
        fit = reading.fit(frame, "y ~ x + (1 | g)", method=method)
        group_sd, residual_sd = fit.variance_components
        assert fit.loglik == pytest.approx(loglik(group_sd / residual_sd), abs=1e-7)
        assert fit.loglik >= max(map(loglik, np.linspace(0, 3, 151))) - 1e-7


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of singular fits, and lme4's convergence
@pytest.mark.parametrize(
    "terms", ["day + (1 | day)", "log(day) + (1 | day)", "(day | item) + (1 | day)"]
)
def test_a_number_may_be_a_slope_in_one_term_and_label_groups_in_another(crossed, terms):
    frame = crossed.assign(day=crossed["subject"].str[1:].astype(int) + 1)
    ours, theirs = both(frame, f"rt_ms ~ x + {terms}", "lme4")
    assert list(ours.coefficients.index) == list(theirs.coefficients.index)
    assert ours.loglik == pytest.approx(theirs.loglik, abs=1e-4)


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers label groups, singular fits
@pytest.mark.parametrize("dtype", [float, "Int64", "int64[pyarrow]"])
@pytest.mark.parametrize("backend", ["native", "lme4", "mgcv"])
def test_the_type_of_ids_that_are_whole_numbers_does_not_matter(crossed, backend, dtype):
    frame = crossed.assign(subject=crossed["subject"].str[1:].astype(int) * 5)
    random = 's(subject, bs="re")' if backend == "mgcv" else "(1 | school:subject)"
    fit = reading.fit(frame, f"rt_ms ~ x + {random}", backend=backend)
    typed = frame.astype({"subject": dtype})
    again = reading.fit(typed, f"rt_ms ~ x + {random}", backend=backend)
    assert again.loglik == pytest.approx(fit.loglik)
    for one, other in ((fit, typed), (again, frame)):
        assert one.predict(other).to_numpy() == pytest.approx(one.predict(one.data).to_numpy())


@pytest.mark.parametrize("method", ["REML", "ML"])
def test_bars_beside_smooths_are_the_model_of_mgcv(crossed, method):
    """Independent effects are in both notations: the restricted likelihood is mgcv's score."""
    with_bars = "rt_ms ~ x + s(z, k=6) + (1 + x || subject) + (1 | item)"
    random = 's(subject, bs="re") + s(subject, x, bs="re") + s(item, bs="re")'
    ours = reading.fit(crossed, with_bars, method=method)
    theirs = reading.fit(crossed, f"rt_ms ~ x + s(z, k=6) + {random}", method=method)
    assert -ours.loglik == pytest.approx(theirs.criterion, abs=2e-3)
    assert ours.edf == pytest.approx(theirs.edf, abs=0.2)
    assert ours.predict(crossed).to_numpy() == pytest.approx(theirs.predict(crossed), abs=0.3)
    tests = [f.summary().smooths.loc["s(z)"] for f in (ours, theirs)]
    assert tests[0].to_numpy() == pytest.approx(tests[1].to_numpy(), rel=0.02, abs=1e-6)


def test_a_singular_fit_names_the_direction_that_vanished():
    rng = np.random.default_rng(3)
    subject, x = np.repeat(np.arange(12), 20), np.tile(np.arange(20.0), 12)
    effect = rng.normal(0, 5, 12)[subject]
    y = 10 + effect * (2 + x) + rng.normal(0, 3, len(x))
    table = pd.DataFrame({"y": y, "x": x, "subject": subject})
    with pytest.warns(RuntimeWarning, match=r"singular: in \(1 \+ x \| subject\) the combination"):
        fit = reading.fit(table, "y ~ x + (1 + x | subject)")
    assert fit.converged and len(fit.singular) == 1
    assert np.isfinite(fit.coefficients["std_error"]).all()
    # the intercept is twice the slope: intercept - 2 slopes does not vary, and it is said so
    share = float(fit.singular[0].split("combination ")[1].split(" *")[0])
    assert abs(share) == pytest.approx(0.5, abs=0.1)
    assert abs(fit.correlations["(1 + x | subject)"].iloc[0, 1]) == pytest.approx(1, abs=1e-3)


def test_2000_people_have_at_least_lme4s_likelihood(sap):
    """lme4 1.1-31 ended at -72250.221069, after 51 s and not converged."""
    random = "(1 + surprisal | subject) + (1 + surprisal | item)"
    fit = reading.fit(sap, f"log(rt) ~ surprisal + length + {random}")
    assert fit.n == 184_478 and fit.converged
    assert -72250.2211 < fit.loglik < -72250.2
    assert fit.variance_components["(1 | subject)"] == pytest.approx(0.28062, rel=1e-3)


def test_without_r_auto_says_what_is_missing(crossed, monkeypatch):
    def version():
        raise mgcv.RMissingError("install R")

    monkeypatch.setattr(mgcv, "version", version)
    with pytest.raises(formula.FormulaError, match=r"gaussian responses only; lme4 .*install R"):
        reading.fit(crossed, "right ~ x + (1 | subject)", family="binomial")
    assert reading.fit(crossed, "rt_ms ~ x + (1 | subject)").backend == "native"


@pytest.fixture
def sleepstudy(reference_dir, r):
    table = pd.read_csv(reference_dir / "lme4" / "data_sleepstudy.csv")
    return reading.fit(
        table.astype({"Subject": str}), "Reaction ~ Days + (1 + Days | Subject)", backend="lme4"
    )


def test_profile_intervals_are_those_printed_by_lme4s_authors(sleepstudy, crossed):
    """Bates et al. 2015, Journal of Statistical Software 67, section 5.1."""
    intervals = sleepstudy.profile_intervals()
    printed = {"(Intercept)": (237.681, 265.130), "Days": (7.359, 13.576)}
    for name, (low, high) in printed.items():
        assert intervals.loc[name, ["low", "high"]].tolist() == pytest.approx([low, high], abs=2e-3)
    with pytest.raises(NotImplementedError, match="backend='lme4'"):
        reading.fit(crossed, "rt_ms ~ x").profile_intervals()


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize(
    ("text", "options", "backend"),
    [
        ("rt_ms ~ ti(x, z, by=z)", {}, "mgcv"),
        ("rt_ms ~ s(z, m=1)", {}, "mgcv"),
        ('rt_ms ~ s(x, subject, bs="fs", k=4)', {}, "mgcv"),
        ("rt_ms ~ x + s(z, k=4)", {"r_arguments": "weights=weight"}, "mgcv"),
        ("rt_ms ~ x + (1 | subject)", {"r_arguments": "weights=weight"}, "lme4"),
        ("right ~ x + (1 | subject)", {"family": "binomial"}, "lme4"),
    ],
)
def test_what_only_r_has_goes_to_r_with_one_line(text, options, backend, crossed):
    table = crossed.assign(weight=np.arange(len(crossed)) % 3 + 1.0)
    with pytest.warns(RuntimeWarning, match=f"fitted by R's {backend}") as said:
        chosen = reading.fit(table, text, **options)
    assert len([w for w in said if "fitted by R" in str(w.message)]) == 1
    direct = reading.fit(table, text, backend=backend, **options)
    assert chosen.backend == backend and chosen.loglik == direct.loglik
    if chosen.family == "binomial":
        assert chosen.predict(table).between(0, 1).all()


def test_effects_none_of_which_varies_are_one_message():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(12), 10)
    x = rng.normal(size=120)
    y = rng.normal(size=120)
    for number in range(12):  # within each group nothing is left to its intercept and slope
        rows = group == number
        columns = np.column_stack([np.ones(10), x[rows]])
        y[rows] -= columns @ np.linalg.lstsq(columns, y[rows])[0]
    table = pd.DataFrame({"y": y, "x": x, "g": group})
    with pytest.warns(RuntimeWarning, match="singular"):
        fit = reading.fit(table, "y ~ x + (1 + x | g)")
    assert fit.singular == ("in (1 + x | g) none of the effects varies",)


@pytest.mark.parametrize(("bar", "what"), [("1", "the intercept"), ("0 + x", "the effect of x")])
def test_a_single_effect_without_variance_is_named(crossed, bar, what):
    rng = np.random.default_rng(1)
    residual = pd.Series(rng.normal(0, 9, len(crossed)))
    values = crossed["x"] if "x" in bar else crossed["x"] * 0 + 1  # groups do not differ at all
    products = pd.DataFrame({"zy": values * residual, "zz": values**2}).groupby(crossed["item"])
    sums = products.transform("sum")
    table = crossed.assign(rt_ms=300 + residual - values * sums["zy"] / sums["zz"])
    name = "1" if bar == "1" else "x"
    with pytest.warns(RuntimeWarning, match=rf"in \({name} \| item\) {what} does not vary"):
        fit = reading.fit(table, f"rt_ms ~ x + ({bar} | item)")
    assert fit.converged
