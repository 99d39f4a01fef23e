"""Laverghetta et al. (2021): the thresholds of section 4, and the printed bands of p."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from analyses import laverghetta2021
from psychlm import corpora


def test_the_share_of_the_responses_given_decides_at_the_papers_thresholds():
    rows = {k: [1] * k + [0] * (20 - k) for k in (7, 8, 12, 13)}  # 40 and 60 %: for review
    responses = pd.DataFrame(rows).T.add_prefix("q")
    decisions = laverghetta2021.screen(responses).tolist()
    assert decisions == ["reject", "review", "review", "accept"]
    responses.iloc[0, 7:11] = np.nan  # 7 of 16
    assert laverghetta2021.screen(responses).iloc[0] == "review"


def test_of_the_printed_bands_of_p_one_cannot_be_that_of_its_correlation() -> None:
    study = corpora.laverghetta2021()
    n_items = {code: len(study.category_items(code)) for code in corpora.LAVERGHETTA_CATEGORIES}
    bands = laverghetta2021.printed_p_bands(n_items)
    assert len(bands) == 63
    wrong = bands[~bands["possible"]]
    assert wrong[["table", "category", "population"]].to_numpy().tolist() == [
        ["table1", "MN", "lstm"]
    ]
    t = 0.27 * np.sqrt(13 / (1 - 0.27**2))  # r = 0.27 of 15 items
    assert wrong["p"].iloc[0] == pytest.approx(2 * scipy.stats.t.sf(t, 13))
