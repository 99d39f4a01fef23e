"""Readers of crowds' labels. References: the authors' own coded files; counts printed in Lalor (2020), section 2.2."""

from __future__ import annotations

import pandas as pd
import pytest

from psychlm import data
from psychlm.corpora import crowd_labels


@pytest.mark.needs_share
@pytest.mark.parametrize(("group", "n_persons"), [(4, 976), (5, 983)])
def test_our_grading_is_the_authors_own(group: int, n_persons: int) -> None:
    crowd = crowd_labels.lalor2016(group)
    coded = pd.read_csv(data.path(f"lalor2016/irt_file_{group}_coded"), index_col="userid").astype(
        float
    )
    assert crowd.graded.shape == (n_persons, 90)
    pd.testing.assert_frame_equal(crowd.graded, coded, check_names=False)


@pytest.mark.needs_share
def test_each_label_keys_thirty_pairs() -> None:
    crowd = crowd_labels.lalor2016(5)
    assert crowd.key.value_counts().to_dict() == {
        "contradiction": 30,
        "entailment": 30,
        "neutral": 30,
    }
    assert crowd.items_keyed("neutral").shape == (983, 30)


@pytest.mark.needs_share
def test_ratings_become_two_labels() -> None:
    crowd = crowd_labels.lalor2018()
    assert crowd.graded.shape[1] == 131
    assert set(crowd.key) == {"positive", "negative"}
    assert (crowd.graded.mean() >= 0.5).all()  # the key is the majority


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(ValueError, match="group 3 does not exist"):
        crowd_labels.lalor2016(3)


def test_without_data_a_stand_in_of_the_same_form_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise data.DataMissingError(name)

    monkeypatch.setattr(data, "path", absent)
    with pytest.raises(data.DataMissingError):
        crowd_labels.lalor2016(4)
    for crowd in (
        crowd_labels.lalor2016(4, simulate_if_absent=1),
        crowd_labels.lalor2018(simulate_if_absent=1),
    ):
        assert crowd.kind == "simulated"
        assert crowd.graded.shape == (980, 90)
        assert 0.6 < crowd.graded.to_numpy().mean() < 0.9
