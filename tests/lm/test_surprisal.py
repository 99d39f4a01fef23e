"""Surprisal of words and tokens: against plain transformers (one text at a time, the whole table of
log-probabilities in float64), and sums over all words of a closed vocabulary."""

import itertools

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from plain_transformers import next_tokens, token_bits, token_nats, tokens_and_words
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

from psychlm import lm
from psychlm.frames import FrameError
from psychlm.lm import _surprisal, forward, scoring_requests
from psychlm.lm.tokens import TOKENLESS, UNKNOWN

VOCABULARY = "the old man boat horse sea and a tea talking India she said".split()  # noqa: SIM905
SEA = "the old man and the sea"
BARRY = "She wound up talking to Barry about her time in India, she said."
LEFT_TO_RIGHT = ["gpt2", "gpt_neox", "opt", "llama", "mamba", "xlnet", "gpt_neo"]


def ids_and_table(model, text, temperature=1.0):
    """The tokens of a text, and log p of every token in place of each."""
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    return ids, next_tokens(model, [model.tokenizer.bos_token_id, *ids], temperature)


def surprisals_of(ids, table):
    """Surprisals of tokens, bits."""
    return -table[np.arange(len(ids)), ids] / np.log(2)


# What words are worth


@pytest.mark.parametrize(
    ("family", "text"),
    [
        *((family, BARRY) for family in [*LEFT_TO_RIGHT, "bert", "xlm"]),
        ("gpt2", "שלום עולם"),  # from right to left: in the order of speech
        ("gpt2", "السلام عليكم"),
    ],
)
def test_each_word_is_worth_its_own_tokens(family, text, models):
    words = lm.surprisal(text, models(family), correction=None)
    nats, word = token_nats(models(family), text)
    known = (words["reason"] == "").to_numpy()
    assert known.sum() >= (8 if family in ("bert", "xlm") else len(words))
    bits = -np.bincount(word, weights=nats) / np.log(2)
    np.testing.assert_allclose(words["surprisal_bits"][known], bits[known], atol=1e-4)
    np.testing.assert_array_equal(words["n_tokens"], np.bincount(word))


@pytest.mark.parametrize(
    "family, temperature", [("gpt2", 1.0), ("llama", 1.0), ("xlnet", 1.0), ("gpt2", 3.0)]
)
def test_the_correction_moves_the_mass_of_word_ends(family, temperature, models):
    model = models(family)
    words = lm.surprisal(SEA, model, temperature=temperature)
    summed = lm.surprisal(SEA, model, correction=None, temperature=temperature)
    tokens = lm.surprisal(SEA, model, unit="token", temperature=temperature)
    ids, table = ids_and_table(model, SEA, temperature)
    np.testing.assert_allclose(tokens["surprisal_bits"], surprisals_of(ids, table), atol=1e-4)
    if family == "xlnet":  # the row after the last token needs a place to stand
        table = ids_and_table(model, SEA + " the", temperature)[1]
    pieces = model.tokenizer.convert_ids_to_tokens(range(len(model.tokenizer)))
    white = ["▁"]
    if family == "gpt2":
        white = [model.tokenizer.tokenize(space)[0] for space in " \t\n\r\v\f\x1c\x1d\x1e\x1f"]
    begins = np.array([piece[0] in white for piece in pieces])
    ends = begins | (np.arange(len(pieces)) == model.tokenizer.eos_token_id)
    log_end = np.log2(np.exp(table[:, : len(ends)])[:, ends].sum(axis=1))
    first = [i for i, token in enumerate(ids) if begins[token]]
    first = first if family != "gpt2" else [0, *first]
    before = log_end[first]
    if family == "gpt2":
        before[0] = np.log2(np.exp(table[0])[~begins].sum())
    after = np.append(log_end[first[1:]], log_end[len(ids)])
    expected = summed["surprisal_bits"] + before - after
    np.testing.assert_allclose(words["surprisal_bits"], expected, atol=1e-4)


