"""N-gram models against KenLM's ``lmplz``, and sums over a closed vocabulary."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses import ngram
from psychlm.lm import words_of

LMPLZ = json.loads((Path(__file__).parents[1] / "reference" / "lmplz.json").read_text())
GENERATED = st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), min_size=1, max_size=12)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("size", ["large", "small"])
def test_surprisals_and_perplexities_equal_those_of_lmplz(size: str, order: int) -> None:
    train, test = ([line.split() for line in LMPLZ[size][part]] for part in ("train", "test"))
    expected = -np.log2(10) * np.array(LMPLZ[size]["log10"][str(order)])
    model = ngram.train(train, order)
    bits, unknown = model.token_scores(test)
    np.testing.assert_allclose(bits, expected, atol=4e-6)  # lmplz computes in single precision
    assert model.perplexity(test) == pytest.approx(2 ** expected.mean(), rel=1e-6)
    words = {word for sentence in train for word in sentence}
    is_new = [[word not in words for word in sentence] + [False] for sentence in test]
    assert unknown.tolist() == sum(is_new, [])


@given(text=GENERATED, order=st.integers(2, 4), context=st.lists(st.sampled_from("abcxyz")))
def test_probabilities_of_all_words_sum_to_one_after_any_context(
    text: list[list[str]], order: int, context: list[str]
) -> None:
    model = ngram.train(text, order)
    words = sorted({word for sentence in text for word in sentence})
    after = [model.token_scores([[*context, word]])[0][len(context)] for word in [*words, "new"]]
    end = model.token_scores([context])[0][-1]
    assert np.exp2(-np.array([*after, end])).sum() == pytest.approx(1, abs=1e-9)


def test_word_surprisals_are_sums_over_tokens_and_begin_anew_with_a_sentence() -> None:
    model = ngram.train([line.split() for line in LMPLZ["large"]["train"]], 3)
    words = words_of({"a": "w1 w2, w1 w2,"}).assign(sentence_id=[1, 1, 2, 2])
    scored = model.surprisal(words.iloc[[3, 1, 0, 2]]).sort_values("word_id")
    bits, unknown = model.token_scores([["w1", "w2", ","]])
    expected = [bits[0], bits[1] + bits[2]]
    np.testing.assert_allclose(scored["surprisal_bits"], expected * 2)
    assert scored["n_tokens"].tolist() == [1, 2, 1, 2]
    assert scored["n_unknown"].tolist() == [0, unknown[2], 0, unknown[2]]
