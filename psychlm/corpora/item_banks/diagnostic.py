"""The broad-coverage diagnostic of GLUE (Wang et al. 2019), and its items of one category (Laverghetta et al. 2021).

Every pair is tagged with the phenomena it turns on. To study them apart, Laverghetta et al. kept the pairs with one
tag, grouped as GLUE groups them, and some with two tags that nearly always go together.
"""

from __future__ import annotations

import pandas as pd

from psychlm.corpora.item_banks.nli import BINARY_LABELS, NLI_LABELS
from psychlm.corpora.item_banks.sources import Source, finished, lines, records, table
from psychlm.data import DataError

GROUPS = {  # Wang et al. 2019, appendix E: the tags of each group, where they are more than the group itself
    "Alternations": ("Active/Passive", "Datives", "Genitives/Partitives", "Nominalization"),
    "Syntactic ambiguity": ("Relative clauses", "Coordination scope"),
    "Propositional structure": (
        "Negation",
        "Double negation",
        "Conjunction",
        "Disjunction",
        "Conditionals",
    ),
    "Quantification": ("Universal", "Existential"),
    "Monotonicity": ("Upward monotone", "Downward monotone", "Non-monotone"),
    "Richer logical structure": ("Intervals/Numbers", "Temporal"),
}
MERGED = {  # into each, pairs that also bear these tags: appendix A of Laverghetta et al.
    "Morphological negation": {"Negation", "Double negation"},
    "Core args": {"Symmetry/Collectivity"},
    "Named entities": {"World knowledge"},
    # not in the appendix, but so in the released file, without which it would have 16 pairs less
    "Restrictivity": {"Non-monotone", "World knowledge", "Common sense", "Redundancy"},
}
_GROUP_OF = {tag: group for group, tags in GROUPS.items() for tag in tags}
_TAG_COLUMNS = {  # GLUE's names of the four groups of tags, and SuperGLUE's
    "Lexical Semantics": "lexical-semantics",
    "Predicate-Argument Structure": "predicate-argument-structure",
    "Logic": "logic",
    "Knowledge": "knowledge",
}


def glue_diagnostic(source: Source = "mcqa/ax_b") -> pd.DataFrame:
    """Read the diagnostic of GLUE.

    Parameters
    ----------
    source : str or Path
        ``"mcqa/ax_b"``, SuperGLUE's form with two labels; ``"laverghetta2021/diagnostic_results"``, the pairs of one
        category with three labels; or the file ``diagnostic-full.tsv`` of gluebenchmark.com: all pairs, three labels.

    Returns
    -------
    DataFrame
        Items; ``item_id`` is the pair's number from 0 (int), as in :func:`psychlm.corpora.response_sets.laverghetta2021`.
        With ``hypothesis`` and ``categories``, the pair's tags (list); the second source has ``category`` instead, and
        the last two ``domain``.
    """
    text = lines(source)
    if text and text[0].startswith("{"):
        frame = table(records(source), ["idx", "sentence1", "sentence2", "label", "logic"], source)
        frame = frame.rename(
            columns={
                "idx": "ID",
                "sentence1": "Premise",
                "sentence2": "Hypothesis",
                "label": "Label",
            }
        )
    else:  # quotes are part of the text
        header, *rows = [line.split("\t") for line in text]
        frame = table(
            [dict(zip(header, row, strict=False)) for row in rows],
            ["Premise", "Hypothesis", "Label"],
            source,
        )
        frame = frame.rename(columns=_TAG_COLUMNS)
    labels = BINARY_LABELS if set(frame["Label"]) & {"not_entailment"} else NLI_LABELS
    if "Subcategory name" in frame:
        frame = frame[
            frame["Label"].isin(labels)
        ]  # its other rows name the models' parents and hold sums
    elif not frame["Label"].isin(labels).all():
        raise DataError(
            f"{source} has the labels {sorted(frame['Label'].unique())[:5]}, which are none of {labels}"
        )
    items = pd.DataFrame(
        {
            "item_id": frame["ID"].astype(int) if "ID" in frame else range(len(frame)),
            "prompt": frame["Premise"],
            "choices": [labels] * len(frame),
            "answer": frame["Label"].map(labels.index),
            "hypothesis": frame["Hypothesis"],
        }
    )
    if "Subcategory name" in frame:
        items["category"] = frame["Subcategory name"]
    else:
        items["categories"] = _tags(frame)
    if "Domain" in frame:
        items["domain"] = frame["Domain"]
    return finished(items)


def single_category(items: pd.DataFrame) -> pd.DataFrame:
    """Return the items of one category, with its name in the column ``category`` (Laverghetta et al. 2021, appendix A).

    Their released file has 812 pairs of 20 categories; the paper counts 811. What is left out is counted.

    Parameters
    ----------
    items : DataFrame
        What :func:`glue_diagnostic` gave, with ``categories``.
    """
    category = items["categories"].map(_category)
    kept = items[category.notna()].assign(category=category).reset_index(drop=True)
    kept.attrs["left_out"] = {"no tag, or several": int(category.isna().sum())}
    return kept


def _tags(frame: pd.DataFrame) -> pd.Series:
    """Return the tags of each pair, of whatever group."""
    columns = [frame[name].fillna("") for name in _TAG_COLUMNS.values() if name in frame]
    joined = columns[0].str.cat(columns[1:], sep=";")
    return joined.map(lambda tags: [tag.strip() for tag in tags.split(";") if tag.strip()])


def _category(tags: list[str]) -> str | None:
    if len(tags) == 1:
        return _GROUP_OF.get(tags[0], tags[0])
    for kept, others in MERGED.items():
        if kept in tags and set(tags) - {kept} <= others:
            return kept
    return None
