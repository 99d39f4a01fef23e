"""Models take the test. Reference: transformers, one item and one choice at a time, unpadded."""

import warnings
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import tiny_models as tiny
import torch
import transformers
from plain_transformers import last_nats, token_nats
from transformers import BertForMultipleChoice, BertForSequenceClassification

from psychlm import lm
from psychlm.frames import FrameError
from psychlm.lm import ModelError, Prompt, choice_logprobs, evaluate, wrap
from psychlm.lm.prompts import fill_prompts, outputs_of

NLI = ["entailment", "neutral", "contradiction"]
STARS = ["very negative", "negative", "neutral", "positive", "very positive"]


@pytest.fixture(scope="module")
def wordpiece():
    return tiny.wordpiece()


@pytest.fixture(scope="module")
def classifier(wordpiece):
    """A classifier of pairs: its network."""
    return tiny.bert(BertForSequenceClassification, wordpiece, NLI)


@pytest.fixture(scope="module")
def nli_items():
    barn, sea = "The horse raced past the barn fell.", "The barn fell past the horse and the sea."
    rows = [
        ("a", "The old man the boat.", "A man is old.", NLI, 0),
        ("b", barn, sea, NLI, 2),
        ("c", "She wound up talking to Barry.", "Barry said.", NLI, 1),
        ("d", "Tea", "the sea", NLI, 1),
    ]
    return pd.DataFrame(rows, columns=["item_id", "prompt", "hypothesis", "choices", "answer"])


@pytest.fixture(scope="module")
def questions():
    tea = "Who sat down with a cup of tea and a sandwich?"
    rows = [
        (11, "What fell?", ["the horse", "the old barn"], 0),
        (12, tea, ["Maria", "Barry", "she and the horse"], 0),
        (13, "What costs 3,000 dollars?", ["a naïve plan", "a café", "the sea", "India"], 1),
        (14, "He", ["sat", "fell"], 1),
    ]
    return pd.DataFrame(rows, columns=["item_id", "prompt", "choices", "answer"])


def by_hand(items, score):
    """What a function of prompt and choice gives each choice."""
    rows = [[score(one.prompt, choice) for choice in one.choices] for one in items.itertuples()]
    return pd.DataFrame(map(pd.Series, rows))


@pytest.mark.parametrize(
    ("choices", "labels", "outputs"),
    [
        (NLI, ["contradict", "ENTAILMENT", "Neither"], [[1], [2], [0]]),
        (NLI, ["e", "n", "c"], [[0], [1], [2]]),
        (["entailment", "not_entailment"], ["CONTRADICTION", "NEUTRAL", "ENTAIL"], [[2], [0, 1]]),
        (["entailment", "not_entailment"], ["entailment", "NOT-ENTAILMENT"], [[0], [1]]),
        (["negative", "positive"], ["NEG", "NEU", "POS"], [[0], [2]]),
        (["negative", "positive"], [f"{i} stars" for i in range(1, 6)], [[0, 1], [3, 4]]),
        (STARS, ["5 stars", "4 stars", "3 stars", "2 stars", "1 star"], [[4], [3], [2], [1], [0]]),
        (STARS, [f"{label.upper()} " for label in STARS], [[0], [1], [2], [3], [4]]),
        (["politics", "sports"], ["Sports", "Politics", "World"], [[1], [0]]),
    ],
)
def test_choices_find_their_outputs_however_labels_are_spelled(choices, labels, outputs) -> None:
    assert outputs_of(choices, labels, "model") == outputs


@torch.inference_mode()
def classifier_alone(network, tokenizer, items):
    pairs = zip(items["prompt"], items["hypothesis"], strict=True)
    logits = [network(**tokenizer(*pair, return_tensors="pt")).logits[0] for pair in pairs]
    return torch.stack(logits).double().log_softmax(dim=1).numpy()


