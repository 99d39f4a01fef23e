"""Tests after a fit against stored results of lmerTest, pbkrtest, emmeans, lme4 and mgcv
(``tests/reference/lmertest``: data, results and the R script that wrote them): degrees of freedom,
F tests, likelihood-ratio tests, contrasts, marginal means. Where R is, its fits through
``backend="lme4"`` and ``"mgcv"`` answer the same."""

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from two_programs import both

from psychlm import reading_times as reading
from psychlm.frames import FrameError
from psychlm.reading_times.formula import FormulaError

FOLDER = ROOT / "tests" / "reference" / "lmertest"


def stored(name):
    return pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False, na_values=["NA"])


def tables(name):
    """Return R's tables by (model, test): rows in their order, one column for each number."""
    found = {}
    for key, part in stored(name).groupby(["model", "test"], sort=False):
        wide = part.pivot(index="row", columns="column", values="value")
        wide.index = part.drop_duplicates("row").set_index("row")["name"].loc[wide.index]
        found[key] = wide
    return found


@pytest.fixture(scope="module")
def frames():
    sleep = pd.read_csv(ROOT / "tests" / "reference" / "lme4" / "data_sleepstudy.csv")
    return {
        "Reaction": sleep.astype({"Subject": str}),
        "gaze_ms": pd.read_csv(FOLDER / "data_readings.csv"),
    }


FITS = {}


def fitted(frames, formula, **options):
    """Fit natively, once for each formula and options."""
    key = (formula, *sorted(options.items()))
    if key not in FITS:
        response = next(name for name in frames if name in formula)
        FITS[key] = reading.fit(frames[response], formula, backend="native", **options)
    return FITS[key]


DF = tables("degrees_of_freedom")
MODELS = list(dict.fromkeys(model for model, _ in DF))


@pytest.mark.filterwarnings("ignore:singular")
@pytest.mark.parametrize("test", ["coefficients", "coefficients, ML"])
@pytest.mark.parametrize("formula", MODELS)
def test_satterthwaites_degrees_of_freedom_are_those_of_lmertest(frames, formula, test):
    fit = fitted(frames, formula, method="ML" if "ML" in test else "REML")
    theirs = DF[formula, test]
    found = fit.coefficients.loc[theirs.index]
    scale = theirs["Std. Error"].max()
    assert np.abs(found["estimate"] - theirs["Estimate"]).max() < 1e-5 * scale
    np.testing.assert_allclose(found["std_error"], theirs["Std. Error"], rtol=1e-5)
    np.testing.assert_allclose(found["df"], theirs["df"], rtol=1e-3)
    np.testing.assert_allclose(found["p"], theirs["Pr(>|t|)"], atol=1e-4)


@pytest.mark.parametrize("ddf", ["Satterthwaite", "Kenward-Roger"])
@pytest.mark.parametrize("formula", MODELS)
def test_tests_of_terms_are_lmertests_of_type_3(frames, formula, ddf):
    found = fitted(frames, formula).anova(ddf).table
    theirs = DF[formula, "anova" + ", Kenward-Roger" * (ddf != "Satterthwaite")]
    assert list(found.index) == list(theirs.index)
    np.testing.assert_array_equal(found["num_df"], theirs["NumDF"])
    # of two contrasts with almost the same variance R's rounding chooses the coordinates
    degenerate = "(0 + old | item)" in formula
    np.testing.assert_allclose(found["den_df"], theirs["DenDF"], rtol=1e-2 if degenerate else 1e-3)
    np.testing.assert_allclose(found["F"], theirs["F value"], rtol=1e-5)
    np.testing.assert_allclose(found["sum_sq"], theirs["Sum Sq"], rtol=1e-5)
    np.testing.assert_allclose(found["p"], theirs["Pr(>F)"], atol=1e-4)


