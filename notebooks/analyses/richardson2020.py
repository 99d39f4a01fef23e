r"""Richardson & Sabharwal (2020): partial-input baselines of probes, and lossless inoculation.

**Partial input** (section 4.1). A probe is built by rules, and rules leave traces. A model that
sees only the choices must be at chance. Each baseline is trained on the probe itself, on questions
about other concepts; a probe is flagged where the interval of a baseline that never sees the
question lies above chance by a margin, or below it: choices that are never right are known too.

**Inoculation** (section 4.2, after Liu et al. 2019). A model trained for a task goes on learning
from k questions of a probe, under several learning rates and seeds; for each k the model with the
best average of both tasks is kept,

.. math:: M^k_* = \arg\max_{M \in \{M^k_1, \ldots, M^k_J\}} \tfrac12 \left(S_{new}(M) +
S_{orig}(M)\right),

both scores on development items; what it learned is read off test items that had no part in the
choice. Its *cost* is what the score on the original task lost. *Add-some* inoculation trains on one
(x1) or two (x2) questions of the original kind beside each of the probe's."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.choice_networks import Kind, Lexicon, TextStore, encoder_model, partial_input_model
from psychlm.corpora import read_items
from psychlm.device import Device
from psychlm.frames import FrameError, check_items
from psychlm.lm import fingerprint, load
from psychlm.lm.cache import ResultStore, key
from psychlm.lm.choices import choice_logprobs, grade, predictions
from psychlm.lm.finetune import digest, fine_tune
from psychlm.probes.scores import instance_accuracy
from psychlm.probes.wordnet import contain
from psychlm.probes.wordnet_qa import Builder

Baseline = Literal[Kind, "vector-similarity"]

BASELINES: tuple[Baseline, ...] = (*get_args(Kind), "vector-similarity")
PARTIAL: tuple[Baseline, ...] = ("choice-only", "choice-to-choice")  # never see the question
MARGIN = 0.05  # by how much an interval must clear chance before a probe is flagged
LEARNING_RATE = 3e-3  # of the baselines
MOST_ADDED = 3000  # questions of the original kind: "x2 matching, up to 3k" (section 4.2)
# of an inoculation
EPOCHS = 3
BATCH_SIZE = 16
SCHEME = 2  # raised whenever a stored cell of a sweep would change


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """The accuracy of a baseline on a probe."""

    baseline: Baseline
    accuracy: float  # on the test items
    low: float  # 95 % interval over clusters
    high: float
    chance: float  # mean of one over the number of choices
    n_train: int
    n_test: int
    logprobs: pd.DataFrame  # nats, test items x choices; cosines for vector similarity


def partial_input_baseline(
    baseline: Baseline,
    train: pd.DataFrame,
    test: pd.DataFrame,
    *,
    lexicon: Lexicon | None = None,
    size: int = 64,
    hidden: int = 64,
    epochs: int = 12,
    patience: int | None = 3,
    seed: int = 0,
    device: Device = "auto",
) -> BaselineResult:
    """Train a baseline on a probe and test it on questions about other concepts.

    Training stops by a fifth of the clusters of ``train``; "vector-similarity" is not trained. Word
    vectors are learned unless ``lexicon`` gives them. FrameError if both share clusters."""
    train, test = (
        items.assign(cluster=items["cluster" if "cluster" in items else "item_id"])
        for items in map(check_items, (train, test))
    )
    if shared := set(train["cluster"]) & set(test["cluster"]):
        raise FrameError(
            f"{len(shared)} clusters stand in training and test ({min(map(str, shared))!r}); split "
            "by cluster, or memory looks like an artefact"
        )
    if baseline == "vector-similarity":
        scores = vector_similarity(test, lexicon)
        n_train = 0
    else:
        # Hold a fifth of the clusters out to stop by, and train on the others.
        clusters = train["cluster"].unique()
        if len(clusters) < 2:
            raise FrameError("all training items are one cluster; add others, to stop training by")
        order = np.random.default_rng(seed).permutation(len(clusters))
        held = train["cluster"].isin(clusters[order[: max(1, round(0.2 * len(clusters)))]])
        train, development = train[~held], train[held]
        words = lexicon or Lexicon.learned(train)
        sizes = {"size": size, "hidden": hidden}
        model = partial_input_model(baseline, words, seed=seed, device=device, **sizes)
        learning: dict[str, Any] = {"learning_rate": LEARNING_RATE, "epochs": epochs}
        learning |= {"patience": patience, "development": development}
        scores = model.train(train, seed=seed, **learning).logprobs(test)
        n_train = len(train)
    right = grade(test, scores)
    accuracy = instance_accuracy(test.assign(all="all"), right, by="all").iloc[0]
    numbers = {name: float(accuracy[name]) for name in ("accuracy", "low", "high")}
    numbers["chance"] = float((1 / test["choices"].map(len)).mean())
    return BaselineResult(baseline, **numbers, n_train=n_train, n_test=len(test), logprobs=scores)


def baseline_table(results: Iterable[BaselineResult]) -> pd.DataFrame:
    """Return one row per result: its numbers, and whether its interval ``beats_chance`` or lies
    ``below_chance``, by the margin; either ``flags`` an artefact where the question is not seen."""
    table = pd.DataFrame([vars(one) for one in results]).drop(columns="logprobs")
    table["beats_chance"] = table["low"] > table["chance"] + MARGIN
    table["below_chance"] = table["high"] < table["chance"] - MARGIN
    off_chance = table["beats_chance"] | table["below_chance"]
    return table.assign(flags=off_chance & table["baseline"].isin(PARTIAL))


def vector_similarity(items: pd.DataFrame, lexicon: Lexicon | None) -> pd.DataFrame:
    """Return the cosine of the mean word vectors of question and choice, items x choices. NaN where
    an item has fewer choices; 0 where a text has no known word."""
    if lexicon is None or lexicon.vectors is None:
        raise ValueError("vector similarity needs given vectors: lexicon=Lexicon.of_encoder()")
    zero = np.zeros((1, lexicon.vectors.shape[1]), dtype=np.float32)

    def unit_means(texts: list[str]) -> list[NDArray[np.float32]]:
        encoded = lexicon.encode(texts)
        means = np.stack([(words if len(words) else zero).mean(axis=0) for words in encoded])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        return list(means / np.maximum(norms, np.finfo(np.float32).tiny))

    store = TextStore(unit_means)
    questions, choices = store.rows(items)
    vectors = np.stack(store.values)
    cosines = np.full(choices.shape, np.nan)
    for column in range(choices.shape[1]):
        row = np.flatnonzero(choices[:, column] >= 0)
        products = vectors[questions[row]] * vectors[choices[row, column]]
        cosines[row, column] = products.sum(axis=1)
    index = pd.Index(items["item_id"], name="item")
    return pd.DataFrame(cosines, index=index).rename_axis(columns="choice")


@dataclass(frozen=True, eq=False)
class Inoculation:
    """What inoculation with a probe did to a model."""

    # A trained model per row: k, learning_rate, epochs, seed, add_some, and its accuracies "new",
    # "original", their "average", and "test".
    cells: pd.DataFrame
    before: pd.Series  # the accuracies of the model as it came
    predictions: pd.DataFrame  # models (-1: as it came) x test items: the choice taken, 0-based

    @property
    def best(self) -> pd.DataFrame:
        """The cell with the best average of both tasks for each ``add_some`` and ``k`` (0: as it
        came), with its ``cost``, the loss of accuracy on the original task."""
        best = self.cells.groupby(["add_some", "k"])["average"].idxmax()
        chosen = self.cells.loc[best].rename_axis("cell").reset_index()
        as_it_came = [
            {"cell": -1, "k": 0, "add_some": times, **self.before}
            for times in self.cells["add_some"].unique()
        ]
        table = pd.concat([pd.DataFrame(as_it_came), chosen])
        table = table.sort_values(["add_some", "k"], ignore_index=True)
        return table.assign(cost=self.before["original"] - table["original"])

    def correct(self, test: pd.DataFrame) -> pd.DataFrame:
        """Return the graded answers of every model, models x test items (1 right, 0 wrong)."""
        answers = test.set_index("item_id")["answer"]
        return self.predictions[answers.index].eq(answers, axis=1).astype(float)


def inoculate(
    model: Any,
    train: pd.DataFrame,
    new: pd.DataFrame,
    original: pd.DataFrame,
    test: pd.DataFrame,
    *,
    sizes: Sequence[int],
    learning_rates: Sequence[float],
    n_seeds: int,
    add_some: Sequence[int] = (0,),
    more: pd.DataFrame | None = None,
) -> Inoculation:
    """Inoculate a model with a probe, once for every combination of the values given.

    Copies of ``model``, trained on the original task, learn from k (``sizes``) items of ``train``
    and, for each, ``add_some`` of ``more``, of the original kind; ``new`` and ``original`` choose
    the model, ``original`` tells its cost, ``test`` is reported. Finished cells are kept in the
    cache (:mod:`psychlm.lm.cache`), so that a killed sweep resumes."""
    parts = {"train": train, "new": new, "original": original, "test": test}
    parts |= {} if more is None else {"more": more}
    parts = {name: check_items(items).reset_index(drop=True) for name, items in parts.items()}
    _check_parts(parts, sizes, add_some)
    identity: dict[str, Any] = {name: digest(items) for name, items in parts.items()}
    identity |= {"model": model.fingerprint, "batch_size": BATCH_SIZE, "scheme": SCHEME}
    names = ("k", "learning_rate", "epochs", "seed", "add_some")
    values = product(sizes, learning_rates, [EPOCHS], range(n_seeds), add_some)
    cells = [dict(zip(names, row, strict=True)) for row in values]
    results = [_examined(model, parts)]
    keys = [key(json.dumps(identity | cell, sort_keys=True)) for cell in cells]
    with ResultStore() as store:
        stored = store.get(dict.fromkeys(keys, (1, len(parts["test"]))))
        for name, cell in zip(keys, cells, strict=True):
            if name not in stored:
                used = ("seed", "learning_rate", "epochs")
                options: dict[str, Any] = {option: cell[option] for option in used}
                options |= {"batch_size": BATCH_SIZE, "patience": None}
                trained = model.train(_lesson(parts, cell), **options)
                stored[name] = _examined(trained, parts)
                store.put([(name, *stored[name])])
            results.append(stored[name])
    columns = ["new", "original", "test"]
    accuracy = pd.DataFrame([accuracies for _, accuracies in results], columns=columns)
    accuracy.insert(2, "average", (accuracy["new"] + accuracy["original"]) / 2)
    table = pd.DataFrame(cells).join(accuracy.iloc[1:].reset_index(drop=True)).rename_axis("cell")
    predicted = pd.DataFrame(
        np.concatenate([taken for taken, _ in results]).astype(int),
        index=pd.RangeIndex(-1, len(cells), name="cell"),
        columns=pd.Index(parts["test"]["item_id"], name="item"),
    )
    return Inoculation(table, accuracy.iloc[0], predicted)


def _lesson(parts: dict[str, pd.DataFrame], cell: dict[str, Any]) -> pd.DataFrame:
    """Return the items that a cell learns from: the first k of an order that depends on the seed,
    so that larger k hold the smaller, and those added."""
    rng = np.random.default_rng(cell["seed"])
    train = parts["train"]
    items = train.iloc[rng.permutation(len(train))[: cell["k"]]]
    if not cell["add_some"]:
        return items
    more = parts["more"]
    n_added = min(cell["add_some"] * cell["k"], MOST_ADDED)
    added = more.iloc[rng.permutation(len(more))[:n_added]]
    return pd.concat([items, added], ignore_index=True)


def _examined(
    model: Any, parts: dict[str, pd.DataFrame]
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return the choices that a model takes on the test items, (1, items), and its accuracies by
    part."""
    accuracy = {}
    for name in ("new", "original", "test"):
        scores = model.logprobs(parts[name])
        accuracy[name] = float(grade(parts[name], scores).mean())
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of ties
        return predictions(scores).to_numpy(float)[None], accuracy


