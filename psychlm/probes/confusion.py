"""The four confusion probes of Shen & Kejriwal (2022): items in, perturbed items out.

Two act on the prompt and leave the choices alone (:func:`no_question`, :func:`wrong_question`), two act on the choices
and leave the prompt alone (:func:`no_right_answer`, :func:`more_choices`). Whatever is borrowed from other instances
comes from the items given, so hand over one benchmark at a time.

Every probe returns an items frame that keeps its contract, with these columns beside those it was given:

``probe``
    Which probe it was: ``no-question``, ``wrong-question``, ``no-right-answer``, ``more-choices-4`` ...
``source_item_id``
    The item it was made of; ``item_id`` becomes ``"<source>|<probe>"``, so that probes can be stacked.
``pseudo_answer``
    The place of the one *pseudo-correct* choice: the choice that was right before, or, where that one is gone (*no
    right answer*), the choice that stands in its stead.
``answer``
    The same place, since an items frame needs an answer; ``has_right_answer`` says whether it is right.
``has_right_answer``
    True in *more choices* only: a grade of the other probes counts pseudo-correct choices, not right ones.
``order``
    For each choice its place among the source's choices, or the place of the choice that it replaces; -1, -2 ... for
    the choices that came in addition, in the order in which they were drawn. :func:`in_source_order` reads it.
``donors``
    The ``item_id`` of the instances from which prompt or choices were borrowed, in the order in which they were drawn.

Two texts count as the same where they differ in case or white space only.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm import frames
from psychlm.probes.choice_bank import Bank, draw, draw_choices, read, some, unfit

Probe = Literal["no-question", "wrong-question", "no-right-answer", "more-choices"]
PROBES: tuple[Probe, ...] = get_args(Probe)
EXTRA = (1, 2, 4, 8)  # how many choices `more_choices` usually adds

_ADDED = ["probe", "source_item_id", "pseudo_answer", "has_right_answer", "order", "donors"]


def drop_unfit(items: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return the items that can be perturbed, and why the others cannot.

    Parameters
    ----------
    items : DataFrame
        An items frame.

    Returns
    -------
    DataFrame, Series
        The items without those that have one choice twice, or a choice beside their answer that another item with the
        same prompt calls right; and the reason for each item left out, by ``item_id``.

    Raises
    ------
    FrameError
        If the frame breaks the items contract.
    """
    reasons = unfit(read(items))
    out = pd.Series(
        reasons.to_numpy(),
        index=items["item_id"].iloc[reasons.index].rename("item_id"),
        dtype=object,
    )
    return items.drop(items.index[reasons.index]), out


def _bank(items: pd.DataFrame) -> Bank:
    if taken := [column for column in _ADDED if column in items.columns]:
        raise frames.FrameError(
            f"the items hold columns {taken} already: perturb the original items"
        )
    bank = read(items)
    reasons = unfit(bank)
    for reason in reasons.unique():
        which = bank.items["item_id"].iloc[reasons.index[reasons == reason]]
        raise frames.FrameError(
            f"items {some(which)} cannot be perturbed ({reason}); leave them out: confusion.drop_unfit(items)"
        )
    return bank


def no_question(items: pd.DataFrame, *, seed: int = 0, shuffle: bool = False) -> pd.DataFrame:
    """Take the question away: the prompt becomes the empty string, and no choice is right any more.

    Parameters
    ----------
    items : DataFrame
        An items frame, of one benchmark.
    seed : int
        Fixes the order of the choices.
    shuffle : bool
        Whether the choices are put in random order; by default they stay where they were.

    Returns
    -------
    DataFrame
        As many items, with the columns that the module describes.

    Raises
    ------
    FrameError
        If the items break their contract, hold duplicate choices, or were perturbed before.
    """
    bank = _bank(items)
    nobody = np.empty((len(bank.items), 0), np.intp)
    return _perturbed(bank, "no-question", bank.own, nobody, seed, shuffle, prompt="")


def wrong_question(items: pd.DataFrame, *, seed: int = 0, shuffle: bool = False) -> pd.DataFrame:
    """Ask another instance's question of the same choices, so that none of them is right.

    The prompt is drawn at random from the instances whose prompt is another one and to which none of the item's choices
    is a right answer, by that instance's key or that of any other instance with its prompt.

    Parameters, what is returned and what is raised are as in :func:`no_question`; and

    Raises
    ------
    FrameError
        If for some item there is no such instance: in natural language inference, say, every choice answers something.
    """
    bank = _bank(items)
    codes = bank.codes()

    def allowed(rows: NDArray[np.intp], donors: NDArray[np.intp]) -> NDArray[np.bool_]:
        asked = np.broadcast_to(bank.prompt[donors][:, None], codes[rows].shape)
        answers = bank.is_right(asked, codes[rows]) & (codes[rows] >= 0)
        return (bank.prompt[rows] != bank.prompt[donors]) & ~answers.any(axis=1)

    rng = np.random.default_rng([seed, 0])
    donors = draw(
        np.arange(len(bank.items)), allowed, rng, bank, "a question that its choices do not answer"
    )
    prompts = bank.items["prompt"].to_numpy(object)[donors]
    return _perturbed(
        bank, "wrong-question", bank.own, donors[:, None], seed, shuffle, prompt=prompts
    )


