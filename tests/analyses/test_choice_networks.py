"""Networks that score choices. References: PyTorch's packed LSTM, NumPy, transformers."""

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_questions import questions
from torch import nn

from analyses.choice_networks import (
    BiLSTM,
    Lexicon,
    encoder_model,
    partial_input_model,
    soft_alignment,
)
from psychlm.lm.encoders import open_encoder

SMALL = {"size": 16, "hidden": 16}


def padded(rng, lengths, size):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = torch.from_numpy(rng.normal(size=(*mask.shape, size)).astype(np.float32))
    return values, mask


def test_the_bilstm_is_pytorchs_on_packed_rows(rng):
    values, mask = padded(rng, [7, 3, 1], 4)
    ours, theirs = BiLSTM(4, 5), nn.LSTM(4, 5, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, weight in ours.onward.named_parameters():
            theirs.get_parameter(name).copy_(weight)
            theirs.get_parameter(f"{name}_reverse").copy_(ours.backward.get_parameter(name))
        packed = nn.utils.rnn.pack_padded_sequence(values, mask.sum(1), batch_first=True)
        expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
        torch.testing.assert_close(ours(values, mask), expected)


def test_esims_soft_alignment_is_the_one_computed_by_hand(rng):
    a, a_mask = padded(rng, [3, 1], 4)
    b, b_mask = padded(rng, [2, 4], 4)
    aligned_a, aligned_b = soft_alignment(a, b, a_mask, b_mask)
    for row, (n_a, n_b) in enumerate(((3, 2), (1, 4))):
        left, right = a[row, :n_a].numpy(), b[row, :n_b].numpy()
        weight = np.exp(left @ right.T)
        expected_a = (weight / weight.sum(1, keepdims=True)) @ right
        expected_b = (weight / weight.sum(0, keepdims=True)).T @ left
        np.testing.assert_allclose(aligned_a[row, :n_a], expected_a, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(aligned_b[row, :n_b], expected_b, rtol=1e-4, atol=1e-5)
    none = soft_alignment(a, b, a_mask, torch.zeros_like(b_mask))
    assert (none[0] == 0).all() and torch.isfinite(none[1]).all()  # an empty text


@pytest.mark.parametrize("kind", ["choice-only", "choice-to-choice", "question-to-choice", "esim"])
def test_scores_depend_on_nothing_beside_an_item_and_partial_inputs_not_on_its_question(kind, rng):
    items = questions(rng, 6)
    items.loc[0, "prompt"] = "w1"
    items.at[1, "choices"] = ["w1 w2 w3 w4 w5 w6 w7 w8 w9", "w3"]
    items.loc[1, "answer"] = 1
    model = partial_input_model(kind, Lexicon.learned(items), seed=3, **SMALL)
    together, alone = model.logprobs(items), model.logprobs(items.iloc[[1]])
    np.testing.assert_allclose(together.iloc[1].dropna(), alone.iloc[0].dropna(), rtol=1e-4)
    assert together.iloc[1].notna().sum() == 2
    np.testing.assert_allclose(np.exp(together).sum(axis=1), 1, rtol=1e-5)
    other = items.assign(prompt=items["prompt"].sample(frac=1, random_state=1).to_numpy())
    assert together.equals(model.logprobs(other)) == (kind in ("choice-only", "choice-to-choice"))


def three_questions():
    rows = [
        ("a", "The old man the boat.", ["the men", "a cup of tea and a sandwich"], 0),
        ("b", "the sea", ["the sea", "the horse", "a plan"], 2),
        ("c", "She wound up talking to Barry", ["Maria", "tea"], 1),
    ]
    return pd.DataFrame(rows, columns=["item_id", "prompt", "choices", "answer"])


def test_an_untrained_head_picks_the_most_similar_choice(bert):
    network, tokenizer = open_encoder(bert)
    said = encoder_model(bert).logprobs(three_questions())

    def vector(text):
        with torch.no_grad():
            return network(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(dim=1)[0]

    for row, item in three_questions().iterrows():
        question = vector(item["prompt"])
        cosines = [torch.cosine_similarity(question, vector(c), dim=0) for c in item["choices"]]
        expected = torch.log_softmax(20 * torch.stack(cosines), dim=0)
        np.testing.assert_allclose(said.iloc[row].dropna(), expected, atol=1e-3)


def test_a_model_on_an_encoder_learns_by_its_seed_and_the_one_it_came_from_stays(bert):
    asked, model = three_questions(), encoder_model(bert, seed=1)
    before, encoder = model.logprobs(asked), open_encoder(bert)[0]
    frozen = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    learned = model.train(asked, learning_rate=1e-2, epochs=30, seed=1)
    assert learned.accuracy(asked) == 1
    assert learned.history["loss"].iloc[-1] < learned.history["loss"].iloc[0]
    pd.testing.assert_frame_equal(model.logprobs(asked), before)
    weights = open_encoder(bert)[0].state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in frozen.items())
    how = {"epochs": 2, "batch_size": 1}
    first, again, other = (model.train(asked, **how, seed=seed).fingerprint for seed in (1, 1, 2))
    assert first == again != other and first != model.fingerprint