@pytest.mark.filterwarnings("ignore:singular")
@pytest.mark.parametrize(
    ("formula", "shift", "scale"),
    [
        ("bits", 1e7, 1),  # with `cond`, its columns count as linearly dependent, as in R
        ("bits", -3e5, 1e-4),
        ("bits * cond", 3e4, 1),
        ("bits * cond", -3e4, 1e-4),
        ("old * cond + bits:cond", 3e4, 1),
        ("old * cond + bits:cond", 0, 1e6),
    ],
)
def test_tests_of_terms_depend_neither_on_the_origin_nor_on_the_unit_of_a_number(
    frames, formula, shift, scale
):
    data = frames["gaze_ms"]
    formula = f"gaze_ms ~ {formula} + (1 | subject) + (1 | item)"
    moved = data.assign(bits=scale * (data["bits"] + shift))
    found = reading.fit(moved, formula, backend="native").anova().table
    as_it_is = reading.fit(data, formula, backend="native").anova().table
    slopes = [label for label in found.index if "bits" in label]
    assert slopes
    np.testing.assert_array_equal(found["num_df"], as_it_is["num_df"])
    np.testing.assert_allclose(found.loc[slopes, "F"], as_it_is.loc[slopes, "F"], rtol=1e-4)


CODED = tables("contrasts")


@pytest.mark.parametrize("formula", list(dict.fromkeys(model for model, _ in CODED)))
@pytest.mark.parametrize("scheme", ["sum", "helmert", "treatment", "poly", "sdif"])
def test_contrasts_have_the_names_and_estimates_of_lme4(frames, formula, scheme):
    theirs, anova = CODED[formula, scheme], CODED[formula, f"anova, {scheme}"]
    in_formula = formula.replace("cond", f"C(cond, contr.{scheme})")
    for text, options in ((formula, {"contrasts": {"cond": scheme}}), (in_formula, {})):
        fit = reading.fit(frames["gaze_ms"], text, backend="native", **options)
        found = fit.coefficients
        assert list(found.index) == list(theirs.index)
        scale = theirs["Std. Error"].max()
        assert np.abs(found["estimate"] - theirs["Estimate"]).max() < 1e-8 * scale
        np.testing.assert_allclose(found["df"], theirs["df"], rtol=1e-5)
        np.testing.assert_allclose(fit.anova()["F"], anova["F value"], rtol=1e-6)


PAIRS = tables("anova")


@pytest.mark.parametrize("pair", [model for model, _ in PAIRS])
def test_likelihood_ratios_are_those_of_lme4(frames, pair):
    first, second = pair.split(" ; ")
    found = reading.anova(fitted(frames, first), fitted(frames, second)).table
    theirs = PAIRS[pair, "anova"]
    names = {"npar": "n_parameters", "Chisq": "chi2", "Df": "df", "Pr(>Chisq)": "p"}
    names |= {"AIC": "aic", "BIC": "bic", "logLik": "loglik", "deviance": "deviance"}
    for column, name in names.items():
        np.testing.assert_allclose(found[name], theirs[column], atol=2e-6, err_msg=name)


ADDITIVE = tables("additive")


@pytest.mark.parametrize(("pair", "test"), [key for key in ADDITIVE if "anova" in key[1]])
@pytest.mark.parametrize("backend", ["native", "mgcv"])
def test_additive_models_are_compared_as_by_mgcv(request, frames, pair, test, backend):
    """The native engine takes the smoothing as known: its deviances alone are mgcv's."""
    if backend == "mgcv":
        request.getfixturevalue("r")
    options = {"method": "ML" if "ML" in test else "REML", "tolerance": 1e-9, "backend": backend}
    formulas = pair.replace("'", '"').split(" ; ")
    found = reading.anova(*(reading.fit(frames["gaze_ms"], f, **options) for f in formulas)).table
    theirs = ADDITIVE[pair, test]
    np.testing.assert_allclose(found["deviance"], theirs["Resid. Dev"], rtol=1e-6)
    if backend == "mgcv":
        for column, name in (("Resid. Df", "residual_df"), ("Df", "df"), ("Pr(>Chi)", "p")):
            np.testing.assert_allclose(found[name], theirs[column], atol=1e-6, err_msg=name)


def names_of(key):
    formula, of, *by, method = key.split(" ; ")
    ddf = {"satterthwaite": "Satterthwaite", "kenward-roger": "Kenward-Roger"}[method]
    return formula, {"of": of.split("+"), "by": by, "ddf": ddf}


MEANS = tables("means")


