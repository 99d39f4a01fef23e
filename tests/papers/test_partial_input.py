"""Partial-input baselines. References: planted and absent artefacts, PyTorch's packed LSTM, NumPy by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from psychlm.frames import FrameError
from psychlm.lm import ModelError
from psychlm.lm.choice_model import Inputs, Recipe, masked_max, masked_mean
from psychlm.lm.choice_networks import (
    Attention,
    BiLSTM,
    ChoiceNetwork,
    Lexicon,
    WordReader,
    soft_alignment,
    untrained,
)
from psychlm.papers import richardson2020_partial_input as partial_input

WORDS = [f"w{i}" for i in range(60)]
SMALL = {"size": 16, "hidden": 16}


def questions(rng, n, *, choices_give_away=0.0, question_gives_away=False):
    """Random questions of five choices; the right one may carry a word of its own, or one of the question's."""
    texts = rng.choice(WORDS, (n, 6, 5))
    answer = rng.integers(0, 5, n)
    right = texts[np.arange(n), answer + 1]  # a view is no use here: fancy indexing copies
    marked = rng.random(n) < choices_give_away
    right[marked, rng.integers(0, 5, marked.sum())] = "tell"
    if question_gives_away:
        right[:, 0] = texts[:, 0, 0]
    texts[np.arange(n), answer + 1] = right
    return pd.DataFrame(
        {
            "item_id": [f"q{rng.integers(1 << 60)}" for _ in range(n)],
            "prompt": [" ".join(words) for words in texts[:, 0]],
            "choices": [[" ".join(words) for words in row] for row in texts[:, 1:]],
            "answer": answer,
        }
    )


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


def test_pooling_leaves_padding_out_and_an_empty_text_is_zero(rng):
    values, mask = padded(rng, [4, 2, 0], 3)
    values, mask = values - 5, mask  # all negative: a padding zero would win the maximum
    for pooled, by_hand in ((masked_max, np.max), (masked_mean, np.mean)):
        said = pooled(values, mask).numpy()
        np.testing.assert_allclose(said[0], by_hand(values[0].numpy(), axis=0), rtol=1e-6)
        np.testing.assert_allclose(said[1], by_hand(values[1, :2].numpy(), axis=0), rtol=1e-6)
        assert (said[2] == 0).all()


def test_esims_soft_alignment_is_the_one_computed_by_hand(rng):
    a, a_mask = padded(rng, [3, 1], 4)
    b, b_mask = padded(rng, [2, 4], 4)
    aligned_a, aligned_b = soft_alignment(a, b, a_mask, b_mask)
    for row, (n_a, n_b) in enumerate(((3, 2), (1, 4))):
        left, right = a[row, :n_a].numpy(), b[row, :n_b].numpy()
        weight = np.exp(left @ right.T)
        np.testing.assert_allclose(
            aligned_a[row, :n_a],
            (weight / weight.sum(1, keepdims=True)) @ right,
            rtol=1e-4,
            atol=1e-5,
        )
        np.testing.assert_allclose(
            aligned_b[row, :n_b],
            (weight / weight.sum(0, keepdims=True)).T @ left,
            rtol=1e-4,
            atol=1e-5,
        )


def test_alignment_with_an_empty_text_is_zero(rng):
    a, a_mask = padded(rng, [3], 4)
    aligned, other = soft_alignment(a, a[:, :2], a_mask, torch.zeros(1, 2, dtype=torch.bool))
    assert (aligned == 0).all()
    assert torch.isfinite(other).all()


def test_attention_weighs_both_texts_their_difference_and_their_product(rng):
    attention = Attention(2)
    with torch.no_grad():
        attention.weights.weight.copy_(torch.tensor([[1.0, 2, 3, 4, 5, 6, 7, 8]]))
        attention.weights.bias.fill_(0.5)
    a, b = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0])
    assert attention(a, b).item() == 0.5 + (1 - 4) + (9 + 4) + (5 * 2 + 6 * 3) + (7 * 3 + 8 * -2)


def test_choice_to_choice_takes_the_mean_over_the_choices_that_are_there(rng):
    items = questions(rng, 3)
    items["choices"] = [choices[:n] for choices, n in zip(items["choices"], (5, 3, 2), strict=True)]
    items["answer"] = 0
    model = untrained("choice-to-choice", Lexicon.learned(items), seed=1, **SMALL)
    network, inputs = model.network.eval(), model.reader.read(items).take(np.arange(3))
    said = network(inputs)
    mask = inputs.choices_mask.flatten(0, 1)
    kept = masked_max(
        network.reading(network.embedding(inputs.choices.flatten(0, 1)), mask), mask
    ).reshape(3, 5, -1)
    for row, n in enumerate((5, 3, 2)):
        for i in range(n):
            others = [network.score(kept[row, i], kept[row, j]).item() for j in range(n) if j != i]
            assert said[row, i].item() == pytest.approx(np.mean(others), abs=1e-5)
    assert torch.isinf(said[2, 2:]).all()


