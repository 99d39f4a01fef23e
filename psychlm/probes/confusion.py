r"""The four confusion probes of Shen & Kejriwal (2022): items in, perturbed items out; and what the
scores of their choices show: prior bias, choice paralysis and calibration.

``no-question`` removes the prompt; ``wrong-question`` puts that of another item, to which none of
the item's choices is a right answer by the key of any item. ``no-right-answer`` replaces the right
choice by an incorrect one of another item, and ``more-choices`` adds such ones: with another
prompt, different from all the item's own, and right for its prompt by no key. Texts that differ in
case or white space only count as the same. Columns of the result beside those given:

- ``probe``: ``no-question``, ``wrong-question``, ``no-right-answer``, ``more-choices-4`` ...
- ``source_item_id``, the item it was made of; ``item_id`` becomes ``"<source>|<probe>"``.
- ``pseudo_answer`` (and ``answer``, since an items frame needs one), the position of the
  *pseudo-correct* choice: the one that was right before, or the choice in its place.
- ``has_right_answer``: whether ``answer`` is right, in *more choices* only.
- ``order``: for each choice its position among the source's, or that of the choice that it
  replaces; -1, -2 ... for added choices, in the order in which they were drawn.
- ``donors``: the ``item_id`` of the items from which prompt or choices were borrowed.

Measures take *scores*, items x choices, as :func:`psychlm.lm.choice_logprobs` returns them. With n
choices of an item and :math:`c_j` the confidence in choice j (the softmax of the scores), **prior
bias** (Definition 1) is the spread :math:`\sqrt{\sum_j (c_j - 1/n)^2 / n}` on an instance without a
right choice. It is never exactly zero, even of a model that guesses; what can be tested is whether
the *same* choice is preferred again under another question that it does not answer. **Choice
paralysis** (Definition 2) is the drop in confidence in the right choice when choices are added.
Confidences sum to 1, so that more choices lower each by arithmetic; :func:`choice_paralysis`
separates this from a change of mind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from psychlm import stats
from psychlm.frames import FrameError, check_items, format_names, refuse
from psychlm.lm.choices import answer_places, check_scores, confidences, grade, n_choices

Probe = Literal["no-question", "wrong-question", "no-right-answer", "more-choices"]
PROBES: tuple[Probe, ...] = get_args(Probe)
ADDED_COLUMNS = ["probe", "source_item_id", "pseudo_answer", "has_right_answer", "order", "donors"]
CONFIDENCE_NOISE = 1e-6  # differences of confidence that single precision makes when batches differ
MAX_ROUNDS = 30  # of drawing and rejecting, before the rows left search all donors

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
Values = NDArray[np.float64]


class _ItemArrays:
    """Items as arrays: n items with N choices in all, equal texts with equal integer codes."""

    def __init__(self, items: pd.DataFrame) -> None:
        self.items = items = check_items(items, distinct=False).reset_index(drop=True)
        flat = items["choices"].explode()
        # (N,): every choice as written, the row of its item, the code of its text; (n,): prompts.
        self.text, self.owner = flat.to_numpy(object), flat.index.to_numpy(np.intp)
        self.code, self.prompt = (
            pd.factorize(texts.map(lambda text: " ".join(text.casefold().split())))[0]
            for texts in (flat.str.normalize("NFC"), items["prompt"].str.normalize("NFC"))
        )
        # (n, most choices): which of the N choices each item has, and their codes; -1 beyond.
        size = items["choices"].map(len).to_numpy(np.intp)
        start = np.cumsum(size) - size
        position = np.arange(size.max())
        self.own = np.where(position < size[:, None], start[:, None] + position, -1)
        self.codes = np.where(self.own < 0, -1, self.code[self.own])
        self.answer = items["answer"].to_numpy(np.intp)
        # Pairs of prompt and text that some item calls right, as sorted keys.
        self._right = np.unique(self._key(self.prompt, self.code[start + self.answer]))

    @staticmethod
    def _key(prompt: Ints, code: Ints) -> Ints:
        return (prompt.astype(np.intp) << 31) | code

    def is_right(self, prompt: Ints, code: Ints) -> Bools:
        """Return whether some item calls this text right for this prompt."""
        return np.isin(self._key(prompt, code), self._right)

    def unfit(self) -> pd.Series:
        """Return why items cannot be perturbed, by row; without the rows that can be."""
        codes = np.sort(self.codes, axis=1)
        twice = ((codes[:, 1:] == codes[:, :-1]) & (codes[:, 1:] >= 0)).any(axis=1)
        right = self.is_right(self.prompt[self.owner], self.code)
        several = np.bincount(self.owner, right, len(self.items)) > 1
        words = ["duplicate choices", "a second choice is right by another item"]
        reason = np.select([twice, several], words, "")
        return pd.Series(reason, dtype=object)[reason != ""]

    def draw(
        self, pool: Ints, allowed: Callable[..., Bools], rng: np.random.Generator, what: str
    ) -> Ints:
        """Draw a member of the pool for every item, uniformly from those allowed to it."""
        drawn = np.full(len(self.items), -1)
        rows = np.arange(len(self.items))
        # Rejection sampling for all rows; the few that keep failing search the whole pool.
        for _ in range(MAX_ROUNDS if len(pool) else 0):
            tries = rng.choice(pool, len(rows))
            fits = allowed(rows, tries)
            drawn[rows[fits]] = tries[fits]
            rows = rows[~fits]
            if not len(rows):
                return drawn
        for row in rows:
            fitting = pool[allowed(np.full(len(pool), row), pool)]
            if not len(fitting):
                why = "there are too few other instances, or all have the same choices"
                raise FrameError(f"item {self.items['item_id'][row]!r} finds no {what}: {why}")
            drawn[row] = rng.choice(fitting)
        return drawn

    def draw_questions(self, seed: int) -> Ints:
        """Draw for every item one with another prompt, to which none of its choices is right."""

        def allowed(rows: Ints, donors: Ints) -> Bools:
            choices = self.codes[rows]
            prompts = np.broadcast_to(self.prompt[donors][:, None], choices.shape)
            answered = self.is_right(prompts, choices) & (choices >= 0)
            return (self.prompt[rows] != self.prompt[donors]) & ~answered.any(axis=1)

        rng = np.random.default_rng([seed, 0])
        everyone = np.arange(len(self.items))
        return self.draw(everyone, allowed, rng, "a question that its choices do not answer")

    def draw_choices(self, n: int, seed: int) -> Ints:
        """Draw n incorrect choices of other items with another prompt for every item, (items, n):
        different, none of the item's, right for its prompt by no key."""
        taken = self.codes
        drawn = np.empty((len(self.items), n), np.intp)
        right = self.own[np.arange(len(self.items)), self.answer]
        incorrect = np.setdiff1d(np.arange(len(self.text)), right)
        rng = np.random.default_rng([seed, 1])
        for column in range(n):

            def allowed(rows: Ints, tries: Ints, taken: Ints = taken) -> Bools:
                fresh = (taken[rows] != self.code[tries][:, None]).all(axis=1)
                elsewhere = self.prompt[rows] != self.prompt[self.owner[tries]]
                return fresh & elsewhere & ~self.is_right(self.prompt[rows], self.code[tries])

            drawn[:, column] = self.draw(incorrect, allowed, rng, "further incorrect choice")
            taken = np.hstack([taken, self.code[drawn[:, [column]]]])
        return drawn


