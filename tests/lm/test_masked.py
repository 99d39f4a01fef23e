"""Masked and left-masked models against one hand-made input per token, run through plain
transformers.
"""

import numpy as np
import pytest
import tiny_models
import torch

from psychlm import lm

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
