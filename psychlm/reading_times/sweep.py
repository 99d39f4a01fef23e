"""How much does each language model's surprisal add to a model of reading times? Hundreds of models at once.

For every model and measure: the log-likelihood of the additive model with the surprisal of the current and the previous
word, its gain over the same model without them (Goodkind & Bicknell 2018; Hao et al. 2020), and the gain on held-out
texts. All models share one design (see :mod:`psychlm.reading_times.design`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats

from psychlm import frames
from psychlm.frames import FrameError
from psychlm.reading_times import heldout
from psychlm.reading_times.design import Design, extend, share
from psychlm.reading_times.formula import parse
from psychlm.reading_times.gam import torch_device
from psychlm.reading_times.layout import check_response
from psychlm.reading_times.reml import Method, Solution, one_thread, solve

BASELINE = (
    "te(length_chars, log_frequency) + te(prev_length_chars, prev_log_frequency) + s(position) + prev_fixated"
    ' + s(subject, bs="re")'
)  # Hao et al. (2020), section 2.2, with random intercepts of subjects
# Bytes of the largest array that grows with the number of models solved together: a CPU's cache, or what fills a GPU.
CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 2**30}

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Options:
    method: Method
    level: float
    folds: int | None
    n_bootstrap: int
    n_permutations: int
    device: torch.device


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
    method: Method = "REML",
    level: float = 0.95,
    n_bootstrap: int = 2000,
    n_permutations: int = 4999,
    rng: np.random.Generator | int = 0,
    device: str = "auto",
) -> pd.DataFrame:
    """Return what each language model's surprisal adds to a model of reading times: one row a model and measure.

    Parameters
    ----------
    readings : DataFrame
        A readings frame with one or more measures and the predictors of ``formula``. A row is used for a measure where
        that measure is there; predictors must have no gaps on those rows.
    surprisals : DataFrame
        ``text_id``, ``word_id`` and one column of surprisals (bits) for each language model; if both frames have a
        column ``word`` the words are compared. It holds whole texts: the previous word is looked up here.
    measure : str or list of str
        The response, or several; those present on the same rows share their design.
    formula : str
        The baseline: the right side of a formula (see :mod:`psychlm.reading_times.formula`), to which each model's surprisal
        is added as linear terms.
    models : list of str, optional
        Columns of ``surprisals``; unless given, all but ``text_id``, ``word_id`` and ``word``.
    lags : int
        How many previous words' surprisals are added too (spillover).
    by : str
        The column of ``readings`` whose values make up folds and are resampled: ``"text_id"``, or a sentence's id.
    folds : int or None
        K of the K-fold held-out gains; None leaves them out.
    level : float
        Coverage of the intervals.
    rng : Generator or int
        Deals the folds, the resamples and the permutations.

    Returns
    -------
    DataFrame
        ``model``, ``measure``; ``n`` (readings); ``loglik`` and ``gain`` over the baseline (nats, in sample);
        ``effect`` of the current word's surprisal with ``effect_low`` and ``effect_high`` (in the measure's unit per
        bit), the same as ``prev_effect...`` for the previous word (``prev2_...`` further back); ``edf``;
        ``heldout_gain`` (nats per reading) with ``heldout_low``, ``heldout_high`` and ``heldout_p``; ``converged``.

    Raises
    ------
    FrameError
        If the frames do not fit each other or a predictor cannot be used; the message says which, why, what to do.
    """
    if lags < 0:
        raise ValueError(
            f"lags is {lags}; it counts the previous words whose surprisal is added, 0 or more"
        )
    generator = np.random.default_rng(rng)
    measures = [measure] if isinstance(measure, str) else list(measure)
    options = _Options(method, level, folds, n_bootstrap, n_permutations, torch_device(device))
    readings = _check(readings)
    for name in measures:
        check_response(readings, name)
    table, names = _surprisal_table(surprisals, models)
    word = _match_words(readings, table)
    previous = _previous_words(table, lags)
    unit = _units(readings, by)
    order = np.lexsort((word, unit))
    seed = int(generator.integers(2**63))
    tables = []
    for group in _same_rows(readings, measures):
        rows = order[readings[group[0]].notna().to_numpy()[order]]
        parsed = parse(f"{group[0]} ~ {formula}")
        used = [
            name for name in dict.fromkeys((*parsed.variables, *group)) if name in readings.columns
        ]
        design = share(
            readings[used].iloc[rows], parsed, group, word[rows], unit[rows], options.device
        )
        positions = np.stack([design.words, *(lag[design.words] for lag in previous)])
        _require_previous(positions, table)
        tables.append(_sweep(design, table, names, positions, group, options, seed))
    result = pd.concat(tables, ignore_index=True)
    result["measure"] = pd.Categorical(result["measure"], measures)
    return result.sort_values("measure", kind="stable", ignore_index=True).astype(
        {"measure": "str"}
    )


def _check(readings: pd.DataFrame) -> pd.DataFrame:
    """Check a readings frame; one whose measures are all on another scale than ms (logarithms, say) will do too."""
    if any(name.endswith("_ms") for name in readings.columns):
        return frames.check_readings(readings)
    return frames.check_readings(readings.assign(none_ms=np.nan)).drop(columns="none_ms")


def _surprisal_table(
    surprisals: pd.DataFrame, models: Sequence[str] | None
) -> tuple[pd.DataFrame, list[str]]:
    """Check the table of surprisals and sort it by text and word."""
    missing = [name for name in ("text_id", "word_id") if name not in surprisals.columns]
    if missing:
        raise FrameError(
            f"the surprisals have no columns {missing}; they need text_id, word_id and a column a model"
        )
    names = (
        [c for c in surprisals.columns if c not in ("text_id", "word_id", "word")]
        if models is None
        else list(models)
    )
    absent = [name for name in names if name not in surprisals.columns]
    text = [
        name
        for name in names
        if name not in absent and not pd.api.types.is_numeric_dtype(surprisals[name])
    ]
    if absent or text or not names:
        raise FrameError(
            f"models {absent} are no columns of the surprisals, and {text} hold no numbers; name the columns with "
            f"models=[...] (there are {list(surprisals.columns)[:10]})"
        )
    table = surprisals.assign(text_id=surprisals["text_id"].astype(str)).sort_values(
        ["text_id", "word_id"], kind="stable"
    )
    twice = table.duplicated(["text_id", "word_id"])
    if twice.any():
        raise FrameError(
            f"{int(twice.sum())} words stand more than once in the surprisals, first {_first(table[twice])}; keep one"
        )
    return table.reset_index(drop=True), names


def _first(words: pd.DataFrame) -> str:
    return f"({words['text_id'].iloc[0]!r}, {int(words['word_id'].iloc[0])})"


def _match_words(readings: pd.DataFrame, table: pd.DataFrame) -> Integers:
    """Return each reading's position in the table, or say which words do not match."""
    texts = pd.Index(table["text_id"].unique())
    span = int(max(table["word_id"].max(), readings["word_id"].max())) + 1

    def keys(frame: pd.DataFrame) -> Integers:
        codes, unique = pd.factorize(frame["text_id"])
        return texts.get_indexer(unique)[codes].astype(np.int64) * span + frame["word_id"].to_numpy(
            np.int64
        )

    known, wanted = keys(table), keys(readings)
    position = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    absent = known[position] != wanted
    if absent.any():
        examples = readings.loc[absent, ["text_id", "word_id"]].drop_duplicates()
        raise FrameError(
            f"{len(examples)} words that were read are not in the surprisals, first {_first(examples)} "
            "(text_id, word_id); score the same texts, or leave those readings out"
        )
    if "word" in readings.columns and "word" in table.columns:
        other = readings["word"].to_numpy() != table["word"].to_numpy()[position]
        if other.any():
            first = int(np.argmax(other))
            raise FrameError(
                f"the surprisals do not match the words: {int(other.sum())} readings differ, first text_id "
                f"{readings['text_id'].iloc[first]!r}, word_id {readings['word_id'].iloc[first]}: read "
                f"{readings['word'].iloc[first]!r}, scored {table['word'].iloc[position[first]]!r}; is one shifted?"
            )
    return position


