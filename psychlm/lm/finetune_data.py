"""Items as a network that is being fine-tuned reads them: the task they make, their tokens, and batches of them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from psychlm.frames import FrameError, check_items, format_names
from psychlm.lm._load import ModelError
from psychlm.lm.labels import meaning

Task = Literal["pair", "single", "multiple-choice"]

BATCHES_SORTED = 8  # on 600 pairs of SNLI in batches of 32 this saves 30 % of the tokens
ALIKE = 8  # tokens; finer sorting would make batches of one class where a label's texts are a word longer


def task_of(items: pd.DataFrame, task: Task | None = None) -> Task:
    """Return the task that an items frame makes, or check the one that is asked for.

    ``pair``: two texts and a label (a column ``hypothesis``); ``single``: one text and a label (every item has the same
    choices: they are label words); ``multiple-choice``: a prompt and choices of its own.

    Raises
    ------
    FrameError
        If the task is unknown, or the frame cannot be read as that task.

    Examples
    --------
    >>> task_of(pd.DataFrame({"choices": [["negative", "positive"], ["negative", "positive"]]}))
    'single'
    >>> task_of(pd.DataFrame({"choices": [["a dog", "a plant"], ["cold", "warm"]]}))
    'multiple-choice'
    """
    alike = items["choices"].map(frozenset).nunique() == 1
    task = task or ("pair" if "hypothesis" in items else "single" if alike else "multiple-choice")
    if task not in get_args(Task):
        raise FrameError(f"task {task!r} is unknown; choose one of {list(get_args(Task))}")
    if task == "pair" and "hypothesis" not in items:
        raise FrameError(
            "task 'pair' needs a column 'hypothesis' beside 'prompt' (the premise); add it"
        )
    if task != "multiple-choice" and not alike:
        raise FrameError(
            f"task {task!r} needs the same label words as choices of every item, and these items have "
            f"{items['choices'].map(frozenset).nunique()} sets of choices; use task='multiple-choice'"
        )
    return task


def labels_of(items: pd.DataFrame) -> tuple[str, ...]:
    """Return the label words of classification items, in the order of the first item's choices."""
    return tuple(items["choices"].iloc[0])


def check_trainable(items: pd.DataFrame, task: Task | None = None) -> tuple[pd.DataFrame, Task]:
    """Return items that can be trained on, and their task: each has an answer, and of labels two at least are in use.

    Raises
    ------
    FrameError
        If items have no answer, have empty texts, break the contract of items, or all have the same label.
    """
    if "answer" in items and (unlabelled := items["answer"].isna() | (items["answer"] == -1)).any():
        raise FrameError(
            f"items {format_names(items.loc[unlabelled, 'item_id'])} have no answer to learn from; leave them out "
            "(SNLI marks with '-' the pairs on which its annotators did not agree)"
        )
    items = check_items(items)
    task = task_of(items, task)
    texts = ["prompt", "hypothesis"] if task == "pair" else ["prompt"]
    empty = ~items[texts].map(lambda text: isinstance(text, str) and text.strip() != "").all(axis=1)
    empty |= ~items["choices"].map(
        lambda words: all(isinstance(word, str) and word.strip() != "" for word in words)
    )
    if empty.any():
        raise FrameError(
            f"items {format_names(items.loc[empty, 'item_id'])} have an empty text or choice; mend or drop them"
        )
    if task != "multiple-choice":
        used = set(_answers(items))
        if len(used) == 1:
            raise FrameError(
                f"all {len(items)} items have the answer {used.pop()!r}: nothing can be learned from one class; "
                "add items of the others"
            )
    return items, task


