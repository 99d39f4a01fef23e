"""Lalor (2020), chapter 7: banks of known quality, to test the selection behind ComprehENotes.

The bank of 83 candidate questions was not released, only its 55 retained ones. Whether the
selection procedure finds bad questions can be tested on simulated banks: the retained questions
with their estimated parameters, and as many bad ones as the authors removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from psychlm import data, frames, irt, simulate

TOPIC_SIZES = {  # candidate questions, section 7.2.2
    "heart_failure": 12,
    "hypertension": 12,
    "diabetes": 18,
    "copd": 18,
    "liver_failure": 12,
    "cancer": 11,
}
FLAWS = ["flat", "negative", "too easy", "dependent"]  # in turn among the bad questions
COPIED = 0.5  # share of persons who answer a dependent item as they answered its partner


@dataclass(frozen=True)
class Bank:
    """A simulated bank of 83 questions, with its responses by topic."""

    items: pd.DataFrame  # a, b, c, topic, flaw ("" for a sound item), partner (of a dependent one)
    responses: dict[str, pd.DataFrame]  # by topic; NaN where a booklet was not shown


def simulate_bank(estimates: pd.DataFrame, rng: np.random.Generator) -> Bank:
    """Draw a bank with the retained questions and planted bad ones, and responses by topic.

    Topics of 18 questions have 400 persons who see two of three booklets, the others 250 persons
    who see all (section 7.2.3).

    Parameters
    ----------
    estimates : DataFrame, indexed by item
        ``a``, ``b`` and ``c`` of the 55 retained questions.
    """
    topic = pd.read_csv(data.path("comprehenotes/items")).set_index("item")["topic"]
    sound = estimates[["a", "b", "c"]].assign(topic=topic, flaw="", partner="")
    bad: list[dict[str, object]] = []
    for name, size in TOPIC_SIZES.items():
        partners = rng.permutation(sound.index[sound["topic"] == name])
        for number in range(size - (sound["topic"] == name).sum()):
            flaw = FLAWS[(len(bad)) % len(FLAWS)]
            row: dict[str, object] = {
                "topic": name,
                "flaw": flaw,
                "partner": "",
                "c": sound["c"].iloc[0],
            }
            if flaw == "flat":
                row |= {"a": rng.uniform(0.05, 0.35), "b": 0.0}
            elif flaw == "negative":
                row |= {"a": -rng.uniform(0.4, 0.9), "b": 1.4}
            elif flaw == "too easy":
                row |= {"a": 1.0, "b": rng.uniform(-5.0, -4.0)}
            else:
                partner = partners[number % len(partners)]
                row |= {"partner": partner, "a": sound["a"][partner], "b": sound["b"][partner]}
            bad.append(row)
    names = pd.Index([f"bad-{i + 1:02d}" for i in range(len(bad))], name="item")
    items = pd.concat([sound, pd.DataFrame(bad, index=names)])
    responses = {}
    for name, rows in items.groupby("topic", sort=False):
        large = len(rows) >= 18
        drawn = simulate.responses(rng.normal(size=400 if large else 250), rows, rng)
        dependent = rows[rows["flaw"] == "dependent"]
        copied = rng.random((len(drawn), len(dependent))) < COPIED
        drawn[dependent.index] = np.where(
            copied, drawn[dependent["partner"]], drawn[dependent.index]
        )
        if large:
            booklet = rng.permutation(np.arange(len(rows)) % 3)
            drawn = drawn.mask(rng.integers(0, 3, len(drawn))[:, None] == booklet)
        responses[str(name)] = drawn
    return Bank(items, responses)


def select_by_topic(bank: Bank, **options: object) -> pd.DataFrame:
    """Select the items of every topic; return by item its ``flaw`` and whether it was ``removed``.

    Items that all answered alike are set aside first. Of a dependent pair either item may be
    removed: if the partner was, the dependent one counts as removed instead.
    """
    retained: list = []
    for responses in bank.responses.values():
        constant = list(frames.constant_items(responses))
        selection = irt.select_items(responses, set_aside=constant, **options)  # type: ignore[arg-type]
        retained += list(selection.retained)
    removed = pd.Series(~bank.items.index.isin(retained), index=bank.items.index)
    pairs = bank.items.loc[bank.items["flaw"] == "dependent", "partner"]
    swapped = pairs[~removed[pairs.index] & removed[pairs].to_numpy()]
    removed[swapped.to_numpy()], removed[swapped.index] = False, True
    return pd.DataFrame({"flaw": bank.items["flaw"], "removed": removed})
