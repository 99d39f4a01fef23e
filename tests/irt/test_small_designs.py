"""Small and degenerate tests: a function gives a number, NaN, or a reason that a user can follow.

Reference: none is needed; no error of linear algebra may leave a public function.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from psychlm import ctt, irt

FUNCTIONS = {
    "alpha": ctt.cronbach_alpha,
    "alpha_if_deleted": ctt.alpha_if_deleted,
    "alpha_interval": ctt.alpha_interval,
    "item_rest_correlation": ctt.item_rest_correlation,
    "keyed_in_reverse": ctt.keyed_in_reverse,
    "omega": ctt.omega,
    "scalability": ctt.scalability,
    "sem": ctt.standard_error_of_measurement,
    "split_half": ctt.split_half,
    "parallel_analysis": lambda x: irt.parallel_analysis(x, n_draws=5),
    "polychoric": irt.polychoric,
    "flag_items": irt.flag_items,
    "dif_logistic": lambda x: irt.dif_logistic(x, np.arange(len(x)) % 3),
    "mantel_haenszel": lambda x: irt.mantel_haenszel(x, np.arange(len(x)) % 2),
    "dif_likelihood_ratio": lambda x: irt.dif_likelihood_ratio(x, np.arange(len(x)) % 2),
    "short_form": lambda x: irt.short_form(irt.fit(x, "1PL"), n_items=2),
}
OF_FIT = {
    "ability_x2": irt.ability_x2,
    "infit_outfit": irt.infit_outfit,
    "ld_x2": irt.ld_x2,
    "m2": irt.m2,
    "person_fit": irt.person_fit,
    "q3": irt.q3,
    "s_x2": lambda fit, x: irt.s_x2(fit, x, min_persons=2),
    "score": lambda fit, x: fit.score(x),
    "sum_score_table": lambda fit, x: irt.sum_score_table(fit),
}
MODELS = ["Rasch", "1PL", "2PL", "3PL", "graded", "gpcm"]


def small_test(rng: np.random.Generator) -> tuple[pd.DataFrame, bool]:
    """Return 2 to 6 persons' answers to 2 to 8 items, and whether they are of 0 and 1."""
    shape = int(rng.integers(2, 7)), int(rng.integers(2, 9))
    binary = bool(rng.random() < 0.6)
    x = pd.DataFrame(rng.integers(0, 2 if binary else 4, shape).astype(float))
    x.columns = [f"q{item}" for item in x]
    x = x.mask(rng.random(shape) < rng.choice([0, 0.2, 0.6]))
    if rng.random() < 0.3:
        x["q0"] = 1.0
    if rng.random() < 0.3:
        x["q1"] = x.iloc[:, -1]
    return x.rename_axis("person"), binary


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(4, 60))]
)
def test_no_error_of_linear_algebra_leaves_a_function_of_tests(seed):
    rng = np.random.default_rng(seed)
    x, binary = small_test(rng)

    def tried(name, function, *arguments):
        """Return a result; None where the data are refused with a reason."""
        try:
            return function(*arguments)
        except np.linalg.LinAlgError as error:
            pytest.fail(f"{name} of\n{x}\n{error!r}")
        except ValueError as error:
            assert len(str(error)) > 20, (name, x)
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in FUNCTIONS.items():
            tried(name, function, x)
        for model in MODELS if binary else MODELS[4:]:
            fit = tried(model, irt.fit, x, model)
            for name, function in OF_FIT.items() if fit is not None else ():
                tried(f"{name} of the {model} model", function, fit, x)
