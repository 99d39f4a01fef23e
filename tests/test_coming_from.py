"""Every row of the tables in docs/coming_from.md against the program that it names: mgcv live, by
rpy2; lme4 and mirt from stored numbers (tests/reference/coming_from.json, which
tests/helpers/rows_of_programs.py writes); minicons by transformers' own log-probabilities.

A section has Python blocks, R blocks and one table. In a row, the second column is the program's
call and the third ours; both give numbers, or a fit, which stands for its log-likelihood."""

import json

import numpy as np
import pytest
from rows_of_programs import STORED, namespace, numbers, of_r, sections

RELATIVE, ABSOLUTE = 1e-3, 1e-3
LIVE = {"mgcv"}  # programs that run here
ROWS = [(name, *row) for name, section in sections().items() for row in section["rows"]]


@pytest.mark.filterwarnings("ignore:singular")
@pytest.mark.needs_r
@pytest.mark.parametrize(
    ("program", "what", "theirs", "ours"), ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS]
)
def test_each_row_gives_the_numbers_of_the_program_it_names(program, what, theirs, ours):
    if program in LIVE:
        expected = of_r(program, theirs)
    else:
        expected = np.array(json.loads(STORED.read_text())[program][theirs])
    found = numbers(eval(ours, namespace(program)))
    assert len(found) == len(expected) > 0, what
    assert found == pytest.approx(expected, rel=RELATIVE, abs=ABSOLUTE), what