@pytest.mark.parametrize("key", list(dict.fromkeys(model for model, _ in MEANS)))
def test_marginal_means_and_their_differences_are_those_of_emmeans(frames, key):
    formula, asked = names_of(key)
    fit = fitted(frames, formula)
    options = {
        "means": {},
        "tukey": {"pairs": True},
        "holm": {"pairs": True, "adjust": "holm"},
        "response": {"response": True},
        "bias": {"response": True, "bias_correction": True},
        "ratios": {"response": True, "pairs": True},
    }
    columns = {"emmean": "estimate", "response": "estimate", "ratio": "ratio", "df": "df"}
    columns |= {"estimate": "estimate", "SE": "std_error", "lower.CL": "low", "upper.CL": "high"}
    columns |= {"t.ratio": "t", "p.value": "p"}
    for test, chosen in options.items():
        if (key, test) not in MEANS:
            continue
        theirs = MEANS[key, test]
        found = fit.means(**asked, **chosen).table
        assert len(found) == len(theirs)
        if not chosen.get("pairs"):  # emmeans lets the first factor run fastest
            found = found.sort_values([*asked["by"], *asked["of"][::-1]])
        elif len(asked["of"]) > 1:
            found, theirs = found.iloc[:0], theirs.iloc[:0]
        for column in theirs.columns.drop("null", errors="ignore"):
            values = found[columns[column]]
            close = {"rtol": 1e-6, "atol": 1e-6, "err_msg": f"{test} {column}"}
            np.testing.assert_allclose(values, theirs[column], **close)


def test_a_difference_smooth_is_that_of_mgcvs_matrix(frames):
    formula = next(model for model, test in ADDITIVE if test == "difference")
    fit = reading.fit(frames["gaze_ms"], formula.replace("'", '"'), tolerance=1e-9)
    at = {"position": [1, 6, 12, 18, 24]}
    found = fit.means("task", by="position", at=at, pairs=True, adjust="none").table
    theirs = ADDITIVE[formula, "difference"]
    np.testing.assert_allclose(found["estimate"], theirs["estimate"], atol=0.05)
    np.testing.assert_allclose(found["std_error"], theirs["SE"], rtol=5e-3)


@pytest.mark.usefixtures("r")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_same_questions_are_answered_by_lme4_in_r(frames):
    formula = "log(gaze_ms) ~ C(cond, Sum) * old + ns(bits, df=3) + (1 | subject)"
    ours, theirs = both(frames["gaze_ms"], formula, "lme4")
    for ask in (
        lambda fit: fit.anova("Kenward-Roger"),
        lambda fit: fit.means(["cond", "old"]),
        lambda fit: fit.means("cond", by="old", pairs=True, ddf="Kenward-Roger"),
        lambda fit: fit.means("old", at={"bits": [2, 8]}, by="bits", pairs=True, response=True),
    ):
        tables = [ask(fit).table.select_dtypes("number") for fit in (ours, theirs)]
        np.testing.assert_allclose(*tables, rtol=1e-4, atol=1e-6)
    smaller = both(frames["gaze_ms"], "log(gaze_ms) ~ old + (1 | subject)", "lme4")
    found = reading.anova(smaller[0], ours), reading.anova(smaller[1], theirs)
    np.testing.assert_allclose(found[0].table, found[1].table, atol=1e-5)


@pytest.mark.usefixtures("r")
def test_additive_fits_answer_as_mgcv_in_r_answers(frames):
    formula = 'gaze_ms ~ C(cond, Sum) * task + s(bits) + s(subject, bs="re")'
    ours, theirs = both(frames["gaze_ms"], formula, tolerance=1e-9)
    terms = [fit.anova().table.drop("s(subject)") for fit in (ours, theirs)]
    assert list(terms[0].index) == list(terms[1].index)
    np.testing.assert_allclose(*terms, rtol=2e-2, atol=1e-3)
    for chosen in ({}, {"pairs": True}):
        means = [fit.means("cond", **chosen).table for fit in (ours, theirs)]
        tables = [table.select_dtypes("number") for table in means]
        np.testing.assert_allclose(*tables, rtol=2e-3, atol=1e-3)


