"""Published response patterns: who answered which test item how, as the contracts' frames.

Each reader returns real data or raises :class:`psychlm.data.DataMissingError`; with ``simulate_if_absent`` a stand-in
of the same form is drawn from known parameters instead, and its ``kind`` says "simulated".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm import data, frames, simulate
from psychlm.report import DataKind

LAVERGHETTA_CATEGORIES = {
    "MN": "morphological negation",
    "PP": "prepositional phrases",
    "LE": "lexical entailment",
    "Q": "quantifiers",
    "PS": "propositional structure",
    "RLS": "richer logical structure",
    "WK": "world knowledge",
}
NLI_LABELS = ["entailment", "neutral", "contradiction"]


@dataclass(frozen=True)
class Laverghetta2021:
    """Humans and language models on the GLUE diagnostic (Laverghetta et al. 2021).

    Attributes
    ----------
    panel : DataFrame, 19 persons x 104 items
        The workers who finished every phase; the panel behind Table 1.
    phases : dict of category code -> DataFrame
        All accepted workers of the phase that held the category, on its 14 or 15 items; persons differ between phases.
    models : DataFrame, 240 models x 811 items
    persons : DataFrame, indexed by ``person``
        ``population`` ("human", "transformer", "lstm"), and for models ``architecture``, ``pretrained``, ``finetuned``.
    items : DataFrame
        An items frame of the diagnostic, with ``category`` (code, where humans saw the item) and ``domain``.
    kind : "real" or "simulated"
    """

    panel: pd.DataFrame
    phases: dict[str, pd.DataFrame]
    models: pd.DataFrame
    persons: pd.DataFrame
    items: pd.DataFrame
    kind: DataKind

    def category_items(self, code: str) -> pd.Index:
        """Return the ids of the items of a category that humans saw, in the items frame's order."""
        return pd.Index(self.items.loc[self.items["category"] == code, "item_id"], name="item")

    def population(self, name: str) -> pd.DataFrame:
        """Return the responses of one population of models, ``"transformer"`` or ``"lstm"``."""
        members = self.persons.index[self.persons["population"] == name]
        return self.models.loc[self.models.index.isin(members)]


def laverghetta2021(*, simulate_if_absent: int | None = None) -> Laverghetta2021:
    """Read the responses of Laverghetta et al. 2021.

    Parameters
    ----------
    simulate_if_absent : int, optional
        A seed: where the data cannot be had, draw a stand-in of the same form from it rather than raise.

    Raises
    ------
    DataMissingError
        If the data cannot be had and no seed is given.
    """
    names = [
        f"laverghetta2021/{name}"
        for name in ("diagnostic_results", "human_responses", "human_panel")
    ]
    try:
        diagnostic, human, panel = (data.path(name) for name in names)
    except data.DataMissingError:
        if simulate_if_absent is None:
            raise
        return _laverghetta2021_simulated(np.random.default_rng(simulate_if_absent))
    table = pd.read_csv(diagnostic, sep="\t", quoting=3, keep_default_na=False)
    phases = pd.read_csv(human, dtype={"person": str})
    return _laverghetta2021(
        # The second row of the file names each model's parent, the last one holds sums: neither is an item.
        table=table.iloc[1:-1],
        phases=phases,
        panel=pd.read_csv(panel, dtype={"person": str}),
        kind="real",
    )


def _laverghetta2021(
    table: pd.DataFrame, phases: pd.DataFrame, panel: pd.DataFrame, kind: DataKind
) -> Laverghetta2021:
    """Turn the three released tables into frames; one item per row of ``table``, models from its column 6 on."""
    item_id = table["ID"].astype(int)
    category = phases.drop_duplicates("item_id").set_index("item_id")["category"]
    items = pd.DataFrame(
        {
            "item_id": item_id,
            "prompt": table["Premise"] + "\n" + table["Hypothesis"],
            "choices": [NLI_LABELS] * len(table),
            "answer": table["Label"].map(NLI_LABELS.index),
            "category": item_id.map(category),
            "subcategory": table["Subcategory name"],
            "domain": table["Domain"],
        }
    ).reset_index(drop=True)
    models = table.iloc[:, 6:].astype(float).set_axis(item_id).T
    by_category = {
        code: frames.check_responses(
            rows.pivot(index="person", columns="item_id", values="correct")
        )
        for code, rows in phases.groupby("category", sort=False)
    }
    everyone = frames.check_responses(
        panel.pivot(index="person", columns="item_id", values="correct")
    )
    return Laverghetta2021(
        panel=everyone,
        phases=by_category,
        models=frames.check_responses(models),
        persons=_laverghetta_persons(everyone, by_category, models.index),
        items=frames.check_items(items),
        kind=kind,
    )