def _check_parts(
    parts: dict[str, pd.DataFrame], sizes: Sequence[int], add_some: Sequence[int]
) -> None:
    """Raise where a sweep has too few items, or would be scored on items that it learns from."""
    if max(sizes) > len(parts["train"]) or min(sizes) < 1:
        raise FrameError(f"sizes {sizes} need 1 to {len(parts['train'])} training items")
    n_added = max(min(times * max(sizes), MOST_ADDED) for times in add_some)
    n_more = len(parts.get("more", ()))
    if n_more < n_added:
        raise FrameError(f"add_some={add_some} needs {n_added} items; more has {n_more}")
    pairs = list(combinations(("train", "new", "test"), 2))
    for first, second in [*pairs, ("more", "original")] if n_more else pairs:
        by_cluster = all("cluster" in parts[part] for part in (first, second))
        column = "cluster" if by_cluster and first != "more" else "item_id"
        if shared := set(parts[first][column]) & set(parts[second][column]):
            raise FrameError(
                f"{len(shared)} of {column} stand in {first} and in {second}; leave them out, or "
                "split by cluster"
            )


def science_model(
    encoder: str | Path,
    learn: pd.DataFrame,
    check: pd.DataFrame,
    learning_rates: Iterable[float],
    *,
    whole: bool = False,
    seed: int = 0,
    device: Device = "auto",
) -> tuple[Any, Any]:
    """Return a model before and after it learned the original task, with the best learning rate.

    ``check`` are items to stop and to choose the learning rate by. The whole encoder learns on
    joint texts, or else a head on its frozen states."""
    untrained: Any = encoder_model(encoder, seed=seed, device=device)
    options: dict[str, Any] = {"seed": seed}
    if whole:
        options["keep"] = True
        pretrained = FineTunedModel(encoder, device=device)
        untrained = pretrained.train(learn, regime="pre-train only", **options)
    options |= {"epochs": 8, "patience": 3, "development": check}
    trained = [untrained.train(learn, learning_rate=rate, **options) for rate in learning_rates]
    return untrained, max(trained, key=lambda model: model.accuracy(check))


