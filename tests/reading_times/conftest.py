"""Fixtures of the tests of reading times: R, fits by two programs, 2,000 readers, surprisals."""

import numpy as np
import pandas as pd
import pytest
from conftest import absent

from psychlm import data
from psychlm.reading_times import mgcv


@pytest.fixture(scope="session")
def r():
    """R with mgcv and lme4, without which a test is skipped."""
    try:
        with mgcv.in_r():
            if not mgcv.r_function("has_package")("lme4")[0]:
                raise mgcv.RMissingError
    except mgcv.RMissingError:
        return absent("R with mgcv and lme4")


@pytest.fixture(scope="session")
def sap():
    """Return 184,000 self-paced times of 2,000 people (Huang et al. 2024), as R had them."""
    readings, words = (data.facts(f"sap2024/{name}") for name in ("readings", "sentences"))
    table = readings.merge(words, on=["sentence_id", "word_position"])
    bits = pd.to_numeric(table["gpt2_bits"])
    kept = bits.notna() & table["self_paced_ms"].between(100, 3000)
    table, bits = table[kept], bits[kept]
    return table.rename(columns={"participant": "subject", "self_paced_ms": "rt"}).assign(
        surprisal=((bits - bits.mean()) / bits.std()).round(6),
        length=table["word"].str.len() - 4,
        log_rt=np.log(table["self_paced_ms"]),
        item=table["item"].astype(str),
    )