@pytest.fixture(scope="session")
def closed():
    """A model over the pieces a, b, each with and without a space before it: every string has one
    tokenization."""
    vocabulary = {"<|endoftext|>": 0, "a": 1, "b": 2, "Ġa": 3, "Ġb": 4, "Ġ": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "a"), ("Ġ", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = tiny_models.fast(tokenizer, eos="<|endoftext|>", bos="<|endoftext|>")
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=6, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    network = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.4) if weight.ndim > 1 else None
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone())
    return lm.wrap(network, fast)


@pytest.mark.parametrize("context, temperature", [("", 1.0), ("ab a", 1.0), ("ab a", 2.5)])
def test_the_probabilities_of_all_words_sum_to_one(closed, context, temperature):
    """Over the words of up to six letters, the end of the text, and the words that go on after six
    letters."""
    longest = 6
    lengths = range(1, longest + 1)
    spelled = ["".join(s) for n in lengths for s in itertools.product("ab", repeat=n)]
    texts = [f"{context} {word}".strip() for word in spelled]

    def last_bits(**options):
        words = lm.surprisal(texts, closed, temperature=temperature, **options)
        return words.groupby("text_id", sort=False)["surprisal_bits"].last().to_numpy()

    last, uncorrected = last_bits(), last_bits(correction=None)

    def table(text):
        return np.exp(ids_and_table(closed, text, temperature)[1])

    before = table(context)[-1]
    # a lone space (piece 5) begins no word that these letters could go on with: it is left out of
    # every sum below
    share = before[[0, 3, 4, 5]].sum() if context else before[[0, 1, 2]].sum()
    lone_space = before[5] / share if context else 0.0
    end_of_text = before[0] / share
    longer = 0.0
    for word, text, bits in zip(spelled, texts, uncorrected, strict=True):
        if len(word) == longest:
            longer += 2**-bits / share * table(text)[-1][[1, 2]].sum()
    assert (2**-last).sum() + end_of_text + longer + lone_space == pytest.approx(1, abs=1e-5)
    # uncorrected, a word's probability holds that of the words it begins
    if context:
        assert abs((2**-uncorrected).sum() + before[0] + before[5] - 1) > 0.05


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_entropy_and_rank_are_those_of_the_next_token(family, temperature, models, monkeypatch):
    model = models(family)
    # batches of five tokens: no value depends on how many logits are computed at a time
    monkeypatch.setattr(forward, "MOST_LOGITS", 5 * model.n_vocabulary)
    words = lm.surprisal(SEA, model, entropy=True, rank=True, temperature=temperature)
    ids, table = ids_and_table(model, SEA, temperature)
    pieces = model.tokenizer.convert_ids_to_tokens(ids)
    first = [i for i, piece in enumerate(pieces) if piece[0] in "Ġ▁" or i == 0]
    entropy = -(np.exp(table) * table).sum(axis=1)[first] / np.log(2)
    rank = [1 + (table[i] > table[i, ids[i]]).sum() for i in first]
    np.testing.assert_allclose(words["entropy_bits"], entropy, atol=1e-4)
    assert words["rank"].tolist() == rank


@pytest.mark.parametrize("family", [*LEFT_TO_RIGHT, "bert", "xlm"])
def test_values_do_not_depend_on_the_batch(family, models, rng, monkeypatch):
    """Texts that begin alike share what they begin with, where the network allows it.

    Products of matrices of other shapes sum in another order: 2e-5 bits for networks that do not
    scale their attention (gpt_neo) with the kernels of older processors.
    """
    model = models(family)
    texts = [" ".join(rng.choice(VOCABULARY, size=rng.integers(1, 12))) for _ in range(10)]
    begins = [f"{SEA} {verb} talking to Barry" for verb in ("is", "are")]
    texts += [begin + end for begin in begins for end in ("", ".")] * 2
    together = lm.surprisal(texts, model)["surprisal_bits"]
    assert np.isfinite(together).all()
    alone = pd.concat([lm.surprisal([text], model) for text in texts])["surprisal_bits"]
    np.testing.assert_allclose(together, alone, atol=5e-5)
    monkeypatch.setitem(forward.BATCH_TOKENS, "cpu", 1)
    one_by_one = lm.surprisal(texts, model)["surprisal_bits"]
    np.testing.assert_allclose(together, one_by_one, atol=5e-5)