def inoculation_gain(
    done: Inoculation, test: pd.DataFrame, *, rng: np.random.Generator, n_boot: int = 2000
) -> pd.Series:
    """Return what the most questions of a sweep, without any added, changed on the test questions
    of its probe, which have ``cluster``.

    Each seed keeps the cell with the best average of both tasks. The interval (95 %) is that of a
    bootstrap over seeds and clusters; ``smallest`` and ``largest`` are gains of single seeds."""
    cells = done.cells[done.cells["add_some"] == 0]
    cells = cells[cells["k"] == cells["k"].max()]
    kept = cells.loc[cells.groupby("seed")["average"].idxmax()]
    grades = done.correct(test)
    change = (grades.loc[kept.index] - grades.loc[-1]).T  # questions x seeds
    sums = change.groupby(test["cluster"].to_numpy()).sum().to_numpy()
    sizes = test.groupby("cluster").size().to_numpy()
    of_seed = sums.sum(axis=0) / sizes.sum()
    clusters = rng.integers(0, len(sizes), (n_boot, len(sizes)))
    seeds = rng.integers(0, len(kept), (n_boot, len(kept)))
    drawn = sums[clusters].sum(axis=1) / sizes[clusters].sum(axis=1)[:, None]  # resamples x seeds
    low, high = np.quantile(np.take_along_axis(drawn, seeds, axis=1).mean(axis=1), [0.025, 0.975])
    before = grades.loc[-1].mean()
    gain = {"before": before, "after": before + of_seed.mean(), "gain": of_seed.mean()}
    gain |= {"low": low, "high": high, "smallest": of_seed.min(), "largest": of_seed.max()}
    gain["cost"] = (done.before["original"] - kept["original"]).mean()
    return pd.Series(gain | {"n_questions": len(test), "n_seeds": len(kept)})