def nats_alone(model, prompt, choice, start=None):
    """Log-probabilities of the tokens of a choice after a prompt, by transformers alone.

    A start token stands before prompts where the tokenizer puts one there, or the one given."""
    tokenizer = model.tokenizer
    if model.kind == "encoder-decoder":  # the loss is the mean of the tokens'
        read = tokenizer(prompt, return_tensors="pt").input_ids
        labels = tokenizer(f" {choice}", add_special_tokens=False, return_tensors="pt").input_ids
        assert read[0, -1] == tokenizer.eos_token_id and labels[0, -1] != tokenizer.eos_token_id
        with torch.inference_mode():
            mean = -float(model.network(input_ids=read, labels=labels).loss)
        return np.full(labels.shape[1], mean)
    if model.kind in ("masked", "left-masked"):
        nats, word = token_nats(model, f"{prompt} {choice}")
        return nats[word >= len(prompt.split(" "))]
    start = tokenizer("").input_ids if start is None else start
    before, ids = (
        [*start, *tokenizer(text, add_special_tokens=False).input_ids]
        for text in (prompt, f"{prompt} {choice}")
    )
    assert ids[: len(before)] == before
    return last_nats(model, ids, len(ids) - len(before))


@pytest.mark.parametrize(
    ("labels", "outputs"), [(NLI, [0, 1, 2]), (["CONTRADICT", "Entail", "neither"], [1, 2, 0])]
)
def test_a_classifier_gives_each_label_the_probability_it_gives_one_item_alone(
    labels, outputs, wordpiece, nli_items
):
    """Whatever the order and the spelling of its labels."""
    network = tiny.bert(BertForSequenceClassification, wordpiece, labels)
    found = choice_logprobs(nli_items, wrap(network, wordpiece))
    expected = classifier_alone(network, wordpiece, nli_items)[:, outputs]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.index.tolist() == ["a", "b", "c", "d"]


def test_a_multiple_choice_head_agrees_with_transformers_on_each_item_alone(wordpiece, questions):
    network = tiny.bert(BertForMultipleChoice, wordpiece)
    found = choice_logprobs(questions, wrap(network, wordpiece))
    for _, item in questions.iterrows():
        prompts, options = [item["prompt"]] * len(item["choices"]), {"return_tensors": "pt"}
        pairs = wordpiece(prompts, item["choices"], padding=True, **options)
        with torch.inference_mode():
            logits = network(**{name: ids[None] for name, ids in pairs.items()}).logits[0]
        expected = logits.double().log_softmax(0)
        np.testing.assert_allclose(found.loc[item["item_id"]].dropna(), expected, atol=1e-4)


NORMALISED = {
    "sum": lambda nats, choice, bare: nats.sum(),
    "token": lambda nats, choice, bare: nats.mean(),
    "character": lambda nats, choice, bare: nats.sum() / len(choice),
    "byte": lambda nats, choice, bare: nats.sum() / len(choice.encode()),
    "unconditional": lambda nats, choice, bare: nats.sum() - bare.sum(),
}
FAMILIES = ["gpt2", "gpt_neox", "opt", "mamba", "llama", "xlnet"]
FAMILIES += ["bert", "roberta", "xlm", "t5", "bart"]


@pytest.mark.filterwarnings("ignore:.*does not know")
@pytest.mark.parametrize("family", FAMILIES)
def test_choices_are_worth_what_a_plain_loop_gives_them(family, questions, models):
    model, alone = models(family), cache(partial(nats_alone, models(family)))
    atol = 1e-3 if model.kind == "encoder-decoder" else 1e-4  # whose loss is in single precision
    for normalise, normalised in NORMALISED.items():

        def score(prompt, choice, normalised=normalised):
            nats = alone(f"Question: {prompt} Answer:", choice)
            return normalised(nats, choice, alone("Answer:", choice))

        prompt = Prompt("Question: {prompt} Answer:")
        found = choice_logprobs(questions, model, prompt=prompt, normalise=normalise)
        np.testing.assert_allclose(found, by_hand(questions, score), atol=atol, err_msg=normalise)
        assert found.attrs["joined"] == []  # no token of prompt and choice


@pytest.mark.parametrize("bos", ["auto", None, "<|endoftext|>"])
def test_a_start_token_stands_before_prompts_only_if_asked_or_if_the_tokenizer_adds_it(
    bos, questions, models
):
    model = models("gpt2")
    start = [model.tokenizer.bos_token_id]
    long = "the old man and the boat and the sea and the horse"  # choices share one request
    items = questions.assign(prompt=[long, long, "", "He"])
    found = choice_logprobs(items, model, prompt=Prompt("{prompt}"), bos=bos)
    assert found.attrs["bos"] == (None if bos == "auto" else bos)
    assert model.tokenizer("a")["input_ids"][0] != start[0]

    def score(prompt, choice):
        begins = bos == "<|endoftext|>" or not prompt
        return nats_alone(model, prompt, choice, start if begins else []).sum()

    np.testing.assert_allclose(found, by_hand(items, score), atol=1e-4)
    # A tokenizer that adds a start token to texts keeps it in prompts.
    llama = models("llama")
    assert llama.tokenizer("a")["input_ids"][0] == llama.tokenizer.bos_token_id
    assert choice_logprobs(questions, llama).attrs["bos"] == llama.tokenizer.bos_token


