"""Stored results of language models. Reference: the same values computed again in the test."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses import question_sets, stored_results
from psychlm import data, model_facts
from psychlm.corpora import reading_times
from psychlm.probes import wordnet
from psychlm.probes.wordnet_qa import Builder, Recipe


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
    keys, norms = ["text_id", "word_id"], reading_times.ucl_norms()
    # last words are left out: their full stop counts towards the released values only in part
    sentences = model_facts.surprisal("ucl2023").merge(norms[norms["bare"]], on=keys)
    stories = model_facts.surprisal("naturalstories")
    stories = stories.merge(reading_times.natural_stories().surprisals, on=keys)
    for both, released, least in ((sentences, "GPT-2", 0.85), (stories, "GPT-3 davinci", 0.7)):
        agreement = both[["smollm2", "default"]].corrwith(both[released])
        assert agreement["smollm2"] > max(least, agreement["default"] + 0.05)


@pytest.mark.needs_share
def test_entropies_and_scaled_surprisals_computed_again_equal_the_stored_ones() -> None:
    model, keys = "default", ["text_id", "word_id"]
    stored = stored_results.anticipation(model, [1.0, 2.0])
    words = model_facts.WORDS["ucl2023"]()
    few = words[words["text_id"].isin(["1", "17"])].reset_index(drop=True)
    live = stored_results.anticipate(few, model, [1.0, 2.0]).set_index(keys)
    gap = live - stored.set_index(keys).loc[live.index]
    assert gap.abs().max(axis=None) < stored_results.TOLERANCE
    whole = model_facts.surprisal("ucl2023").set_index(keys)[model]
    assert np.allclose(stored.set_index(keys)["T=1"], whole, atol=stored_results.TOLERANCE)
    hot = stored_results.anticipation(model, [50.0])["T=50"]  # not stored
    assert hot.median() > stored_results.anticipation(model, [3.0])["T=3"].median()


def own_parameters(table: str, largest: bool = True) -> dict[str, Any]:
    """Return values of parameters that a table belongs to: all that it holds, or a part of it."""
    values: dict[str, Any] = {}
    for name, rule in data.facts_parameters(table).items():
        if not isinstance(rule, dict):
            values[name] = rule
        elif "at most" in rule:
            values[name] = rule["at most"] if largest else 1
        else:
            values[name] = rule["any of"] if largest else rule["any of"][:1]
    return values


def other_values(rule: Any) -> list[Any]:
    """Return values of a parameter that a stored table does not belong to."""
    if isinstance(rule, dict) and "at most" in rule:
        return [rule["at most"] + 1, 0]
    if isinstance(rule, dict):
        return [[*rule["any of"], "another"], ["another"], []]
    if isinstance(rule, bool):
        return [not rule, int(rule)]
    return [rule + 1, rule - 1, str(rule)] if isinstance(rule, int) else [f"{rule}/", ""]


DEPENDENT = sorted(
    (f"models/{table}", parameter)
    for table in set(pd.read_csv(data.root() / "data/facts/models/index.csv")["table"])
    for parameter in data.facts_parameters(f"models/{table}")
)


@pytest.mark.parametrize(("table", "parameter"), DEPENDENT)
def test_a_table_is_read_for_the_parameters_that_it_belongs_to(table: str, parameter: str) -> None:
    for largest in (True, False):
        assert len(data.facts(table, **own_parameters(table, largest)))
    for value in other_values(data.facts_parameters(table)[parameter]):
        with pytest.raises(data.OtherParametersError) as raised:
            data.facts(table, **own_parameters(table) | {parameter: value})
        message = str(raised.value)
        assert message.startswith(f"{table} is stored for {parameter}")
        assert message.endswith(f"not for {parameter}={value!r}") and "\n" not in message
    fewer = {name: value for name, value in own_parameters(table).items() if name != parameter}
    with pytest.raises(TypeError, match=rf"needs the parameters \['{parameter}'\]"):
        data.facts(table, **fewer)


@pytest.mark.exhaustive  # all nouns and verbs are read and asked about
def test_stored_questions_are_those_that_the_parameters_make() -> None:
    parameters = own_parameters("models/probes_wordnet")
    stored = data.facts("models/probes_wordnet", **parameters)
    n_asked, pos = parameters.pop("n_asked"), parameters.pop("parts_of_speech")
    recipe = Recipe(max_concepts=parameters.pop("n_concepts"), **parameters)
    built = Builder(wordnet.load(pos=pos)).build(recipe).items
    for n in (n_asked, 30):
        asked = question_sets.whole_clusters(built, "test", n, seed=recipe.seed)
        assert set(asked["item_id"]) <= set(stored["item_id"])
        assert n < n_asked or set(asked["item_id"]) == set(stored["item_id"])


def test_every_table_says_what_it_was_computed_with() -> None:
    folder = data.root() / "data" / "facts" / "models"
    index = pd.read_csv(folder / "index.csv")
    tables = {file.stem for file in folder.glob("*.parquet")}
    encoders = {name for name in tables if name.startswith("encoder")}  # named in data/README.md
    assert set(index["table"]) == tables - encoders
    assert index["revision"].str.fullmatch("sha256:[0-9a-f]{64}").all()
    assert index.notna().all(axis=None)