@pytest.mark.parametrize("kind", ["choice-only", "choice-to-choice", "question-to-choice", "esim"])
def test_scores_do_not_depend_on_what_stands_beside_an_item(kind, rng):
    items = questions(rng, 6)
    items.loc[0, "prompt"] = "w1"
    items.at[1, "choices"] = ["w1 w2 w3 w4 w5 w6 w7 w8 w9", "w3"]
    items.loc[1, "answer"] = 1
    model = untrained(kind, Lexicon.learned(items), seed=3, **SMALL)
    together, alone = model.logprobs(items), model.logprobs(items.iloc[[1]])
    np.testing.assert_allclose(together.iloc[1].dropna(), alone.iloc[0].dropna(), rtol=1e-4)
    assert together.iloc[1].notna().sum() == 2
    np.testing.assert_allclose(np.exp(together).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["choice-only", "choice-to-choice"])
def test_partial_input_models_never_see_the_question(kind, rng):
    items = questions(rng, 8)
    model = untrained(kind, Lexicon.learned(items), seed=3, **SMALL)
    other = items.assign(prompt=items["prompt"].sample(frac=1, random_state=1).to_numpy())
    pd.testing.assert_frame_equal(model.logprobs(items), model.logprobs(other))


def test_choice_only_finds_a_planted_artefact(rng):
    train, test = (questions(rng, n, choices_give_away=0.6) for n in (300, 200))
    found = partial_input.judge("choice-only", train, test, seed=1, **SMALL)
    assert found.beats_chance
    assert found.flags
    assert found.accuracy == pytest.approx(
        0.6 + 0.4 / 5, abs=0.12
    )  # marked ones known, the others guessed
    assert found.low < found.accuracy < found.high
    assert found.chance == pytest.approx(0.2)


def test_choices_that_are_known_to_be_wrong_are_flagged_as_those_known_to_be_right(rng):
    """Training keys carry a mark that in the test only wrong choices carry: what was learnt is never right."""
    train, test = (questions(rng, n, choices_give_away=1.0) for n in (300, 200))
    turned = [(answer + 1) % 5 for answer in test["answer"]]
    found = partial_input.judge("choice-only", train, test.assign(answer=turned), seed=1, **SMALL)
    assert found.high < found.chance - found.margin
    assert found.below_chance
    assert not found.beats_chance
    assert found.flags
    row = partial_input.table([found]).iloc[0]
    assert (row["beats_chance"], row["below_chance"], row["flags"]) == (False, True, True)


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0.26, 0.4, True, False),
        (0.24, 0.4, False, False),
        (0.06, 0.16, False, False),
        (0.06, 0.14, False, True),
        (0.1, 0.3, False, False),
    ],
)
def test_both_directions_ask_for_the_margin_and_flag_only_what_never_sees_the_question(
    low, high, above, below
):
    for baseline in partial_input.BASELINES:
        nothing = pd.DataFrame()
        said = partial_input.Verdict(
            baseline, "learned", 0.2, low, high, 0.95, 0.2, 0.05, 9, 9, 9, nothing
        )
        assert (said.beats_chance, said.below_chance) == (above, below)
        assert said.flags == ((above or below) and baseline in ("choice-only", "choice-to-choice"))


def test_clean_random_sets_are_hardly_ever_flagged():
    """Twenty sets without any artefact: even one flag would be rare at 95 % intervals and a margin of five points."""
    rng = np.random.default_rng(4)
    recipe = Recipe(learning_rate=3e-3, epochs=3, patience=1)
    verdicts = [
        partial_input.judge(
            "choice-only",
            questions(rng, 100),
            questions(rng, 200),
            recipe=recipe,
            seed=seed,
            size=8,
            hidden=8,
        )
        for seed in range(20)
    ]
    assert sum(verdict.flags for verdict in verdicts) == 0
    assert np.mean([verdict.accuracy for verdict in verdicts]) == pytest.approx(
        0.2, abs=4 * 0.4 / np.sqrt(4000)
    )


def test_a_word_shared_with_the_question_is_found_by_vector_similarity_and_flags_no_artefact(rng):
    train, test = (questions(rng, n, question_gives_away=True) for n in (20, 200))
    vectors = np.concatenate([np.zeros((2, 50)), rng.normal(size=(len(WORDS), 50))]).astype(
        np.float32
    )
    lexicon = Lexicon({word: i for i, word in enumerate(WORDS, start=2)}, vectors)
    found = partial_input.judge("vector-similarity", train, test, lexicon=lexicon)
    assert found.beats_chance
    assert not found.flags  # it reads the question
    first = test.iloc[0]
    means = [
        np.mean([vectors[lexicon.numbers[w]] for w in t.split()], axis=0)
        for t in (first["prompt"], *first["choices"])
    ]
    by_hand = [m @ means[0] / np.linalg.norm(m) / np.linalg.norm(means[0]) for m in means[1:]]
    np.testing.assert_allclose(found.logprobs.iloc[0], by_hand, rtol=1e-5)