def drop_unfit(items: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return the items that can be perturbed, and why the others cannot, by ``item_id``: they have
    one choice twice, or a choice beside their answer that another item with the same prompt calls
    right.

    >>> items = pd.DataFrame({"item_id": ["a"], "prompt": ["2 + 2?"], "answer": [0]})
    >>> drop_unfit(items.assign(choices=[["4", "4 "]]))[1].to_dict()
    {'a': 'duplicate choices'}
    """
    reasons = _ItemArrays(items).unfit()
    reasons.index = pd.Index(items["item_id"].iloc[reasons.index], name="item_id")
    return items[~items["item_id"].isin(reasons.index)], reasons


def perturb(
    items: pd.DataFrame,
    probe: Probe,
    *,
    seed: int = 0,
    n_extra: int = 1,
    shuffle: bool | None = None,
) -> pd.DataFrame:
    """Apply a probe to items of one benchmark.

    Parameters
    ----------
    items : DataFrame
        An items frame; what is borrowed comes from its other items.
    probe : {"no-question", "wrong-question", "no-right-answer", "more-choices"}
    seed : int
        Fixes what is drawn and the order of the choices.
    n_extra : int
        Choices that ``"more-choices"`` adds. With one seed they are nested: those of ``n_extra=2``
        are that of ``n_extra=1`` and another one.
    shuffle : bool, optional
        Put the choices in random order; by default where choices change, which would else stand in
        the right one's place, or last.

    Returns
    -------
    DataFrame
        As many items, with the columns that the module describes.

    Raises
    ------
    FrameError
        If items cannot be perturbed (:func:`drop_unfit`), were before, or find nothing to borrow:
        in natural language inference every choice answers some pair, and no question is wrong.

    Examples
    --------
    >>> items = pd.DataFrame(
    ...     {"item_id": ["a"], "prompt": ["2 + 2?"], "choices": [["4", "5"]], "answer": [0]}
    ... )
    >>> perturb(items, "no-question")[["item_id", "prompt", "choices"]].values.tolist()
    [['a|no-question', '', ['4', '5']]]
    """
    if probe not in PROBES or n_extra < 1:
        raise ValueError(f"probe {probe!r} is none of {PROBES}, or n_extra={n_extra} is below 1")
    if present := [column for column in ADDED_COLUMNS if column in items.columns]:
        raise FrameError(f"the items hold columns {present} already: perturb the original items")
    arrays = _ItemArrays(items)
    items = arrays.items
    reasons = arrays.unfit()
    if len(reasons):
        first = reasons.iloc[0]
        names = items["item_id"].iloc[reasons.index[reasons == first]]
        raise FrameError(f"items {format_names(names)} are unfit ({first}): confusion.drop_unfit")
    # What the probe changes: the prompt, or which of the N choices each item has.
    name: str = probe
    prompt = items["prompt"].to_numpy(object)
    chosen = arrays.own
    donors = np.empty((len(items), 0), np.intp)
    if probe == "no-question":
        prompt = np.full(len(items), "", dtype=object)
    elif probe == "wrong-question":
        donors = arrays.draw_questions(seed)[:, None]
        prompt = prompt[donors[:, 0]]
    elif probe == "no-right-answer":
        borrowed = arrays.draw_choices(1, seed)
        donors = arrays.owner[borrowed]
        is_answer = np.arange(chosen.shape[1]) == arrays.answer[:, None]
        chosen = np.where(is_answer, borrowed, chosen)
    else:
        borrowed = arrays.draw_choices(n_extra, seed)
        donors = arrays.owner[borrowed]
        name = f"{probe}-{n_extra}"
        chosen = np.hstack([chosen, borrowed])
    # Random ranks order the choices; places without a choice (-1) go last.
    present_at = chosen >= 0
    column = np.arange(chosen.shape[1])
    shuffle = not probe.endswith("-question") if shuffle is None else shuffle
    rng = np.random.default_rng([seed, 2])
    rank = rng.random(chosen.shape) if shuffle else np.zeros(chosen.shape)
    order = np.argsort(np.where(present_at, rank, 2), axis=1, kind="stable")
    sizes = present_at.sum(axis=1).tolist()
    texts = np.take_along_axis(arrays.text[chosen], order, axis=1).tolist()
    # Positions among the source's choices, and -1, -2 ... for those added behind them.
    n_own = arrays.own.shape[1]
    sources = np.where(column < n_own, column, n_own - column - 1)[order].tolist()
    pseudo = (order == arrays.answer[:, None]).argmax(axis=1)
    ids = items["item_id"]
    return items.assign(
        item_id=ids.astype(str) + f"|{name}",
        prompt=prompt,
        choices=[row[:n] for row, n in zip(texts, sizes, strict=True)],
        answer=pseudo,
        probe=name,
        source_item_id=ids,
        pseudo_answer=pseudo,
        has_right_answer=probe == "more-choices",
        order=[row[:n] for row, n in zip(sources, sizes, strict=True)],
        donors=ids.to_numpy(object)[donors].tolist(),
    )


def in_source_order(scores: pd.DataFrame, perturbed: pd.DataFrame) -> pd.DataFrame:
    """Return scores of perturbed items by ``source_item_id``, with the choices in their source's
    order, added ones last; a substitute takes the place of the right choice.

    >>> perturbed = pd.DataFrame({"item_id": ["a|x"], "source_item_id": ["a"], "order": [[1, 0]]})
    >>> in_source_order(pd.DataFrame([[-2.0, -1.0]], index=["a|x"]), perturbed).loc["a"].tolist()
    [-1.0, -2.0]
    """
    missing = perturbed["item_id"][~perturbed["item_id"].isin(scores.index)]
    refuse("perturbed items", missing, "have no scores; score them")
    values = scores.loc[perturbed["item_id"]].to_numpy(np.float64)
    n_choices = perturbed["order"].map(len).to_numpy()
    order = np.full(values.shape, np.nan)
    order[np.arange(values.shape[1]) < n_choices[:, None]] = perturbed["order"].explode()
    # Added choices (-1, -2 ...) go last, the first drawn first; NaN, no choice, behind them.
    position = np.where(order < 0, values.shape[1] - order, order)
    by_place = np.argsort(position, axis=1, kind="stable")
    index = pd.Index(perturbed["source_item_id"], name="item")
    sorted_values = np.take_along_axis(values, by_place, axis=1)
    return pd.DataFrame(sorted_values, index=index, columns=scores.columns)


# Measures on the scores of choices


@dataclass(frozen=True)
class PriorBias:
    """The spread of confidences where no choice is right, and how much of it returns with the same
    choices."""

    instances: pd.DataFrame  # by item: spread, relative_spread, lasting_variance
    spread: stats.Interval  # mean over instances of the standard deviation of the confidences
    relative_spread: stats.Interval  # the same, 1 where all confidence lies in one choice
    lasting_share: stats.Interval | None  # of the variance, shared by presentations; None for one
    p: float  # of the lasting variance, over the whole benchmark; NaN for one presentation
    n_items: int


def prior_bias(
    *presentations: pd.DataFrame,
    rng: np.random.Generator,
    n_permutations: int = 999,
    n_boot: int = 2000,
) -> PriorBias:
    r"""Measure the prior bias of every instance and of a benchmark.

    With d the confidences of an instance less 1/n, ``spread`` is the mean over presentations of
    :math:`\sqrt{\sum_j d_j^2 / n}`, and ``lasting_variance`` the mean over pairs k, l of
    presentations of :math:`\sum_j d_{jk} d_{jl} / n`, an unbiased estimate of the variance of what
    the presentations share. ``lasting_share`` is its sum over that of the variances: 0 for a model
    that guesses, 1 for one that does not read the question. If nothing about a choice matters,
    confidences are exchangeable among the choices of each presentation, so these are permuted
    (the p-value after Phipson & Smyth 2010).

    Presentations hold scores of the same choices in the same order (``in_source_order``),
    shuffled under prompts to which none is right; one gives spreads only.

    >>> scores = pd.DataFrame(np.log([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
    >>> bias = prior_bias(scores, scores, rng=np.random.default_rng(0), n_permutations=99)
    >>> round(bias.spread.estimate, 3), round(bias.lasting_share.estimate, 3)
    (0.157, 1.0)
    """
    if not presentations:
        raise FrameError("prior bias needs the scores of one presentation at least")
    sure = [confidences(scores) for scores in presentations]
    for frame in sure[1:]:
        if not frame.index.equals(sure[0].index) or not frame.notna().equals(sure[0].notna()):
            said = "the presentations differ in their items or numbers of choices"
            raise FrameError(f"{said}; put them in the source's order with in_source_order")
    n = n_choices(sure[0])
    k = len(sure)
    centred = np.stack([np.nan_to_num(frame.to_numpy() - 1 / n[:, None]) for frame in sure])
    variance = (centred**2).sum(axis=2) / n  # (K, n_items)
    spread = np.sqrt(variance).mean(axis=0)
    lasting = np.full(len(n), np.nan)
    p = float("nan")
    if k > 1:

        def mean_covariance(values: Values) -> Values:
            # All pairs at once: the square of the sum less the sum of the squares.
            squares = (values.sum(axis=0) ** 2).sum(axis=1) / n
            return (squares - (values**2).sum(axis=2).sum(axis=0) / n) / (k * (k - 1))

        lasting = mean_covariance(centred)
        count = 0
        for _ in range(n_permutations):
            # Permute the choices of every presentation but the first, which may stay where it is.
            keys = rng.random(centred[1:].shape)
            order = np.where(np.arange(keys.shape[-1]) < n[:, None], keys, 2.0).argsort(axis=-1)
            moved = np.concatenate([centred[:1], np.take_along_axis(centred[1:], order, axis=-1)])
            count += mean_covariance(moved).mean() >= lasting.mean() - 1e-12
        p = (1 + count) / (1 + n_permutations)
    columns = {"spread": spread, "relative_spread": spread / np.sqrt((n - 1) / n**2)}
    columns["lasting_variance"] = lasting
    instances = pd.DataFrame(columns, index=sure[0].index)
    options: dict[str, Any] = {"rng": rng, "n_boot": n_boot}
    mean = _mean_interval(instances["spread"], **options)
    relative = _mean_interval(instances["relative_spread"], **options)
    share = None
    if k > 1 and variance.any():
        parts = pd.DataFrame({"lasting": lasting, "variance": variance.mean(axis=0)})

        def ratio(stack: Values) -> Values:
            total = stack.sum(axis=-2)
            return total[..., 0] / total[..., 1]

        share = stats.bootstrap(ratio, parts, **options)
    return PriorBias(instances, mean, relative, share, p, len(n))


def _mean_interval(values: pd.Series, **options: Any) -> stats.Interval:
    """Return a mean over items with its bootstrap interval."""
    return stats.bootstrap(lambda stack: stack.mean(axis=(-2, -1)), values.to_frame(), **options)


def choice_paralysis(
    before: pd.DataFrame,
    after: Mapping[int, pd.DataFrame],
    answers: pd.DataFrame | pd.Series,
    *,
    rng: np.random.Generator,
    n_boot: int = 2000,
) -> pd.DataFrame:
    """Compare the confidence in the right choice before and after choices were added (Definition
    2), by the number of choices added.

    With c the confidence before, d that after, and r that after among the item's own choices alone,
    the drop c - d is the sum of c - r (``own``, a change of mind) and r - d (``renormalisation``
    over more choices). ``equal_draw`` is c - c / (1 + m (1 - c)/(n - 1)) for m choices added to n,
    the drop if an added choice drew as much as the mean incorrect one.

    ``after`` are by number of choices added the scores of the perturbed items in the source's order
    (``in_source_order``); ``answers`` the original items, or their answers by item.
    Return by ``n_extra`` means over items: ``before``, ``after``, ``drop`` with ``low``, ``high``,
    ``effect`` (Cohen's d for pairs), ``p`` (Wilcoxon's signed-rank test, two-sided) and ``p_holm``
    (over the rows); the same of ``own``; ``renormalisation`` and ``equal_draw``.

    >>> before = pd.DataFrame([[2.0, 0.0, 0.0]] * 3)
    >>> after = {2: pd.DataFrame([[2.0, 0.0, 0.0, 0.0, 0.0]] * 3)}
    >>> first = pd.Series(0, index=before.index)
    >>> found = choice_paralysis(before, after, first, rng=np.random.default_rng(0))
    >>> found[["drop", "own", "renormalisation", "equal_draw"]].round(3).values.tolist()
    [[0.138, 0.0, 0.138, 0.138]]
    """
    before = check_scores(before)
    n = n_choices(before)
    answer = answer_places(answers, before)
    item = np.arange(len(n))
    rows = {}
    for number, scores in after.items():
        scores = check_scores(scores)
        if not before.index.equals(scores.index):
            raise FrameError("before and after hold different items, or another order")
        m = n_choices(scores) - n
        refuse("items", before.index[m < 1], "have no more choices after than before")
        mine = scores.where(np.arange(scores.shape[1]) < n[:, None])
        c = confidences(before).to_numpy()[item, answer]
        d = confidences(scores).to_numpy()[item, answer]
        r = confidences(mine).to_numpy()[item, answer]
        drops = pd.Series(c - d)
        minds = pd.Series(c - r)
        drawn = pd.Series(c - c / (1 + m * (1 - c) / (n - 1)))
        drop = _mean_interval(drops, rng=rng, n_boot=n_boot)
        own = _mean_interval(minds, rng=rng, n_boot=n_boot)
        renormalisation = _mean_interval(drops - minds, rng=rng, n_boot=n_boot)
        equal_draw = _mean_interval(drawn, rng=rng, n_boot=n_boot)
        effect, p = _paired_test(drops)
        own_effect, p_own = _paired_test(minds)
        row = {"before": c.mean(), "after": d.mean(), "drop": c.mean() - d.mean()}
        row |= {"low": drop.low, "high": drop.high, "effect": effect, "p": p, "p_holm": np.nan}
        row |= {"own": own.estimate, "own_low": own.low, "own_high": own.high}
        row |= {"own_effect": own_effect, "p_own": p_own}
        row["renormalisation"] = renormalisation.estimate
        rows[number] = row | {"equal_draw": equal_draw.estimate}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("n_extra")
    return table.assign(p_holm=stats.holm(table["p"]))


def _paired_test(differences: pd.Series) -> tuple[float, float]:
    """Return Cohen's d for pairs, and the p-value of Wilcoxon's test: differences of rounding size
    count as none; exact for up to 50 without ties, as R's wilcox.test."""
    spread = differences.std()
    effect = differences.mean() / spread if spread > CONFIDENCE_NOISE else np.nan
    values = differences[differences.abs() >= CONFIDENCE_NOISE]
    exact = len(values) <= 50 and not values.abs().duplicated().any()
    method = "exact" if exact else "asymptotic"
    p = scipy_stats.wilcoxon(values, method=method).pvalue if len(values) else 1.0
    return float(effect), float(p)


def calibration(
    scores: pd.DataFrame,
    answers: pd.DataFrame | pd.Series,
    *,
    rng: np.random.Generator,
    n_boot: int = 2000,
) -> stats.Interval:
    """Return the expected calibration error of the predictions (Guo et al. 2017, eq. 5): the mean
    over items of |accuracy - confidence| of their bin, of ten equal bins (low, high].

    The error is biased upwards in small samples, and resamples more so.

    >>> scores, answers = pd.DataFrame(np.log([[0.8, 0.2]] * 4)), pd.Series([0, 0, 0, 1])
    >>> round(calibration(scores, answers, rng=np.random.default_rng(0)).estimate, 3)
    0.05
    """
    sure = confidences(scores).max(axis=1).to_numpy()
    right = grade(answers, scores).to_numpy()
    # A column per bin: accuracy less confidence of the items in it.
    bin_of = np.searchsorted(np.linspace(0, 1, 11)[1:-1], sure)
    gaps = pd.DataFrame((bin_of[:, None] == np.arange(10)) * (right - sure)[:, None])

    def mean_gap(stack: Values) -> Values:
        return np.abs(stack.mean(axis=-2)).sum(axis=-1)

    return stats.bootstrap(mean_gap, gaps, rng=rng, n_boot=n_boot)