@pytest.mark.filterwarnings("ignore:.*does not know")
def test_an_encoder_decoder_reads_the_end_of_a_long_prompt_and_gives_no_surprisal(
    questions, models
):
    model, tokenizer = models("t5"), models("t5").tokenizer
    text = "the old man and the sea, " * 40 + "and"
    cut = tokenizer(text, verbose=False).input_ids[-tiny.CONTEXT :]
    long = questions.assign(prompt=[text, *questions["prompt"][1:]])
    with pytest.warns(RuntimeWarning, match=r"1 of 4 items are .* lost their beginning"):
        found = choice_logprobs(long, model, prompt=Prompt("{prompt}"))
    labels = tokenizer(" the horse", add_special_tokens=False, return_tensors="pt").input_ids
    with torch.inference_mode():
        loss = model.network(input_ids=torch.tensor([cut]), labels=labels).loss
    assert found.loc[11, 0] == pytest.approx(-float(loss) * labels.shape[1], abs=1e-3)
    with pytest.raises(ModelError, match=r"is of the kind 'encoder-decoder'.* lm.evaluate"):
        lm.surprisal("the old man", model)
    with pytest.raises(ModelError, match="which takes no bos=None"):
        choice_logprobs(questions, model, bos=None)


@pytest.mark.parametrize("pad", [None, 5])
def test_a_decoder_classifies_by_its_last_token_and_not_by_padding(nli_items, pad) -> None:
    tokenizer = tiny.byte_level()
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "pad_token_id": pad}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes, **tiny.labelled(NLI))
    network = tiny.large_weights(transformers.GPT2ForSequenceClassification(config))
    if pad is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    found = choice_logprobs(nli_items, wrap(network, tokenizer))
    np.testing.assert_allclose(found, classifier_alone(network, tokenizer, nli_items), atol=1e-4)


def test_a_long_prompt_loses_its_beginning_in_a_language_model_and_is_reported(questions, models):
    model, text = models("gpt2"), "the old man and the sea " * 40
    long = questions.assign(prompt=[text, *questions["prompt"][1:]])
    says = r"1 of 4 items are longer than .*\(64 tokens\), and lost their beginning"
    with pytest.warns(RuntimeWarning, match=says):
        found = choice_logprobs(long, model)
    assert found.attrs["truncated"] == [11]
    ids = model.tokenizer(f"Question: {text}\nAnswer:")["input_ids"]
    own = [model.tokenizer(f" {choice}")["input_ids"] for choice in questions["choices"][0]]
    before = ids[-(64 - max(map(len, own))) :]
    expected = [last_nats(model, [*before, *end], len(end)).sum() for end in own]
    np.testing.assert_allclose(found.loc[11].dropna(), expected, atol=1e-4)


@pytest.mark.parametrize(("family", "most"), [("gpt2", 63), ("t5", 64)])
def test_a_choice_longer_than_the_model_is_named(family, most, questions, models) -> None:
    long = questions.assign(choices=[["the sea " * 80, "no"], *questions["choices"][1:]])
    says = rf"1 items, \[11\], have a choice .* more than the {most} that in memory takes"
    with pytest.raises(ModelError, match=says):
        choice_logprobs(long, models(family))


def test_a_model_that_gives_nan_is_an_error_that_names_the_item(
    wordpiece, nli_items, questions, models
):
    network = tiny.bert(BertForSequenceClassification, wordpiece, NLI)
    tokenizer = models("gpt2").tokenizer
    language = tiny.network("gpt2", tokenizer)
    with torch.no_grad():
        network.classifier.weight[0, 0] = torch.nan
        language.transformer.wte.weight[:] = torch.nan
    says = r"broken gives item '[abcd]' the log-probabilities .*nan.*diverged"
    with pytest.raises(ModelError, match=says):
        choice_logprobs(nli_items, wrap(network, wordpiece, name="broken"))
    with pytest.raises(ModelError, match=r"gives item 1\d the log-probabilities"):
        choice_logprobs(questions, wrap(language, tokenizer))


