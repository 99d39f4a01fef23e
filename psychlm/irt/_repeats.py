"""Whether repeated answers of a person to an item are independent, as k of n takes them to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from psychlm.frames import Repeated, by_person
from psychlm.irt.result import IRTFit


def correlation_of_repeats(
    fit: IRTFit, responses: Repeated, group: pd.Series | Sequence | None = None
) -> pd.Series:
    r"""Return how far answers of a person to an item agree beyond what ability explains.

    It is their intraclass correlation given ability,

    .. math:: 1 - \sum s^2 / \sum E[P (1 - P)],

    over the cells with several answers, with :math:`s^2` their unbiased variance and the
    expectation that of the person's posterior of ability. 0: repeats tell as much as the model
    takes them to; 1: a person always answers an item alike, and repeats tell nothing.

    ``responses`` and ``group`` are those of the fit. The Series has ``correlation``, and its
    standard error ``se`` over persons.

    >>> from psychlm import irt, simulate
    >>> rng = np.random.default_rng(0)
    >>> answers = simulate.responses(rng.normal(size=300), simulate.items(8, rng), rng, repeats=5)
    >>> result = correlation_of_repeats(irt.fit(answers), answers)
    >>> bool(abs(result["correlation"]) < 3 * result["se"])
    True
    """
    persons = responses.n.index
    member = pd.Series("" if group is None else by_person(persons, group, "group"), persons)
    observed = pd.Series(0.0, persons)
    expected = pd.Series(0.0, persons)
    for label in member.unique():
        in_label = persons[member == label]
        one = fit if group is None else fit.in_group(label)
        part = responses.select(in_label)
        posterior = one.posterior(part)
        p = one.probability(posterior.nodes)[..., -1]
        variance = part.variance[one.items.index]
        explained = (posterior.weights @ (p * (1 - p))) * variance.notna()
        observed[in_label] = variance.sum(axis=1)
        expected[in_label] = explained.sum(axis=1)
    share = observed.sum() / expected.sum()
    se = np.sqrt(((observed - share * expected) ** 2).sum()) / expected.sum()
    return pd.Series({"correlation": 1 - share, "se": se})