def hold_out(
    items: pd.DataFrame, development: pd.DataFrame | float | None, task: Task, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the items to learn from and the items to stop by."""
    if development is None:
        return items, None
    if isinstance(development, pd.DataFrame):
        check_trainable(development, task)
        return items, development
    held = round(development * len(items))
    if not 0 < held < len(items):
        raise FrameError(
            f"a share of {development} of {len(items)} items holds out {held}; take one between 0 and 1"
        )
    order = np.random.default_rng(seed).permutation(len(items))
    return check_trainable(items.iloc[order[held:]], task)[0], items.iloc[order[:held]]


def _answers(items: pd.DataFrame) -> list[str]:
    """Return the words of the right answers."""
    return [
        words[answer]
        for words, answer in zip(items["choices"], items["answer"].astype(int), strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Examples:
    """Items as tokens: one sequence an item, or one a choice where the choices are texts of their own."""

    ids: list[NDArray[np.int64]]  # (n_sequences,) of (n_tokens,)
    types: (
        list[NDArray[np.int64]] | None
    )  # which of the two texts a token is of, where the tokenizer says
    first: NDArray[np.int64]  # (n_items + 1,), where an item's sequences begin
    target: NDArray[np.int64]  # (n_items,), the label or the choice that is right
    labels: tuple[
        str, ...
    ]  # label words in the order of the network's outputs; none for multiple choice
    n_truncated: int  # sequences that were longer than the network reads
    padding: int  # the token that fills short sequences

    def __len__(self) -> int:
        return len(self.target)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every item's longest sequence, shape (n_items,)."""
        return np.maximum.reduceat(np.array([len(ids) for ids in self.ids]), self.first[:-1])

    def sequences(self, batch: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of these items' sequences, in order."""
        return np.concatenate([np.arange(self.first[i], self.first[i + 1]) for i in batch])

    def batch(self, batch: NDArray[np.int64], device: torch.device) -> Batch:
        """Return some items as tensors, padded at the end to the longest of them."""
        rows = self.sequences(batch)
        length = max(len(self.ids[row]) for row in rows)
        ids = np.full((len(rows), length), self.padding)
        types, mask = np.zeros_like(ids), np.zeros_like(ids)
        for at, row in enumerate(rows):
            n = len(self.ids[row])
            ids[at, :n], mask[at, :n] = self.ids[row], 1
            if self.types is not None:
                types[at, :n] = self.types[row]
        inputs = {"input_ids": ids, "attention_mask": mask} | (
            {} if self.types is None else {"token_type_ids": types}
        )
        n_choices = self.first[batch + 1] - self.first[batch]
        return Batch(
            {name: torch.from_numpy(value).to(device) for name, value in inputs.items()},
            torch.from_numpy(self.target[batch]).to(device),
            None
            if self.labels
            else torch.from_numpy(np.arange(n_choices.max()) < n_choices[:, None]).to(device),
            rows,
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Some items as tensors."""

    inputs: dict[str, Tensor]  # (n_sequences, n_tokens)
    target: Tensor  # (n_items,)
    there: (
        Tensor | None
    )  # (n_items, most choices), whether an item has that choice; None for label tasks
    rows: NDArray[np.int64]  # the sequences' numbers among all

    def logits(self, network: Any) -> Tensor:
        """Return the network's scores, (n_items, n_labels or most choices); minus infinity where there is no choice."""
        if self.there is None:
            return network(**self.inputs).logits.float()
        one_each = {
            name: value.unsqueeze(1) for name, value in self.inputs.items()
        }  # items may differ in choices
        scores = network(**one_each).logits.float().squeeze(1)
        return scores.new_full(self.there.shape, -torch.inf).masked_scatter(self.there, scores)


def encode(
    items: pd.DataFrame,
    tokenizer: Any,
    task: Task,
    labels: tuple[str, ...],
    max_tokens: int,
    *,
    graded: bool = True,
) -> Examples:
    """Turn items into tokens; what is longer than ``max_tokens`` is cut, counted, and warned of.

    Raises
    ------
    FrameError
        If an item's label words are not those that the network has outputs for.
    """
    if task == "multiple-choice":
        n_choices = items["choices"].map(len).to_numpy()
        texts = items["prompt"].repeat(n_choices).tolist()
        seconds: Sequence[str] | None = [
            choice for choices in items["choices"] for choice in choices
        ]
        target = items["answer"].to_numpy(np.int64)
        labels = ()
    else:
        n_choices = np.ones(len(items), np.int64)
        texts, seconds = (
            items["prompt"].tolist(),
            items["hypothesis"].tolist() if task == "pair" else None,
        )
        target = targets_of(items, labels) if graded else np.zeros(len(items), np.int64)
    found = tokenizer(texts, seconds, verbose=False)
    too_long = sum(len(ids) > max_tokens for ids in found["input_ids"])
    if too_long:
        warnings.warn(
            f"{too_long} of {len(texts)} texts are longer than {max_tokens} tokens and were cut (the longer of "
            "two first); raise max_tokens if the network reads more",
            UserWarning,
            stacklevel=4,
        )
        found = tokenizer(texts, seconds, truncation="longest_first", max_length=max_tokens)
    types = found.get("token_type_ids")
    return Examples(
        [np.array(ids, dtype=np.int64) for ids in found["input_ids"]],
        None if types is None else [np.array(ids, dtype=np.int64) for ids in types],
        np.concatenate([[0], np.cumsum(n_choices)]),
        target,
        labels,
        too_long,
        int(tokenizer.pad_token_id),
    )


def targets_of(items: pd.DataFrame, labels: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the outputs of the right answers; labels are matched by what they mean, never by their order."""
    place = {meaning(word): i for i, word in enumerate(labels)}
    strange = items["choices"].map(lambda words: not set(map(meaning, words)) <= set(place))
    if strange.any():
        raise FrameError(
            f"items {format_names(items.loc[strange, 'item_id'])} have label words other than {list(labels)}; give training "
            "and development items the same words"
        )
    return np.array([place[meaning(word)] for word in _answers(items)], dtype=np.int64)


def batches(
    lengths: NDArray[np.int64], batch_size: int, rng: np.random.Generator | None = None
) -> list[NDArray[np.int64]]:
    """Return the items of each batch of one pass through them, those of like length together, to save padding.

    Without a generator they are sorted by length. With one they are shuffled, then sorted, roughly, within every
    :data:`BATCHES_SORTED` batches' worth, and the batches are shuffled.
    """
    n = len(lengths)
    order = np.arange(n) if rng is None else rng.permutation(n)
    together = n if rng is None else BATCHES_SORTED * batch_size
    found = []
    for begin in range(0, n, together):
        some = order[begin : begin + together]
        some = some[np.argsort(lengths[some] // (1 if rng is None else ALIKE), kind="stable")]
        found += [some[i : i + batch_size] for i in range(0, len(some), batch_size)]
    return found if rng is None else [found[i] for i in rng.permutation(len(found))]


def digest(items: pd.DataFrame) -> str:
    """Return the SHA-256 of what is learned from items: texts, choices and answers, in their order."""
    columns = [name for name in ("prompt", "hypothesis", "choices", "answer") if name in items]
    return hashlib.sha256(
        items[columns].to_json(orient="values").encode("utf-8", "surrogatepass")
    ).hexdigest()


def padded(tokenizer: Any, name: str) -> Any:
    """Return a tokenizer that has a token to pad with: its own, or the one that ends a text.

    Raises
    ------
    ModelError
        If it has neither.
    """
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"the tokenizer of {name} has neither a padding nor an end token; set tokenizer.pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
