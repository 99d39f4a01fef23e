"""``psychlm responses`` from end to end. Reference: the functions it calls."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import tiny_models as tiny
from click.testing import CliRunner

from psychlm.cli_responses import responses
from psychlm.corpora import read_items
from psychlm.lm.responses import choice_logprobs, predictions


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def items(tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    rows = [
        {
            "id": f"00{i}",
            "question": {
                "stem": stem,
                "choices": [{"text": "horse", "label": "A"}, {"text": other, "label": "B"}],
            },
            "answerKey": "AB"[i % 2],
        }
        for i, (stem, other) in enumerate(
            [("What fell?", "barn"), ("Who ran?", "boat"), ("Who ate?", "horse")]
        )
    ]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.filterwarnings("ignore:.*were cut")
def test_items_go_in_and_graded_responses_come_out(tmp_path, items, model) -> None:
    out, scores = tmp_path / "deep" / "responses.csv", tmp_path / "scores.parquet"
    run = CliRunner().invoke(
        responses,
        [
            str(items),
            "--model",
            model,
            "--normalise",
            "token",
            "--out",
            str(out),
            "--logprobs",
            str(scores),
        ],
    )
    assert run.exit_code == 0, run.output
    assert "of 2 items right (guessing: 0.500)" in run.output
    assert "1 items were left out: duplicate choices" in run.output
    bank = read_items(items)
    expected = choice_logprobs(bank, model, normalise="token")
    right = (predictions(expected).to_numpy() == bank["answer"]).astype(float)
    written = pd.read_csv(out, index_col="person")
    assert written.loc[model].tolist() == right.tolist()
    assert written.columns.tolist() == ["000", "001"]
    assert pd.read_parquet(scores).loc[(model, "001"), "1"] == pytest.approx(expected.loc["001", 1])


def test_what_cannot_be_done_is_said_in_one_line(tmp_path, items, model) -> None:
    for arguments, says in (
        ([str(tmp_path / "none.jsonl"), "--model", model], "there is no file"),
        ([str(items), "--model", str(tmp_path / "none")], "there is no folder"),
        (
            [str(items), "--model", model, "--out", "responses.xlsx"],
            "ends in none of .csv, .parquet",
        ),
        ([str(items), "--model", model, "--template", "poem"], "no template 'poem'"),
        (
            [str(items), "--model", model, "--labels", "a,b"],
            "is a language model, which has no labels",
        ),
    ):
        run = CliRunner().invoke(responses, arguments)
        assert run.exit_code in (1, 2)
        assert says in run.output
        assert "Traceback" not in run.output