def test_ties_are_guesses_that_depend_on_the_item_alone() -> None:
    """Reference: the rate of guessing, whatever the answer's place."""
    n = 3000
    scores = pd.DataFrame(np.zeros((n, 4)), index=[f"q{i}" for i in range(n)])
    scores.iloc[::2, 3] = np.nan
    for place in range(3):
        answers = pd.Series(place, index=scores.index)
        rates = lm.grade(answers, scores).groupby(scores[3].isna()).mean()
        assert rates.tolist() == pytest.approx([1 / 4, 1 / 3], abs=0.035)
    with pytest.warns(RuntimeWarning, match=r"3000 of 3000 items, .* several choices"):
        guesses = lm.predictions(scores)
        pd.testing.assert_series_equal(lm.predictions(scores[::-1]), guesses[::-1])
    assert lm.grade(guesses, scores).all()  # predictions and grades resolve ties alike


@pytest.mark.parametrize(
    ("rows", "index", "answers", "message"),
    [
        ([[0.0, np.nan, 1.0]], "a", {"a": 0}, "a gap before their last score"),
        ([[0.0, np.nan]], "a", {"a": 0}, "fewer than two scores"),
        ([[0.0, np.inf]], "a", {"a": 0}, "an infinite score"),
        ([[-np.inf, -np.inf]], "a", {"a": 0}, "no choice with a probability above zero"),
        ([[0.0, 1.0]] * 2, "aa", {"a": 0}, r"\['a'\] are scored more than once"),
        ([], "", {}, "one item at least"),
        ([[0.0, 1.0, np.nan]], "a", {"a": 2}, r"\['a'\] have an answer that is not among"),
        ([[0.0, 1.0]], "a", {"a": 0.5}, "an answer that is not among"),
        ([[0.0, 1.0]], "a", {"b": 0}, r"\['a'\] have scores but no answer"),
    ],
)
def test_malformed_scores_and_answers_are_refused_with_the_reason(rows, index, answers, message):
    with pytest.raises(FrameError, match=message):
        lm.grade(pd.Series(answers), pd.DataFrame(rows, index=list(index)))


@pytest.mark.parametrize(
    ("changes", "options", "error", "says"),
    [
        ({"prompt": ["half \ud800"] * 4}, {}, FrameError, r"item 1\d holds half a character"),
        ({"choices": [["one"]] * 4}, {}, FrameError, r"items \[11, 12, 13, 14\]"),
        ({"choices": ["a or b"] * 4}, {}, FrameError, r"items \[11, 12, 13, 14\]"),
        ({"answer": [7] * 4}, {}, FrameError, "answer"),
        ({"answer": ["first"] * 4}, {}, FrameError, "answer"),
        ({}, {"prompt": Prompt("{prompt.x}")}, FrameError, "cannot be filled"),
        (
            {},
            {"prompt": Prompt("{prompt}{answer}")},
            FrameError,
            r"'answer'.*fields are .*'prompt'",
        ),
        ({"choices": [["e", "n"]] * 4}, {"prompt": "nli"}, FrameError, "cannot be .*'hypothesis'"),
        ({"hypothesis": ["It fell."] * 4}, {}, FrameError, "'binary nli' asks for .*'entailment'"),
        (
            {"hypothesis": ["It fell."] * 4},
            {"prompt": "nli"},
            FrameError,
            "'nli' asks for .*'neutral'",
        ),
        ({}, {"prompt": "zero-shot"}, FrameError, "no prompt 'zero-shot'; there are .*question"),
        ({}, {"bos": "<s>"}, ModelError, "is no token of"),
    ],
)
def test_items_and_options_that_cannot_be_used_are_named(
    changes, options, error, says, questions, models
):
    items = questions.assign(**{k: pd.Series(v, dtype=object) for k, v in changes.items()})
    with pytest.raises(error, match=says):
        evaluate(items, models("gpt2"), **options)