# The reader's words


AWKWARD = "  The  old\n\nman — “don’t!” 😀😀 e\u0301té\tthe the\u00a0boat \n"


@pytest.mark.parametrize("trim", [True, False])
def test_no_probability_is_lost_between_words(trim):
    """Leading, double and trailing spaces, newlines, quotes, words split inside a character."""
    tokenizer = tiny_models.byte_level(trim=trim)
    model = lm.wrap(tiny_models.network("gpt2", tokenizer), tokenizer)
    words = lm.surprisal(lm.words_of(AWKWARD), model, correction=None, clean=False)
    assert "".join(words["space_before"] + words["word"] + words["space_after"]) == AWKWARD
    assert words["word"].tolist() == AWKWARD.split()
    assert words["word_id"].tolist() == list(range(1, 11))
    bits = token_bits(model, AWKWARD)
    assert (words["reason"] == "").all()
    assert words["surprisal_bits"].sum() == pytest.approx(bits.sum(), abs=1e-4)
    assert words["n_tokens"].sum() == len(bits) - 2  # the trailing space and newline are no word's
    emoji = words.loc[words["word"] == "😀😀"].iloc[0]
    assert emoji["n_tokens"] == len(tokenizer(" 😀😀").input_ids)


def cut_words(words, space_after):
    """One text as a words frame that says where white space stands."""
    frame = pd.DataFrame({"text_id": "1", "word_id": range(1, len(words) + 1), "word": words})
    return frame.assign(space_after=space_after)


def test_spaces_come_from_columns_or_are_single(models):
    said = lm.words_of("Don't, she said.")
    expected = lm.surprisal(said, models("gpt2"))["surprisal_bits"]
    plain = said[["text_id", "word_id", "word"]]
    for words in (plain, plain.assign(space_after=True), plain.assign(space_after=[" ", " ", ""])):
        scored = lm.surprisal(words, models("gpt2"))
        np.testing.assert_allclose(scored["surprisal_bits"], expected)


@pytest.mark.filterwarnings("ignore:word 1 of text .* is long")
@pytest.mark.parametrize(
    ("text", "parts", "space_after"),
    [
        ("the boat. A café", ["the", "boat", ".", "A", "café"], [True, False, True, True, True]),
        *((text, list(text), [False] * len(text)) for text in ("我喜欢读书。", "ภาษาไทย")),
    ],
)
def test_words_without_space_between_them_share_out_the_same_mass(text, parts, space_after, models):
    """A text without white space is one word, whose parts a frame may name."""
    whole = lm.surprisal(text, models("gpt2"))
    assert whole["word"].tolist() == text.split()
    bits = lm.surprisal(cut_words(parts, space_after), models("gpt2"))["surprisal_bits"]
    begins = np.flatnonzero([True, *space_after[:-1]])
    summed = np.add.reduceat(bits.to_numpy(), begins)
    np.testing.assert_allclose(summed, whole["surprisal_bits"], atol=1e-4)


def test_another_script_and_tokenless_words_have_a_reason(models):
    scored = lm.surprisal("the лодка boat", models("llama"))
    assert scored["surprisal_bits"].isna().tolist() == [False, True, False]
    assert scored["reason"].tolist() == ["", UNKNOWN, ""]
    scored = lm.surprisal(cut_words(["the", "\u00ad\u0000", "boat"], True), models("bert"))
    assert scored["reason"].tolist() == ["", TOKENLESS, ""]
    assert scored["n_tokens"].tolist()[1] == 0 and np.isnan(scored["surprisal_bits"][1])
    assert np.isfinite(lm.surprisal("the лодка boat", models("gpt2"))["surprisal_bits"]).all()


# Long texts


