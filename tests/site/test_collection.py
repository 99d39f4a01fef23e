"""Notebooks and the parameters with which they run. Reference: the notebooks' cells."""

from pathlib import Path

import pytest
from toy_notebooks import write_notebook

from psychlm import site
from psychlm.site import collection


@pytest.fixture
def three(tmp_path: Path) -> list[collection.Notebook]:
    for name in ("00_start", "10_items", "11_people"):
        write_notebook(tmp_path, name)
    return site.find(tmp_path)


def test_notebooks_are_selected_by_number_name_path_or_pattern(three, tmp_path) -> None:
    read = three[1].title, three[1].question, three[1].parameters
    assert read == ("Items", "Does it run?", {"draws": 50})
    for choices, chosen in (
        ([], three),
        (["10"], three[1:2]),
        (["11_people", "00"], [three[0], three[2]]),
        (["notebooks/10_items.ipynb"], three[1:2]),
        (["1*"], three[1:]),
    ):
        assert collection.select(three, choices) == chosen
    with pytest.raises(site.NotebookError, match=r"10_itms.*10_items"):
        collection.select(three, ["10_itms"])
    with pytest.raises(site.NotebookError, match="00_start; free are: 01, 02"):
        site.new("Again", root=tmp_path, number=0)
    with pytest.raises(site.NotebookError, match="no Latin letter"):
        site.new("???", root=tmp_path)


def test_invalid_collections_are_errors_that_name_the_notebook(tmp_path) -> None:
    path = write_notebook(tmp_path, "10_items", parameters="draws = 2 * 50")
    with pytest.raises(site.NotebookError, match="name = literal"):
        site.find(tmp_path)
    path.write_text('{"cells": [')
    with pytest.raises(site.NotebookError, match=r"10_items\.ipynb is not a readable notebook"):
        site.find(tmp_path)
    write_notebook(tmp_path, "10_items"), write_notebook(tmp_path, "10_people")
    with pytest.raises(site.NotebookError, match="share a number"):
        site.find(tmp_path)


def test_parameters_are_literals_of_python_or_yaml() -> None:
    given = ["draws=500", "rate=1e-3", "name=null", "models=[a, b]", "flag=true", "text='1e-3 x'"]
    expected = {"draws": 500, "rate": 1e-3, "name": None, "models": ["a", "b"], "flag": True}
    assert collection.parse_parameters(given) == expected | {"text": "1e-3 x"}
    given = ["m=1_000", "rates=[1e-3, -.5, +2e3]", "model='123'", "empty=", "sizes={a: 1000}"]
    expected = {"m": 1000, "rates": [1e-3, -0.5, 2e3], "model": "123", "empty": None}
    assert collection.parse_parameters(given) == expected | {"sizes": {"a": 1000}}
    for number, read in (("010", 8), ("1:30", 90)):  # YAML 1.1
        with pytest.raises(site.NotebookError, match=f"YAML reads it as {read}; write a number"):
            collection.parse_parameters([f"n={number}"])
    with pytest.raises(site.NotebookError, match="name=value, a literal of Python or YAML"):
        collection.parse_parameters(["draws"])


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"drows": 3}, "00_start: there is no parameter drows; did you mean draws?"),
        ({"draws": "abc"}, r"00_start: draws='abc' should be a whole number, as draws=50"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_runs(three, tmp_path, parameters, says):
    with pytest.raises(site.NotebookError, match=says):
        site.run(root=tmp_path, parameters=parameters)
    assert not (tmp_path / "reports").exists()


def test_given_parameters_come_after_the_profiles_and_the_papers_models_after_full_sizes(tmp_path):
    write_notebook(tmp_path, "10_items", parameters='draws = 50\nmodel = "default"')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "smoke.yaml").write_text("10_items: {draws: 5}\n11_people:\n")
    (tmp_path / "notebooks" / "full.yaml").write_text("10_items: {draws: 900}\n11_people:\n")
    (tmp_path / "notebooks" / "paper.yaml").write_text("10_items: {model: gpt2}")

    def chosen(*profile_and_given) -> dict[str, object]:
        found = site.find(tmp_path)
        return collection.run_parameters(tmp_path, found, *profile_and_given)["10_items"]

    assert (chosen("quick"), chosen("smoke")) == ({}, {"draws": 5})
    assert chosen("smoke", {"draws": 7}) == {"draws": 7}
    assert chosen("paper") == {"draws": 900, "model": "gpt2"}
