"""Long texts of masked models, and kinds of model that are added; the reference is transformers."""

from typing import Literal

import numpy as np
import pytest
from plain_transformers import last_nats, log_probabilities, tokens_and_words

from psychlm import lm
from psychlm.lm import _load
from psychlm.lm.scoring_requests import READINGS, Reading, ScoringRequest

TEXT = "The horses raced past, didn’t they?"


@pytest.mark.parametrize("family", ["bert", "xlm"])
def test_long_texts_are_cut_around_each_word(family, models, rng):
    model = models(family)
    text = " ".join(rng.choice(["the", "old", "man", "boat", "horse", "sea", "tea"], size=60))
    words = lm.surprisal(text, model, context=16, entropy=True)
    assert np.isfinite(words["surprisal_bits"]).all()
    if model.kind == "left-masked":  # near the beginning nothing is cut
        whole = lm.surprisal(" ".join(text.split()[:5]), model, context=16)
        np.testing.assert_allclose(words["surprisal_bits"][:5], whole["surprisal_bits"], atol=1e-5)
        return
    ids, word = tokens_and_words(model, text)
    i = int(np.flatnonzero(np.bincount(word, minlength=60)[word] == 1)[20])
    begin = (2 * i + 1) // 2 - 14 // 2
    read = ids[begin : begin + 14]
    read[i - begin] = model.tokenizer.mask_token_id
    read = [model.tokenizer.cls_token_id, *read, model.tokenizer.sep_token_id]
    expected = -log_probabilities(model.network, read)[i - begin + 1, ids[i]] / np.log(2)
    assert words["surprisal_bits"][word[i]] == pytest.approx(expected, abs=1e-4)


def right_to_left(ids, word, first_row, special):
    """Read a text backwards, each token after those that follow it: what the package lacks."""
    read = np.append(special.start, ids[:0:-1])
    rows = np.arange(len(ids))[::-1]
    yield ScoringRequest(read, np.arange(len(ids)), ids[rows], first_row + rows)


def test_a_kind_of_model_is_added_by_one_function_and_its_name(monkeypatch, models):
    """The recipe of CONTRIBUTING.md; the reference is transformers on the reversed tokens."""
    monkeypatch.setattr(_load, "Kind", Literal["causal", "right-to-left"])
    monkeypatch.setitem(READINGS, "right-to-left", Reading(right_to_left))
    network, tokenizer = models("gpt2").network, models("gpt2").tokenizer
    words = lm.surprisal(TEXT, lm.wrap(network, tokenizer, kind="right-to-left"))
    ids, word = tokens_and_words(models("gpt2"), TEXT)
    nats = last_nats(models("gpt2"), [tokenizer.bos_token_id, *ids[::-1]], len(ids))[::-1]
    bits = -np.bincount(word, weights=nats) / np.log(2)
    np.testing.assert_allclose(words["surprisal_bits"], bits, atol=1e-4)
    # Where words end is corrected only where the words before are what a model reads.
    assert words.attrs["surprisal"]["correction"] is None
