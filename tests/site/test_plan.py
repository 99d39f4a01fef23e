"""What a run takes. Reference: transformers' own count of parameters; the cost model by hand."""

from __future__ import annotations

import pytest
import torch
import transformers
from click.testing import CliRunner
from conftest import ROOT

from psychlm import cli, data
from psychlm.site import collection, index, plan

SHAPES = {  # what the papers of these models state beside layers, width and heads
    "openai-community/gpt2": ("GPT2LMHeadModel", {}),
    "FacebookAI/xlm-mlm-ende-1024": ("XLMWithLMHeadModel", {"vocab_size": 64699, "n_langs": 2}),
    "xlnet/xlnet-base-cased": ("XLNetLMHeadModel", {"d_inner": 3072, "vocab_size": 32000}),
    "google-bert/bert-base-cased": ("BertForSequenceClassification", {"vocab_size": 28996}),
    "FacebookAI/roberta-base": (
        "RobertaForSequenceClassification",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "albert/albert-base-v2": (
        "AlbertForSequenceClassification",
        {"vocab_size": 30000, "intermediate_size": 3072},
    ),
    "FacebookAI/roberta-large": (
        "RobertaForMultipleChoice",
        {"vocab_size": 50265, "intermediate_size": 4096, "max_position_embeddings": 514}
        | {"type_vocab_size": 1},
    ),
}


def planned(name: str, **options) -> plan.Row:
    options = {"teraflops": 312.0, "root": ROOT} | options
    (row,) = plan.plan([name], **options)
    return row


@pytest.mark.parametrize("name", SHAPES)
def test_the_sizes_of_models_are_those_that_transformers_counts(name: str) -> None:
    head, more = SHAPES[name]
    of_table = plan.facts("hub_models").loc[name]
    config = getattr(transformers, head).config_class(
        hidden_size=int(of_table["hidden"]),
        num_attention_heads=int(of_table["heads"]),
        num_hidden_layers=int(of_table["layers"]),
        **more,
    )
    with torch.device("meta"):
        network = getattr(transformers, head)(config)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(
        of_table["million_parameters"], abs=0.05
    )


def test_every_model_of_the_papers_has_a_size() -> None:
    notebooks = collection.find(ROOT)
    given = collection.run_parameters(ROOT, notebooks, "paper")
    names = {name for n in notebooks for name in plan.hub_models(n.parameters | given[n.name])}
    assert names and names <= set(plan.facts("hub_models").index)


def test_the_hours_of_a_fine_tuned_encoder_are_those_of_the_cost_model() -> None:
    given = {
        "epochs": 3,
        "training_sets": False,
        "n_train": 1000,
        "n_items": 100,
        "n_wrong": 2,
        "benchmarks": ["PIQA"],
    }
    given |= {"models": ["default"], "fine_tune": True, "encoder": "FacebookAI/roberta-large"}
    row = planned("50", parameters=given)
    learnt, read = 3 * 1000 * 4 * 60, 100 * 6 * 4 * 60
    operations = 355.4e6 * (6 * learnt + 2 * read)
    assert row.hours == pytest.approx(operations / (312e12 * 0.35) / 3600)
    assert row.hours_from == "computed" and 16 * 355.4e6 < row.gpu_bytes < 40e9
    whole = planned("50", parameters=given | {"n_train": 10**6, "training_sets": True})
    whole_learnt = 3 * 16_113 * 4 * 60  # PIQA's training set
    assert whole.hours / row.hours == pytest.approx(
        (6 * whole_learnt + 2 * read) / (6 * learnt + 2 * read)
    )
    alone = planned("50", parameters=given | {"fine_tune": False})
    assert alone.gpu_bytes == 4 * 355.4e6 and alone.hours < row.hours


def test_what_cannot_work_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    row = planned("10", parameters={"models": ["transfo-xl/transfo-xl-wt103", "a/b"]})
    assert "no Transformer-XL" in row.problems[0] and "hao2020.table2.csv" in row.problems[0]
    assert row.notes == ["the size of a/b is not known (data/facts/hub_models.csv)"]
    assert "pip install sacremoses" in " ".join(planned("10").problems)
    assert planned("41", gpu_memory_gb=4).problems == [
        "FacebookAI/roberta-large needs 6 GB of memory, of 4"
    ]
    monkeypatch.setattr(data, "where", lambda name: None)
    assert any("wilcox2023/words has no public address" in p for p in planned("14").problems)


def test_totals_count_a_model_once_and_the_last_run_tells_its_minutes(monkeypatch, tmp_path):
    rows = plan.plan(["10", "11"], teraflops=1.0, root=ROOT)
    assert plan.model_gb(rows[0].models) == pytest.approx(4e-3 * (124.4 + 142.4 + 116.8))
    assert f"{len(rows[0].models)} models" in plan.total(rows)
    last = {"status": "complete", "profile": "paper", "seconds": 7200.0}
    monkeypatch.setattr(index, "read_report", lambda file: last)
    assert planned("10").hours == 2 and planned("10").hours_from == "last run"


def test_a_folder_is_no_model_of_the_hub_and_a_licence_is_named(tmp_path) -> None:
    assert plan.hub_models({"models": ["default", str(tmp_path), "a/b@main"]}) == ["a/b@main"]
    assert "Dundee" in planned("15").notes[0]
    assert not planned("15", parameters={"dundee": str(tmp_path)}).notes


def test_what_the_papers_profile_does_not_run_is_said_there_alone() -> None:
    assert "Laverghetta" in planned("20").notes[0] and "no BERT" in planned("31").notes[0]
    assert not planned("20", profile="quick").notes


def test_a_disk_that_is_too_small_is_a_problem(monkeypatch) -> None:
    rows = plan.plan(["10"], teraflops=1.0, root=ROOT)
    assert plan.lacks_disk(rows) == []
    usage = type("Usage", (), {"free": 1e6})
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda folder: usage)
    assert "0.0 GB are free" in plan.lacks_disk(rows)[0]


def test_the_command_prints_a_row_a_notebook_and_exits_with_1_if_something_cannot_work():
    options = ["plan", "10", "20", "--gpu", "A100", "--profile"]
    ended = CliRunner(env={"COLUMNS": "200"}).invoke(cli.main, [*options, "quick"])
    assert ended.exit_code == 0 and "20_psychometric_properties" in ended.output
    lacking = ["-p", "models=[transfo-xl/transfo-xl-wt103]"]
    ended = CliRunner().invoke(cli.main, ["plan", "10", "--gpu", "A100", *lacking])
    assert ended.exit_code == 1 and "cannot work: 10_surprisal" in ended.output


def test_a_terminal_of_80_columns_shows_whole_names_and_every_quick_notebook_has_a_time() -> None:
    planning = ["plan", "--gpu", "A100", "--profile", "quick"]
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(cli.main, planning)
    table = {line.split()[0]: line for line in ended.output.partition("\n\n")[0].splitlines()[2:]}
    assert list(table) == [notebook.name for notebook in collection.find(ROOT)]
    assert all(line.rstrip().endswith(("stated", "last run")) for line in table.values())


def test_models_are_named_in_full_with_the_notebooks_that_read_them() -> None:
    (line,) = plan.model_lines(plan.plan(["41", "50"], teraflops=1.0, root=ROOT))
    assert line == "model FacebookAI/roberta-large: 1.42 GB, to fetch, in 41, 50"
