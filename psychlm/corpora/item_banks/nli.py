"""Natural language inference: SNLI, MNLI, ANLI, Breaking NLI and the semantic fragments.

``prompt`` is the premise, ``hypothesis`` the sentence judged, and the choices are the three labels.
"""

from __future__ import annotations

import pandas as pd

from psychlm.corpora.item_banks.sources import (
    NO_LABEL,
    Source,
    finished,
    lines,
    numbered,
    records,
    table,
    unique_ids,
)

NLI_LABELS = ["entailment", "neutral", "contradiction"]
BINARY_LABELS = ["entailment", "not_entailment"]
_SPELLINGS = {"e": "entailment", "n": "neutral", "c": "contradiction"}
_PARSES = {f"sentence{i}_{kind}" for i in (1, 2) for kind in ("parse", "binary_parse")}
_KEPT = ("category", "genre", "annotator_labels", "round")


def nli(source: Source) -> pd.DataFrame:
    """Read pairs of sentences in the layout of SNLI and MNLI, of ANLI, or of Breaking NLI.

    Parameters
    ----------
    source : str or Path
        JSONL: ``"snli/snli_1.0_dev"``, ``"snli/snli_1.0#snli_1.0_train.jsonl"``,
        ``"mnli/multinli_1.0#multinli_1.0_dev_matched.jsonl"``, ``"anli/anli_v0.1#R3/test.jsonl"``,
        ``"semantic_fragments/breaking_nli_dataset"``, or a file.

    Returns
    -------
    DataFrame
        Items, with ``hypothesis``; and ``annotator_labels``, ``genre`` or ``category`` where the source has them.
        Pairs on which annotators did not agree (gold label "-") are left out, and counted.

    Raises
    ------
    DataError
        If the source has another layout, or a label that is none of the three.
    """
    rows = records(source, without=_PARSES)
    if rows and "context" in rows[0]:
        frame = table(rows, ["uid", "context", "hypothesis", "label"], source).rename(
            columns={
                "uid": "pairID",
                "context": "sentence1",
                "hypothesis": "sentence2",
                "label": "gold_label",
            }
        )
    else:
        frame = table(rows, ["gold_label", "sentence1", "sentence2", "pairID"], source)
    gold = frame["gold_label"].astype(str).str.lower().replace(_SPELLINGS)
    items = unique_ids(frame["pairID"], source).assign(
        prompt=frame["sentence1"],
        choices=[NLI_LABELS] * len(frame),
        answer=_places(gold, source),
        hypothesis=frame["sentence2"],
        **{name: frame[name] for name in _KEPT if name in frame},
    )
    return finished(items, {NO_LABEL: items["answer"] < 0})


def semantic_fragments(source: Source) -> pd.DataFrame:
    """Read a semantic fragment of Richardson et al. (2020): generated pairs that turn on one logical phenomenon.

    Parameters
    ----------
    source : str or Path
        Tab-separated: ``"semantic_fragments/monotonicity_hard/challenge_dev"`` and the like.

    Returns
    -------
    DataFrame
        Items, with ``hypothesis`` and ``category``, the fragment's name. Ids that a file repeats (those of the
        monotonicity fragments name a construction) become ``source_id``, and the lines are the ids.
    """
    frame = pd.DataFrame([line.split("\t") for line in lines(source)])
    frame = table(frame.to_dict("records"), [0, 1, 2, 3], source)  # type: ignore[list-item]
    fragment = str(source).replace("\\", "/").split("/")[-2] if "/" in str(source) else str(source)
    items = pd.DataFrame(
        {
            "item_id": [f"{fragment}-{name}" for name in numbered(source, len(frame))],
            "source_id": frame[0],
            "prompt": frame[1],
            "choices": [NLI_LABELS] * len(frame),
            "answer": _places(frame[3].str.strip().str.lower(), source),
            "hypothesis": frame[2],
            "category": fragment,
        }
    )
    return finished(items, {NO_LABEL: items["answer"] < 0})


def _places(gold: pd.Series, source: Source) -> pd.Series:
    """Return the place of each gold label, -1 where there is none."""
    from psychlm.data import DataError

    places = gold.map({name: i for i, name in enumerate(NLI_LABELS)} | {"-": -1})
    if places.isna().any():
        raise DataError(
            f"{source} has the labels {sorted(gold[places.isna()].unique())[:5]}, which are none of {NLI_LABELS}"
        )
    return places.astype(int)