def test_what_cannot_be_compared_is_refused_with_what_to_do(frames):
    table = frames["gaze_ms"]
    whole = fitted(frames, MODELS[5])
    gap = table.assign(bits=table["bits"].where(table.index > 9))
    with pytest.warns(
        RuntimeWarning, match=r"left out, as R leaves them out, \{'bits': 10\} of 384"
    ):
        fewer = reading.fit(gap, "gaze_ms ~ bits + (1 | subject)")
    assert "10 rows left out, missing: bits 10" in repr(fewer)
    with pytest.raises(FrameError, match="other rows"):
        reading.anova(whole, fewer)
    complete = gap.dropna(subset=["bits"])  # what the message advises
    advised = [
        reading.fit(complete, f) for f in (whole.formula, "gaze_ms ~ cond + bits + (1 | subject)")
    ]
    assert reading.anova(*advised)["df"].iloc[1] == 1
    with pytest.raises(FrameError, match="other responses"):
        reading.anova(whole, reading.fit(table, "log(gaze_ms) ~ bits + (1 | subject)"))
    with pytest.raises(ValueError, match="other kinds"):
        reading.anova(whole, reading.fit(table, "gaze_ms ~ s(bits)"))
    with pytest.raises(ValueError, match="no variables of the fixed part"):
        whole.means("task")
    with pytest.raises(ValueError, match="fitted by ML; fit it with method='REML'"):
        fitted(frames, MODELS[5], method="ML").anova("Kenward-Roger")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("C(cond, Summ)", "contrasts 'summ' .*are unknown|'Summ' .*are unknown"),
        ('C(cond, Treatment("z"))', "no level 'z' to refer to"),
        ("C(cond, Sum) + C(cond, Helmert):bits", "other contrasts than"),
        ("C(cond + 1)", "cannot be read; write C"),
    ],
)
def test_contrasts_that_cannot_be_are_refused(frames, call, says):
    with pytest.raises((FrameError, FormulaError), match=says):
        reading.fit(frames["gaze_ms"], f"gaze_ms ~ {call}")


def test_a_matrix_of_contrasts_is_used_as_given(frames):
    table = frames["gaze_ms"]
    matrix = pd.DataFrame(
        {"any": [2 / 3, -1 / 3, -1 / 3], "bc": [0, 0.5, -0.5]}, index=["a", "b", "c"]
    )
    fit = reading.fit(table, "gaze_ms ~ cond", contrasts={"cond": matrix})
    found = fit.coefficients["estimate"]
    means = table.groupby("cond")["gaze_ms"].mean()
    assert list(found.index) == ["(Intercept)", "condany", "condbc"]
    assert found["condbc"] == pytest.approx(means["b"] - means["c"])
    assert found["condany"] == pytest.approx(means["a"] - (means["b"] + means["c"]) / 2)
    unnamed = reading.fit(table, "gaze_ms ~ cond", contrasts={"cond": matrix.to_numpy()})
    assert list(unnamed.coefficients.index)[1:] == ["cond1", "cond2"]
    with pytest.raises(FrameError, match=r"need \(3, 2\)"):
        reading.fit(table, "gaze_ms ~ cond", contrasts={"cond": np.eye(3)})


def test_summaries_for_papers_have_their_digits_and_say_what_was_fitted(frames):
    fit = fitted(frames, MODELS[1])
    lines = fit.summary().to_markdown().splitlines()
    # the published table of sleepstudy: 251.405 (6.825), 10.467 (1.546), 17 degrees of freedom
    assert "| Days | 10.47 | 1.55 | 17.00 | 6.77 | < .001 |" in lines
    assert "| (Days \\| Subject) | 5.92 |" in lines
    note = next(line for line in lines if line.startswith("*Note.*"))
    for part in ("linear mixed model", MODELS[1], "REML", "Satterthwaite", "180 rows"):
        assert part in note
    written = fit.summary().to_latex()
    assert r"Days & 10.47 & 1.55 & 17.00 & 6.77 & $<$ .001 \\" in written
    assert written.count(r"\begin{table}") == written.count(r"\end{table}") == 2
    assert "| 1 | 17.00 | 45.85 | < .001 |" in fit.anova().to_markdown()


@pytest.fixture(scope="module")
def without_a_cell():
    """Readings of two factors, none of which has y with r."""
    rng = np.random.default_rng(1)
    data = pd.DataFrame({"a": rng.choice(["x", "y"], 240), "b": rng.choice([*"pqr"], 240)})
    data["subject"] = np.repeat([f"s{i}" for i in range(12)], 20)
    data["rt"] = 300 + np.repeat(rng.normal(0, 20, 12), 20) + rng.normal(0, 30, 240)
    return data[(data["a"] != "y") | (data["b"] != "r")].reset_index(drop=True)


