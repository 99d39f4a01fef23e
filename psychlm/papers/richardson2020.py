r"""Richardson & Sabharwal (2020): partial-input baselines of probes, and lossless inoculation.

**Partial input** (section 4.1). A probe is built by rules, and rules leave traces. A model that
sees only the choices must be at chance, and one that reads questions and choices without knowledge
should do badly. Each baseline is trained on the probe itself, on questions about other concepts. A
probe is flagged where the interval of a baseline that never sees the question lies above chance by
a margin, or below it: choices that are never right are known too.

**Inoculation** (section 4.2, after Liu et al. 2019). A model trained for a task goes on learning
from k questions of a probe, under several learning rates, numbers of epochs and seeds; for each k
the model with the best average of both
tasks is kept,

.. math:: M^k_* = \arg\max_{M \in \{M^k_1, \ldots, M^k_J\}} \tfrac12 \left(S_{new}(M) +
S_{orig}(M)\right),

both scores on development items; what it learned is read off test items that had no part in the
choice. Its *inoculation cost* is what the score on the original task lost. *Add-some* inoculation
trains on one (x1) or two (x2) questions of the original kind beside each of the probe's.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from psychlm.data import atomic_write
from psychlm.device import Device
from psychlm.frames import FrameError, check_items
from psychlm.lm import fingerprint, load
from psychlm.lm.choices import choice_logprobs, grade, predictions
from psychlm.lm.finetune import digest, fine_tune
from psychlm.papers.choice_networks import Kind, Lexicon, encoder_model, partial_input_model
from psychlm.probes.scores import instance_accuracy
from psychlm.probes.wordnet_qa import Builder

Baseline = Literal[Kind, "vector-similarity"]

BASELINES: tuple[Baseline, ...] = (*get_args(Kind), "vector-similarity")
PARTIAL: tuple[Baseline, ...] = ("choice-only", "choice-to-choice")  # never see the question
MARGIN = 0.05  # by how much an interval must clear chance before a probe is flagged
LEARNING_RATE = 3e-3  # of the baselines
MOST_ADDED = 3000  # questions of the original kind: "x2 matching, up to 3k" (section 4.2)
TEXTS_AT_ONCE = 10_000  # whose words' vectors are in memory together
SCHEME = 1  # raised whenever a stored cell of a sweep would change


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """The accuracy of a baseline on a probe.

    Attributes
    ----------
    baseline, embeddings : str
        Its name; word vectors ``"learned"`` or ``"given"``.
    accuracy, low, high : float
        On the test items, with a 95 % interval over clusters.
    chance : float
        Mean of one over the number of choices.
    n_train, n_test : int
    logprobs : DataFrame, test items x choices
        Nats; cosines for vector similarity.
    """

    baseline: Baseline
    embeddings: str
    accuracy: float
    low: float
    high: float
    chance: float
    n_train: int
    n_test: int
    logprobs: pd.DataFrame

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval lies above chance by the margin."""
        return self.low > self.chance + MARGIN

    @property
    def below_chance(self) -> bool:
        """Whether the whole interval lies below chance by the margin."""
        return self.high < self.chance - MARGIN

    @property
    def flags(self) -> bool:
        """Whether a baseline that never sees the question is not at chance: an artefact of the
        probe."""
        return (self.beats_chance or self.below_chance) and self.baseline in PARTIAL


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

    Parameters
    ----------
    baseline : str
        "choice-only", "choice-to-choice", "question-to-choice", "esim" or "vector-similarity".
        Networks of :mod:`psychlm.papers.choice_networks`, and :func:`vector_similarity`, which
        is not trained.
    train, test : DataFrame
        Items frames. Training stops by a fifth of the clusters of ``train``.
    lexicon : Lexicon, optional
        Given word vectors; learned ones unless given.
    size, hidden : int
        d and h of the networks.
    epochs, patience
        As in :meth:`psychlm.papers.choice_networks.ChoiceClassifier.train`.

    Raises
    ------
    FrameError
        If items break their contract, or training and test share clusters.
    ValueError
        If vector similarity has no given vectors, or there is no such baseline.
    """
    if baseline not in BASELINES:
        raise ValueError(f"no baseline is named {baseline!r}; there are {list(BASELINES)}")
    parts = [check_items(items) for items in (train, test)]
    train, test = (
        items.assign(cluster=items["cluster" if "cluster" in items else "item_id"])
        for items in parts
    )
    shared = set(train["cluster"]) & set(test["cluster"])
    if shared:
        raise FrameError(
            f"{len(shared)} clusters stand in training and test, such as "
            f"{min(map(str, shared))!r}, so that memory "
            "would look like an artefact; split by cluster"
        )
    if baseline == "vector-similarity":
        scores, n_train = vector_similarity(test, lexicon), 0
    else:
        # Hold a fifth of the clusters out to stop by, and train on the others.
        clusters = train["cluster"].unique()
        if len(clusters) < 2:
            raise FrameError(
                "all training items are one cluster, and none can be held out to stop training by; "
                "add items of other clusters"
            )
        order = np.random.default_rng(seed).permutation(len(clusters))
        held = train["cluster"].isin(clusters[order[: max(1, round(0.2 * len(clusters)))]])
        train, development = train[~held], train[held]
        words = lexicon or Lexicon.learned(train)
        model = partial_input_model(
            baseline, words, seed=seed, size=size, hidden=hidden, device=device
        )
        model = model.train(
            train,
            seed=seed,
            learning_rate=LEARNING_RATE,
            epochs=epochs,
            patience=patience,
            development=development,
        )
        scores, n_train = model.logprobs(test), len(train)
    # The accuracy on the test items, with its interval over clusters.
    all_of_it = test.assign(all="all")
    accuracy = instance_accuracy(all_of_it, grade(test, scores), by="all").iloc[0]
    return BaselineResult(
        baseline,
        "learned" if lexicon is None else "given",
        accuracy=float(accuracy["accuracy"]),
        low=float(accuracy["low"]),
        high=float(accuracy["high"]),
        chance=float((1 / test["choices"].map(len)).mean()),
        n_train=n_train,
        n_test=len(test),
        logprobs=scores,
    )


def baseline_table(results: Iterable[BaselineResult]) -> pd.DataFrame:
    """Return one row per result: its numbers, ``beats_chance``, ``below_chance`` and ``flags``."""
    columns = ["baseline", "embeddings", "accuracy", "low", "high", "chance"]
    columns += ["beats_chance", "below_chance", "flags", "n_train", "n_test"]
    return pd.DataFrame([{name: getattr(one, name) for name in columns} for one in results])


def blocks(n: int) -> list[slice]:
    """Return slices of ``TEXTS_AT_ONCE`` that cover n rows."""
    return [slice(first, first + TEXTS_AT_ONCE) for first in range(0, n, TEXTS_AT_ONCE)]


def vector_similarity(items: pd.DataFrame, lexicon: Lexicon | None) -> pd.DataFrame:
    """Return the cosine of the mean word vectors of question and choice, items x choices.

    NaN where an item has fewer choices; 0 where a text has no known word.
    """
    if lexicon is None or lexicon.vectors is None:
        raise ValueError("vector similarity needs given vectors: lexicon=Lexicon.of_encoder()")
    counts = items["choices"].map(len).to_numpy()
    texts = [*items["prompt"], *(choice for choices in items["choices"] for choice in choices)]
    number, distinct = pd.factorize(np.array(texts, dtype=object))
    # A unit vector per distinct text: the mean of its words' vectors. Words of all texts, or the
    # vectors of all pairs, would take gigabytes.
    zero = np.zeros((1, lexicon.vectors.shape[1]), dtype=np.float32)
    means = np.empty((len(distinct), zero.size), dtype=np.float32)
    for block in blocks(len(distinct)):
        encoded = lexicon.encode(list(distinct[block]))
        means[block] = [(words if len(words) else zero).mean(axis=0) for words in encoded]
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    q, c = np.repeat(number[: len(items)], counts), number[len(items) :]
    values = np.empty(len(q), dtype=np.float32)
    for block in blocks(len(q)):
        values[block] = (means[q[block]] * means[c[block]]).sum(axis=1)
    cosines = np.full((len(items), counts.max()), np.nan)
    cosines[np.arange(counts.max()) < counts[:, None]] = values
    index = pd.Index(items["item_id"], name="item")
    return pd.DataFrame(cosines, index=index).rename_axis(columns="choice")


@dataclass(frozen=True)
class Sweep:
    """The models of an inoculation: one for every combination of these values."""

    sizes: tuple[int, ...] = (10, 100, 500, 1000, 3000)  # k, questions of the probe
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    epochs: tuple[int, ...] = (3,)
    seeds: tuple[int, ...] = (0, 1)  # of the questions drawn, their order, and dropout
    add_some: tuple[int, ...] = (0,)  # questions of the original kind beside each of the probe's
    batch_size: int = 16


@dataclass(frozen=True, eq=False)
class Inoculation:
    """What inoculation with a probe did to a model.

    Attributes
    ----------
    cells : DataFrame
        A trained model per row: ``k``, ``learning_rate``, ``epochs``, ``seed``, ``add_some``, and
        its accuracies ``new``, ``original`` (their ``average``) and ``test``.
    before : Series
        The accuracies of the model as it came.
    best : DataFrame
        The chosen cell for each ``add_some`` and ``k`` (0: as it came), with its ``cost``.
    predictions : DataFrame
        Models (index of ``cells``; -1: as it came) x test items: the choice taken, 0-based.
    n_resumed : int
        Cells read from disk.
    """

    cells: pd.DataFrame
    before: pd.Series
    best: pd.DataFrame
    predictions: pd.DataFrame
    n_resumed: int

    def correct(self, test: pd.DataFrame) -> pd.DataFrame:
        """Return the graded answers of every model, models x test items (1 right, 0 wrong)."""
        key = test.set_index("item_id")["answer"].loc[self.predictions.columns]
        return self.predictions.eq(key, axis=1).astype(float)


def inoculate(
    model: Any,
    train: pd.DataFrame,
    new: pd.DataFrame,
    original: pd.DataFrame,
    test: pd.DataFrame,
    *,
    sweep: Sweep | None = None,
    more: pd.DataFrame | None = None,
    folder: str | Path | None = None,
) -> Inoculation:
    """Inoculate a model with a probe, once for every combination of a sweep.

    Parameters
    ----------
    model : ChoiceClassifier or FineTunedModel
        Trained on the original task; it is not changed.
    train, new, test : DataFrame
        Items of the probe: to learn from, to choose the model by, and to report.
    original : DataFrame
        Development items of the original task: to choose the model by, and for its cost.
    more : DataFrame, optional
        Items of the original kind to add (``add_some`` above 0), none of which the model has met.
    folder : path, optional
        Where finished cells are kept, each under a name that depends on all that it depends on, so
        that an interrupted sweep resumes; nowhere unless given.

    Raises
    ------
    FrameError
        If items break their contract, parts overlap, or there are fewer of them than the sweep asks
        for.
    """
    sweep = sweep or Sweep()
    parts = {"train": train, "new": new, "original": original, "test": test}
    parts = {name: check_items(items).reset_index(drop=True) for name, items in parts.items()}
    more = None if more is None else check_items(more).reset_index(drop=True)
    check_parts(parts, more, sweep)
    identity = {name: digest(items) for name, items in parts.items()}
    identity |= {"more": "" if more is None else digest(more), "model": model.fingerprint}
    identity |= {"batch_size": str(sweep.batch_size), "scheme": str(SCHEME)}
    axes = (sweep.sizes, sweep.learning_rates, sweep.epochs, sweep.seeds, sweep.add_some)
    names = ("k", "learning_rate", "epochs", "seed", "add_some")
    cells: list[dict[str, Any]] = [
        dict(zip(names, values, strict=True)) for values in product(*axes)
    ]
    results, n_resumed = [accuracies(model, parts)], 0
    for cell in cells:
        # Read the cell from disk where it is there.
        file, result = None, None
        if folder is not None:
            key = json.dumps(identity | cell, sort_keys=True)
            file = Path(folder) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
            if file.is_file():
                result = json.loads(file.read_text(encoding="utf-8"))
                n_resumed += 1
        if result is None:
            # The first k questions in an order that depends on the seed: larger k hold the smaller.
            rng = np.random.default_rng(cell["seed"])
            items = parts["train"].iloc[rng.permutation(len(train))[: cell["k"]]]
            if cell["add_some"] and more is not None:
                n_added = min(cell["add_some"] * cell["k"], MOST_ADDED)
                added = more.iloc[rng.permutation(len(more))[:n_added]]
                items = pd.concat([items, added], ignore_index=True)
            trained = model.train(
                items,
                seed=cell["seed"],
                learning_rate=cell["learning_rate"],
                epochs=cell["epochs"],
                batch_size=sweep.batch_size,
                patience=None,
            )
            result = accuracies(trained, parts)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(file) as part:
                    part.write_text(json.dumps(result), encoding="utf-8")
        results.append(result)
    scores = pd.DataFrame(results, columns=["new", "original", "test"])
    scores.insert(2, "average", (scores["new"] + scores["original"]) / 2)
    before = scores.iloc[0]
    table = pd.DataFrame(cells).join(scores.iloc[1:].reset_index(drop=True)).rename_axis("cell")
    predicted = pd.DataFrame(
        [result["predictions"] for result in results],
        index=pd.RangeIndex(-1, len(cells), name="cell"),
        columns=pd.Index(parts["test"]["item_id"], name="item"),
    )
    return Inoculation(table, before, best_cells(table, before), predicted, n_resumed)


def best_cells(cells: pd.DataFrame, before: pd.Series) -> pd.DataFrame:
    """Return for each ``add_some`` and k the cell with the best average of both tasks.

    Parameters
    ----------
    cells : DataFrame, indexed by ``cell``
        As :class:`Inoculation` holds them.
    before : Series
        The accuracies of the model as it came, which is the row of k = 0.

    Returns
    -------
    DataFrame
        The chosen rows with their ``cost``, the loss of accuracy on the original task.
    """
    chosen = cells.loc[cells.groupby(["add_some", "k"])["average"].idxmax()].reset_index()
    untrained = pd.DataFrame(
        [{"cell": -1, "k": 0, "add_some": times, **before} for times in cells["add_some"].unique()]
    )
    best = pd.concat([untrained, chosen]).sort_values(["add_some", "k"], ignore_index=True)
    best["cost"] = before["original"] - best["original"]
    return best


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

    Parameters
    ----------
    encoder : str or Path
        As in :func:`psychlm.papers.choice_networks.encoder_model`.
    learn, check : DataFrame
        Items to learn from, and to stop and to choose the learning rate by.
    whole : bool
        Train the whole encoder on joint texts, not a head on its frozen states.

    Returns
    -------
    untrained, trained : ChoiceClassifier or FineTunedModel
    """
    untrained: Any = encoder_model(encoder, seed=seed, device=device)
    kept = {}
    if whole:
        kept = {"keep": True}
        pretrained = FineTunedModel(encoder, {"max_tokens": 128}, device)
        untrained = pretrained.train(learn, seed=seed, regime="pre-train only", **kept)
    trained = [
        untrained.train(
            learn, seed=seed, learning_rate=rate, epochs=8, patience=3, development=check, **kept
        )
        for rate in learning_rates
    ]
    return untrained, max(trained, key=lambda model: model.accuracy(check))


