"""The stand-in of ComprehENotes has the published design, and real files come in by the same door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from psychlm import data
from psychlm.frames import FrameError
from psychlm.papers import lalor2020_comprehenotes as notes


@pytest.fixture(scope="module")
def study() -> notes.Calibration:
    return notes.calibration(seed=5)


def test_the_stand_in_has_the_published_design(study: notes.Calibration) -> None:
    printed = data.published("lalor2020.table7_text").set_index("key")["value"]
    assert study.kind == "simulated" and study.known is not None
    assert (
        sum(answers.shape[1] for answers in study.answers.values())
        == printed["n_items"]
        == len(study.known)
    )
    for answers in study.answers.values():
        large = answers.shape[1] == printed["n_items_of_large_topics"]
        assert len(answers) == printed["n_persons_of_large_topics" if large else "n_persons"]
        assert (answers.notna().sum(axis=1) == (12 if large else answers.shape[1])).all()
        assert (
            0.6 < np.nanmean(answers) < 0.98
        )  # "mean scores for each task above 70 %", with flat items among them
    sound = study.known[study.known["flaw"] == ""]
    assert len(sound) == printed["n_full"]
    assert sound["b"].between(printed["lowest_difficulty"], printed["highest_difficulty"]).all()
    assert sound["a"].max() == printed["steepest_slope"]


def test_a_dependent_item_repeats_a_sound_one_of_its_topic(study: notes.Calibration) -> None:
    known = study.known
    dependent = known[known["flaw"] == "dependent"]
    partners = known.loc[dependent["partner"]]
    assert (partners["flaw"] == "").all() and partners.index.is_unique
    assert (partners["topic"].to_numpy() == dependent["topic"].to_numpy()).all()
    item, partner = dependent.index[0], dependent["partner"].iloc[0]
    answers = study.answers[dependent["topic"].iloc[0]][[item, partner]].dropna()
    assert (answers[item] == answers[partner]).mean() > 0.75


def test_a_seed_fixes_the_study_and_another_gives_another(study: notes.Calibration) -> None:
    again, other = notes.calibration(seed=5), notes.calibration(seed=6)
    pd.testing.assert_frame_equal(again.known, study.known)
    pd.testing.assert_frame_equal(again.answers["COPD"], study.answers["COPD"])
    assert not other.known["a"].equals(study.known["a"])


def test_validation_shows_two_booklets_of_three_to_664_persons(study: notes.Calibration) -> None:
    sound = study.known.index[study.known["flaw"] == ""]
    answers = notes.validation(sound, study.known, seed=5)
    assert answers.shape == (664, 55)
    assert answers.notna().sum(axis=1).isin([36, 37]).all()


def test_the_groups_have_the_printed_demographics_and_means(study: notes.Calibration) -> None:
    sound = study.known.index[study.known["flaw"] == ""]
    groups = notes.follow_up(sound, study.known, seed=5, copies=40)
    printed = data.published("lalor2020.table7_6").set_index(["characteristic", "value"])
    for name in ("Gender", "Age", "Ethnicity", "Education", "Occupation"):
        counted = pd.crosstab(groups.persons[name], groups.persons["group"]) / 40
        for value, row in counted.iterrows():
            assert (row == printed.loc[(name, value), list(notes.GROUPS)].astype(float)).all()
    right = groups.answers.mean(axis=1).groupby(groups.persons["group"]).mean()
    assert right["Baseline"] < right["MedlinePlus"] < right["NoteAid"]
    assert groups.answers.index.equals(groups.persons.index) and groups.persons.index.is_unique


def test_of_a_dependent_pair_either_item_may_go(study: notes.Calibration) -> None:
    known = study.known
    item = known.index[known["flaw"] == "dependent"][0]
    partner = known.loc[item, "partner"]
    for removed in ([item], [partner]):
        graded = notes.graded(known, pd.Index(removed))
        assert graded.loc[item, "removed"] and not graded.loc[partner, "removed"]
    both = notes.graded(known, pd.Index([item, partner]))
    assert both.loc[[item, partner], "removed"].all()


def test_real_files_come_in_by_the_same_door(study: notes.Calibration, tmp_path: Path) -> None:
    rows = [
        answers.stack()
        .rename("correct")
        .rename_axis(["person", "item"])
        .reset_index()
        .assign(topic=topic)
        for topic, answers in study.answers.items()
    ]
    everything = pd.concat(rows)
    everything["person"] = everything["topic"] + "-" + everything["person"].astype(str)
    everything.to_csv(tmp_path / "per_topic.csv", index=False)
    real = notes.calibration(tmp_path)
    assert real.kind == "real" and real.known is None
    for topic, answers in study.answers.items():
        np.testing.assert_allclose(real.answers[topic].mean(), answers.mean())
    sound = study.known.index[study.known["flaw"] == ""]
    drawn = notes.follow_up(sound, study.known, seed=5)
    drawn.persons.join(drawn.answers).rename_axis("person").reset_index().to_csv(
        tmp_path / "follow_up.csv", index=False
    )
    groups = notes.follow_up(sound, None, tmp_path)
    pd.testing.assert_frame_equal(groups.answers, drawn.answers, check_names=False)
    assert groups.persons["group"].tolist() == drawn.persons["group"].tolist()


def test_what_is_missing_is_named(study: notes.Calibration, tmp_path: Path) -> None:
    pd.DataFrame({"person": ["a"], "item": ["x"], "correct": [1]}).to_csv(
        tmp_path / "per_topic.csv", index=False
    )
    with pytest.raises(FrameError, match="topic"):
        notes.calibration(tmp_path)
    with pytest.raises(ValueError, match="give its folder"):
        notes.validation(pd.Index(["Q01"]), None)