def no_right_answer(items: pd.DataFrame, *, seed: int = 0, shuffle: bool = True) -> pd.DataFrame:
    """Replace the right choice by an incorrect one from another instance, so that no choice is right.

    The substitute, which stands for the right choice, is the pseudo-correct one. It is drawn at random from the
    incorrect choices of instances with another prompt; it is none of the item's choices, nor right
    for its prompt by any key.

    Parameters, what is returned and what is raised are as in :func:`no_question`; choices are shuffled by default, as
    the substitute would else stand in the right one's place; and

    Raises
    ------
    FrameError
        If for some item there is no such choice among the other instances.
    """
    bank = _bank(items)
    substitute = draw_choices(bank, 1, seed)
    own = bank.own.copy()
    own[np.arange(len(own)), bank.answer] = substitute[:, 0]
    return _perturbed(bank, "no-right-answer", own, bank.owner[substitute], seed, shuffle)


def more_choices(
    items: pd.DataFrame, n_extra: int = 1, *, seed: int = 0, shuffle: bool = True
) -> pd.DataFrame:
    """Add incorrect choices from other instances; the right one stays and is right.

    With one seed the choices added are nested: those of ``n_extra=2`` are that of ``n_extra=1`` and another one, so
    that confidences can be compared item by item. They are drawn as in :func:`no_right_answer`, all different.

    Parameters
    ----------
    items : DataFrame
        An items frame, of one benchmark.
    n_extra : int
        How many choices are added, at least 1; the paper's question is how confidence falls with it (see ``EXTRA``).
    seed : int
        Fixes what is drawn and the order of the choices.
    shuffle : bool
        Whether the choices are put in random order; else those added stand last.

    Raises
    ------
    FrameError
        As in :func:`no_right_answer`.
    ValueError
        If ``n_extra`` is below 1.
    """
    if n_extra < 1:
        raise ValueError(f"n_extra is {n_extra}; more choices means at least one more")
    bank = _bank(items)
    extra = draw_choices(bank, n_extra, seed)
    own = np.hstack([bank.own, extra])
    return _perturbed(bank, f"more-choices-{n_extra}", own, bank.owner[extra], seed, shuffle)


def perturb(items: pd.DataFrame, probe: Probe, *, seed: int = 0, n_extra: int = 1) -> pd.DataFrame:
    """Apply a probe by its name; ``n_extra`` is for ``"more-choices"`` alone.

    Raises
    ------
    ValueError
        If the probe is unknown.
    FrameError
        As the probe itself.
    """
    if probe == "more-choices":
        return more_choices(items, n_extra, seed=seed)
    simple = {
        "no-question": no_question,
        "wrong-question": wrong_question,
        "no-right-answer": no_right_answer,
    }
    if probe not in simple:
        raise ValueError(f"probe {probe!r} is unknown; choose one of {', '.join(PROBES)}")
    return simple[probe](items, seed=seed)


def _perturbed(
    bank: Bank,
    probe: str,
    chosen: NDArray[np.intp],
    donors: NDArray[np.intp],
    seed: int,
    shuffle: bool,
    prompt: str | NDArray[np.object_] | None = None,
) -> pd.DataFrame:
    """Put the frame together: ``chosen`` holds the places of the choices among all, -1 for none."""
    there = chosen >= 0
    rank = (
        np.random.default_rng([seed, 2]).random(chosen.shape) if shuffle else np.zeros(chosen.shape)
    )
    order = np.argsort(
        np.where(there, rank, 2), axis=1, kind="stable"
    )  # those that are not there go last
    size = there.sum(axis=1).tolist()
    column = np.arange(chosen.shape[1])
    source = np.where(column < bank.own.shape[1], column, bank.own.shape[1] - column - 1)
    texts = np.take_along_axis(bank.text[chosen], order, axis=1).tolist()
    sources = source[order].tolist()
    pseudo = (order == bank.answer[:, None]).argmax(axis=1)
    ids, items = bank.items["item_id"], bank.items
    return items.assign(
        item_id=ids.astype(str) + f"|{probe}",
        prompt=items["prompt"] if prompt is None else prompt,
        choices=[row[:n] for row, n in zip(texts, size, strict=True)],
        answer=pseudo,
        probe=probe,
        source_item_id=ids,
        pseudo_answer=pseudo,
        has_right_answer=probe.startswith("more-choices"),
        order=[row[:n] for row, n in zip(sources, size, strict=True)],
        donors=ids.to_numpy(object)[donors].tolist(),
    )


def in_source_order(scores: pd.DataFrame, perturbed: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of perturbed items with the choices in their source's order, those borrowed behind them.

    The substitute of *no right answer* takes the place of the right choice for which it stands.

    Parameters
    ----------
    scores : DataFrame, shape (n_items, most choices)
        Scores of the choices by perturbed ``item_id``, as ``lm.choice_logprobs`` gives them; NaN where there is none.
    perturbed : DataFrame
        The perturbed items.

    Returns
    -------
    DataFrame, shape (n_items, most choices)
        By ``source_item_id``; the rows in the order of ``perturbed``.

    Raises
    ------
    FrameError
        If an item has no scores.
    """
    missing = perturbed["item_id"][~perturbed["item_id"].isin(scores.index)]
    if len(missing):
        raise frames.FrameError(
            f"items {some(missing)} have no scores; score the perturbed items themselves"
        )
    values = scores.loc[perturbed["item_id"]].to_numpy(np.float64)
    order = np.full(values.shape, np.nan)
    order[np.arange(values.shape[1]) < perturbed["order"].map(len).to_numpy()[:, None]] = perturbed[
        "order"
    ].explode()
    place = np.where(
        order < 0, values.shape[1] - order, order
    )  # those added go behind, the first drawn first
    by_place = np.argsort(place, axis=1, kind="stable")  # NaN, where there is no choice, goes last
    index = pd.Index(perturbed["source_item_id"], name="item")
    return pd.DataFrame(
        np.take_along_axis(values, by_place, axis=1), index=index, columns=scores.columns
    )