def _laverghetta_persons(
    panel: pd.DataFrame, phases: dict[str, pd.DataFrame], models: pd.Index
) -> pd.DataFrame:
    """Describe every human and every model; a model's name tells its architecture and how it was trained."""
    people = panel.index.append([responses.index for responses in phases.values()]).unique()
    humans = pd.DataFrame({"population": "human"}, index=people)
    name = models.to_series()
    described = pd.DataFrame(
        {
            "population": np.where(name.str.contains("lstm"), "lstm", "transformer"),
            # Some runs of ConvBERT are spelled conv-bert.
            "architecture": name.str.replace("conv-bert", "convbert").str.split("-").str[0],
            "pretrained": ~name.str.contains("nopretrain"),
            # ... and some training sets are spelled snlli or sni.
            "finetuned": name.str.extract(r"-fine?tune-([a-z+]+)", expand=False).str.replace(
                r"^snl?l?i", "snli", regex=True
            ),
        }
    )
    return pd.concat([humans, described]).rename_axis("person")


def _laverghetta2021_simulated(rng: np.random.Generator) -> Laverghetta2021:
    """Draw a stand-in of the same form: transformers share much of the humans' difficulties, LSTMs little."""
    codes = np.repeat(list(LAVERGHETTA_CATEGORIES), 15)
    ids = np.arange(1, len(codes) + 1)
    human = rng.normal(-1.5, 1.0, len(codes))
    table = pd.DataFrame(
        {
            "ID": ids,
            "Subcategory name": codes,
            "Domain": "Simulated",
            "Premise": [f"Premise {i}." for i in ids],
            "Hypothesis": [f"Hypothesis {i}." for i in ids],
            "Label": rng.choice(NLI_LABELS, len(ids)),
        }
    )
    architectures = rng.choice(
        ["albert", "bert", "electra", "longformer", "roberta", "spanbert", "xlnet"], 183
    )
    names = [f"{name}-{i}-pretrain-finetune-snli" for i, name in enumerate(architectures)]
    lstms = [f"lstm-{i}-pretrain-finetune-snli" for i in range(57)]
    for group, share in ((names, 0.8), (lstms, 0.3)):
        theirs = share * (human + 1.5) + np.sqrt(1 - share**2) * rng.normal(size=len(human))
        drawn = _rasch(pd.Series(rng.normal(size=len(group)), index=group), theirs, ids, rng)
        table = pd.concat([table, drawn.T.reset_index(drop=True)], axis=1)
    people = pd.Series(rng.normal(size=19), index=[f"panel-{i + 1:02d}" for i in range(19)])
    answers = _rasch(people, human, ids, rng).stack().rename("correct").reset_index()
    answers = answers.rename(columns={"item": "item_id"})
    phases = answers.assign(category=codes[answers["item_id"] - 1])
    phases["person"] = phases["category"] + "-" + phases["person"]
    return _laverghetta2021(table, phases, answers, "simulated")


def _rasch(
    theta: pd.Series, difficulty: np.ndarray, ids: np.ndarray, rng: np.random.Generator
) -> pd.DataFrame:
    """Draw Rasch responses of the given abilities to items of the given difficulties."""
    parameters = pd.DataFrame({"a": 1.0, "b": difficulty, "c": 0.0}, index=ids)
    return simulate.responses(theta, parameters, rng)


def lsat6() -> pd.DataFrame:
    """Return the answers of 1,000 people to five items of the Law School Admission Test, section 6.

    Printed as counts of answer patterns by Bock & Lieberman (1970); every program for item response theory has been
    tried on them. They come with the project: nothing is looked up or fetched.
    """
    counts = data.published("bock1970.lsat6")
    digits = np.array([list(f"{pattern:05d}") for pattern in counts["pattern"]], dtype=float)
    answers = np.repeat(digits, counts["persons"], axis=0)
    return frames.check_responses(pd.DataFrame(answers, columns=[f"LSAT {i}" for i in range(1, 6)]))
