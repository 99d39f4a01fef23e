"""Multiple choice in layouts of their own: SciQ, PIQA, Social IQA, HellaSwag and abductive NLI."""

from __future__ import annotations

import numpy as np
import pandas as pd

from psychlm.corpora.item_banks.sources import (
    NO_LABEL,
    Source,
    finished,
    labels_of,
    lines,
    numbered,
    records,
    table,
)
from psychlm.data import DataError


def sciq(source: Source = "mcqa/sciq/valid", *, seed: int = 0) -> pd.DataFrame:
    """Read SciQ (Welbl et al. 2017): science questions, the answer and three distractors in columns of their own.

    Parameters
    ----------
    source : str or Path
        ``"mcqa/sciq/valid"``, ``"mcqa/sciq/test"``, ``"mcqa/sciq/SciQ#train.json"``, or a file.
    seed : int
        Of the order of the choices, which the file does not have.

    Returns
    -------
    DataFrame
        Items, with ``support``, the paragraph that the question was written from (may be empty).
    """
    columns = ["correct_answer", "distractor1", "distractor2", "distractor3"]
    frame = table(records(source), ["question", *columns], source)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(4), (len(frame), 1)), axis=1)
    choices = np.take_along_axis(frame[columns].to_numpy(dtype=object), order, axis=1)
    items = pd.DataFrame(
        {
            "item_id": numbered(source, len(frame)),
            "prompt": frame["question"],
            "choices": choices.tolist(),
            "answer": (order == 0).argmax(axis=1),
            "support": frame.get("support", ""),
        }
    )
    return finished(items)


def piqa(source: Source = "mcqa/piqa/valid", labels: Source | None = None) -> pd.DataFrame:
    """Read PIQA (Bisk et al. 2020): a goal, and two ways to it.

    Parameters
    ----------
    source : str or Path
        ``"mcqa/piqa/valid"``, ``"mcqa/piqa/physicaliqa-train-dev#train.jsonl"``, or a file.
    labels : str or Path, optional
        Where the gold labels are; the file beside the items (``...-labels``) unless given.
    """
    frame = table(records(source), ["goal", "sol1", "sol2"], source)
    items = pd.DataFrame(
        {
            "item_id": numbered(source, len(frame)),
            "prompt": frame["goal"],
            "choices": frame[["sol1", "sol2"]].to_numpy().tolist(),
            "answer": _gold(frame, labels or labels_of(source), source),
        }
    )
    return finished(items)


def social_iqa(source: Source = "mcqa/socialiqa/dev", labels: Source | None = None) -> pd.DataFrame:
    """Read Social IQA (Sap et al. 2019): a situation, a question about it, and three answers.

    Parameters
    ----------
    source : str or Path
        With the answers as a list and the gold one as text (``"mcqa/socialiqa/dev"``), or as released, with labels
        from 1 in a file of their own (``"mcqa/socialiqa/socialiqa-train-dev#train.jsonl"``).
    labels : str or Path, optional
        As in :func:`piqa`.

    Returns
    -------
    DataFrame
        Items; the prompt is the situation and the question. Where the gold answer stands twice among the choices,
        nobody can tell which is meant: the item is left out, as one with duplicate choices.
    """
    rows = records(source)
    if rows and "options" in rows[0]:
        frame = table(rows, ["context", "question", "options", "answer"], source)
        choices = frame["options"].tolist()
        stripped = [[choice.strip() for choice in own] for own in choices]
        gold = [text.strip() for text in frame["answer"]]
        strange = [
            i
            for i, (text, own) in enumerate(zip(gold, stripped, strict=True), start=1)
            if text not in own
        ]
        if strange:
            raise DataError(
                f"line {strange[0]} of {source} has an answer that is none of its options"
            )
        answer = [own.index(text) for text, own in zip(gold, stripped, strict=True)]
    else:
        frame = table(rows, ["context", "question", "answerA", "answerB", "answerC"], source)
        choices = frame[["answerA", "answerB", "answerC"]].to_numpy().tolist()
        answer = _gold(frame, labels or labels_of(source), source, first=1)
    items = pd.DataFrame(
        {
            "item_id": numbered(source, len(frame)),
            "prompt": frame["context"] + " " + frame["question"],
            "choices": choices,
            "answer": answer,
        }
    )
    return finished(items)


