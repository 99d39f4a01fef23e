"""Delta log-likelihood of surprisal, in sample and cross-validated, of hundreds of models at once.

For every model and measure: the log-likelihood of the additive model with the surprisal of the
current and the previous word, its gain over the same model without them (Goodkind & Bicknell 2018;
Hao et al. 2020), and the gain on held-out texts. All models share one design
(:class:`psychlm.reading_times.shared_design.SharedDesign`).

In-sample gains are optimistic, held-out gains are not. The cross-products of a fold are the sum
over its units, so those of a training set are a difference, and the held-out squared error is a
quadratic form: no reading is touched. A unit's gain is the sum over its readings of log N(y; mean,
RSS/n of the training set) for the model minus the same for the baseline. Units, not words, are
resampled and permuted, since words of a text are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor

from psychlm.cluster import run_pieces
from psychlm.corpora.reading_times import places_before
from psychlm.device import Device, one_thread, torch_device
from psychlm.frames import FrameError, check_readings, check_rows, plain
from psychlm.reading_times.contrasts import Floats, FormulaError
from psychlm.reading_times.formula import parse
from psychlm.reading_times.model_matrix import COLLINEAR, Integers, check_response
from psychlm.reading_times.reml import Moments, Solution, solve
from psychlm.reading_times.shared_design import SharedDesign, extend, pivots, share_design

if TYPE_CHECKING:
    from distributed import Client

BASELINE = (
    "te(length_chars, log_frequency) + te(prev_length_chars, prev_log_frequency) + s(position) "
    '+ prev_fixated + s(subject, bs="re")'
)  # Hao et al. (2020), section 2.2, with random intercepts of subjects
KEYS = ["text_id", "word_id"]
# Bytes of the largest array that grows with the number of models solved together: a CPU's cache, or
# what fills a GPU.
CHUNK_BYTES = 16 * 2**20
CHUNK_BYTES_GPU = 2**30


def delta_loglik(
    readings: pd.DataFrame,
    surprisals: pd.DataFrame,
    measure: str | Sequence[str],
    formula: str = BASELINE,
    *,
    models: Sequence[str] | None = None,
    lags: int = 1,
    by: str = "text_id",
    folds: int | None = 10,
    level: float = 0.95,
    n_bootstrap: int = 2000,
    n_permutations: int = 4999,
    rng: np.random.Generator | int = 0,
    device: Device = "auto",
    client: Client | str | None = None,
) -> pd.DataFrame:
    """Return what each language model's surprisal adds to a model of reading times: one row per
    model and measure.

    Parameters
    ----------
    readings : DataFrame
        A readings frame with the measures, and the predictors of ``formula`` without gaps.
    surprisals : DataFrame
        ``text_id``, ``word_id`` and one column of surprisals (bits) for each language model, of
        whole texts: the previous word is looked up here. Words are compared where both frames have
        a column ``word``.
    measure : str or list of str
        The response, or several; those present on the same rows share their design. Gains on
        ``"log(gaze_ms)"`` (lognormal times) compare with those on ``"gaze_ms"``: the change of
        variables adds the same to model and baseline.
    formula : str
        The baseline: the right side of a formula (:mod:`psychlm.reading_times.formula`), to which
        each model's surprisal is added as linear terms.
    models : list of str, optional
        Columns of ``surprisals``; unless given, all but ``text_id``, ``word_id`` and ``word``.
    lags : int
        How many previous words' surprisals are added too (spillover); never those of another text
        or beyond a missing word.
    by : str
        The column whose values make up folds and are resampled: a text's or a sentence's id.
    folds : int or None
        K of the K-fold held-out gains; None leaves them out.
    rng : Generator or int
        Deals the folds, the resamples and the permutations.
    device, client
        Where torch computes; or the Dask client (or scheduler's address) whose workers fit the
        models, on their processors: see :func:`psychlm.cluster.run_pieces`.

    Returns
    -------
    DataFrame
        ``model``, ``measure``; ``n`` (readings); ``loglik`` and ``gain`` over the baseline (nats,
        in sample); ``effect`` of the current word's surprisal with ``effect_low`` and
        ``effect_high`` (in the measure's unit per bit), the same as ``prev_effect...`` for the
        previous word (``prev2_...`` further back); ``edf``; ``heldout_gain`` (nats per reading)
        with ``heldout_low``, ``heldout_high`` (NaN without resamples) and a one-sided
        ``heldout_p``; ``converged``. The expected held-out gain of a predictor that is noise is
        negative, since its coefficients are estimated too.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> words = pd.DataFrame({"text_id": "t", "word_id": np.arange(1, 101)})
    >>> bits = words.assign(gpt2=rng.gamma(4, 1, 100))
    >>> readings = words.assign(subject="s1", length=rng.integers(1, 9, 100))
    >>> readings["gaze_ms"] = 200 + 10 * bits["gpt2"] + rng.normal(0, 20, 100)
    >>> bool(delta_loglik(readings, bits, "gaze_ms", "length", lags=0, folds=None)["gain"].gt(0)[0])
    True
    """
    if client is not None and str(device) not in ("auto", "cpu"):
        raise ValueError(
            f"client= fits the models on the workers' processors, not on {str(device)!r}; leave "
            "out device or client"
        )
    on = device if client is None else "cpu"
    torch_dev = torch_device(on, "reading_times.delta_loglik", float64=True)
    seed = int(np.random.default_rng(rng).integers(2**63))
    readings = plain(readings)
    surprisals = plain(surprisals)
    of_measures = [parse(f"{name} ~ {formula}") for name in np.atleast_1d(measure)]
    measures = [of_measure.response for of_measure in of_measures]
    if of_measures[0].bars:
        raise FormulaError(
            f'{formula!r}: a sweep reads random effects in mgcv\'s notation, s(subject, bs="re") '
            'and s(subject, x, bs="re"), which are independent'
        )
    for of_measure in of_measures:
        readings = of_measure.placed(readings).compute(readings)
    # Measures on another scale than ms (logarithms, say) are accepted too.
    timed = any(name.endswith("_ms") for name in readings.columns)
    readings = check_readings(readings if timed else readings.assign(none_ms=np.nan))
    for measured in measures:
        check_response(readings, measured)
    if by not in readings.columns or readings[by].isna().any():
        raise FrameError(
            f"by={by!r} is no column of the readings without gaps; name a text's or sentence's id"
        )
    unit = np.zeros(len(readings), dtype=np.int64)  # without folds one unit is enough
    if folds is not None:
        unit = pd.factorize(readings[by])[0].astype(np.int64)

    names, scored, word_of_reading = match_words(readings, surprisals, models)
    bits = np.ascontiguousarray(scored[names].to_numpy(np.float64).T)
    places = places_before(scored, lags, ())  # (1 + lags, n_words): itself, the one before, ...
    # Measures that are there on the same rows are one sweep.
    groups: dict[bytes, list[str]] = {}
    for name in measures:
        groups.setdefault(readings[name].notna().to_numpy().tobytes(), []).append(name)
    order = np.lexsort((word_of_reading, unit))
    tables = []
    for of_group in groups.values():
        parsed = of_measures[measures.index(of_group[0])]
        rows = order[readings[of_group[0]].notna().to_numpy()[order]]
        used = [x for x in dict.fromkeys((*parsed.variables, *of_group)) if x in readings]
        data = readings[used].iloc[rows]
        word = word_of_reading[rows]
        design = share_design(data, parsed, of_group, word, unit[rows], torch_dev)
        positions = places[:, design.words]
        first = (positions < 0).any(axis=0)
        if first.any():
            without = scored[KEYS].iloc[positions[0, first]]
            example = next(without.itertuples(index=False, name=None))
            raise FrameError(
                f"{int(first.sum())} words have no previous word in the surprisals, first "
                f"{example} (text_id, word_id); leave out the first words of texts "
                "(corpora.reading_times.exclude does so), or set lags=0"
            )
        dealt = np.random.default_rng(seed)
        swept = Sweep.begin(design, positions, of_group, level, folds, dealt)
        table, gains = swept.run(names, bits, client)
        if gains is not None:
            n = design.base.n.cpu().numpy()
            heldout = summarise(gains, n, dealt, n_bootstrap, n_permutations, level)
            table = table.assign(**heldout, converged=table.pop("converged"))
        tables.append(table)
    result = pd.concat(tables, ignore_index=True)
    return result.sort_values(
        "measure", key=lambda x: x.map(measures.index), kind="stable", ignore_index=True
    )


def match_words(
    readings: pd.DataFrame, surprisals: pd.DataFrame, models: Sequence[str] | None
) -> tuple[list[str], pd.DataFrame, Integers]:
    """Return the models, the sorted surprisals and the row of these for each reading; a word that
    is not scored, or differs where both frames have a column ``word``, is an error."""
    every = surprisals.columns.drop([*KEYS, "word"], errors="ignore")
    names = list(every if models is None else models)
    numeric = surprisals.select_dtypes("number")
    wrong = [name for name in names if name not in numeric]
    if wrong or not names:
        raise FrameError(
            f"the surprisals lack numeric columns for the models {wrong}; name the columns of "
            f"models with models=[...] (there are {list(surprisals.columns)[:10]})"
        )
    table = check_rows(surprisals, KEYS, [], "surprisals")
    table = table.sort_values(KEYS, kind="stable", ignore_index=True)
    index = pd.MultiIndex.from_frame(table[KEYS])
    word = index.get_indexer(pd.MultiIndex.from_frame(readings[KEYS]))
    if (word < 0).any():
        absent = readings.loc[word < 0, KEYS].drop_duplicates()
        first = next(absent.itertuples(index=False, name=None))
        raise FrameError(
            f"{len(absent)} words that were read are not in the surprisals, first {first} "
            "(text_id, word_id); score the same texts, or leave those readings out"
        )
    if "word" in readings and "word" in table:
        scored = table["word"].to_numpy()[word]
        differ = np.flatnonzero(readings["word"].to_numpy() != scored)
        if len(differ):
            read = readings.iloc[differ[0]]
            raise FrameError(
                f"the surprisals do not match the words: {len(differ)} readings differ, first "
                f"text_id {read['text_id']!r}, word_id {read['word_id']}: read {read['word']!r}, "
                f"scored {scored[differ[0]]!r}; is one shifted?"
            )
    return names, table, word


@dataclass(frozen=True)
class Sweep:
    """A design and its fit, to which the surprisals of language models are added."""

    design: SharedDesign
    positions: Integers  # (1 + lags, n_words): of each word, the word before it, ... in surprisals
    measures: list[str]
    level: float  # coverage of the intervals
    fold: Tensor | None  # (U,): of each unit
    penalties: Tensor  # of the design's columns, the surprisals and the grouped random effects
    baseline: Solution
    base_heldout: Tensor  # (U, m): the baseline's held-out log-likelihoods; empty without folds

    @classmethod
    def begin(
        cls,
        design: SharedDesign,
        positions: Integers,
        measures: list[str],
        level: float,
        folds: int | None,
        rng: np.random.Generator,
    ) -> Sweep:
        """Fit the baseline, to all units and without each fold of them."""
        n_units = len(design.base.n)
        if folds is not None and (folds < 2 or n_units < 2):
            raise FrameError(
                f"held-out gains need two folds and two units, and there are {n_units} units; "
                "set folds=None"
            )
        moments = pool(design.base, torch.ones_like(design.base.n)[None])
        check_determined(moments, design.penalties, [f"the {len(design.words)} words"])
        baseline = solve(moments, design.penalties, design.start)
        fold = None
        heldout = torch.empty(0)
        if folds is not None:
            fold = torch.from_numpy(deal_folds(n_units, folds, rng)).to(design.sums.device)
            heldout, _ = heldout_logliks(design, design.base, fold, design.penalties, baseline)
        # Surprisals have no penalty; the grouped random effects come last.
        p = design.sums.shape[1]
        none = design.penalties.new_zeros((len(design.penalties), len(positions)))
        penalties = torch.cat([design.penalties[:, :p], none, design.penalties[:, p:]], dim=1)
        return cls(design, positions, measures, level, fold, penalties, baseline, heldout)

    def run(
        self, names: list[str], values: Floats, client: Client | str | None
    ) -> tuple[pd.DataFrame, Floats | None]:
        """Return what :meth:`add` does for all models, by chunks that fit in the largest array."""
        design = self.design
        on_cpu = design.sums.device.type == "cpu"
        n_effects, n_levels = design.z_sums.shape[:2]
        q = len(self.positions)
        dense = design.sums.shape[1] + q
        # cross-products of units, and those solved at once
        n_folds = 1 if self.fold is None else int(self.fold.max()) + 1
        n_sums = len(design.base.n) + len(self.measures) * n_folds
        per_model = max(n_sums * (dense + n_effects * n_levels) * dense, q * len(design.words))
        size = max(1, (CHUNK_BYTES if on_cpu else CHUNK_BYTES_GPU) // (8 * per_model))
        starts = range(0, len(names), size)
        chunks = [(names[i : i + size], values[i : i + size]) for i in starts]
        if client is None:  # one thread for each chunk
            workers = torch.get_num_threads() if on_cpu else 1
            with one_thread(), ThreadPoolExecutor(workers) as threads:
                done = list(threads.map(self.add, chunks))
        else:
            by_chunk = dict(run_pieces(client, Sweep.add, self, dict(enumerate(chunks))))
            done = [by_chunk[i] for i in range(len(chunks))]
        table = pd.concat([frame for frame, _ in done], ignore_index=True)
        gains = [of_chunk for _, of_chunk in done if of_chunk is not None]
        return table, np.concatenate(gains, axis=1) if gains else None

    @one_thread()
    def add(self, models: tuple[list[str], Floats]) -> tuple[pd.DataFrame, Floats | None]:
        """Fit some models, of which there are names and (n_models, n_table) surprisals in bits.

        Returned are one row per model and measure, and their held-out gains, (n_units, n_rows), or
        None without folds.
        """
        names, values = models
        design = self.design
        m = len(self.measures)
        columns = np.stack([values[:, positions] for positions in self.positions], axis=1)
        units, scale = extend(design, torch.from_numpy(columns).to(design.sums.device), names)
        everything = pool(units, torch.ones_like(design.base.n)[None])
        check_determined(everything, self.penalties, [f"the {len(design.words)} words"])
        full = solve(everything, self.penalties, design.start)
        gain = full.loglik - self.baseline.loglik.repeat(len(names))
        converged = full.converged
        gains = None
        if self.fold is not None:
            heldout, all_converged = heldout_logliks(design, units, self.fold, self.penalties, full)
            gains = (heldout - self.base_heldout.repeat(1, len(names))).cpu().numpy()
            converged = converged & all_converged
        # The surprisals' coefficients in ms per bit, with t intervals.
        p = design.sums.shape[1]
        scale = scale.repeat_interleave(m, dim=0)
        variance = full.inverse.dense.diagonal(dim1=1, dim2=2)[:, p:] * full.scale[:, None]
        estimate = (full.beta[:, p:] / scale).cpu().numpy()
        error = (variance.sqrt() / scale).cpu().numpy()
        dof = (full.n - full.edf.sum(dim=1)).cpu().numpy()
        margin = scipy.stats.t.ppf((1 + self.level) / 2, dof)[:, None] * error
        effects = {}
        for i in range(estimate.shape[1]):
            name = ("effect", "prev_effect")[i] if i < 2 else f"prev{i}_effect"
            effects[name] = estimate[:, i]
            effects[f"{name}_low"] = estimate[:, i] - margin[:, i]
            effects[f"{name}_high"] = estimate[:, i] + margin[:, i]
        frame = pd.DataFrame(
            {
                "model": np.repeat(names, m),
                "measure": self.measures * len(names),
                "n": full.n.cpu().numpy().astype(np.int64),
                "loglik": full.loglik.cpu().numpy(),
                "gain": gain.cpu().numpy(),
                **effects,
                "edf": full.edf.sum(dim=1).cpu().numpy(),
                "converged": converged.cpu().numpy(),
            }
        )
        return frame, gains


def pool(units: Moments, weights: Tensor) -> Moments:
    """Sum the units with each row of weights, (K, U): K x models x measures regressions.

    A weight is 1 in the training set and 0 elsewhere.
    """
    n_sums = len(weights)
    m = units.xy.shape[3]
    n_models = units.xy.shape[1]

    def total(values: Tensor) -> Tensor:
        return torch.tensordot(weights, values, 1)

    def each(values: Tensor) -> Tensor:  # (K, n_models or 1, m or 1, ...) to (K n_models m, ...)
        return values.expand(n_sums, n_models, m, *values.shape[3:]).flatten(0, 2)

    return Moments(
        xx=each(total(units.xx)[:, :, None]),
        xy=each(total(units.xy).mT),
        yy=each(total(units.yy)[:, None]),
        n=each(total(units.n)[:, None, None]),
        zz=each(total(units.zz)[:, None, None]),
        zx=each(total(units.zx)[:, :, None]),
        zy=each(total(units.zy).permute(0, 3, 1, 2)[:, None]),
    )


def deal_folds(n_units: int, k: int, rng: np.random.Generator) -> Integers:
    """Deal the units into k folds at random; return the fold of each."""
    return rng.permutation(np.arange(n_units) % min(k, n_units))


def check_determined(moments: Moments, penalties: Tensor, rows: Sequence[str]) -> None:
    """Refuse regressions of which ``rows`` do not determine the coefficients without a penalty.

    ``rows`` describe those of equal parts of the B regressions, in order.
    """
    free = torch.nonzero(penalties[:, : moments.xy.shape[1]].sum(dim=0) == 0).squeeze(1)
    shares = pivots(moments.xx[:, free][:, :, free])
    few = (shares < COLLINEAR).any(dim=1) | (moments.n <= len(free))
    alike = moments.yy <= COLLINEAR * moments.yy.max()
    wrong = torch.nonzero(few | alike).squeeze(1).tolist()
    if wrong:
        what = f"do not determine {len(free)} coefficients" if few[wrong[0]] else "do not differ"
        raise FrameError(
            f"too few different words: the times of {rows[wrong[0] * len(rows) // len(few)]} "
            f"{what}; read more texts, leave out predictors, or set folds=None"
        )


def heldout_logliks(
    design: SharedDesign, units: Moments, fold: Tensor, penalties: Tensor, full: Solution
) -> tuple[Tensor, Tensor]:
    """Fit without each fold, all folds at once, and return the log-likelihood of its units.

    With b and v = RSS/n of the training set, a unit's is -n/2 log(2 pi v) - (b'X'X b - 2 b'X'y +
    y'y) / 2v. ``full`` holds the fits to all units, at whose smoothing each fold's search begins.
    Returned are nats, (U, models * measures), and whether every fold's smoothing converged.
    """
    n_models, p, m = units.xy.shape[1:]
    n_folds = int(fold.max()) + 1
    held_out = torch.arange(n_folds, device=fold.device)[:, None] == fold
    training = pool(units, (~held_out).to(units.n))
    n_words = torch.from_numpy(np.diff(design.bounds)).to(fold.device)
    check_determined(
        training,
        penalties,
        [
            f"the {int(n_words[fold != k].sum())} words in the {int((fold != k).sum())} texts "
            f"outside of fold {k + 1} of {n_folds}"
            for k in range(n_folds)
        ],
    )
    trained = solve(training, penalties, full.log_lambda.repeat(n_folds, 1))

    # The coefficients that each unit is predicted with: those of the fit without its fold.
    beta = trained.beta.view(n_folds, n_models, m, p)[fold]
    linear = units.xx @ beta.mT - 2 * units.xy  # X'X b - 2 X'y
    squares = torch.einsum("ubmp,ubpm->ubm", beta, linear) + units.yy[:, None, :]
    # The random effects v add v'Z'Z v + 2 v'Z'(X b - y).
    effects = trained.group_beta.unflatten(0, (n_folds, n_models, m))[fold]
    zxb = torch.einsum("ubgrp,ubmp->ubmgr", units.zx, beta)
    towards = 2 * (zxb - units.zy.permute(0, 3, 1, 2)[:, None])
    towards = towards + torch.einsum("ugrs,ubmgs->ubmgr", units.zz, effects)
    squares = (squares + torch.einsum("ubmgr,ubmgr->ubm", effects, towards)).flatten(1)
    variance = (trained.rss / trained.n).view(n_folds, -1)[fold]
    constant = -units.n[:, None] / 2 * torch.log(2 * torch.pi * variance)
    return constant - squares / (2 * variance), trained.converged.view(n_folds, -1).all(dim=0)


def summarise(
    gains: Floats,
    n: Floats,
    rng: np.random.Generator,
    n_bootstrap: int,
    n_permutations: int,
    level: float,
) -> dict[str, Floats]:
    """Turn gains by unit into gains per reading, with a paired bootstrap interval and permutation
    test.

    ``gains``, (U, M), are model minus baseline in nats, ``n`` the readings of each unit. Bounds are
    percentiles over resamples of the units, the same for all models. ``heldout_p`` is one-sided:
    the share of random exchanges of model and baseline within units that give a total at least as
    large, with (count + 1) / (n_permutations + 1) (Phipson & Smyth 2010).
    """
    n_units = len(n)
    total = gains.sum(axis=0)
    # Resamples draw units with replacement: how often each is drawn weighs its gain and readings.
    drawn = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_bootstrap).astype(float)
    resampled = (drawn @ gains) / (drawn @ n)[:, None]
    low, high = np.full((2, gains.shape[1]), np.nan)
    if n_bootstrap:
        low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    # An exchange of model and baseline turns the sign of a unit's gain.
    signs = rng.choice([-1.0, 1.0], size=(n_permutations, n_units))
    as_large = signs @ gains >= total - 1e-12 * np.abs(total)
    p_value = (as_large.sum(axis=0) + 1) / (n_permutations + 1)
    gain = {"heldout_gain": total / n.sum(), "heldout_low": low, "heldout_high": high}
    return gain | {"heldout_p": p_value}
