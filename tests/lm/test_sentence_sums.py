"""Sums over sentences, and the limits of inputs.

Reference: transformers, one text at a time: the sum of the log-probabilities of all of its tokens
(masked models: Kauf & Ivanova 2023), which does not depend on how a text is divided into words.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_transformers import masked_nats, token_bits

from psychlm import lm
from psychlm.lm.tokens import SHARED, UNKNOWN

TEXT = "She wound up talking to Barry about her time in India; the old man did."
# where to cut so that no piece is white space only
CUTS = [place for place in range(1, len(TEXT)) if TEXT[place - 1] != " "]


def divided(text, cuts):
    """Return the words frame of a text that is cut at some characters, also inside its words."""
    edges = sorted({0, len(text), *cuts})
    pieces = pd.Series([text[a:b] for a, b in pairwise(edges)])
    frame = pd.DataFrame({"text_id": "t", "word_id": pieces.index + 1, "word": pieces.str.strip()})
    spaces = {"space_before": pieces.str.startswith(" "), "space_after": pieces.str.endswith(" ")}
    return frame.assign(**spaces)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.sampled_from(CUTS), max_size=12), shuffled=st.booleans())
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt"])
def test_a_sentence_has_its_sum_however_it_is_divided_into_words(models, family, cuts, shuffled):
    model = models(family)
    frame = divided(TEXT, cuts)
    if shuffled:
        frame = frame.sample(frac=1, random_state=1)
    for correction in (None, "pimentel-meister"):
        options = {"correction": correction, "clean": False}
        total = lm.surprisal(frame, model, unit="sentence", **options)
        whole = lm.surprisal(TEXT, model, unit="sentence", **options)
        assert total["surprisal_bits"][0] == pytest.approx(whole["surprisal_bits"][0], abs=1e-4)
        assert total["reason"].tolist() == [""]
        if correction is None:
            expected = token_bits(model, TEXT).sum()
            assert total["surprisal_bits"][0] == pytest.approx(expected, abs=1e-3)
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
    bits = {name: -masked_nats(model, text)[0].sum() / np.log(2) for name, text in texts.items()}
    assert scored["surprisal_bits"].to_dict() == pytest.approx(bits, abs=1e-3)
    if family == "bert":
        assert scored["reason"].to_dict() == {"known": "", "strange": UNKNOWN}
        words = lm.surprisal(texts["strange"], model)
        assert words["surprisal_bits"].isna().tolist() == [False] * 3 + [True] + [False] * 3
        pairs = {"good": [texts["strange"]], "bad": ["the old man § and the the"]}
        with pytest.warns(RuntimeWarning, match=r"\['good-0', 'bad-0'\] hold characters"):
            judged = lm.minimal_pairs(pd.DataFrame(pairs).assign(phenomenon="x"), {"it": model})
        assert judged.pairs["good_bits"][0] == pytest.approx(bits["strange"], abs=1e-3)


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


def test_a_text_longer_than_a_frozen_encoder_is_cut(bert):
    from psychlm.lm.encoders import encoder_states

    long = " ".join(["the old man"] * 60)
    cut, short = encoder_states([long, "the old man"], encoder=bert, max_tokens=122, device="cpu")
    assert len(cut) == 64 and len(short) < 64
    exact = encoder_states([long], encoder=bert, max_tokens=64, device="cpu")[0]
    np.testing.assert_allclose(cut, exact, atol=1e-5)
