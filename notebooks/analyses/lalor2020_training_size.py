"""Lalor (2020, chapter 3): difficulty for people, training size, and the odds of a right answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.special import expit
from scipy.stats import norm

from analyses.lalor2020_crowds import polar_sst
from psychlm import corpora, frames, irt
from psychlm.corpora import item_banks
from psychlm.corpora.responses import CrowdLabels

TERMS = ["intercept", "difficulty", "log_size", "interaction"]
Parts = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


def annotated_snli(items: pd.DataFrame) -> Parts:
    """Return training, development and test pairs of SNLI's stored pairs.

    A pair is harder the fewer of five annotators gave the gold label: ``difficulty`` is the log
    odds of another label, half an annotator added to both sides. Networks train on pairs of the
    development part, of which the last 15 % of premises are held out, and answer the test part."""
    pool = items[items["part"] == "dev"]
    test = items[items["part"] == "test"]
    held_out = pool["premise"] >= pool["premise"].quantile(0.85)
    votes = test[item_banks.NLI_LABELS].to_numpy()
    n = votes[np.arange(len(test)), test["answer"].astype(int)]
    test = test.assign(agree=n, difficulty=np.log((5.5 - n) / (n + 0.5)))
    return pool[~held_out], pool[held_out], test


def rated_sst(items: pd.DataFrame) -> Parts:
    """Return training, development and test sentences of SST with two classes.

    A sentence is harder if it is merely negative or positive than if it is very much so; neutral
    sentences (degree 2) are left out."""
    train, dev, test = (
        part.assign(difficulty=-(part["degree"] - 2).abs().astype(float))
        for part in polar_sst(items)
    )
    return train, dev, test


def _difficulty_by_label(crowd: CrowdLabels) -> pd.Series:
    """Return difficulties (logits) of a 2PL of the pairs of each gold label."""
    scales = [frames.drop_constant(crowd.items_keyed(label))[0] for label in crowd.key.unique()]
    return pd.concat([irt.fit(scale, "2PL", standard_errors=False).items["b"] for scale in scales])


def whole_snli(archive: str | Path) -> Parts:
    """Return SNLI's training and development pairs, and the 180 that a thousand people saw."""
    names = [f"{archive}#snli_1.0_{part}.jsonl" for part in ("train", "dev", "test")]
    train, dev, test = (item_banks.nli(name) for name in names)
    b = {group: _difficulty_by_label(corpora.lalor2016(group)) for group in (4, 5)}
    by_pair = pd.concat(b, names=["agree", "item_id"]).rename("difficulty").reset_index()
    judged = pd.concat([train, dev, test]).merge(by_pair, on="item_id")
    train = train[~train["item_id"].isin(judged["item_id"])]
    dev = dev[~dev["item_id"].isin(judged["item_id"])]
    return train, dev, judged


def whole_sst(dictionary: str | Path) -> Parts:
    """Return SST's phrases for training and development, and the 131 that a thousand people saw, by
    the treebank's ``dictionary.txt`` of phrases and numbers."""
    layout = {"header": None, "sep": "|", "quoting": 3, "keep_default_na": False}
    text = pd.read_csv(dictionary, names=["prompt", "id"], index_col="id", **layout)["prompt"]
    crowd = corpora.lalor2018()
    b = irt.fit(frames.drop_constant(crowd.graded)[0], "2PL", standard_errors=False).items["b"]
    test = b.rename("difficulty").rename_axis("item_id").reset_index()
    test["prompt"] = text.loc[b.index.astype(int)].to_list()
    test["answer"] = (crowd.key[b.index] == "positive").astype(int).to_numpy()
    train = item_banks.sentiment("sst/sst2_phrases_train")
    return train, item_banks.sentiment("sst/stsa.binary.dev"), test


def scaled(test: pd.DataFrame) -> pd.DataFrame:
    """Return items with difficulty in standard deviations among the items of one gold label.

    Over labels, a network that gives one label to nearly all items would seem to find easy what
    people find easy. ``raw`` is difficulty over all items (SD), ``degree`` its third."""
    raw = test["difficulty"]
    within = raw - raw.groupby(test["answer"]).transform("mean")
    many = raw.nunique() > 3
    grade = pd.qcut(raw, 3, labels=False) if many else raw.rank(method="dense").astype(int) - 1
    names = ["easy", "middling", "hard"] if grade.nunique() == 3 else ["easy", "hard"]
    return test.assign(
        raw=(raw - raw.mean()) / raw.std(),
        difficulty=within / within.std(),
        degree=pd.Categorical.from_codes(grade, names, ordered=True),
    )


def regression(
    rows: pd.DataFrame, *, by: str = "difficulty", clustered: bool = True, level: float = 0.95
) -> pd.DataFrame:
    """Fit the logistic regression of right answers on difficulty, log size and their product.

    ``rows`` have ``right``, ``person``, ``item``, ``log_size`` (log10, centred) and ``by``, the
    difficulty (SD). Answers to one item are correlated, and answers of one network: the variances
    clustered by either (Cameron, Gelbach & Miller 2011) are added. What they share stays in, since
    with few networks the difference can fall below zero: the sum is conservative."""
    for column in (by, "log_size"):
        if rows[column].nunique() < 2:
            raise frames.FrameError(
                f"{column} has one value in all {len(rows)} answers, so that its slope is unknown; "
                "give networks of two sizes, and items of several difficulties"
            )
    b = rows[by].to_numpy()
    log_size = rows["log_size"].to_numpy()
    x = np.column_stack([np.ones(len(rows)), b, log_size, b * log_size])
    model = sm.GLM(rows["right"].to_numpy(), x, family=sm.families.Binomial())
    fit = model.fit()
    variance = np.diag(fit.cov_params())
    if clustered:
        variance = np.zeros(len(TERMS))
        for unit in ("item", "person"):
            groups = {"groups": pd.factorize(rows[unit])[0]}
            by_unit = model.fit(start_params=fit.params, cov_type="cluster", cov_kwds=groups)
            variance = variance + np.diag(by_unit.cov_params())
    table = pd.DataFrame({"estimate": fit.params, "se": np.sqrt(variance)}, index=TERMS)
    table["p"] = 2 * norm.sf(np.abs(table["estimate"] / table["se"]))
    margin = norm.ppf((1 + level) / 2) * table["se"]
    return table.assign(low=table["estimate"] - margin, high=table["estimate"] + margin)


def simulate(rng: np.random.Generator, n_items: int = 400, n_each: int = 6) -> pd.DataFrame:
    """Draw an experiment of ``3 * n_each`` networks with an interaction of -0.2 logits.

    Items differ beyond difficulty in how easy they are and how fast they are learned, networks in
    their slope on difficulty, so that answers to an item and of a network are correlated."""
    log_size = np.repeat([-1.0, 0.0, 1.0], n_each)
    person, item = (index.ravel() for index in np.indices((len(log_size), n_items)))
    rows = pd.DataFrame({"person": person, "item": item, "log_size": log_size[person]})
    rows["difficulty"] = rng.normal(size=n_items)[item]
    slope = rng.normal(-0.3, 0.15, len(log_size))[person] - 0.2 * rows["log_size"]
    gain = rng.normal(0.4, 0.3, n_items)[item]
    easiness = rng.normal(0.5, 0.8, n_items)[item]
    logit = easiness + slope * rows["difficulty"] + gain * rows["log_size"]
    return rows.assign(right=(rng.random(len(rows)) < expit(logit)).astype(float))
