r"""Item characteristic curves and information of dichotomous items, logistic metric (D = 1).

.. math:: P_i(\theta) = c_i + \frac{u_i - c_i}{1 + e^{-(a_i\theta + d_i)}}, \qquad d_i = -a_i b_i

Items are a frame with the columns ``a`` (slope), ``d`` (intercept) or ``b`` (difficulty, logits),
``c`` (guessing, 0 if absent) and ``u`` (upper asymptote, 1 if absent); b and d must agree. The
formulas stand in :mod:`psychlm.irt.response_functions`, for these and all other models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from psychlm.irt.model_tables import ModelTables
from psychlm.irt.response_functions import Logistic

if TYPE_CHECKING:
    from psychlm.irt.result import IRTFit


def probability(theta: ArrayLike, items: pd.DataFrame) -> np.ndarray:
    """Return the probability of a correct response at abilities theta, (n_theta, n_items).

    Birnbaum (1968); Lalor (2020), equations 1.5 and 1.7.

    Examples
    --------
    >>> probability([0.5], pd.DataFrame({"a": [1.0, 2.0], "b": [0.5, 0.5], "c": [0.0, 0.2]}))
    array([[0.5, 0.6]])
    """
    return Logistic.of_table(items).probability_at(theta)[:, 1].T


def item_information(theta: ArrayLike, items: pd.DataFrame | IRTFit) -> np.ndarray:
    """Return the Fisher information about ability, (n_theta, n_items), in 1 / logit^2.

    Of two categories it is P'^2 / (P Q) (Birnbaum 1968, equation 20.2.3). Polytomous items are
    those of a fit.
    """
    return ModelTables.of(items, "2PL").functions.information_at(theta)


def test_information(theta: ArrayLike, items: pd.DataFrame | IRTFit) -> np.ndarray:
    """Return the test's information, (n_theta,): ability's standard error is its -1/2 power."""
    return item_information(theta, items).sum(axis=1)


test_information.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest
