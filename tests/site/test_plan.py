"""What a run takes. Reference: transformers' own count of parameters."""

import pandas as pd
import pytest
import torch
import transformers
from command import refused, run
from conftest import ROOT

from psychlm import data
from psychlm.site import collection, index, plan

ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
ALBERT = {"vocab_size": 30000, "intermediate_size": 3072}
SHAPES = {  # what the papers of these models state beside layers, width and heads
    "openai-community/gpt2": ("GPT2LMHeadModel", {}),
    "FacebookAI/xlm-mlm-ende-1024": ("XLMWithLMHeadModel", {"vocab_size": 64699, "n_langs": 2}),
    "xlnet/xlnet-base-cased": ("XLNetLMHeadModel", {"d_inner": 3072, "vocab_size": 32000}),
    "google-bert/bert-base-cased": ("BertForSequenceClassification", {"vocab_size": 28996}),
    "FacebookAI/roberta-base": ("RobertaForSequenceClassification", ROBERTA),
    "albert/albert-base-v2": ("AlbertForSequenceClassification", ALBERT),
    "FacebookAI/roberta-large": ("RobertaForMultipleChoice", ROBERTA | {"intermediate_size": 4096}),
}
GPU = {"teraflops": 312.0, "root": ROOT}


def planned(name: str, **options) -> tuple[pd.DataFrame, pd.Series]:
    """Return the models that a notebook needs, and the row of the notebook itself."""
    needs = plan.plan([name], **(GPU | options))
    return needs[needs["kind"] == "model"], needs.iloc[-1]


@pytest.mark.parametrize("name", SHAPES)
def test_the_sizes_of_models_are_those_that_transformers_counts(name: str) -> None:
    head, more = SHAPES[name]
    of_table = plan.facts("hub_models").loc[name]
    hidden, heads, layers = of_table[["hidden", "heads", "layers"]].astype(int)
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
    config = getattr(transformers, head).config_class(**sizes, **more)
    with torch.device("meta"):
        network = getattr(transformers, head)(config)
    millions = sum(p.numel() for p in network.parameters()) / 1e6
    assert millions == pytest.approx(of_table["million_parameters"], abs=0.05)


def test_every_model_of_the_papers_has_a_size() -> None:
    notebooks = collection.find(ROOT)
    given = collection.run_parameters(ROOT, notebooks, "paper")
    names = {name for n in notebooks for name in plan.hub_models(n.parameters | given[n.name])}
    assert names and plan.facts("hub_models").loc[list(names), "million_parameters"].notna().all()


def test_what_cannot_work_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    given = {"models": ["transfo-xl/transfo-xl-wt103", "a/b"]}
    models, _ = planned("10", parameters=given)
    problem, note = models["problem"].iloc[0], models["note"].iloc[1]
    assert "no Transformer-XL" in problem and "hao2020.table2.csv" in problem
    assert note == "the size of a/b is not known (data/facts/hub_models.csv)"
    assert "pip install sacremoses" in " ".join(planned("10")[0]["problem"])
    too_large = planned("41", gpu_memory_gb=4)[0]["problem"].tolist()
    assert too_large == ["FacebookAI/roberta-large needs 6 GB of memory, of 4"]
    monkeypatch.setattr(data, "where", lambda name: None)
    problems = " ".join(plan.plan(["14"], **GPU)["problem"])
    assert "wilcox2023/words has no public address" in problems
    needs = plan.plan(["10"], **GPU)
    assert plan.lacks_disk(needs.assign(gb=0.0)) == []
    assert "GB are free" in plan.lacks_disk(needs.assign(gb=1e9))[0]


def test_totals_count_a_model_once_and_minutes_are_measured_or_those_of_the_last_run(monkeypatch):
    needs = plan.plan(["10", "11", "41", "50"], **GPU)
    total, *models = plan.summary(needs)
    sizes = [124.4, 142.4, 116.8, 355.4]
    once = needs[needs["kind"] == "model"].drop_duplicates("name")
    assert once["gb"].sum() == pytest.approx(4e-3 * sum(sizes)) and "(4 models" in total
    assert models[-1] == "model FacebookAI/roberta-large: 1.42 GB, to fetch, in 41, 50"
    row = planned("41", profile="full")[1]
    assert row["known_from"] == "measured" and 600 < row["seconds"] < 6000
    last = {"status": "complete", "profile": "paper", "seconds": 7200.0}
    monkeypatch.setattr(index, "read_report", lambda file: last)
    assert planned("10")[1][["seconds", "known_from"]].tolist() == [7200, "last run"]


def test_folders_are_no_models_and_what_the_profile_does_not_run_is_said_there_alone(tmp_path):
    assert plan.hub_models({"models": ["default", str(tmp_path), "a/b@main"]}) == ["a/b@main"]
    assert "Dundee" in planned("15")[1]["note"]
    assert not planned("15", parameters={"dundee": str(tmp_path)})[1]["note"]
    assert "Laverghetta" in planned("20")[1]["note"] and "no BERT" in planned("31")[1]["note"]
    assert not planned("20", profile="quick")[1]["note"]


def test_the_command_prints_a_row_a_notebook_and_exits_with_1_if_something_cannot_work(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run("plan", "--gpu", "A100", "--profile", "quick")
    table = {line.split()[0]: line for line in done.stdout.partition("\n\n")[0].splitlines()[2:]}
    assert list(table) == [notebook.name for notebook in collection.find(ROOT)]
    assert all(line.rstrip().endswith(("stated", "last run")) for line in table.values())
    lacking = refused("plan", "10", "--gpu", "A100", "-p", "models=[transfo-xl/transfo-xl-wt103]")
    assert "cannot work: 10_surprisal" in lacking
