from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from psychlm import corpora


@pytest.fixture
def read_responses(reference_dir: Path) -> Callable[[str], pd.DataFrame]:
    """Read the LSAT, or the items of an SNLI set of Lalor (2016) that mirt and psych had."""

    def read(dataset: str) -> pd.DataFrame:
        if dataset.startswith("LSAT"):
            return pd.read_csv(reference_dir / "irt" / f"data_{dataset}.csv")
        return corpora.lalor2016(int(dataset[0])).items_keyed(dataset[4:])

    return read
