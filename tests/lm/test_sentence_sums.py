"""Sums over sentences, and minimal pairs.

Reference: transformers, one text at a time: the sum of the log-probabilities of all of its tokens
(masked models: Kauf & Ivanova 2023), which does not depend on how a text is divided into words."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_transformers import token_bits

from psychlm import lm
from psychlm.frames import FrameError
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


@settings(max_examples=settings.default.max_examples // 2)
@given(cuts=st.lists(st.sampled_from(CUTS), max_size=12), shuffled=st.booleans())
@pytest.mark.parametrize("family", ["gpt2", "opt"])
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


def test_tokens_and_means_of_sentences_are_those_of_transformers(models):
    text = "the old man saw the sea."
    tokens = lm.surprisal(text, models("gpt2"), unit="token")
    sums = lm.surprisal(text, models("gpt2"), unit="sentence", correction=None)
    bits = token_bits(models("gpt2"), text)
    np.testing.assert_allclose(tokens["surprisal_bits"], bits, atol=1e-5)
    assert tokens["token"].tolist() == models("gpt2").tokenizer.tokenize(text)
    assert sums["bits_per_token"][0] == pytest.approx(bits.mean(), abs=1e-5)
    assert sums["bits_per_word"][0] == pytest.approx(bits.sum() / 6, abs=1e-5)
    # a sentence of which a word has no value has no sum
    none = lm.surprisal(text, models("gpt2"), unit="sentence", bos=None)
    assert none["surprisal_bits"].isna().all() and none["n_words"].tolist() == [6]


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
    scored = lm.surprisal(texts | {"lost": "\x01"}, model, unit="sentence").set_index("text_id")
    bits = {name: token_bits(model, text).sum() for name, text in texts.items()}
    assert scored["surprisal_bits"][list(texts)].to_dict() == pytest.approx(bits, abs=1e-3)
    if family == "roberta":  # it knows every byte
        return
    assert scored["reason"][list(texts)].to_dict() == {"known": "", "strange": UNKNOWN}
    assert np.isnan(scored["surprisal_bits"]["lost"]) and scored["reason"]["lost"] != ""
    words = lm.surprisal(texts["strange"], model)
    assert words["surprisal_bits"].isna().tolist() == [False] * 3 + [True] + [False] * 3
    pairs = {"good": [texts["strange"]], "bad": ["the old man § and the the"]}
    with pytest.warns(RuntimeWarning, match=r"\['good-0', 'bad-0'\] hold characters"):
        judged = lm.minimal_pairs(pd.DataFrame(pairs).assign(phenomenon="x"), {"it": model})
    assert judged.pairs["good_bits"][0] == pytest.approx(bits["strange"], abs=1e-3)


def test_minimal_pairs_of_blimp_files_are_judged_as_by_the_sums_of_transformers(models, tmp_path):
    good, bad = ["the man saw the sea.", "the old dog"], ["the man sea saw the.", "dog the old"]
    records = [
        {"sentence_good": a, "sentence_bad": b, "linguistics_term": "order", "UID": "swap"}
        for a, b in zip(good, bad, strict=True)
    ]
    (tmp_path / "swap.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "plain.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a"}')
    judged = lm.minimal_pairs(tmp_path, {"tiny": models("gpt2")})
    sums = [[token_bits(models("gpt2"), text).sum() for text in side] for side in (good, bad)]
    own = judged.pairs[judged.pairs["paradigm"] == "swap"]
    np.testing.assert_allclose(own[["good_bits", "bad_bits"]].T, sums, atol=1e-4)
    right = np.array(sums[0]) < np.array(sums[1])
    assert judged.accuracy.loc[("tiny", "order"), "accuracy"] == right.mean()
    assert judged.accuracy["n"].tolist() == [1, 2, 3]


def test_sentences_that_are_alike_are_a_tie_and_pairs_that_cannot_be_judged_are_refused(
    models, tmp_path
):
    model = models("gpt2")
    alike = pd.DataFrame({"good": ["the sea"], "bad": ["the sea"], "kind": ["same"]})
    assert lm.minimal_pairs(alike, model, by="kind").pairs["correct"].tolist() == [0.5]
    with pytest.raises(lm.ModelError, match="no score"):
        lm.minimal_pairs(alike, model, by="kind", bos=None)
    with pytest.raises(FrameError, match="kind is 'all' for some pairs"):
        lm.minimal_pairs(alike.assign(kind="all"), model, by="kind")
    outside = lm.words_of("the sea. the").assign(sentence_id=[1, 1, np.nan])
    with pytest.raises(FrameError, match=r"words \['the'\] have no sentence_id"):
        lm.surprisal(outside, model, unit="sentence")
    with pytest.raises(FrameError, match="good, bad and phenomenon"):
        lm.minimal_pairs(alike, model)
    (tmp_path / "plain.jsonl").write_text('{"sentence": "a b"}')
    with pytest.raises(FrameError, match="sentence_good"):
        lm.read_blimp(tmp_path)
