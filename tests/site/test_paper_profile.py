"""The notebooks run to their end with the papers' models and sizes of the tests.

Reference: a hub of tiny stand-ins, whose commits the reports must name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import stand_in_hub
import yaml
from conftest import ROOT, absent, shared

from psychlm import corpora, data, site
from psychlm.site import collection, plan

SMOKE, FULL, PAPER = (
    yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    for file in ("tests/smoke.yaml", "notebooks/full.yaml", "notebooks/paper.yaml")
)
NOTEBOOKS = {notebook.name: notebook for notebook in collection.find(ROOT)}
FEW = {
    "NLI nli-bag": [50, 100],
    "NLI nli-lstm": [50, 100],
    "SA bag": [50, 200],
    "SA lstm": [50, 200],
}
# sizes of the tests for what only larger profiles do; @SNLI and @MNLI stand for their archives
LARGE = {
    "10_surprisal": {"n_words": 6000, "lstm_sizes": [8], "transformer_sizes": [8], "epochs": 1},
    "14_eleven_languages": {"recomputed": ["he"]},
    "20_psychometric_properties": {"training": ["@SNLI#snli_1.0_train.jsonl"], "n_train": 40}
    | {"epochs": 1},
    "31_difficulty_and_training_size": {"sizes": FEW, "snli_zip": "@SNLI"},
    "32_soft_labels": {"whole": ["@SNLI#snli_1.0_train.jsonl", "@MNLI#multinli_1.0_train.jsonl"]},
    "33_artificial_crowds": {"snli": ["@SNLI#snli_1.0_train.jsonl", "@SNLI#snli_1.0_dev.jsonl"]}
    | {"images": "digits", "folder": "@FOLDER", "sizes": {"size": 8, "hidden": 8}},
    "34_ddaclae": {"snli": ["@SNLI#snli_1.0_train.jsonl"], "images": "digits"},
    "40_wordnet_probes": {"facts": False},
    "41_inoculation": {"fine_tune": True, "learning_rates": [0.001], "n_science": 24},
    "50_confusion_probes": {"facts": False, "fine_tune": True, "n_train": 12, "epochs": 1}
    | {"benchmarks": ["PIQA"], "training_sets": False},
}
LIGHT = ("31_difficulty_and_training_size",)  # the others take half a minute and more
RUNS = [
    pytest.param(
        name, device, marks=[] if name in LIGHT and device == "auto" else [pytest.mark.exhaustive]
    )
    for name in sorted(FULL.keys() | PAPER.keys())
    for device in ("auto", "card")
    if device == "auto" or "device" in NOTEBOOKS[name].parameters
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> dict[str, str]:
    """Return the files that stand for SNLI, MNLI and a folder to resume from."""
    folder = tmp_path_factory.mktemp("archives")
    try:
        crowd = [pair for group in (4, 5) for pair in corpora.lalor2016(group).key.index]
    except data.DataMissingError as error:
        absent(str(error))
    snli, mnli = stand_in_hub.inference_archives(folder, crowd).values()
    return {"SNLI": snli, "MNLI": mnli, "FOLDER": str(folder / "crowds")}


def scaled_down(name: str, archives: dict[str, str]) -> dict[str, object]:
    """Return the parameters of the papers' profile, with the sizes of the tests."""
    full = collection.run_parameters(ROOT, [NOTEBOOKS[name]], "paper")[name]
    values = full | SMOKE.get(name, {}) | (PAPER.get(name) or {}) | LARGE.get(name, {})
    values = {key: value for key, value in values.items() if key in NOTEBOOKS[name].parameters}
    for word, file in archives.items():
        values = json.loads(json.dumps(values).replace(f'"@{word}', f'"{file}'))
    return values


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> dict[str, str]:
    """Return the environment in which the stand-ins are what the hub's cache holds."""
    return stand_in_hub.write(tmp_path_factory.mktemp("hub"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device"), RUNS)
def test_a_notebook_runs_with_the_papers_models(
    name, device, archives, hub, tmp_path, monkeypatch
) -> None:
    variables, parameters = hub | {"PSYCHLM_CACHE": str(tmp_path / "cache")}, {}
    if device == "card":  # every Python process imports the stand-in at its start
        (tmp_path / "sitecustomize.py").write_text("import stand_in_device\n")
        folders = [str(tmp_path), str(ROOT / "tests"), str(shared("tools")), str(ROOT)]
        variables["PYTHONPATH"], parameters = os.pathsep.join(folders), {"device": device}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    reports = tmp_path / "reports"
    parameters = scaled_down(name, archives) | parameters
    (outcome,) = site.run(
        [name], profile="paper", root=ROOT, reports=reports, parameters=parameters
    )
    if outcome.status == "left out":
        absent(f"{name}: {outcome.error}")
    assert outcome.status == "done", f"cell {outcome.cell}: {outcome.error}"
    content = json.loads((reports / f"{name}.json").read_text(encoding="utf-8"))
    ran_on = content["provenance"]["ran_on"]
    assert device == "auto" or "card" in json.dumps(ran_on), ran_on
    opened = content["provenance"]["models"]
    named = {model for model in stand_in_hub.FAMILIES if model in json.dumps(PAPER.get(name))}
    assert {model: opened.get(model) for model in named} == {
        model: stand_in_hub.commit_of(model) for model in named
    }


def test_the_hub_holds_every_model_that_the_profile_names() -> None:
    names = {model for values in PAPER.values() for model in plan.hub_models(values)}
    assert names == set(stand_in_hub.FAMILIES)


def test_each_model_of_the_papers_reads_a_sentence_by_the_name_that_the_profile_gives(hub) -> None:
    """Without network, in a process that opens no other hub; BERT and its kin are encoders."""
    program = """
import json, sys
from psychlm import lm
from psychlm.lm.encoders import encoder_states
sentence = ["The old man the boat; \\"I don't know,\\" she said: $3,000."]
for name in sys.argv[1:]:
    if "roberta" in name or "bert-base" in name:
        print(name, "", encoder_states(sentence, name, device="cpu")[0].shape[1])
        continue
    model = lm.load(name, device="cpu")
    bits = lm.surprisal(sentence, model, cache=False)["surprisal_bits"]
    print(name, model.revision, bits.notna().sum() if (bits > 0).all() else bits)
"""
    command = [sys.executable, "-c", program, *stand_in_hub.FAMILIES]
    ended = subprocess.run(command, env=os.environ | hub, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines, commits = ended.stdout.splitlines(), map(stand_in_hub.commit_of, stand_in_hub.FAMILIES)
    for line, (name, family), commit in zip(
        lines, stand_in_hub.FAMILIES.items(), commits, strict=True
    ):
        expected = f"{name}  32" if "bert" in family else f"{name} {commit} 11"
        assert line == expected