@pytest.mark.parametrize(
    ("family", "stride"), [("gpt2", 5), ("gpt2", 12), ("llama", None), ("xlnet", 6)]
)
def test_every_word_of_a_long_text_has_its_context(family, stride, models, rng):
    """Reference: the tokens from each place on, as many as fit, by transformers alone."""
    model, size = models(family), 15  # tokens of the text in a window of 16, after a start token
    n_told = size + (model.kind == "causal")  # the last that it reads tells of one more
    text = " ".join(rng.choice(VOCABULARY, size=25))
    tokens = lm.surprisal(text, model, unit="token", correction=None, stride=stride, context=16)
    ids, word = tokens_and_words(model, text)
    bos = model.tokenizer.bos_token_id
    fits = np.zeros((len(ids), len(ids)), bool)  # (place where a window begins, token)
    for begin in range(len(ids)):
        here = slice(begin, begin + n_told)
        # where the tokenizer puts a token before every text, it stands before every window
        if begin == 0 or family != "gpt2":
            bits = surprisals_of(ids[here], next_tokens(model, [bos, *ids[here]]))
        else:
            bits = np.append(np.nan, surprisals_of(ids[here][1:], next_tokens(model, ids[here])))
        fits[begin, here] = np.isclose(tokens["surprisal_bits"][here], bits, atol=1e-4)
    least = min(stride or 7, size - (stride or 7))
    for number in range(25):
        own = np.flatnonzero(word == number)
        begin = np.flatnonzero(fits[:, own].all(axis=1))[0]  # one window for all tokens of a word
        assert begin == 0 if own[-1] < n_told else begin <= own[0] - least


@pytest.mark.parametrize("family", ["gpt2", "llama", "xlnet", "mamba"])
@pytest.mark.parametrize("bos", ["auto", None])
def test_windows_meet_without_a_gap_at_every_length(family, bos, models):
    """What fits into the first window is worth what it is worth in a larger one; nothing is left
    without a value."""
    model, words = models(family), ["the", "old", "man", "and", "the", "sea", "she", "said"] * 5
    texts = [" ".join(words[:n]) for n in range(1, len(words))]
    narrow, wide = (lm.surprisal(texts, model, context=context, bos=bos) for context in (16, 64))
    first = narrow["word_id"] == 1
    assert (narrow.loc[~first, "reason"] == "").all()
    assert (narrow.loc[first, "reason"] == ("" if bos else _surprisal.NO_CONTEXT)).all()
    differences = (narrow["surprisal_bits"] - wide["surprisal_bits"]).abs()
    assert differences[narrow["word_id"].between(2, 4)].max() < 1e-5
    assert differences[narrow["word_id"] > 30].max() > 1e-3


# What results say of themselves, and what can go wrong


