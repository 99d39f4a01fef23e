"""Readers of released responses. Reference: the counts printed in Laverghetta et al. 2021, sections 3 to 5."""

from __future__ import annotations

import pandas as pd
import pytest

from psychlm import data, frames
from psychlm.corpora import response_sets


@pytest.mark.needs_share
def test_laverghetta_has_the_papers_people_models_and_items() -> None:
    study = response_sets.laverghetta2021()
    assert study.kind == "real"
    assert study.panel.shape == (19, 104)
    assert (len(study.population("transformer")), len(study.population("lstm"))) == (183, 57)
    assert {code: responses.shape[1] for code, responses in study.phases.items()} == {
        code: 14 if code == "LE" else 15 for code in response_sets.LAVERGHETTA_CATEGORIES
    }
    assert study.items["item_id"].is_unique
    frames.check_items(study.items)


@pytest.mark.needs_share
def test_neither_parents_nor_sums_are_items() -> None:
    study = response_sets.laverghetta2021()
    assert study.models.isin([0, 1]).all().all()
    assert list(study.models.columns) == list(study.items["item_id"])


@pytest.mark.needs_share
def test_names_tell_architecture_and_training() -> None:
    persons = response_sets.laverghetta2021().persons
    row = persons.loc["electra-small-discriminator-nopretrain-finetune-snli+mnli+anli"]
    assert (row["architecture"], row["pretrained"], row["finetuned"]) == (
        "electra",
        False,
        "snli+mnli+anli",
    )
    assert "conv" not in set(persons["architecture"])
    trained = persons.loc[persons["population"] != "human", "finetuned"]
    assert set(trained.dropna()) == {"snli", "mnli", "snli+mnli", "snli+mnli+anli"}


def test_without_data_a_stand_in_of_the_same_form_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise data.DataMissingError(name)

    monkeypatch.setattr(data, "path", absent)
    with pytest.raises(data.DataMissingError):
        response_sets.laverghetta2021()
    study = response_sets.laverghetta2021(simulate_if_absent=1)
    again = response_sets.laverghetta2021(simulate_if_absent=1)
    assert study.kind == "simulated"
    pd.testing.assert_frame_equal(study.models, again.models)
    assert study.panel.shape == (19, 105)
    assert (len(study.population("transformer")), len(study.population("lstm"))) == (183, 57)
    assert list(study.phases) == list(response_sets.LAVERGHETTA_CATEGORIES)


def test_lsat6_has_its_thousand_people_and_published_margins() -> None:
    answers = response_sets.lsat6()
    assert answers.shape == (1000, 5)
    # proportions correct: Bock & Lieberman (1970), also in Rizopoulos (2006, section 4.1)
    assert list(answers.mean().round(3)) == [0.924, 0.709, 0.553, 0.763, 0.870]
