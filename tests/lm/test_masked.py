"""Masked and left-masked models against one hand-made input per token, run through plain
transformers.
"""

from typing import Literal

import numpy as np
import pytest
from plain_transformers import last_nats, log_probabilities, masked_nats, tokens_and_words

from psychlm import lm
from psychlm.lm import _load
from psychlm.lm.scoring_requests import READINGS, Reading, ScoringRequest, add_special

TEXT = "The horses raced past, didn’t they?"


@pytest.fixture(params=["bert", "xlm"])
def model(request, models):
    return models(request.param)


def assert_words_are_worth(words, nats, word):
    """Words that are known have the sum of their tokens."""
    known = (words["reason"] == "").to_numpy()
    assert known.sum() >= 4
    bits = -np.bincount(word, weights=nats) / np.log(2)
    np.testing.assert_allclose(words["surprisal_bits"][known], bits[known], atol=1e-4)
    np.testing.assert_array_equal(words["n_tokens"], np.bincount(word))
    # Where words end is corrected only where the words before are what a model reads.
    assert words.attrs["surprisal"]["correction"] is None


def test_words_are_worth_what_their_masks_say(model):
    nats, word = masked_nats(model, TEXT)
    assert (np.bincount(word) > 1).any()
    assert_words_are_worth(lm.surprisal(TEXT, model), nats, word)


def test_long_texts_are_cut_around_each_word(model, rng):
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
    assert_words_are_worth(words, nats, word)


def whole_words_masked(ids, word, first_row, special):
    """Mask all tokens of a word at once; read each where it stands."""
    read, before = add_special(ids, special)
    for number in np.unique(word):
        (tokens,) = np.nonzero(word == number)
        masked = (before + tokens[0], before + tokens[-1] + 1)
        yield ScoringRequest(read, before + tokens, ids[tokens], first_row + tokens, masked)


def test_a_kind_that_masks_has_the_special_tokens_of_its_tokenizer(monkeypatch, models):
    """The reference is BERT on [CLS] text [SEP] with all tokens of a word masked."""
    monkeypatch.setattr(_load, "Kind", Literal["masked", "whole-word"])
    reading = Reading(whole_words_masked, masks=True, framed=True)
    monkeypatch.setitem(READINGS, "whole-word", reading)
    network, tokenizer = models("bert").network, models("bert").tokenizer
    words = lm.surprisal(TEXT, lm.wrap(network, tokenizer, kind="whole-word"))
    ids, word = tokens_and_words(models("bert"), TEXT)
    nats = np.zeros(len(ids))
    for number in np.unique(word):
        masked = np.where(word == number, tokenizer.mask_token_id, ids)
        read = [tokenizer.cls_token_id, *masked, tokenizer.sep_token_id]
        (places,) = np.nonzero(word == number)
        nats[places] = log_probabilities(network, read)[1 + places, np.array(ids)[places]]
    assert_words_are_worth(words, nats, word)