@pytest.mark.parametrize(
    ("value", "reasons"),
    [(-torch.inf, ["", _surprisal.IMPOSSIBLE, ""]), (torch.nan, [_surprisal.NOT_A_NUMBER] * 3)],
)
def test_nan_and_impossible_words_have_a_reason(value, reasons, models):
    tokenizer = models("gpt2").tokenizer
    network = tiny_models.network("gpt2", tokenizer)
    token = tokenizer("the old", add_special_tokens=False).input_ids[-1]

    def spoil(_module, _given, out):
        out.logits[..., token] = value

    network.register_forward_hook(spoil)
    scored = lm.surprisal("the old man", lm.wrap(network, tokenizer))
    assert scored["reason"].tolist() == reasons
    infinite, missing = np.isinf(scored["surprisal_bits"]), scored["surprisal_bits"].isna()
    assert infinite.tolist() == [reason == _surprisal.IMPOSSIBLE for reason in reasons]
    assert missing.tolist() == [reason == _surprisal.NOT_A_NUMBER for reason in reasons]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
)
def test_out_of_memory_halves_the_batch_and_a_text_that_does_not_fit_loses_no_other(
    error, models, monkeypatch
):
    monkeypatch.setattr(scoring_requests, "LEAST_SHARED", 2.0)
    texts, real = [f"{SEA} {n}" for n in range(10)], forward._values
    expected = lm.surprisal(texts, models("gpt2"))["surprisal_bits"]

    def small(model, batch, *given):
        if len(batch) > 3 or len(batch[0]) > 20:
            raise error
        return real(model, batch, *given)

    monkeypatch.setattr(forward, "_values", small)
    halved = pytest.warns(RuntimeWarning, match="using half of it")
    with halved, pytest.warns(RuntimeWarning, match="its words have no value"):
        scored = lm.surprisal([*texts, "she said " * 20], models("gpt2"))
    long = scored["text_id"] == "11"
    np.testing.assert_allclose(scored.loc[~long, "surprisal_bits"], expected, atol=1e-5)
    assert scored.loc[long, "reason"].tolist() == [_surprisal.NO_MEMORY] * 40


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        (SEA, {"correction": "schuler"}, lm.ModelError, "correction"),
        (SEA, {"bos": "<start>"}, lm.ModelError, "is no token of"),
        (SEA, {"stride": 63}, lm.ModelError, "choose 1 to 62"),
        (SEA, {"stride": 1.5}, lm.ModelError, "whole number from 1 on"),
        (SEA, {"context": 65}, lm.ModelError, "from 3 to 64"),
        (SEA, {"temperature": 0}, lm.ModelError, "must be above 0"),
        (SEA, {"unit": "line"}, lm.ModelError, "unit 'line' is unknown"),
        (SEA, {"unit": "token", "entropy": True}, lm.ModelError, "unit='token'"),
        ("  \n", {}, FrameError, "holds no word"),
        ([], {}, FrameError, "no text was given"),
        (None, {}, FrameError, "words of type NoneType are no text; give a text"),
        (5, {}, FrameError, "words of type int are no text; give a text"),
        (SEA.encode(), {}, FrameError, "words of type bytes are no text; give a text"),
        (pd.Series([SEA, SEA], [3, 3]), {}, FrameError, "ids .3. name several texts"),
        ("x" * 10 * 2**20, {}, FrameError, "more than 10,000 characters"),
        (cut_words(["the", "boat"], [" ", np.nan]), {}, FrameError, "neither white space nor True"),
    ],
)
def test_options_and_texts_that_make_no_sense_are_named(text, options, error, says, models):
    with pytest.raises(error, match=says):
        lm.surprisal(text, models("gpt2"), **options)


def test_an_index_names_texts(models):
    texts = pd.Series({"b": "The boat.", "a": "A sea."})
    words = lm.words_of(dict(texts))
    by_index = [words.set_index(names) for names in (["text_id"], ["text_id", "word_id"])]
    expected = lm.surprisal(words, models("gpt2"))
    for given in (texts, *by_index):
        scored = lm.surprisal(given, models("gpt2"))
        columns = ["text_id", "word_id", "surprisal_bits"]
        pd.testing.assert_frame_equal(scored[columns], expected[columns])
    assert [*lm.words_of(pd.Series(["The", "sea"]))["text_id"]] == ["1", "2"]
    assert [*lm.words_of(pd.Series(["The", "sea"], [3, 1]))["text_id"]] == ["3", "1"]


# The cache


@pytest.mark.usefixtures("own_cache")
def test_an_interrupted_run_resumes(gpt2, monkeypatch):
    texts = [f"the old man {'and the sea ' * n}" for n in range(6)]
    real, sizes = forward._values, []

    def interrupted(model, batch, *given):
        sizes.append(len(batch))
        if len(sizes) == 4:
            raise KeyboardInterrupt
        return real(model, batch, *given)

    monkeypatch.setattr(scoring_requests, "LEAST_SHARED", 2.0)
    monkeypatch.setattr(forward, "_values", interrupted)
    monkeypatch.setitem(forward.BATCH_TOKENS, "cpu", 1)
    with pytest.raises(KeyboardInterrupt):
        lm.surprisal(texts, gpt2)
    resumed = lm.surprisal(texts, gpt2)["surprisal_bits"]
    assert sizes == [1] * 7  # three before, the one that was lost, and three after
    whole = lm.surprisal(texts, gpt2, cache=False)["surprisal_bits"]
    np.testing.assert_allclose(resumed, whole, atol=1e-5)
