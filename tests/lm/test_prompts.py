"""Prompts are scored as they are written. Reference: transformers, token by token."""

import numpy as np
import pandas as pd
import pytest
from plain_transformers import last_nats
from scipy.stats import binom

import psychlm
from psychlm import lm
from psychlm.frames import Repeated


@pytest.fixture(scope="module")
def model():
    return lm.load("default")


def items(prompt: str = "The dog chased the", choices: tuple = ("cat", "of")) -> pd.DataFrame:
    table = pd.DataFrame({"item_id": ["q1"], "prompt": [prompt], "answer": [0]})
    return table.assign(choices=[list(choices)])


def by_transformers(model: lm.LanguageModel, before: str, text: str) -> float:
    """Return the log-probability of the tokens of a text behind those of its beginning."""
    ids, begin = (model.tokenizer(t, add_special_tokens=False).input_ids for t in (text, before))
    return float(last_nats(model, ids, len(ids) - len(begin)).sum())


@pytest.mark.parametrize(
    ("prompt", "choice", "begins"),
    [
        ("{prompt}", " {choice}", "The dog chased the"),
        ("{prompt} ", "{choice}", "The dog chased the"),  # "Ġcat" is one token: the choice's
        ("{prompt}\n", "{choice}", "The dog chased the\n"),  # a token of its own: the prompt's
        ("{prompt}\n\n", "{choice}", "The dog chased the\n\n"),
        ("{prompt} \n ", "{choice}", "The dog chased the \n"),
        ("  {prompt}:\t", "{choice}", "  The dog chased the:\t"),
        ("{prompt}", "{choice}", "The dog chased the"),
    ],
)
def test_every_character_of_the_prompt_is_scored(model, prompt, choice, begins) -> None:
    written = lm.Prompt(prompt, choice=choice)
    given = lm.choice_logprobs(items(), model, prompt=written, bos=None, cache=False)
    for word, ours in zip(("cat", "of"), given.iloc[0], strict=True):
        text = prompt.format(prompt="The dog chased the") + choice.format(choice=word)
        assert ours == pytest.approx(by_transformers(model, begins, text), abs=1e-4)


def test_white_space_of_an_item_is_its_own_and_two_spaces_are_named(model) -> None:
    options = {"prompt": lm.Prompt("{prompt}"), "bos": None, "cache": False}
    with pytest.warns(RuntimeWarning, match=r"1 of 1 items have two spaces before a choice.*'q1'"):
        given = lm.choice_logprobs(items("The dog chased the "), model, **options)
    expected = by_transformers(model, "The dog chased the ", "The dog chased the  cat")
    assert given.iloc[0, 0] == pytest.approx(expected, abs=1e-4)
    with pytest.warns(RuntimeWarning, match="two spaces"):
        lm.choice_logprobs(items(choices=(" cat", " of")), model, **options)


def test_a_chat_is_the_text_of_the_models_own_template(model) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    chatty = lm.wrap(model.network, model.tokenizer, name="chatty")
    before = model.tokenizer.chat_template
    shots = items("2 + 2 =", ("3", "4")).assign(answer=1)
    chat = lm.Prompt.chat("Go on: {prompt}", system="Be brief.", few_shot=shots)
    text = "<system>Be brief.\n<user>Go on: 2 + 2 =\n<assistant>4\n"
    text += "<user>Go on: The dog chased the\n<assistant>\n"
    with pytest.raises(lm.ModelError, match="takes the chat template.*trained to chat"):
        lm.choice_logprobs(items(), chatty, prompt=chat, cache=False)
    model.tokenizer.chat_template = template
    try:
        given = lm.choice_logprobs(items(), chatty, prompt=chat, bos=None, cache=False)
    finally:
        model.tokenizer.chat_template = before
    for word, ours in zip(("cat", "of"), given.iloc[0], strict=True):
        assert ours == pytest.approx(by_transformers(model, text[:-1], text + word), abs=1e-4)
    assert "Be brief." in given.attrs["prompt"]


@pytest.mark.parametrize("normalise", ["token", "character", "byte"])
def test_minimal_pairs_by_length_are_named_and_equal_the_sums_by_length(model, normalise) -> None:
    pairs = pd.DataFrame({"good": ["The café is open."], "bad": ["The cafés is open now."]})
    pairs["phenomenon"] = "agreement"
    whole = lm.minimal_pairs(pairs, {"m": model}, cache=False).pairs
    divided = lm.minimal_pairs(pairs, {"m": model}, normalise=normalise, cache=False)
    assert f"bits by {normalise}" in repr(divided) and divided.normalise == normalise
    for side in ("good", "bad"):
        text = pairs.loc[0, side]
        n = {"character": len(text), "byte": len(text.encode())}.get(normalise)
        n = n or len(model.tokenizer(text, add_special_tokens=False).input_ids)
        expected = whole[f"{side}_bits"] / n
        np.testing.assert_allclose(divided.pairs[f"{side}_bits"], expected)


def test_drawn_answers_have_the_probabilities_of_the_choices(model) -> None:
    asked = pd.concat([items(f"The dog {verb} the") for verb in ("chased", "saw", "ate", "had")])
    asked["item_id"] = [f"q{k}" for k in range(len(asked))]
    options = {"samples": 4000, "temperature": 2.0, "cache": False}
    drawn = lm.evaluate(asked, {"m": model}, **options)
    assert isinstance(drawn.responses, Repeated)
    scores = drawn.logprobs.loc["m"] / 2
    p = np.exp(scores[0]) / np.exp(scores).sum(axis=1)
    low, high = binom.interval(0.9999, 4000, p)
    assert drawn.responses.correct.loc["m"].between(low, high).all()
    again = lm.evaluate(asked, {"m": model}, **options)
    pd.testing.assert_frame_equal(again.responses.correct, drawn.responses.correct)
    assert drawn.persons.loc["m", "accuracy"] == drawn.responses.mean.loc["m"].mean()
    both = lm.evaluate(asked, {"a": model, "b": model}, **options).responses
    assert "4e+03 answers to each of 4 items" in repr(psychlm.compare(both, names=("a", "b")))
    with pytest.raises(ValueError, match="temperature=0"):
        lm.evaluate(asked, {"m": model}, samples=2, temperature=0, cache=False)
