"""Masked and left-masked models against one hand-made input per token, run through plain
transformers.
"""

from typing import Literal, get_args

import numpy as np
import pytest
import tiny_models
import torch

from psychlm import lm
from psychlm.lm import _load
from psychlm.lm.scoring_requests import REQUESTS, ScoringRequest

TEXT = "The horses raced past, didn’t they?"


@pytest.fixture(scope="module", params=["bert", "xlm"])
def model(request):
    tokenizer = tiny_models.TOKENIZERS[request.param]()
    return lm.wrap(tiny_models.network(request.param, tokenizer), tokenizer)


def tokens_of(model, text):
    """Return the ids of a text, and the reader's word that each belongs to."""
    ids, word = [], []
    for number, one in enumerate(text.split()):
        pieces = model.tokenizer(one, add_special_tokens=False).input_ids
        ids, word = ids + pieces, word + [number] * len(pieces)
    return ids, np.array(word)


def log_p(model, read, place, token):
    options = (
        {"langs": torch.ones(1, len(read), dtype=torch.long)} if model.kind == "left-masked" else {}
    )
    with torch.no_grad():
        logits = model.network(torch.tensor([read]), **options).logits[0, place].double()
    return float(torch.log_softmax(logits, dim=-1)[token])


def by_hand(model, text):
    """Pseudo-log-likelihood, within a word from left to right (BERT); the left context and one mask
    (XLM).
    """
    ids, word = tokens_of(model, text)
    tokenizer, nats = model.tokenizer, []
    for i, token in enumerate(ids):
        if model.kind == "masked":
            hidden = [
                tokenizer.mask_token_id if word[j] == word[i] and j >= i else ids[j]
                for j in range(len(ids))
            ]
            read = [tokenizer.cls_token_id, *hidden, tokenizer.sep_token_id]
        else:
            read = [tokenizer.bos_token_id, *ids[:i], tokenizer.mask_token_id]
        nats.append(log_p(model, read, i + 1, token))
    return -np.bincount(word, weights=nats) / np.log(2), np.bincount(word)


def test_words_are_worth_what_their_masks_say(model):
    words = lm.surprisal(TEXT, model)
    bits, n_tokens = by_hand(model, TEXT)
    known = (words["reason"] == "").to_numpy()
    assert known.sum() >= 4 and (n_tokens > 1).any()
    np.testing.assert_allclose(words["surprisal_bits"][known], bits[known], atol=1e-4)
    np.testing.assert_array_equal(words["n_tokens"], n_tokens)
    assert (
        words.attrs["surprisal"]["correction"] is None
    )  # nothing to correct, and the output says so


def test_long_texts_are_cut_around_each_word(model, rng):
    text = " ".join(rng.choice(["the", "old", "man", "boat", "horse", "sea", "tea"], size=60))
    words = lm.surprisal(text, model, context=16, entropy=True)
    assert np.isfinite(words["surprisal_bits"]).all()
    whole = lm.surprisal(" ".join(text.split()[:5]), model, context=16)
    if model.kind == "left-masked":  # near the beginning nothing is cut
        np.testing.assert_allclose(words["surprisal_bits"][:5], whole["surprisal_bits"], atol=1e-5)
    else:
        ids, word = tokens_of(model, text)
        i = int(np.flatnonzero(np.bincount(word, minlength=60)[word] == 1)[20])
        begin = (2 * i + 1) // 2 - 14 // 2
        read = ids[begin : begin + 14]
        read[i - begin] = model.tokenizer.mask_token_id
        read = [model.tokenizer.cls_token_id, *read, model.tokenizer.sep_token_id]
        expected = -log_p(model, read, i - begin + 1, ids[i]) / np.log(2)
        assert words["surprisal_bits"][word[i]] == pytest.approx(expected, abs=1e-4)


def test_a_masked_model_needs_a_mask_token(model):
    tokenizer = tiny_models.byte_level()
    with pytest.raises(lm.ModelError, match="no mask token"):
        lm.wrap(tiny_models.network("gpt2", tokenizer), tokenizer, kind="masked")


def right_to_left(ids, word, first_row, special):
    """Read a text backwards, each token after those that follow it: what the package lacks."""
    read = np.append(special.start, ids[:0:-1])
    rows = np.arange(len(ids))[::-1]
    yield ScoringRequest(read, np.arange(len(ids)), ids[rows], first_row + rows)


def test_a_kind_of_model_is_added_by_one_function_and_its_name(monkeypatch):
    """The recipe of CONTRIBUTING.md; the reference is transformers on the reversed tokens."""
    monkeypatch.setattr(_load, "Kind", Literal["causal", "right-to-left"])
    monkeypatch.setitem(REQUESTS, "right-to-left", right_to_left)
    tokenizer = tiny_models.byte_level()
    network = tiny_models.network("gpt2", tokenizer)
    model = lm.wrap(network, tokenizer, kind="right-to-left")
    words = lm.surprisal(TEXT, model)
    text = tokenizer(TEXT, add_special_tokens=False).input_ids
    read = [tokenizer.bos_token_id, *text[::-1]]
    nats = [log_p(model, read[: i + 1], i, token) for i, token in enumerate(text[::-1])][::-1]
    n_tokens = words["n_tokens"].to_numpy()
    by_word = np.repeat(np.arange(len(words)), n_tokens)
    expected = -np.bincount(by_word, weights=nats) / np.log(2)
    np.testing.assert_allclose(words["surprisal_bits"], expected, atol=1e-4)
    # Where words end is corrected only where the words before are what a model reads.
    assert words.attrs["surprisal"]["correction"] is None


def test_every_kind_that_has_surprisals_is_read_in_one_way():
    assert {*REQUESTS, "encoder-decoder", *_load.HEADS} == set(get_args(_load.Kind))
