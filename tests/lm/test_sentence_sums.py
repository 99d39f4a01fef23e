"""Sums over sentences, and the limits of inputs.

Reference: transformers, one text at a time: the sum of the log-probabilities of all of its tokens
(masked models: Kauf & Ivanova 2023), which does not depend on how a text is divided into words.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psychlm import lm
from psychlm.lm.tokens import SHARED, UNKNOWN

TEXT = "She wound up talking to Barry about her time in India; the old man did."
ITEM = pd.DataFrame({"item_id": ["a"], "prompt": ["Who?"], "choices": [["he", "she"]]})
ITEM["answer"] = 0


@torch.inference_mode()
def causal_bits(model, text):
    """Sum over the tokens of a text, bits."""
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    read = torch.tensor([[model.tokenizer.bos_token_id, *ids]])
    log_p = model.network(read).logits[0].double().log_softmax(dim=-1)
    return -float(log_p[range(len(ids)), ids].sum()) / np.log(2)


@torch.inference_mode()
def masked_bits(model, text):
    """Sum over the tokens of a text, each with itself and the rest of its word masked, bits."""
    encoded = model.tokenizer(text, return_offsets_mapping=True)
    ids, spans = encoded["input_ids"], encoded["offset_mapping"]
    ends = np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
    word = [int(np.searchsorted(ends, b - 1, side="right")) if b else -1 for _, b in spans]
    total = 0.0
    for i in (i for i, (_, b) in enumerate(spans) if b > 0):
        read = [
            model.tokenizer.mask_token_id if k >= i and word[k] == word[i] else token
            for k, token in enumerate(ids)
        ]
        logits = model.network(torch.tensor([read])).logits[0, i].double()
        total -= float(logits.log_softmax(0)[ids[i]]) / np.log(2)
    return total


def divided(text, cuts, sentence_of=None):
    """Return the words frame of a text that is cut at some characters, also inside its words."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    words = [piece.strip() for piece in pieces]
    frame = pd.DataFrame({"word": words, "piece": pieces})
    frame["space_after"] = [len(p) - len(p.rstrip()) > 0 for p in pieces]
    frame["space_before"] = [len(p) - len(p.lstrip()) > 0 for p in pieces]
    frame = frame[frame["word"] != ""].drop(columns="piece").reset_index(drop=True)
    frame.insert(0, "text_id", "t")
    frame.insert(1, "word_id", np.arange(1, len(frame) + 1))
    return frame


def inner(cuts):
    """Leave out cuts beside a space, so that no piece is white space only."""
    return [cut for cut in cuts if TEXT[cut - 1] != " "]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(1, len(TEXT) - 1), max_size=12), shuffled=st.booleans())
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt"])
def test_a_sentence_has_its_sum_however_it_is_divided_into_words(models, family, cuts, shuffled):
    model = models(family)
    frame = divided(TEXT, inner(cuts))
    if shuffled:
        frame = frame.sample(frac=1, random_state=1)
    for correction in (None, "pimentel-meister"):
        options = {"correction": correction, "clean": False}
        total = lm.surprisal(frame, model, unit="sentence", **options)
        whole = lm.surprisal(TEXT, model, unit="sentence", **options)
        assert total["surprisal_bits"][0] == pytest.approx(whole["surprisal_bits"][0], abs=1e-4)
        assert total["reason"].tolist() == [""]
        if correction is None:
            assert total["surprisal_bits"][0] == pytest.approx(causal_bits(model, TEXT), abs=1e-3)
        words = lm.surprisal(frame, model, **options)
        shared = words["reason"].eq(SHARED)
        assert words["surprisal_bits"].isna().equals(shared)


def test_a_token_over_the_end_of_a_sentence_leaves_both_sentences_without_a_sum(models):
    frame = divided("the old horse fell. the boat", [4, 8, 10, 14, 20, 24])
    for first, lost in ((3, True), (4, False)):  # "ho|rse" is one token
        parts = frame.assign(sentence_id=np.where(frame["word_id"] <= first, "a", "b"))
        scored = lm.surprisal(parts, models("gpt2"), unit="sentence")
        assert scored["surprisal_bits"].isna().tolist() == [lost, lost]
        assert scored["reason"].tolist() == ([SHARED] * 2 if lost else ["", ""])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_sentence_with_a_character_that_the_tokenizer_does_not_know_is_scored_as_it_reads_it(
    models, family
):
    model = models(family)
    texts = {"known": "the old man and the sea", "strange": "the old man § and the sea"}
    scored = lm.surprisal(texts, model, unit="sentence").set_index("text_id")
    for name, text in texts.items():
        expected = masked_bits(model, text)
        assert scored.loc[name, "surprisal_bits"] == pytest.approx(expected, abs=1e-3)
    if family == "bert":
        assert scored["reason"].to_dict() == {"known": "", "strange": UNKNOWN}
        words = lm.surprisal(texts["strange"], model)
        assert words["surprisal_bits"].isna().tolist() == [False] * 3 + [True] + [False] * 3
        pairs = {"good": [texts["strange"]], "bad": ["the old man § and the the"]}
        with pytest.warns(RuntimeWarning, match=r"\['good-0', 'bad-0'\] hold characters"):
            judged = lm.minimal_pairs(pd.DataFrame(pairs).assign(phenomenon="x"), {"it": model})
        expected = masked_bits(model, texts["strange"])
        assert judged.pairs["good_bits"][0] == pytest.approx(expected, abs=1e-3)


def test_a_text_of_which_the_tokenizer_keeps_nothing_has_no_sum(models):
    scored = lm.surprisal(["the man", "\x01"], models("bert"), unit="sentence")
    assert scored["surprisal_bits"].isna().tolist() == [False, True]
    assert scored["reason"][1] != ""


def test_sums_are_kept_in_the_cache(gpt2, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path))
    frame = divided("the old horse fell", [10])
    model = lm.load(gpt2, "cpu")
    first = lm.surprisal(frame, model, unit="sentence")
    monkeypatch.setattr("psychlm.lm.forward._values", lambda *_: pytest.fail("computed again"))
    again = lm.surprisal(frame, model, unit="sentence")
    assert again["surprisal_bits"].tolist() == first["surprisal_bits"].tolist()
    words = lm.surprisal(frame, model)
    assert words["reason"].tolist() == [SHARED, SHARED] and words["surprisal_bits"].isna().all()


# Limits


@pytest.mark.parametrize(
    "limit",
    [
        *({"stride": value} for value in (0, -1, 1.5, True)),
        *({"context": value} for value in (0, -5, 2, 65, 10**6, 20.0)),
        *({"batch_tokens": value} for value in (0, -1, 0.5, False)),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_limits_that_cannot_be_are_refused(models, family, limit):
    (name,) = limit
    with pytest.raises(lm.ModelError, match=f"{name}=.* give a whole number from"):
        lm.surprisal("the old man", models(family), **limit)
    if name == "batch_tokens":
        with pytest.raises(lm.ModelError, match=f"{name}=.* give a whole number from 1 on"):
            lm.choice_logprobs(ITEM, models(family), **limit)


def test_a_text_longer_than_a_frozen_encoder_is_cut(bert):
    from psychlm.lm.encoders import encoder_states

    long = " ".join(["the old man"] * 60)
    cut, short = encoder_states([long, "the old man"], encoder=bert, max_tokens=122, device="cpu")
    assert len(cut) == 64 and len(short) < 64
    exact = encoder_states([long], encoder=bert, max_tokens=64, device="cpu")[0]
    np.testing.assert_allclose(cut, exact, atol=1e-5)