@pytest.mark.parametrize("bar", ["", " + (1 | subject)"])
def test_an_interaction_with_an_empty_cell_loses_a_column_as_in_lme4(without_a_cell, bar):
    """Its estimates are those of the cells with readings; what these do not determine is refused,
    and the advice gives the means of the cells."""
    formula = "rt ~ a * b" + bar
    with pytest.warns(RuntimeWarning, match="rank deficient so dropping 1 column.*: ay:br"):
        fit = reading.fit(without_a_cell, formula)
    assert list(fit.coefficients.index) == ["(Intercept)", "ay", "bq", "br", "ay:bq"]
    with pytest.raises(ValueError, match="not estimable; fit one factor"):
        fit.means("a")
    cells = without_a_cell.assign(cell=without_a_cell["a"] + without_a_cell["b"])
    by_cell = reading.fit(cells, "rt ~ cell" + bar)
    means = by_cell.means("cell").table.set_index("cell")["estimate"]
    estimate = fit.coefficients["estimate"]
    expected = estimate["(Intercept)"] + estimate["ay"] + estimate["bq"] + estimate["ay:bq"]
    assert means["yq"] == pytest.approx(expected, abs=1e-6)
    assert fit.loglik == pytest.approx(by_cell.loglik, abs=1e-6)
    if bar:
        with pytest.raises(ValueError, match="compare nested fits"):
            fit.anova()
        smaller = reading.fit(without_a_cell, "rt ~ a + b" + bar)
        assert reading.anova(smaller, fit).table["df"].iloc[1] == 1


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize(
    ("backend", "bar"), [("lme4", "(1 | subject)"), ("mgcv", "s(subject, bs='re')")]
)
def test_programs_in_r_say_what_an_empty_cell_leaves_open(without_a_cell, backend, bar):
    with pytest.warns(RuntimeWarning, match="ay:br"):
        native, fit = both(without_a_cell, f"rt ~ a * b + {bar}", backend)
    difference = native.coefficients["estimate"] - fit.coefficients["estimate"].dropna()
    assert difference.abs().lt(1e-3 * native.coefficients["std_error"]).all()
    with pytest.raises(ValueError, match="not estimable"):
        fit.means("a")


def test_what_has_no_way_back_to_the_response_is_refused_and_the_advice_helps(frames):
    fit = fitted(frames, "sqrt(gaze_ms) ~ cond + (1 | subject)")
    for option in ("pairs", "bias_correction"):
        with pytest.raises(FrameError, match="leave out") as error:
            fit.means("cond", **{option: True, "response": True})
        advised = str(error.value).rpartition("leave out ")[2].removesuffix("=True")
        assert len(fit.means("cond", **{option: True, "response": True} | {advised: False}).table)


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize(("response", "family"), [("gaze_ms", "gaussian"), ("slow", "binomial")])
def test_a_search_of_lme4_that_stops_early_has_not_converged_and_the_advice_helps(
    frames, response, family
):
    table = frames["gaze_ms"]
    table = table.assign(slow=(table["gaze_ms"] > table["gaze_ms"].median()).astype(float))
    formula = f"{response} ~ scale(bits) + (1 | subject) + (1 | item)"
    options = {"backend": "lme4", "family": family}
    control = "lmerControl" if family == "gaussian" else "glmerControl"
    early = f"control={control}(optimizer='bobyqa', optCtrl=list(maxfun=9))"
    with pytest.warns(RuntimeWarning) as warned:
        stopped = reading.fit(table, formula, r_arguments=early, **options)
    assert not stopped.converged
    assert "NOT converged" in repr(stopped)
    advice = next(str(w.message) for w in warned if "did not converge" in str(w.message))
    followed = reading.fit(table, formula, r_arguments=advice.split('"')[1], **options)
    assert followed.converged
    assert ("z" if family == "binomial" else "t") in followed.coefficients
    assert ("Satterthwaite" in followed.methods()) == (family == "gaussian")
    assert followed.loglik >= stopped.loglik - 1e-9
