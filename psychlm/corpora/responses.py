"""Published responses: which person or model answered which test item how.

Graded responses are facts that come with the project (``data/facts/``); the wording of items is
not, and :class:`psychlm.data.DataMissingError` is raised where it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from psychlm import data, frames
from psychlm._recipes import CATEGORIES as LAVERGHETTA_CATEGORIES  # noqa: F401
from psychlm.corpora.item_banks import NLI_LABELS, glue_diagnostic


@dataclass(frozen=True)
class Laverghetta2021:
    """Humans and language models on the GLUE diagnostic (Laverghetta et al. 2021)."""

    panel: pd.DataFrame  # 19 workers who finished every phase x 104 items; behind Table 1
    phases: dict[str, pd.DataFrame]  # by category: accepted workers (others in each) x its items
    models: pd.DataFrame  # 240 models x 811 items
    persons: pd.DataFrame  # population; of models architecture, pretrained, finetuned
    items: pd.DataFrame  # item_id, answer (place), category, subcategory, domain

    def category_items(self, code: str) -> pd.Index:
        """Return the ids of the items of a category that humans saw, in the order of ``items``."""
        return pd.Index(self.items.loc[self.items["category"] == code, "item_id"], name="item")

    def population(self, name: str) -> pd.DataFrame:
        """Return the responses of one population of models, ``"transformer"`` or ``"lstm"``."""
        members = self.persons.index[self.persons["population"] == name]
        return self.models.loc[self.models.index.isin(members)]

    def wording(self) -> pd.DataFrame:
        """Return ``items`` as an items frame, with ``prompt`` (premise, line break, hypothesis) and
        ``choices``, from the original file, which holds the sentences."""
        pairs = glue_diagnostic("laverghetta2021/diagnostic_results").set_index("item_id")
        pairs = pairs.loc[self.items["item_id"]].reset_index()
        prompt = pairs["prompt"] + "\n" + pairs["hypothesis"]
        return frames.check_items(self.items.assign(prompt=prompt, choices=pairs["choices"]))


def laverghetta2021() -> Laverghetta2021:
    """Return the responses of Laverghetta et al. (2021).

    >>> laverghetta2021().panel.shape
    (19, 104)
    """

    def wide(rows: pd.DataFrame) -> pd.DataFrame:
        table = rows.pivot(index="person", columns="item_id", values="correct")
        return frames.check_responses(table)

    panel, models, items, of_phases = (
        data.facts(f"laverghetta2021/{name}") for name in ("panel", "models", "items", "phases")
    )
    phases = {code: wide(rows) for code, rows in of_phases.groupby("category", sort=False)}
    panel = wide(panel)
    models = frames.check_responses(models.set_index("item_id").T)
    name = models.index.to_series()
    # Names tell how a model was made; some runs of ConvBERT are spelled conv-bert, some SNLI runs
    # snlli or sni.
    architecture = name.str.replace("conv-bert", "convbert").str.split("-").str[0]
    finetuned = name.str.extract(r"-fine?tune-([a-z+]+)", expand=False)
    described = pd.DataFrame(
        {
            "population": np.where(name.str.contains("lstm"), "lstm", "transformer"),
            "architecture": architecture,
            "pretrained": ~name.str.contains("nopretrain"),
            "finetuned": finetuned.str.replace(r"^snl?l?i", "snli", regex=True),
        }
    )
    everyone = panel.index.append([rows.index for rows in phases.values()]).unique()
    humans = pd.DataFrame({"population": "human"}, index=everyone)
    persons = pd.concat([humans, described]).rename_axis("person")
    return Laverghetta2021(panel, phases, models, persons, items)


@dataclass(frozen=True)
class CrowdLabels:
    """The labels that a crowd gave to items, and the same graded against a key (Lalor et al. 2016,
    2018)."""

    labels: pd.DataFrame  # persons x items; NaN where nothing was answered
    key: pd.Series  # by item: the gold label, or the crowd's majority where none was released
    graded: pd.DataFrame  # persons x items; a missing label is wrong, as its authors coded it

    def items_keyed(self, label: str) -> pd.DataFrame:
        """Return the graded answers to the items whose right answer is this label."""
        return self.graded.loc[:, self.key[self.graded.columns] == label]


def lalor2016(group: int) -> CrowdLabels:
    """Return the labels that about 1,000 people gave to 90 SNLI pairs.

    ``group`` is 4 or 5: of SNLI's five annotators so many agreed on these pairs' gold label (4GS,
    5GS).

    >>> lalor2016(4).graded.shape
    (976, 90)
    """
    codes = data.facts(f"lalor2016/group_{group}").set_index("userid")
    # The first row holds the gold labels; labels are coded by their place in NLI_LABELS, -1 where
    # none was given.
    labels = codes.apply(lambda column: column.map(dict(enumerate(NLI_LABELS))))
    return _graded(labels.drop(index="gold"), labels.loc["gold"])


def lalor2018(key: Literal["majority", "gold"] = "majority") -> CrowdLabels:
    """Return what about 1,000 people said of 131 SST phrases: "positive" for ratings 3 to 5, else
    "negative".

    Neutral counts as positive, as the dissertation bins it (Lalor 2020, section 2.3). The key is
    the crowd's majority, or the treebank's gold label (Socher et al. 2013), a positivity of the
    same phrase above .4, where neutral begins.

    >>> majority, gold = (lalor2018(key).key for key in ("majority", "gold"))
    >>> int((majority == gold).sum()), len(gold)
    (117, 131)
    """
    if key not in ("majority", "gold"):
        raise ValueError(f"key is {key!r}; it is the crowd's 'majority' or the treebank's 'gold'")
    ratings = lalor2018_ratings()
    words = np.where(ratings > 2, "positive", "negative")
    labels = pd.DataFrame(words, ratings.index, ratings.columns)
    if key == "majority":
        return _graded(labels, labels.mode().iloc[0])
    table = data.published("socher2013.sentiment").set_index("phrase_id")
    positivity = table["positivity"].rename(str)[ratings.columns]
    words = np.where(positivity > 0.4, "positive", "negative")
    return _graded(labels, pd.Series(words, ratings.columns))


def lalor2018_ratings() -> pd.DataFrame:
    """Return the ratings behind :func:`lalor2018`: 1 (very negative) to 5 (very positive).

    >>> lalor2018_ratings().shape
    (999, 131)
    """
    return data.facts("lalor2018/ratings").set_index("uuid")


def _graded(labels: pd.DataFrame, key: pd.Series) -> CrowdLabels:
    graded = (labels == key[labels.columns].to_numpy()).astype(float)
    return CrowdLabels(labels, key.rename("label"), frames.check_responses(graded))


def comprehenotes() -> pd.DataFrame:
    """Return the graded responses of 660 people to the 55 items of ComprehENotes (Lalor 2020).

    Its authors ask that the data be requested from them: they do not come with the project.

    >>> comprehenotes().shape  # doctest: +SKIP
    (660, 55)
    """
    table = pd.read_csv(data.path("comprehenotes/responses"), index_col="person").astype("float64")
    return frames.check_responses(table.rename_axis(columns="item"))


def metabench(benchmark: str) -> pd.DataFrame:
    """Return the graded answers of about 5,000 language models to a benchmark's items.

    ``benchmark`` is "arc", "gsm8k", "mmlu", "truthfulqa" or "winogrande", of which metabench
    selected the items (Kipnis et al. 2025; licence CC BY-NC-SA 4.0); models go by their name on the
    Hugging Face hub.

    >>> metabench("arc").shape
    (4280, 100)
    """
    return frames.check_responses(data.facts(f"metabench/{benchmark}").set_index("model"))


def metabench_scores() -> pd.DataFrame:
    """Return the models' scores on the six benchmarks of the Open LLM Leaderboard 1, in %.

    >>> metabench_scores()["arc"].idxmax() in metabench("arc").index
    True
    """
    return data.facts("metabench/leaderboard").set_index("model")


def lsat6() -> pd.DataFrame:
    """Return the answers of 1,000 people to five items of the Law School Admission Test, section 6.

    Printed as counts of answer patterns by Bock & Lieberman (1970); every program for item response
    theory has been tried on them.

    >>> lsat6().mean().round(2).tolist()
    [0.92, 0.71, 0.55, 0.76, 0.87]
    """
    counts = data.published("bock1970.lsat6")
    digits = np.array([list(f"{pattern:05d}") for pattern in counts["pattern"]], dtype=float)
    answers = np.repeat(digits, counts["persons"], axis=0)
    return frames.check_responses(pd.DataFrame(answers, columns=[f"LSAT {i}" for i in range(1, 6)]))