def _previous_words(table: pd.DataFrame, lags: int) -> list[Integers]:
    """Return, for each lag, the position of the word that many before in the same text, or -1 where there is none."""
    text, word = pd.factorize(table["text_id"])[0], table["word_id"].to_numpy(np.int64)
    result = []
    for lag in range(1, lags + 1):
        position = np.full(len(table), -1)
        follows = (text[lag:] == text[:-lag]) & (word[lag:] == word[:-lag] + lag)
        position[lag:][follows] = np.flatnonzero(follows)
        result.append(position)
    return result


def _require_previous(positions: Integers, table: pd.DataFrame) -> None:
    first = (positions < 0).any(axis=0)
    if first.any():
        example = _first(table.iloc[positions[0, first][:1]])
        raise FrameError(
            f"{int(first.sum())} words have no previous word in the surprisals, first {example} (text_id, word_id); "
            "leave out the first words of texts (corpora.exclude does), or set lags=0"
        )


def _units(readings: pd.DataFrame, by: str) -> Integers:
    if by not in readings.columns:
        raise FrameError(
            f"by={by!r} is no column of the readings; name the texts' or the sentences' id"
        )
    codes = pd.factorize(readings[by])[0].astype(np.int64)
    if (codes < 0).any():
        raise FrameError(
            f"{by!r} is missing in {int((codes < 0).sum())} rows; give every reading a text or sentence"
        )
    return codes