def inoculation_gain(
    done: Inoculation,
    test: pd.DataFrame,
    *,
    rng: np.random.Generator,
    add_some: int = 0,
    n_boot: int = 2000,
) -> pd.Series:
    """Return what the most questions of a sweep changed on the test questions of its probe.

    Each seed keeps the cell with the best average of both tasks, as in :func:`best_cells`. The
    interval is that of a bootstrap over the seeds and over the clusters of questions.

    Parameters
    ----------
    test : DataFrame
        Test items of the probe, with ``cluster``.
    n_boot : int
        Resamples.

    Returns
    -------
    Series
        ``before`` and ``after``, the accuracies, their difference ``gain`` with ``low`` and
        ``high`` (95 %), ``smallest`` and ``largest`` of the seeds; ``cost``, the loss of accuracy
        on the original task; ``n_questions`` and ``n_seeds``.
    """
    cells = done.cells[done.cells["add_some"] == add_some]
    cells = cells[cells["k"] == cells["k"].max()]
    kept = cells.loc[cells.groupby("seed")["average"].idxmax()]
    answers = test.set_index("item_id")["answer"]
    grades = done.predictions[test["item_id"]].eq(answers, axis=1).astype(float)
    change = (grades.loc[kept.index] - grades.loc[-1]).T  # questions x seeds
    sums = change.groupby(test["cluster"].to_numpy()).sum().to_numpy()
    sizes = test.groupby("cluster").size().to_numpy()
    of_seed = sums.sum(axis=0) / sizes.sum()
    clusters = rng.integers(0, len(sizes), (n_boot, len(sizes)))
    seeds = rng.integers(0, len(kept), (n_boot, len(kept)))
    drawn = sums[clusters].sum(axis=1) / sizes[clusters].sum(axis=1)[:, None]  # resamples x seeds
    low, high = np.quantile(np.take_along_axis(drawn, seeds, axis=1).mean(axis=1), [0.025, 0.975])
    before = grades.loc[-1].mean()
    return pd.Series(
        {
            "before": before,
            "after": before + of_seed.mean(),
            "gain": of_seed.mean(),
            "low": low,
            "high": high,
            "smallest": of_seed.min(),
            "largest": of_seed.max(),
            "cost": (done.before["original"] - kept["original"]).mean(),
            "n_questions": len(test),
            "n_seeds": len(kept),
        }
    )


