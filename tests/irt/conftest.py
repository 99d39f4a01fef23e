from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from psychlm import corpora

SNLI = ["4GS_contradiction", "4GS_entailment", "5GS_contradiction", "5GS_entailment", "5GS_neutral"]


@pytest.fixture(params=["LSAT6", "LSAT7", *SNLI])
def dataset(request) -> str:
    """Name the data sets that mirt and psych had."""
    return request.param


@pytest.fixture(scope="session")
def read_responses(reference_dir: Path) -> Callable[[str], pd.DataFrame]:
    """Read the LSAT, or the items of an SNLI set of Lalor (2016) that mirt and psych had."""

    def read(dataset: str) -> pd.DataFrame:
        if dataset.startswith("LSAT"):
            return pd.read_csv(reference_dir / "irt" / f"data_{dataset}.csv")
        return corpora.lalor2016(int(dataset[0])).items_keyed(dataset[4:])

    return read


@pytest.fixture(scope="session")
def mirt(reference_dir: Path) -> Callable[..., pd.DataFrame]:
    """Read the rows of a data set and a model from a table of mirt's results, items in order."""

    def read(table: str, dataset: str, model: str) -> pd.DataFrame:
        chosen = "dataset == @dataset and model == @model and fit == 'tight_TOL1e-6'"
        rows = pd.read_csv(reference_dir / "irt" / f"{table}.csv").query(chosen)
        order = [name for name in ("index", "person") if name in rows]
        return rows.sort_values(order) if order else rows

    return read
