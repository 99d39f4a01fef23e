"""ComprehENotes, a test of understanding one's own medical record (Lalor 2020, chapter 7): its three collections.

The responses were never released. Whoever has them gives a folder with the files named in :data:`FILES`; everyone else
gets a stand-in of the same design, drawn from parameters within the published ranges, with the flaws of an untried
bank planted in it, so that what a procedure finds can be held against what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import truncnorm

from psychlm import data, frames, simulate
from psychlm.report import DataKind

TOPICS = {  # items: 18 for two topics, 11 to 13 for four, 83 in all (section 7.2.2)
    "heart failure": 12,
    "hypertension": 12,
    "diabetes": 18,
    "COPD": 18,
    "liver failure": 12,
    "cancer": 11,
}
LARGE_TOPIC = 18  # items, from which on a topic is given in booklets
N_PERSONS, N_PERSONS_LARGE, N_VALIDATION = 250, 400, 664  # sections 7.2.3 and 7.2.6
N_BOOKLETS = 3  # of which everyone sees all but one
FLAWS = {
    "flat": 8,
    "negative": 4,
    "too easy": 10,
    "dependent": 6,
}  # 28 of 83, as many as the authors removed
COPIED = 0.5  # share of persons who answer a dependent item as they answered its partner
STEEPEST = {"a": 11.3, "b": -2.0}  # section 7.2.7: item 44, most informative around -2
GROUPS = ("Baseline", "MedlinePlus", "NoteAid")
FILES = ("per_topic.csv", "validation.csv", "follow_up.csv")


@dataclass(frozen=True)
class Calibration:
    """The first collection: one sample of persons a topic.

    Attributes
    ----------
    answers : dict of topic -> DataFrame
        Responses frames; NaN where a booklet was not shown.
    known : DataFrame or None
        By item, where the data are simulated: ``topic``, ``a``, ``b``, ``c``, ``flaw`` ("" for a sound item) and
        ``partner``, the item whose answers a dependent one repeats ("" for all others).
    kind : "real" or "simulated"
    """

    answers: dict[str, pd.DataFrame]
    known: pd.DataFrame | None
    kind: DataKind


@dataclass(frozen=True)
class FollowUp:
    """Three groups who took the test with different help.

    Attributes
    ----------
    answers : DataFrame, persons x items
    persons : DataFrame, indexed by ``person``
        ``group`` (one of :data:`GROUPS`), ``Gender``, ``Age``, ``Ethnicity``, ``Education``, ``Occupation``.
    """

    answers: pd.DataFrame
    persons: pd.DataFrame


def calibration(folder: str | Path | None = None, *, seed: int = 0) -> Calibration:
    """Return the answers to the 83 candidate items, topic by topic.

    Parameters
    ----------
    folder : path, optional
        Holds ``per_topic.csv`` with the columns person, topic, item, correct: one row an answer. Without it a stand-in
        is drawn.
    seed : int
        Of the stand-in.

    Raises
    ------
    FrameError
        If the file lacks a column, or its answers are not 0 or 1.
    """
    if folder:
        table = _read(folder, "per_topic.csv", ["person", "topic", "item", "correct"])
        return Calibration(
            {topic: _wide(rows) for topic, rows in table.groupby("topic", sort=False)}, None, "real"
        )
    rng = np.random.default_rng([seed, 1])
    bank = _bank(rng)
    answers = {}
    for topic, items in bank.groupby("topic", sort=False):
        large = len(items) >= LARGE_TOPIC
        drawn = _answers(rng.normal(size=N_PERSONS_LARGE if large else N_PERSONS), items, rng)
        answers[str(topic)] = _in_booklets(drawn, rng) if large else drawn
    return Calibration(answers, bank, "simulated")


def validation(
    items: pd.Index, known: pd.DataFrame | None, folder: str | Path | None = None, *, seed: int = 0
) -> pd.DataFrame:
    """Return the answers of 664 further persons to the retained items, two of three booklets each.

    Parameters
    ----------
    items : Index
        The retained items.
    known : DataFrame or None
        :attr:`Calibration.known`, from which the stand-in is drawn.
    folder : path, optional
        Holds ``validation.csv`` with the columns person, item, correct.
    """
    if folder:
        return _wide(_read(folder, "validation.csv", ["person", "item", "correct"]))[list(items)]
    rng = np.random.default_rng([seed, 2])
    return _in_booklets(_answers(rng.normal(size=N_VALIDATION), _bank_of(known, items), rng), rng)


def follow_up(
    items: pd.Index,
    known: pd.DataFrame | None,
    folder: str | Path | None = None,
    *,
    seed: int = 0,
    copies: int = 1,
) -> FollowUp:
    """Return the answers of the three groups of section 7.3 to all items of a form.

    The stand-in has each group's demographic counts from Table 7.6 (each characteristic shuffled within the group)
    and mean abilities from Table 7.7; it grants white persons and those with a high-school degree the advantage
    that the regression of section 7.3.4 found.

    Parameters
    ----------
    items, known, folder
        As in :func:`validation`; the file is ``follow_up.csv`` with the columns person, group, Gender, Age, Ethnicity,
        Education, Occupation, and one column an item.
    copies : int
        How many studies of the same design to draw at once, one below the other (persons of study k are named k/...).
    """
    if folder:
        table = _read(folder, "follow_up.csv", ["person", "group", *items]).set_index("person")
        return FollowUp(frames.check_responses(table[list(items)]), table.drop(columns=list(items)))
    rng = np.random.default_rng([seed, 3])
    persons = pd.concat([_group_members(rng).add_prefix(f"{k}/", axis=0) for k in range(copies)])
    effect = 0.3 * (persons["Ethnicity"] == "White") - 1.0 * (
        persons["Education"] == "Less than High School"
    )
    centre = persons["group"].map(
        data.published("lalor2020.table7_7").set_index("group")["ability"]
    )
    expected = effect.groupby(persons["group"]).transform("mean")
    theta = centre + effect - expected + rng.normal(0, 0.9, len(persons))
    return FollowUp(_answers(theta, _bank_of(known, items), rng), persons)


def graded(known: pd.DataFrame, removed: pd.Index) -> pd.DataFrame:
    """Hold the removed items against the planted flaws.

    Of a dependent pair either item may go: where the partner went instead, it counts as the dependent one.

    Returns
    -------
    DataFrame, indexed by item
        ``flaw`` ("" for a sound item), ``flawed`` and ``removed`` (bool).
    """
    gone = pd.Series(known.index.isin(removed), index=known.index)
    pairs = known.loc[known["flaw"] == "dependent", "partner"]
    other_went = pairs[~gone[pairs.index] & gone[pairs].to_numpy()]
    gone[other_went.to_numpy()] = False
    gone[other_went.index] = True
    return pd.DataFrame({"flaw": known["flaw"], "flawed": known["flaw"] != "", "removed": gone})


def _bank(rng: np.random.Generator) -> pd.DataFrame:
    """Draw 83 items: 55 sound ones within the published ranges, one of them very steep, and 28 flawed ones."""
    n = sum(TOPICS.values())
    low, high = (
        (edge + 1.4) / 0.6 for edge in (-2.2, 0.7)
    )  # section 7.3.2: difficulties from -2.2 to 0.7
    bank = pd.DataFrame(
        {
            "topic": np.repeat(list(TOPICS), list(TOPICS.values())),
            "a": np.clip(rng.lognormal(np.log(1.45), 0.3, n), 0.9, 3),
            "b": truncnorm.rvs(low, high, loc=-1.4, scale=0.6, size=n, random_state=rng),
            "c": 0.0,
            "flaw": "",
            "partner": "",
        },
        index=pd.Index([f"Q{i + 1:02d}" for i in range(n)], name="item"),
    )
    shuffled = rng.permutation(bank.index)
    first = 0
    for flaw, count in FLAWS.items():
        bank.loc[shuffled[first : first + count], "flaw"] = flaw
        first += count
    bank.loc[shuffled[first], ["a", "b"]] = STEEPEST["a"], STEEPEST["b"]
    return _with_flaws(bank, rng)


def _with_flaws(bank: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Give the flawed items their parameters, and the dependent ones a sound partner of the same topic each."""
    members = {flaw: bank.index[bank["flaw"] == flaw] for flaw in FLAWS}
    bank.loc[members["flat"], "a"] = rng.uniform(0.05, 0.35, FLAWS["flat"])
    bank.loc[members["negative"], "a"] = -rng.uniform(0.4, 0.9, FLAWS["negative"])
    bank.loc[members["negative"], "b"] = (
        1.4  # so that, as of any other item, most answers are right
    )
    bank.loc[members["too easy"], "a"] = 1.0
    bank.loc[members["too easy"], "b"] = rng.uniform(-5.0, -4.0, FLAWS["too easy"])
    sound = bank.index[(bank["flaw"] == "") & (bank["a"] < STEEPEST["a"])]
    free = pd.Series(bank.loc[sound, "topic"]).sample(frac=1, random_state=rng)
    for item in members["dependent"]:
        partner = free.index[free == bank.loc[item, "topic"]][0]
        bank.loc[item, ["a", "b", "partner"]] = [
            bank.loc[partner, "a"],
            bank.loc[partner, "b"],
            partner,
        ]
        free = free.drop(partner)
    return bank


