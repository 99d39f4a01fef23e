"""Any item bank, told apart by what its first line holds."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from psychlm.corpora.item_banks.arc import read_arc
from psychlm.corpora.item_banks.choices import abductive_nli, hellaswag, piqa, sciq, social_iqa
from psychlm.corpora.item_banks.diagnostic import glue_diagnostic
from psychlm.corpora.item_banks.nli import nli, semantic_fragments
from psychlm.corpora.item_banks.sentiment import sentiment
from psychlm.corpora.item_banks.sources import Source, finished, lines, records, table
from psychlm.data import DataError

Reader = Callable[[Source], pd.DataFrame]

_BY_KEYS: list[tuple[set[str], Reader]] = [
    ({"item_id", "prompt", "choices", "answer"}, lambda source: _as_items(source)),
    ({"id", "question"}, read_arc),
    ({"gold_label", "sentence1"}, nli),
    ({"uid", "context", "hypothesis"}, nli),
    ({"idx", "sentence1", "logic"}, glue_diagnostic),
    ({"idx", "sentence1", "label"}, glue_diagnostic),
    ({"question", "correct_answer"}, sciq),
    ({"goal", "sol1"}, piqa),
    ({"context", "question"}, social_iqa),
    ({"activity_label", "endings"}, hellaswag),
    ({"obs1", "hyp1"}, abductive_nli),
]


def read(source: Source) -> pd.DataFrame:
    """Read any of the item banks that this room knows, or an items frame written as JSONL.

    Raises
    ------
    DataError
        If the source has none of the known layouts.
    """
    text = lines(source)
    first = text[0] if text else ""
    if first.lstrip().startswith(("{", "[")):
        keys = set().union(*(record.keys() for record in records(source)[:50]))
        for needed, reader in _BY_KEYS:
            if needed <= keys:
                return reader(source)
        raise DataError(
            f"{source} has records of {sorted(keys)[:12]}, which is no layout that is known; see text.items"
        )
    columns = first.split("\t")
    if "Premise" in columns:
        return glue_diagnostic(source)
    if columns == ["sentence", "label"] or first[:2] in {f"{degree} " for degree in range(5)}:
        return sentiment(source)
    if len(columns) == 4 and columns[3].strip().lower() in (
        "entailment",
        "neutral",
        "contradiction",
    ):
        return semantic_fragments(source)
    if len(text) > 1 and text[1] in {"0", "1", "2", "3"}:
        return hellaswag(source)
    raise DataError(
        f"{source} begins with {first[:60]!r}, which is no layout that is known; see psychlm.corpora.item_banks"
    )


def _as_items(source: Source) -> pd.DataFrame:
    return finished(table(records(source), ["item_id", "prompt", "choices", "answer"], source))