def test_question_to_choice_learns_what_needs_the_question():
    """The answer is the choice of the question's kind: no choice alone tells."""
    rng = np.random.default_rng(6)
    kinds, n = rng.permuted(np.tile(np.arange(5), (500, 1)), axis=1), 500
    items = pd.DataFrame(
        {
            "item_id": [f"q{i}" for i in range(n)],
            "prompt": [f"which is of kind{kind}" for kind in kinds[:, 0]],
            "choices": [
                [f"name{kind} {rng.choice(WORDS)}" for kind in np.sort(row)] for row in kinds
            ],
            "answer": kinds[:, 0],
        }
    )
    recipe = Recipe(learning_rate=1e-2, epochs=8, patience=None)
    asked, alone = (
        partial_input.judge(kind, items[:350], items[350:], recipe=recipe, seed=1, **SMALL)
        for kind in ("question-to-choice", "choice-only")
    )
    assert asked.accuracy > 0.9
    assert not alone.flags


def test_the_same_seed_gives_the_same_scores_and_leaves_the_global_state_alone(rng):
    train, test = questions(rng, 40), questions(rng, 10)
    recipe = Recipe(epochs=2)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first, again, other = (
        partial_input.judge(
            "question-to-choice", train, test, recipe=recipe, seed=seed, **SMALL
        ).logprobs
        for seed in (1, 1, 2)
    )
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)
    assert torch.rand(1) == expected


def test_clusters_shared_by_training_and_test_are_refused(rng):
    items = questions(rng, 20)
    with pytest.raises(FrameError, match="20 clusters stand in training and test"):
        partial_input.judge("choice-only", items, items)
    with pytest.raises(FrameError, match="one cluster"):
        partial_input.judge("choice-only", items.assign(cluster="a"), questions(rng, 5))


def test_intervals_are_wider_where_questions_come_in_clusters(rng):
    train, asked = questions(rng, 40), questions(rng, 40)
    again = pd.concat([asked] * 5).assign(
        item_id=[f"q{i}" for i in range(200)], cluster=[*asked["item_id"]] * 5
    )
    single, grouped = (
        partial_input.judge("choice-only", train, test, recipe=Recipe(epochs=1), seed=1, **SMALL)
        for test in (again.drop(columns="cluster"), again)
    )
    assert single.accuracy == grouped.accuracy
    assert grouped.high - grouped.low > 2 * (
        single.high - single.low
    )  # a fifth as many independent questions


def test_vectors_are_read_from_gloves_format(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text('the 0.5 -1\n" 2 3\nnull 1 1\n')
    lexicon = Lexicon.of_file(file)
    the, quote, null, unknown = lexicon.encode(['The " null other'])[0]
    assert (the.tolist(), quote.tolist(), null.tolist(), unknown.tolist()) == (
        [0.5, -1],
        [2, 3],
        [1, 1],
        [0, 0],
    )
    file.write_text("no numbers here\n")
    with pytest.raises(ModelError, match="holds no word vectors"):
        Lexicon.of_file(file)
    with pytest.raises(ValueError, match="needs given vectors"):
        partial_input.judge(
            "vector-similarity", *(questions(np.random.default_rng(i), 5) for i in (1, 2))
        )


def test_rare_words_of_training_are_unknown_ones():
    items = pd.DataFrame(
        {"item_id": ["a"], "prompt": ["dog dog cat"], "choices": [["cat", "emu"]], "answer": [0]}
    )
    lexicon = Lexicon.learned(items, min_count=2)
    assert lexicon.numbers == {"cat": 2, "dog": 3}
    assert lexicon.encode(["Dog, emu"])[0].tolist() == [3, 1, 1]


def test_all_verdicts_stand_in_one_table(rng):
    vectors = rng.normal(size=(2 + len(WORDS), 8)).astype(np.float32)
    given = Lexicon({word: i for i, word in enumerate(WORDS, start=2)}, vectors)
    verdicts = partial_input.judge_all(
        questions(rng, 30), questions(rng, 20), given=given, recipe=Recipe(epochs=1), **SMALL
    )
    table = partial_input.table(verdicts)
    assert len(table) == 2 * 4 + 1
    assert (table["embeddings"] == "given").sum() == 5
    assert table["accuracy"].between(0, 1).all()


def test_an_unknown_network_is_named(rng):
    with pytest.raises(ModelError, match="no choice network is named 'mlp'"):
        ChoiceNetwork("mlp", Lexicon({}))
    with pytest.raises(ValueError, match="no baseline is named"):
        partial_input.judge("mlp", questions(rng, 5), questions(rng, 5))


def test_inputs_of_a_batch_hold_every_choice_in_its_place(rng):
    items = questions(rng, 4)
    lexicon = Lexicon.learned(items, min_count=1)
    inputs: Inputs = WordReader(lexicon).read(items).take(np.array([2, 0]))
    words = {number: word for word, number in lexicon.numbers.items()}
    for row, item in enumerate((2, 0)):
        said = [" ".join(words[int(n)] for n in choice) for choice in inputs.choices[row]]
        assert said == items["choices"][item]