def check_parts(parts: dict[str, pd.DataFrame], more: pd.DataFrame | None, sweep: Sweep) -> None:
    """Raise where a sweep has too few items, or would be scored on items that it learns from."""
    if max(sweep.sizes) > len(parts["train"]) or min(sweep.sizes) < 1:
        raise FrameError(f"sizes {sweep.sizes} need 1 to {len(parts['train'])} training items")
    added = max(min(times * max(sweep.sizes), MOST_ADDED) for times in sweep.add_some)
    if added and (more is None or len(more) < added):
        raise FrameError(
            f"add_some={sweep.add_some} needs {added} items of the original kind; more has "
            f"{0 if more is None else len(more)}"
        )
    for first, second in combinations(("train", "new", "test"), 2):
        clustered = all("cluster" in parts[part] for part in (first, second))
        key = "cluster" if clustered else "item_id"
        shared = set(parts[first][key]) & set(parts[second][key])
        if shared:
            raise FrameError(
                f"{len(shared)} of {key} stand in {first} and in {second}; split by cluster"
            )
    if more is not None and set(more["item_id"]) & set(parts["original"]["item_id"]):
        raise FrameError(
            "items to add are among those of the original task by which the cost is computed; "
            "leave them out"
        )


def accuracies(model: Any, parts: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the accuracies of a model on the parts ``new``, ``original`` and ``test``, and its
    test predictions."""
    results: dict[str, Any] = {}
    for name in ("new", "original", "test"):
        scores = model.logprobs(parts[name])
        results[name] = float(grade(parts[name], scores).mean())
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of ties
        return results | {"predictions": predictions(scores).tolist()}


@dataclass(frozen=True, eq=False)
class FineTunedModel:
    """A multiple-choice checkpoint that :func:`psychlm.lm.fine_tune` trains as a whole: slow, and
    any encoder."""

    folder: str | Path  # or a name of the hub, before it learns
    options: dict[str, Any]  # of fine_tune, besides those that a sweep sets
    device: Device = "auto"
    temporary: Any = None  # the temporary folder of a trained copy, removed with it

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the folder's files, and how it is trained."""
        return f"{fingerprint(Path(self.folder))} {json.dumps(self.options, sort_keys=True)}"

    def train(
        self,
        items: pd.DataFrame,
        *,
        epochs: int = 3,
        patience: int | None = None,
        keep: bool = False,
        **options: Any,
    ) -> FineTunedModel:
        """Return a copy, fine-tuned with further options of that function.

        It is removed with this object unless ``keep``: then it stands in the cache folder, and the
        same call resumes or reads it.
        """
        options |= {"epochs": epochs, "patience": patience or epochs, "device": self.device}
        options |= {"task": "multiple-choice", "out": None, **self.options}
        temporary = None if keep else tempfile.TemporaryDirectory(prefix="psychlm-inoculation-")
        if temporary is not None:
            options["out"] = temporary.name
        result = fine_tune(items, self.folder, **options)
        return replace(self, folder=result.folder, temporary=temporary)

    def logprobs(self, items: pd.DataFrame) -> pd.DataFrame:
        """Return scores of the choices, items x choices."""
        model = load(self.folder, self.device)
        return choice_logprobs(items, model, cache=False)

    def accuracy(self, items: pd.DataFrame) -> float:
        """Return the share of items answered right."""
        return float(grade(items, self.logprobs(items)).mean())


def check_questions(builder: Builder, questions: pd.DataFrame) -> pd.DataFrame:
    """Look WordNet questions up in the graph again, from the names in their rows alone.

    Parameters
    ----------
    builder : Builder
    questions : DataFrame
        Items as :meth:`psychlm.probes.wordnet_qa.Builder.build` returns them.

    Returns
    -------
    DataFrame, one row a question
        ``second right answer``: a distractor is the concept itself or stands in the relation asked
        for. ``wrong``: that, or the key does not stand in the stated relation, or a distractor is
        of another kind or distance than recorded.
    """
    graph, number = builder.graph, pd.Series(np.arange(builder.graph.n), index=builder.names)
    probe = questions["probe"].to_numpy()
    concept = number[questions["concept"]].to_numpy()
    key = number[questions["answer_concept"]].to_numpy()
    up, down = probe == "hypernymy", probe == "hyponymy"
    hops = np.select([up, down], [graph.hops(concept, key), graph.hops(key, concept)], 0)
    wrong_key = (hops != questions["hops"].to_numpy()) | (~(up | down) & (concept != key))
    # the distractors of all questions in one array
    row = np.repeat(np.arange(len(questions)), questions["distractor_concepts"].map(len))
    concept_of_row = concept[row]
    distractor = number[np.concatenate(questions["distractor_concepts"].to_numpy())].to_numpy()
    above = graph.isa_or_instance.contain(concept_of_row, distractor)
    below = graph.isa_or_instance.contain(distractor, concept_of_row)
    right = (concept_of_row == distractor) | np.select([up[row], down[row]], [above, below], False)
    kind = np.concatenate(questions["distractor_types"].to_numpy())
    distances = {
        "hypernym": graph.hops(concept_of_row, distractor),
        "hyponym": graph.hops(distractor, concept_of_row),
    }
    distances["sister"] = graph.sister_distance(concept_of_row, distractor)
    distance = np.select([kind == name for name in distances], list(distances.values()), 0)
    misplaced = distance != np.concatenate(questions["distractor_distances"].to_numpy())
    flawed = np.bincount(row, right | misplaced, len(questions)) > 0
    second = np.bincount(row, right, len(questions)) > 0
    return pd.DataFrame({"wrong": wrong_key | flawed, "second right answer": second})


def a_parent(builder: Builder, concepts: Iterable[str]) -> list[str]:
    """Return the first parent of each concept, by name."""
    number = {name: position for position, name in enumerate(builder.names)}
    parents = builder.graph.parents
    return [builder.names[parents.row(number[name])[0]] for name in concepts]


def most_general(builder: Builder, questions: pd.DataFrame) -> NDArray[np.float64]:
    """Return the chance of a right answer for who takes the choice with most concepts below it."""
    graph, number = builder.graph, pd.Series(np.arange(builder.graph.n), index=builder.names)
    n_below = np.bincount(graph.up.above, minlength=graph.n)
    key = n_below[number[questions["answer_concept"]].to_numpy()]
    others = n_below[number[np.concatenate(questions["distractor_concepts"].to_numpy())]]
    others = others.reshape(len(questions), -1)
    tied = (others == key[:, None]).sum(axis=1)
    return np.where((others > key[:, None]).any(axis=1), 0, 1 / (1 + tied))
