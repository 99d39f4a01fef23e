"""The notebooks run to their end with the papers' models and sizes of the tests.

Reference: a hub of tiny stand-ins, whose commits the reports must name."""

import json
import os

import pytest
import stand_in_hub
import yaml
from conftest import ROOT, absent, shared
from toy_notebooks import completed

from psychlm import corpora, data, site
from psychlm._parameters import entries
from psychlm.site import collection

SMOKE, FULL, PAPER = (
    yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    for file in ("tests/smoke.yaml", "notebooks/full.yaml", "notebooks/paper.yaml")
)
NOTEBOOKS = {notebook.name: notebook for notebook in collection.find(ROOT)}
FEW = dict.fromkeys(("NLI nli-bag", "NLI nli-lstm"), [50, 100])
FEW |= dict.fromkeys(("SA bag", "SA lstm"), [50, 200])
TRAIN = "@SNLI#snli_1.0_train.jsonl"
# sizes of the tests for what only larger profiles do; @SNLI and @MNLI stand for their archives
LARGE = {
    "10_surprisal": {"n_words": 6000, "lstm_sizes": [8], "transformer_sizes": [8], "epochs": 1},
    "14_eleven_languages": {"recomputed": ["he"]},
    "20_psychometric_properties": {"training": [TRAIN], "n_train": 40} | {"epochs": 1},
    "31_difficulty_and_training_size": {"sizes": FEW, "snli_zip": "@SNLI"},
    "32_soft_labels": {"whole": [TRAIN, "@MNLI#multinli_1.0_train.jsonl"]},
    "33_artificial_crowds": {"snli": [TRAIN, "@SNLI#snli_1.0_dev.jsonl"]}
    | {"images": "digits", "folder": "@FOLDER", "sizes": {"size": 8, "hidden": 8}},
    "34_ddaclae": {"snli": [TRAIN], "images": "digits"},
    "40_wordnet_probes": {"facts": False},
    "41_inoculation": {"fine_tune": True, "learning_rates": [0.001], "n_science": 24},
    "50_confusion_probes": {"facts": False, "fine_tune": True, "n_train": 12, "epochs": 1}
    | {"benchmarks": ["PIQA"], "training_sets": False},
}
RUNS = [
    (name, device)
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


@pytest.mark.exhaustive  # half a minute each, and more
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
    options = {"profile": "paper", "root": ROOT, "parameters": parameters}
    (outcome,) = site.run([name], reports=reports, **options)
    provenance = completed(outcome, reports)["provenance"]
    assert device == "auto" or "card" in json.dumps(provenance["ran_on"]), provenance["ran_on"]
    opened = provenance["models"]
    named = {model for model in stand_in_hub.FAMILIES if model in json.dumps(PAPER.get(name))}
    assert {model: opened.get(model) for model in named} == {
        model: stand_in_hub.commit_of(model) for model in named
    }


def test_the_hub_holds_every_model_that_the_profile_names() -> None:
    parameters = ("model", "models", "encoder", "encoders")
    named = [entries(values.get(name, [])) for values in PAPER.values() for name in parameters]
    on_the_hub = {model for models in named for model in models if "/" in model}
    assert on_the_hub == set(stand_in_hub.FAMILIES)