def _same_rows(readings: pd.DataFrame, measures: Sequence[str]) -> list[list[str]]:
    """Group measures that are present on the same rows."""
    groups: dict[bytes, list[str]] = {}
    for name in measures:
        groups.setdefault(np.packbits(readings[name].notna().to_numpy()).tobytes(), []).append(name)
    return list(groups.values())


@dataclass(frozen=True)
class _Shared:
    """What the language models of a sweep have in common; ``fold`` and ``base_held`` only with held-out gains."""

    design: Design
    base: Solution
    base_held: torch.Tensor | None
    fold: torch.Tensor | None
    table: pd.DataFrame
    positions: Integers
    measures: list[str]
    options: _Options

    def chunk_size(self) -> int:
        """Return how many models fit in the largest array."""
        columns, q = len(self.design.names) + len(self.positions), len(self.positions)
        per_model = 8 * max(
            (len(self.design.base.n) + len(self.measures)) * columns**2, q * len(self.design.words)
        )
        return max(1, CHUNK_BYTES[self.options.device.type] // per_model)

    def solve(self, models: list[str]) -> tuple[pd.DataFrame, np.ndarray | None]:
        """Return one row a model and measure, and their held-out gains by unit, shape (n_units, n_rows)."""
        values = np.ascontiguousarray(self.table[models].to_numpy(np.float64).T)
        columns = np.stack([values[:, position] for position in self.positions], axis=1)
        units, scale = extend(
            self.design, torch.from_numpy(columns).to(self.options.device), models
        )
        penalties = torch.nn.functional.pad(self.design.penalties, (0, len(self.positions)))
        full = solve(
            heldout.regressions(units), penalties, self.design.start, method=self.options.method
        )
        converged, gains, m = full.converged, None, len(self.measures)
        if self.fold is not None and self.base_held is not None:
            held, steady = heldout.logliks(units, self.fold, penalties, full, self.options.method)
            gains = (held - self.base_held.repeat(1, len(models))).cpu().numpy()
            converged = converged & steady
        frame = _effects(
            full, scale.repeat_interleave(m, dim=0), len(self.design.names), self.options.level
        )
        frame["gain"] = (full.loglik - self.base.loglik.repeat(len(models))).cpu().numpy()
        frame["converged"] = converged.cpu().numpy()
        frame.insert(0, "measure", self.measures * len(models))
        frame.insert(0, "model", np.repeat(models, m))
        return frame, gains


def _sweep(
    design: Design,
    table: pd.DataFrame,
    names: list[str],
    positions: Integers,
    measures: list[str],
    options: _Options,
    seed: int,
) -> pd.DataFrame:
    """Solve the baseline, then the models in chunks, and gather one row a model and measure."""
    rng, n_units = np.random.default_rng(seed), len(design.base.n)
    fold = base_held = None
    if options.folds is None:  # nothing asks for the units apart
        design = _as_one_unit(design)
    elif options.folds < 2 or n_units < 2:
        raise FrameError(
            f"held-out gains need two folds and two units, and there are {n_units} units; folds=None"
        )
    base = solve(
        heldout.regressions(design.base), design.penalties, design.start, method=options.method
    )
    if options.folds is not None:
        fold = torch.from_numpy(heldout.folds(n_units, options.folds, rng)).to(options.device)
        base_held, _ = heldout.logliks(design.base, fold, design.penalties, base, options.method)
    shared = _Shared(design, base, base_held, fold, table, positions, measures, options)
    size = shared.chunk_size()
    chunks = [names[begin : begin + size] for begin in range(0, len(names), size)]
    workers = torch.get_num_threads() if options.device.type == "cpu" else 1
    with (
        one_thread(),
        ThreadPoolExecutor(workers) as pool,
    ):  # a thread a chunk, since threads within one only wait
        frames_, gains = zip(*pool.map(shared.solve, chunks), strict=True)
    result = pd.concat(frames_, ignore_index=True)
    order = [
        "model",
        "measure",
        "n",
        "loglik",
        "gain",
        *(c for c in result if "effect" in c),
        "edf",
    ]
    if fold is not None:
        found = heldout.summarise(
            np.concatenate(gains, axis=1),
            design.base.n.cpu().numpy(),
            rng,
            n_bootstrap=options.n_bootstrap,
            n_permutations=options.n_permutations,
            level=options.level,
        )
        held = {"heldout_gain": found.gain, "heldout_low": found.low, "heldout_high": found.high}
        result = result.assign(**held, heldout_p=found.p_value)
        order += [*held, "heldout_p"]
    return result[[*order, "converged"]]


def _as_one_unit(design: Design) -> Design:
    base = design.base
    whole = type(base)(*(getattr(base, name).sum(dim=0, keepdim=True) for name in vars(base)))
    return replace(design, base=whole, bounds=design.bounds[[0, -1]])


def _effects(full: Solution, scale: torch.Tensor, p: int, level: float) -> pd.DataFrame:
    """Return log-likelihood, edf and the surprisals' coefficients with intervals, one row a regression."""
    variance = full.inverse.diagonal(dim1=1, dim2=2)[:, p:] * full.scale[:, None]
    estimate, error = (
        (full.beta[:, p:] / scale).cpu().numpy(),
        (variance.sqrt() / scale).cpu().numpy(),
    )
    edf, n = full.edf.sum(dim=1).cpu().numpy(), full.n.cpu().numpy()
    reach = stats.t.ppf((1 + level) / 2, n - edf)[:, None] * error
    columns = {"n": n.astype(np.int64), "loglik": full.loglik.cpu().numpy(), "edf": edf}
    for i in range(estimate.shape[1]):
        name = "effect" if i == 0 else f"prev{i if i > 1 else ''}_effect"
        columns[name] = estimate[:, i]
        columns[f"{name}_low"], columns[f"{name}_high"] = (
            estimate[:, i] - reach[:, i],
            estimate[:, i] + reach[:, i],
        )
    return pd.DataFrame(columns)
