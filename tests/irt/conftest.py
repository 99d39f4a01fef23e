from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from psychlm import data


@pytest.fixture
def read_responses(reference_dir: Path) -> Callable[[str], pd.DataFrame]:
    """Read the LSAT, or the items of an SNLI set of Lalor (2016) that mirt and psych had."""

    def read(dataset: str) -> pd.DataFrame:
        if dataset.startswith("LSAT"):
            return pd.read_csv(reference_dir / "irt" / f"data_{dataset}.csv")
        items = pd.read_csv(reference_dir / "irt" / "items.csv")
        items = items.query("dataset == @dataset and model == '2PL' and fit == 'tight_TOL1e-6'")
        everyone = pd.read_csv(data.path(f"lalor2016/irt_file_{dataset[0]}_coded"), index_col=0)
        return everyone[items.sort_values("index")["item"]]

    return read