@dataclass(frozen=True, eq=False)
class FineTunedModel:
    """A multiple-choice checkpoint that :func:`psychlm.lm.fine_tune` trains as a whole: slow, and
    any encoder."""

    folder: str | Path  # or a name of the hub, before it learns
    max_tokens: int = 128
    device: Device = "auto"
    temporary: Any = None  # the temporary folder of a trained copy, removed with it

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the folder's files, and how it is trained."""
        return f"{fingerprint(Path(self.folder))} max_tokens={self.max_tokens}"

    def train(
        self,
        items: pd.DataFrame,
        *,
        epochs: int = 3,
        patience: int | None = None,
        keep: bool = False,
        **options: Any,
    ) -> FineTunedModel:
        """Return a copy, fine-tuned with further options of that function. It is removed with this
        object unless ``keep``: the same call then resumes or reads it."""
        options |= {"epochs": epochs, "patience": patience or epochs, "device": self.device}
        options |= {"task": "multiple-choice", "max_tokens": self.max_tokens, "out": None}
        temporary = None if keep else tempfile.TemporaryDirectory(prefix="psychlm-inoculation-")
        if temporary is not None:
            options["out"] = temporary.name
        result = fine_tune(items, self.folder, **options)
        return replace(self, folder=result.folder, temporary=temporary)

    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return scores of the choices, items x choices."""
        model = load(self.folder, self.device)
        return choice_logprobs(items, model, cache=self.temporary is None)

    def accuracy(self, items: pd.DataFrame) -> float:
        """Return the share of items answered right."""
        return float(grade(items, self.logprobs(items)).mean())


def released(probe: str, source: str | Path | None = None) -> pd.DataFrame:
    """Return a probe as the authors released it: items with ``probe``, ``cluster`` (the concept or
    sense asked about), ``hops``, ``distractor_set``, and ``vote``, the choice (0-based) that most
    crowd workers took, missing where nobody was asked.

    The source is a dataset of that name, or a file of their layout: ARC's, with ``notes``."""
    items = read_items(source or f"mcqa/richardson2020/{probe}")
    names = ["gold_synset", "hops", "distractor_type", "turk_vote"]
    notes = pd.DataFrame(items.pop("notes").tolist(), items.index).reindex(columns=names)
    notes = notes.fillna({"distractor_type": "other senses"}).astype({"turk_vote": float})
    columns = dict(zip(names, ["cluster", "hops", "distractor_set", "vote"], strict=True))
    return items.assign(probe=probe).join(notes.rename(columns=columns))