def _bank_of(known: pd.DataFrame | None, items: pd.Index) -> pd.DataFrame:
    if known is None:
        raise ValueError(
            "the items' parameters are not known, since the calibration is real; give its folder here too"
        )
    return known.loc[items]


def _answers(
    theta: np.ndarray | pd.Series, bank: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Draw answers; most persons answer a dependent item as they did its partner, if that is among the items."""
    answers = simulate.responses(theta, bank, rng)
    dependent = bank[bank["partner"].isin(bank.index)]
    repeats = rng.random((len(answers), len(dependent))) < COPIED
    answers[dependent.index] = np.where(
        repeats, answers[dependent["partner"]], answers[dependent.index]
    )
    return answers


def _in_booklets(answers: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Split the items at random into booklets of about one size, and blank one of them for every person."""
    booklet = rng.permutation(np.arange(answers.shape[1]) % N_BOOKLETS)
    left_out = rng.integers(0, N_BOOKLETS, len(answers))
    return answers.mask(left_out[:, None] == booklet)


def _group_members(rng: np.random.Generator) -> pd.DataFrame:
    """Draw the persons of Table 7.6: its counts of each characteristic, shuffled within each group."""
    counts = data.published("lalor2020.table7_6")
    members = [
        pd.DataFrame(
            {
                str(name): rng.permutation(
                    np.repeat(rows["value"].to_numpy(dtype=object), rows[group])
                )
                for name, rows in counts.groupby("characteristic", sort=False)
            }
        ).assign(group=group)
        for group in GROUPS
    ]
    everyone = pd.concat(members, ignore_index=True)
    everyone.index = pd.Index([f"worker-{i + 1:02d}" for i in range(len(everyone))], name="person")
    return everyone


def _read(folder: str | Path, name: str, columns: list[str]) -> pd.DataFrame:
    table = pd.read_csv(Path(folder) / name, dtype={"person": str, "item": str})
    missing = [column for column in columns if column not in table]
    if missing:
        raise frames.FrameError(
            f"{name} needs the columns {missing}, and has {list(table.columns)[:10]}"
        )
    return table


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    return frames.check_responses(rows.pivot(index="person", columns="item", values="correct"))