def test_the_prompt_follows_the_items_unless_it_is_named(nli_items, questions) -> None:
    ((asked, choices, neutral),) = fill_prompts(nli_items[:1], "auto")
    premise, question = nli_items.loc[0, ["prompt", "hypothesis"]]
    assert asked == f"{premise}\nQuestion: {question} True, False, or Neither?\nAnswer:"
    assert (choices, neutral) == ((" True", " Neither", " False"), "Answer:")
    story = questions.assign(template="continuation")[:1]
    assert fill_prompts(story, "auto") == [("What fell?", (" the horse", " the old barn"), "")]
    sentiment = questions.assign(choices=[["negative", "positive"]] * 4)[:1]
    assert fill_prompts(sentiment, "auto")[0][0] == "Review: What fell?\nSentiment:"
    lettered = fill_prompts(story, Prompt("{prompt}\n{choices}\n{choices[0]}?"))
    assert lettered[0][0] == "What fell?\nA. the horse\nB. the old barn\nthe horse?"
    with pytest.warns(RuntimeWarning, match=r"4 items have 1 different prompts .* '{prompt}'"):
        fill_prompts(questions, Prompt("{{prompt}}"))
    with pytest.warns(RuntimeWarning, match="leave out what is asked; the field {prompt} is"):
        fill_prompts(questions, Prompt("Choose:\n{choices}\nAnswer:"))
    with warnings.catch_warnings(action="error"):
        own = questions.assign(paraphrase=questions["prompt"].str.upper())
        fill_prompts(own, Prompt("{paraphrase}\n{choices}"))
        fill_prompts(questions, Prompt("", choice="{choice}: {prompt}"))
    with pytest.raises(FrameError, match="needs the field"):
        Prompt("{prompt}", choice=" answer")


@pytest.mark.parametrize("seed", range(5))
def test_a_prompt_of_ones_own_has_the_words_and_fields_that_it_names(seed) -> None:
    """Reference: str.format. Braces in an item are text, and an empty cell is no word "nan"."""
    rng = np.random.default_rng(seed)
    words = {"Yes": "{True}", "NOT_entailment": "no", "n": "neither"}
    texts = ["{a}", "b{{", "c }", "nan", "", "d{0}"]
    items = pd.DataFrame({"prompt": rng.choice(texts, 8), "number": rng.integers(9, size=8)})
    items["item_id"], items["choices"] = range(8), [list(words)] * 8
    items["context"] = rng.choice(texts, 8)
    own = Prompt("{context}: {prompt}?", choice=" ({number}) {choice}", words=words)
    expected = [
        (f"{c}: {p}?", tuple(f" ({n}) {word}" for word in words.values()), "Answer:")
        for p, n, c in zip(items["prompt"], items["number"], items["context"], strict=True)
    ]
    assert fill_prompts(items, own) == expected
    for nothing in (np.nan, None, pd.NA):
        items["context"] = [*texts, "x", nothing]
        with pytest.raises(FrameError, match=r"for item 7 \(KeyError\('context'\)\)"):
            fill_prompts(items, own)


@pytest.mark.parametrize("most", [3, 0])
@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_batch_that_memory_does_not_hold_is_halved_and_an_item_that_it_does_not_hold_is_named(
    monkeypatch, wordpiece, nli_items, classifier, most
):
    model, whole, sizes = wrap(classifier, wordpiece), classifier.forward, []

    def small(input_ids, **others):
        sizes.append(len(input_ids))
        if len(input_ids) > most:
            raise torch.OutOfMemoryError("out of memory")
        return whole(input_ids, **others)

    expected = choice_logprobs(nli_items, model)
    monkeypatch.setattr(classifier, "forward", small)
    if most:
        np.testing.assert_allclose(choice_logprobs(nli_items, model), expected, atol=1e-5)
        assert max(sizes) > most
    else:
        says = r"out of memory with item '[abcd]' by itself"
        with pytest.raises(ModelError, match=says):
            choice_logprobs(nli_items, model)


def test_a_model_that_is_asked_one_item_at_a_time_gives_the_same_answers(questions, models):
    graded = evaluate(questions, {"m": models("gpt2")}, cache=False).responses.loc["m"]
    taker = lm.ItemTaker(questions, models("gpt2"), cache=False)
    assert {item: taker(item) for item in graded.index[::-1]} == graded.to_dict()
    assert taker.n_scored == questions["choices"].map(len).sum()
    assert np.isnan(taker("an item without a text"))