def check_questions(builder: Builder, questions: pd.DataFrame) -> pd.DataFrame:
    """Look WordNet questions up in the graph again, from the names in their rows alone.

    Return for each question whether it has a ``second right answer`` among its distractors, and
    whether it is ``wrong``: that, or a choice does not stand in the relation recorded."""
    graph = builder.graph
    number = pd.Series(np.arange(builder.graph.n), index=builder.names)
    probe = questions["probe"].to_numpy()
    concept = number[questions["concept"]].to_numpy()
    key = number[questions["answer_concept"]].to_numpy()
    up = probe == "hypernymy"
    down = probe == "hyponymy"
    hops = np.select([up, down], [graph.hops(concept, key), graph.hops(key, concept)], 0)
    wrong_key = (hops != questions["hops"].to_numpy()) | (~(up | down) & (concept != key))
    # the distractors of all questions in one array
    row = np.repeat(np.arange(len(questions)), questions["distractor_concepts"].map(len))
    concept_of_row = concept[row]
    distractor = number[np.concatenate(questions["distractor_concepts"].to_numpy())].to_numpy()
    above = contain(graph.isa_or_instance, concept_of_row, distractor)
    below = contain(graph.isa_or_instance, distractor, concept_of_row)
    right = (concept_of_row == distractor) | np.select([up[row], down[row]], [above, below], False)
    kind = np.concatenate(questions["distractor_types"].to_numpy())
    distances = {
        "hypernym": graph.hops(concept_of_row, distractor),
        "hyponym": graph.hops(distractor, concept_of_row),
        "sister": graph.sister_distance(concept_of_row, distractor),
    }
    distance = np.select([kind == name for name in distances], list(distances.values()), 0)
    misplaced = distance != np.concatenate(questions["distractor_distances"].to_numpy())
    flawed = np.bincount(row, right | misplaced, len(questions)) > 0
    second = np.bincount(row, right, len(questions)) > 0
    return pd.DataFrame({"wrong": wrong_key | flawed, "second right answer": second})