def hellaswag(source: Source = "mcqa/hellaswag/hellaswag_val_full") -> pd.DataFrame:
    """Read HellaSwag (Zellers et al. 2019): the beginning of a story, and four ways in which it may go on.

    Parameters
    ----------
    source : str or Path
        Blocks of six lines (beginning, number of the right ending, four endings; may be packed with bz2), or JSONL as
        released, ``"mcqa/hellaswag/hellaswag_train"``. The released test split has no labels.
    """
    text = lines(source)
    if text and text[0].startswith("{"):
        frame = table(records(source), ["activity_label", "ctx", "endings"], source)
        prompt = frame["activity_label"] + ": " + frame["ctx"]
        choices, answer = (
            frame["endings"],
            pd.to_numeric(frame.get("label", pd.Series(dtype=float)), errors="coerce"),
        )
        answer = answer.reindex(frame.index)
    else:
        if len(text) % 6 or not all(
            text[i] in {"0", "1", "2", "3"} for i in range(1, len(text), 6)
        ):
            raise DataError(
                f"{source} is not made of blocks of six lines: a beginning, 0 to 3, four endings"
            )
        blocks = pd.DataFrame([text[i : i + 6] for i in range(0, len(text), 6)])
        prompt, answer = blocks[0], blocks[1].astype(int)
        choices = blocks[[2, 3, 4, 5]].to_numpy().tolist()
    items = pd.DataFrame(
        {
            "item_id": numbered(source, len(prompt)),
            "prompt": prompt,
            "choices": choices,
            "answer": answer,
            "template": "continuation",
        }
    )
    return finished(items, {NO_LABEL: items["answer"].isna()})


def abductive_nli(
    source: Source = "mcqa/alphanli/alphanli-train-dev#dev.jsonl", labels: Source | None = None
) -> pd.DataFrame:
    """Read abductive NLI (Bhagavatula et al. 2020): what happened between two observations?

    Parameters
    ----------
    source : str or Path
        JSONL of ``obs1``, ``obs2``, ``hyp1`` and ``hyp2``.
    labels : str or Path, optional
        As in :func:`piqa`; they count from 1.

    Returns
    -------
    DataFrame
        Items; the prompt is the first observation, and each choice a hypothesis with the second observation after it,
        so that a language model judges both. ``observation`` holds the second by itself.
    """
    frame = table(records(source), ["obs1", "obs2", "hyp1", "hyp2"], source)
    both = [frame[name].str.strip() + " " + frame["obs2"].str.strip() for name in ("hyp1", "hyp2")]
    items = pd.DataFrame(
        {
            "item_id": numbered(source, len(frame)),
            "prompt": frame["obs1"],
            "choices": pd.concat(both, axis=1).to_numpy().tolist(),
            "answer": _gold(frame, labels or labels_of(source), source, first=1),
            "observation": frame["obs2"],
            "template": "continuation",
        }
    )
    return finished(items)


def _gold(frame: pd.DataFrame, labels: Source, source: Source, first: int = 0) -> pd.Series:
    """Return the place of each right choice, from a column ``label`` or a file of labels that count from ``first``."""
    given = frame["label"].astype(str).tolist() if "label" in frame else lines(labels)
    if len(given) != len(frame) or not all(text.strip().isdigit() for text in given):
        raise DataError(
            f"{labels} holds {len(given)} labels for the {len(frame)} items of {source}; it is not theirs"
        )
    return pd.Series([int(text) - first for text in given], index=frame.index)
