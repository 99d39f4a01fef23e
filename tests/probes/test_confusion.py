"""The confusion probes keep their invariants on any items. Reference: Shen & Kejriwal (2022),
section 1; each invariant is checked item by item with plain Python sets."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from psychlm.frames import FrameError, check_items
from psychlm.probes import confusion
from psychlm.probes.confusion import perturb


def bank_of(n_items, n_choices=3, same_prompt=()):
    """Build items whose texts name them: right-3 is the right choice of item 3."""
    rows = []
    for i in range(n_items):
        choices = [f"wrong-{i}-{j}" for j in range(n_choices - 1)]
        choices.insert(i % n_choices, f"right-{i}")
        prompt = f"prompt {'same' if i in same_prompt else i}"
        rows.append([f"q{i}", prompt, choices, i % n_choices])
    return pd.DataFrame(rows, columns=["item_id", "prompt", "choices", "answer"])


def fold(text):
    return " ".join(text.casefold().split())


def rights_of(items):
    rights = {}
    for row in items.itertuples():
        rights.setdefault(fold(row.prompt), set()).add(fold(row.choices[row.answer]))
    return rights


# few texts, so that items share choices and prompts, and draws are often refused
WORDS = st.sampled_from(
    [f"{letter}{number}" for letter in "abcdef" for number in range(4)] + ["A0", " b1 "]
)


@st.composite
def item_frames(draw):
    n = draw(st.integers(4, 12))
    choices = [draw(st.lists(WORDS, min_size=2, max_size=4, unique_by=fold)) for _ in range(n)]
    prompts = [f"{draw(st.sampled_from('pqrstuvwxyz'))}?" for _ in range(n)]
    answer = [draw(st.integers(0, len(row) - 1)) for row in choices]
    frame = pd.DataFrame({"item_id": range(n), "prompt": prompts, "answer": answer})
    return confusion.drop_unfit(frame.assign(choices=choices))[0]


def applied(items, probe, seed, n_extra=2):
    """Apply a probe, or give up on items too few to draw from: the refusal is tested below."""
    try:
        return perturb(items, probe, seed=seed, n_extra=n_extra)
    except FrameError as error:
        assert "too few other instances" in str(error) or "empty" in str(error)
        return None


@given(item_frames(), st.sampled_from(confusion.PROBES), st.integers(0, 5))
def test_every_probe_keeps_its_invariants(items, probe, seed):
    before = items.copy(deep=True)
    perturbed = applied(items, probe, seed)
    pd.testing.assert_frame_equal(items, before)  # the function is pure
    assume(perturbed is not None)
    check_items(perturbed)
    rights = rights_of(items)
    for old, new in zip(items.itertuples(), perturbed.itertuples(), strict=True):
        texts = [fold(choice) for choice in new.choices]
        correct = old.choices[old.answer]
        assert len(set(texts)) == len(texts), "no duplicate choices"
        assert new.answer == new.pseudo_answer and new.source_item_id == old.item_id
        assert new.order.count(old.answer) == 1, "exactly one pseudo-correct choice"
        assert new.order[new.pseudo_answer] == old.answer
        pairs = zip(new.choices, new.order, strict=True)
        kept = [choice for choice, place in pairs if place >= 0 and place != old.answer]
        assert sorted(kept) == sorted(set(old.choices) - {correct}), "the other choices stay"
        right_now = rights.get(fold(new.prompt), set()) & set(texts)
        if probe == "more-choices":
            assert new.has_right_answer and new.choices[new.answer] == correct
            assert right_now == {fold(correct)}
            assert len(new.choices) == len(old.choices) + 2
        else:
            assert not new.has_right_answer and not right_now
            assert len(new.choices) == len(old.choices)
        assert (new.prompt == old.prompt) == (probe in ("no-right-answer", "more-choices"))


@given(item_frames(), st.integers(0, 3))
def test_more_choices_are_nested_over_their_number(items, seed):
    two, three = (applied(items, "more-choices", seed, n) for n in (2, 3))
    assume(three is not None)
    pairs = zip(two["choices"], three["choices"], strict=True)
    assert all(set(few) < set(many) for few, many in pairs)
    assert two["donors"].tolist() == three["donors"].str[:2].tolist()


def test_the_pseudo_correct_choice_of_shuffled_items_stands_anywhere_equally_often():
    items = bank_of(3000, n_choices=4).assign(answer=0)
    items["choices"] = items["choices"].map(sorted)  # the right one first
    for probe in ("no-question", "no-right-answer", "more-choices"):
        perturbed = perturb(items, probe, shuffle=True)
        counts = perturbed["pseudo_answer"].value_counts()
        expected = len(items) / len(perturbed["choices"].iloc[0])
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all() and len(counts) >= 4
    still = perturb(items, "no-right-answer", shuffle=False)
    assert (still["pseudo_answer"] == 0).all()
    last = perturb(items, "more-choices", n_extra=2, shuffle=False)
    assert (last["order"].map(tuple) == (0, 1, 2, 3, -1, -2)).all()


def test_scores_come_back_in_the_order_of_the_source(rng):
    items = bank_of(50, n_choices=3)
    extra = perturb(items, "more-choices", n_extra=2, seed=1)
    scores = pd.DataFrame(rng.normal(size=(50, 5)), index=extra["item_id"])
    back = confusion.in_source_order(scores, extra)
    assert list(back.index) == list(items["item_id"])
    for row, old in zip(extra.itertuples(), items.itertuples(), strict=True):
        text_of = dict(zip(scores.loc[row.item_id], row.choices, strict=True))
        texts = [text_of[value] for value in back.loc[old.item_id]]
        assert texts[:3] == old.choices
        donors = [text.rsplit("-", 1)[0] for text in texts[3:]]
        assert donors == [f"wrong-{donor[1:]}" for donor in row.donors]
    uneven = perturb(pd.concat([bank_of(5, 2), bank_of(10, 4)[5:]]), "more-choices", n_extra=2)
    n_choices = uneven["choices"].map(len).to_numpy()[:, None]
    scores = pd.DataFrame(np.ones((10, 6)), index=uneven["item_id"])
    lengths = confusion.in_source_order(scores.where(np.arange(6) < n_choices), uneven)
    assert lengths.notna().sum(axis=1).tolist() == [4] * 5 + [6] * 5
    swapped = perturb(items, "no-right-answer", seed=1)
    scores = pd.DataFrame(rng.normal(size=(50, 3)), index=swapped["item_id"])
    back = confusion.in_source_order(scores, swapped).to_numpy()
    substitutes = scores.to_numpy()[range(50), swapped["answer"]]
    assert (back[range(50), items["answer"]] == substitutes).all()
    with pytest.raises(FrameError, match=r"have no scores"):
        confusion.in_source_order(scores.iloc[1:], swapped)


def test_items_that_cannot_be_perturbed_are_refused_with_their_names():
    items = bank_of(5)
    repeated = items.assign(choices=[["a", "b", " A"], *items["choices"][1:]])
    nli = bank_of(9).assign(choices=[["entailment", "neutral", "contradiction"]] * 9)
    too_few = r"'q0' finds no .* too few other instances"
    cases = [
        (items.assign(choices=[["only"]] * 5), "no-question", "fewer than two choices"),
        (repeated, "no-question", r"\['q0'\].*drop_unfit"),
        (perturb(items, "no-question"), "no-question", "perturb the original items"),
        (nli, "wrong-question", "the same choices"),
    ]
    for few in (bank_of(1), bank_of(3, same_prompt=(0, 1, 2))):
        cases += [(few, probe, too_few) for probe in confusion.PROBES[1:]]
    for frame, probe, message in cases:
        with pytest.raises(FrameError, match=message):
            perturb(frame, probe)
