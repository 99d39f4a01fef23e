"""Word-level LSTMs and Transformers. References: a forward pass and PyTorch's SGD written out, and
for a killed run one that was not."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from killed import kill_this_process, run_until_killed

from analyses import word_models
from analyses.word_models import Architecture, Training, Vocabulary, WordModel, WordNetwork
from psychlm.lm import words_of

LINES = ("the cat sat on the mat", "a dog saw the cat", "the dog sat", "a cat saw a mat")
TEXT = [line.split() for line in LINES * 6]
KINDS = ("lstm", "transformer")
VOCABULARY = Vocabulary.of(TEXT)
STREAM = VOCABULARY.stream(TEXT)
QUICK = Training(rate=1.0, batch_size=4, epochs=3)


pytestmark = pytest.mark.usefixtures("one_thread")


def small(kind: str, **other: object) -> Architecture:
    return Architecture(kind, 8, **{"span": 7} | other)  # type: ignore[arg-type]


def untrained(kind: str, **other: object) -> WordModel:
    torch.manual_seed(3)
    network = WordNetwork(small(kind, **other), len(VOCABULARY.words))
    with torch.no_grad():
        network.decoder.weight.mul_(20)  # else every word is as likely as the next
    return WordModel(network.eval(), VOCABULARY)


@torch.inference_mode()
def plain_bits(model: WordModel, text: Sequence[str]) -> np.ndarray:
    """The reference: one forward pass over a text, begun by the end of a sentence; bits."""
    numbers = torch.tensor([0, *VOCABULARY.numbers(text)])
    log_p = torch.log_softmax(model.network(numbers[None, :-1])[0][0], -1)
    return -log_p[torch.arange(len(text)), numbers[1:]].numpy() / math.log(2)


@pytest.mark.parametrize("kind", KINDS)
def test_surprisals_are_those_of_one_plain_forward_pass(kind: str) -> None:
    model = untrained(kind, span=12)
    expected = plain_bits(model, ["the", "cat", "sat", "on", "a", "mat"])
    scored = model.surprisal(words_of({"a": "the cat sat on a mat", "b": "the cat"}))
    np.testing.assert_allclose(scored["surprisal_bits"], [*expected, *expected[:2]], rtol=1e-5)


@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 11, 40])
def test_every_word_is_new_in_one_window_with_half_a_window_before_it(length: int) -> None:
    model = untrained("transformer")
    text = np.random.default_rng(2).choice(VOCABULARY.words[2:], length)
    numbers, expected = torch.tensor([0, *VOCABULARY.numbers(text)]), []
    for i in range(length):
        # windows begin at multiples of 3, and a word is new in the first that has it
        begin = 0 if i < 7 else 3 * math.ceil((i - 6) / 3)
        assert i < 7 or i - begin >= 3
        with torch.inference_mode():
            logits = model.network(numbers[None, begin : i + 1])[0][0, -1]
        expected.append(-float(torch.log_softmax(logits, -1)[numbers[i + 1]]) / math.log(2))
    scored = model.surprisal(words_of({"a": " ".join(text)}))
    np.testing.assert_allclose(scored["surprisal_bits"], expected, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_training_takes_the_steps_of_clipped_gradient_descent(kind: str) -> None:
    how = replace(QUICK, epochs=1, dropout=0.0)
    trained, _ = word_models.train(STREAM, STREAM, VOCABULARY, small(kind), how)
    torch.manual_seed(how.seed)
    network = WordNetwork(small(kind), len(VOCABULARY.words))
    optimiser = torch.optim.SGD(network.parameters(), lr=how.rate)
    rows, state = STREAM[: len(STREAM) // 4 * 4].view(4, -1), None
    for start in range(0, rows.shape[1] - 1, 7):
        targets = rows[:, start + 1 : start + 8]
        state = None if state is None else tuple(part.detach() for part in state)
        logits, state = network(rows[:, start : start + targets.shape[1]], state)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), how.clip)
        optimiser.step()
    for name, value in trained.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name])


def test_the_rate_is_halved_without_improvement_and_training_ends_after_five(monkeypatch) -> None:
    reached = iter([9.0, 8.0, 8.5, 7.0, *[7.5] * 20])
    monkeypatch.setattr(word_models, "perplexity", lambda *_: next(reached))
    how = replace(QUICK, epochs=50)
    _, history = word_models.train(STREAM, STREAM, VOCABULARY, small("lstm"), how)
    assert history["rate"].tolist() == [1, 1, 1, 0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125]


@pytest.mark.parametrize(("kind", "killed_after"), [("lstm", 9), ("transformer", 2)])
def test_a_killed_run_resumes_to_the_same_result(kind, killed_after, tmp_path, monkeypatch):
    how, made = replace(QUICK, dropout=0.4), small(kind)
    whole, history = word_models.train(STREAM, STREAM, VOCABULARY, made, how)
    step = word_models._step
    left = iter([True] * killed_after)

    def killed(*arguments):
        if not next(left, False):
            kill_this_process()
        return step(*arguments)

    monkeypatch.setattr(word_models, "_step", killed)
    monkeypatch.setattr(word_models, "CHECKPOINT_SECONDS", 0.0)
    call = partial(word_models.train, STREAM, STREAM, VOCABULARY, made, folder=tmp_path)
    run_until_killed(lambda: call(how))
    monkeypatch.undo()
    torch.manual_seed(99)
    again, resumed = call(how)
    pd.testing.assert_frame_equal(resumed, history)
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(again.network.state_dict()[name], value, rtol=0, atol=0)
    with pytest.raises(ValueError, match="another run"):
        call(QUICK)
    with pytest.raises(ValueError, match="another run"):  # the same words in another order
        word_models.train(STREAM.flip(0), STREAM, VOCABULARY, made, how, folder=tmp_path)


def test_a_rate_that_is_too_high_and_a_text_that_is_too_short_say_so() -> None:
    with pytest.raises(FloatingPointError, match="lower it"):
        how = Training(rate=1e30, batch_size=4, epochs=1, clip=1e30)
        word_models.train(STREAM, STREAM, VOCABULARY, small("lstm"), how)
    with pytest.raises(ValueError, match="smaller batch_size"):
        word_models.train(STREAM[:20], STREAM, VOCABULARY, small("lstm"), Training())
