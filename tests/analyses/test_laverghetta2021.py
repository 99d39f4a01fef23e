"""Laverghetta et al. (2021): the thresholds of section 4."""

import numpy as np
import pandas as pd

from analyses import laverghetta2021


def test_the_share_of_the_responses_given_decides_at_the_papers_thresholds():
    rows = {k: [1] * k + [0] * (20 - k) for k in (7, 8, 12, 13)}  # 40 and 60 %: for review
    responses = pd.DataFrame(rows).T.add_prefix("q")
    decisions = laverghetta2021.screen(responses).tolist()
    assert decisions == ["reject", "review", "review", "accept"]
    responses.iloc[0, 7:11] = np.nan  # 7 of 16
    assert laverghetta2021.screen(responses).iloc[0] == "review"
