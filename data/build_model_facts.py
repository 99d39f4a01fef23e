"""Compute the stored results of language models: ``python data/build_model_facts.py [TABLE ...]``.

A forward pass of a model with 135 million parameters over a corpus or an item bank takes minutes.
The tables go to ``data/facts/models/``, and ``index.csv`` there names models, revisions, options,
date and machine of each. Interrupted runs continue from the cache of results.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses import choice_networks, lalor2020_crowds, question_sets, richardson2020
from analyses.stored_results import (
    GATHERED,
    HEAD,
    N_LEARN,
    N_STOP,
    TEMPERATURES,
    WORDNET,
    anticipate,
    science_questions,
    stored_head,
)
from psychlm import data, lm
from psychlm.lm.cache import folder as cache_folder
from psychlm.model_facts import (
    BANKS,
    CONFUSED,
    LISTED,
    MODELS,
    N_EXTRA,
    N_ITEMS,
    N_PROBED,
    N_WRONG,
    SEED,
    WORDS,
    in_source_order,
    items,
    presentations,
    with_options,
)
from psychlm.probes import wordnet
from psychlm.probes.wordnet_qa import Builder

N_QUESTIONS = 80  # test questions of each probe, whole clusters
SIZES = (10, 100, 1000, 3000)  # k, questions of inoculation
RATES = (1e-4, 1e-3)  # learning rates of inoculation
ADD_SOME = (0, 1)  # science questions added to each of the probe's
N_SEEDS = 3  # repetitions of every cell
N_DEVELOPMENT, N_TEST = 150, 250  # questions of each probe to choose by, and for test
# parameters of notebooks 40 and 41 that the questions depend on
WORDNET_PARAMETERS: dict[str, Any] = {
    "seed": WORDNET.seed,
    "parts_of_speech": "nv",
    "n_concepts": WORDNET.max_concepts,
    "max_hops": WORDNET.max_hops,
    "max_distance": WORDNET.max_distance,
}
GATHERED_PARAMETERS: dict[str, Any] = {
    "seed": GATHERED["seed"],
    "parts_of_speech": "nvar",
    "n_concepts": GATHERED["n_concepts"],
    "n_records": 0,
}


def choice_scores(
    asked: pd.DataFrame, models: tuple[str, ...] = MODELS, *, listed: bool = False
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Score the choices of items by models; perturbed items are put back into their source's order.

    Returns
    -------
    DataFrame
        One row per item and choice: ``item_id``, ``choice`` (0-based), ``right``, ``n_chars``, and
        for each model its log-probability in nats and its number of tokens (``<model>_tokens``).
    described : dict
        Revision and options of each model.
    """
    columns: dict[str, pd.Series] = {}
    described: dict[str, dict[str, Any]] = {}
    put = with_options(asked) if listed else asked
    options: dict[str, Any] = {"prompt": LISTED if listed else "auto"}

    def ordered(scores: pd.DataFrame) -> pd.Series:
        return in_source_order(scores, asked).rename_axis(columns="choice").stack().dropna()

    for model in models:
        if model == HEAD:
            head = stored_head("confusion_head")
            about = {"encoder": "all-MiniLM-L6-v2", "n_learn": N_LEARN, "n_stop": N_STOP}
            described[HEAD] = {"revision": f"sha256:{head.fingerprint}", "banks": CONFUSED, **about}
            columns[HEAD] = ordered(head.logprobs(asked)).astype(np.float32)
            continue
        nats = lm.choice_logprobs(put, model, progress=True, **options)
        described[model] = {name: nats.attrs[name] for name in ("revision", "prompt", "bos")}
        columns[model] = ordered(nats).astype(np.float32)
        # The second call reads the cache.
        mean = lm.choice_logprobs(put, model, normalise="token", **options)
        columns[f"{model}_tokens"] = (ordered(nats) / ordered(mean)).round().astype(np.int16)
    names = pd.Index(asked["item_id"], name="item")
    lengths = [pd.Series([len(choice.strip()) for choice in row]) for row in asked["choices"]]
    columns["n_chars"] = ordered(pd.DataFrame(lengths).set_axis(names)).astype(np.int16)
    table = pd.DataFrame(columns).rename_axis(["item_id", "choice"]).reset_index()
    # The right choice's place in the source's order.
    answers = pd.Series(asked["answer"].to_numpy(), index=names)
    if "order" in asked:
        places = [row[k] for row, k in zip(asked["order"], asked["answer"], strict=True)]
        answers = pd.Series(places, index=asked["source_item_id"])
    table["right"] = table["choice"].to_numpy() == answers.loc[table["item_id"]].to_numpy()
    return table, described


def wordnet_questions() -> pd.DataFrame:
    """Return the test questions of WordNetQA that the stored answers are about."""
    built = Builder(wordnet.load(pos=WORDNET_PARAMETERS["parts_of_speech"])).build(WORDNET).items
    return question_sets.whole_clusters(built, "test", N_QUESTIONS, seed=WORDNET.seed)


def gathered_questions() -> pd.DataFrame:
    """Return the test questions of WordNetQA and DictionaryQA (notebook 41)."""
    gathered = question_sets.gather(cache_folder() / "probes", **GATHERED).items
    return question_sets.whole_clusters(gathered, "test", N_QUESTIONS, seed=GATHERED["seed"])


def write(
    name: str, table: pd.DataFrame, described: dict[str, dict[str, Any]], **parameters: Any
) -> None:
    """Write a table of facts, and what it was computed with to ``index.csv``.

    ``parameters`` are those of notebooks that the table belongs to, as values or as the rules of
    ``data.facts_parameters``.
    """
    folder = data.root() / "data" / "facts" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    with data.atomic_write(folder / f"{name}.parquet") as part:
        table.to_parquet(part, index=False, compression="zstd", compression_level=19)
    today = datetime.now(UTC).date().isoformat()
    machine = f"{platform.machine()} CPU, torch {torch.__version__}"
    rows = pd.DataFrame(
        [
            {
                "table": name,
                "model": model,
                "revision": about["revision"],
                "options": json.dumps(
                    {key: value for key, value in about.items() if key != "revision"},
                    sort_keys=True,
                ),
                "parameters": json.dumps(parameters, sort_keys=True),
                "date": today,
                "machine": machine,
            }
            for model, about in described.items()
        ]
    )
    index = folder / "index.csv"
    if index.is_file():
        before = pd.read_csv(index)
        rows = pd.concat([before[before["table"] != name], rows])
    with data.atomic_write(index) as part:
        rows.sort_values(["table", "model"]).to_csv(part, index=False)
    print(f"{(folder / f'{name}.parquet').stat().st_size / 1e3:8.1f} kB  {name}", flush=True)


def compute_surprisal() -> None:
    """Compute the surprisals of all corpora under all models, and write them."""
    for corpus, reader in WORDS.items():
        table = lm.surprisals(reader(), MODELS, progress=True).drop(columns="word")
        described = table.attrs["surprisal"]
        for name in MODELS:
            table[name] = table[name].astype(np.float32)
            described[name].pop("model")
        write(f"surprisal_{corpus}", table, described)


def compute_anticipation() -> None:
    """Compute entropies, and surprisals at several temperatures, and write them."""
    words, parts, described = WORDS["ucl2023"](), {}, {}
    for model in MODELS:
        parts[model,] = anticipate(words, model, TEMPERATURES)
        about = lm.surprisal(words, model, entropy=True).attrs["surprisal"]
        described[model] = {name: value for name, value in about.items() if name != "model"}
    table = stacked(parts, ["model"])
    numbers = table.columns.drop(["model", "text_id", "word_id"])
    table[numbers] = table[numbers].astype(np.float32)
    write("anticipation_ucl2023", table, described, temperatures={"any of": list(TEMPERATURES)})


def compute_head() -> None:
    """Train the head on the encoder for the banks under the probes, on items not put to it."""
    parts = [items(bank, N_ITEMS + N_LEARN + N_STOP)[N_ITEMS:] for bank in CONFUSED]
    named = [
        part.assign(item_id=[f"{bank}|{name}" for name in part["item_id"]])
        for bank, part in zip(CONFUSED, parts, strict=True)
    ]
    columns = ["item_id", "prompt", "choices", "answer"]
    learn, stop = (
        pd.concat([part[columns][rows] for part in named], ignore_index=True)
        for rows in (slice(None, N_LEARN), slice(N_LEARN, None))
    )
    untrained = choice_networks.encoder_model("bundled", seed=SEED)
    trained = untrained.train(learn, seed=SEED, epochs=10, patience=3, development=stop)
    print(trained.history.to_string(), flush=True)
    about = {"revision": f"sha256:{untrained.fingerprint}", "encoder": "all-MiniLM-L6-v2"}
    write("confusion_head", weights(trained), {HEAD: about | {"banks": CONFUSED}})


def compute_benchmarks() -> None:
    """Compute the scores of choices of benchmarks as written."""
    parts: dict[tuple[str, ...], pd.DataFrame] = {}
    described: dict[str, dict[str, Any]] = {}
    for bank in BANKS:
        if bank == "Abductive NLI":  # not stored: it has to be fetched
            continue
        asked_of = (*MODELS, HEAD) if bank in CONFUSED else MODELS
        parts[(bank,)], about = choice_scores(items(bank), asked_of)
        described |= about
    write(
        "benchmarks", stacked(parts, ["bank"]), described, seed=SEED, n_items={"at most": N_ITEMS}
    )


def compute_confusion() -> None:
    """Compute the scores of choices under the confusion probes and with the choices listed."""
    parts: dict[tuple[str, ...], pd.DataFrame] = {}
    described: dict[str, dict[str, Any]] = {}
    for bank in CONFUSED:
        put = presentations(items(bank, N_PROBED))
        del put["original"]  # stored in benchmarks
        for name, changed in put.items():
            listed = name.startswith("listed")
            asked_of = MODELS if listed else (*MODELS, HEAD)
            parts[bank, name], about = choice_scores(changed, asked_of, listed=listed)
            described |= about
        parameters = {
            "seed": SEED,
            "benchmarks": {"any of": CONFUSED},
            "n_items": {"at most": N_PROBED},
            "n_wrong": {"at most": N_WRONG},
            "n_extra": N_EXTRA,
        }
        write("confusion", stacked(parts, ["bank", "presentation"]), described, **parameters)


def compute_probes() -> None:
    """Compute the scores of choices of questions from WordNet and the dictionary."""
    questions = {
        "probes_wordnet": (wordnet_questions(), WORDNET_PARAMETERS),
        "probes_gathered": (gathered_questions(), GATHERED_PARAMETERS),
    }
    for name, (asked, parameters) in questions.items():
        table, described = choice_scores(asked)
        for column in ("probe", "cluster", "hops", "distractor_set", "distractor_distance"):
            by_item = asked.set_index("item_id")[column]
            table[column] = by_item.loc[table["item_id"]].to_numpy()
        write(name, table, described, **parameters, n_asked={"at most": N_QUESTIONS})


def weights(model: choice_networks.ChoiceClassifier) -> pd.DataFrame:
    """Return the weights of a head, in half precision, as a table of facts."""
    weights = {
        name: value.numpy().ravel().astype(np.float16)
        for name, value in model.network.state_dict().items()
    }
    return pd.concat([pd.DataFrame({"name": n, "weight": w}) for n, w in weights.items()])


def compute_inoculation() -> None:
    """Train the science model, inoculate it with every probe, and write heads and answers."""
    seed = GATHERED["seed"]
    learn, check, spare = science_questions()
    untrained = choice_networks.encoder_model("bundled", seed=seed)
    rates: dict[str, Any] = {"learning_rate": 1e-3, "epochs": 8, "patience": 3}
    trained = untrained.train(learn, seed=seed, development=check, **rates)
    about: dict[str, Any] = {
        "revision": f"sha256:{untrained.fingerprint}",
        "encoder": "all-MiniLM-L6-v2",
        **rates,
    }
    about |= {"n_science": len(learn), "n_check": len(check), "n_spare": len(spare)}
    write("science_head", weights(trained), {HEAD: about})
    # What is inoculated is the model as it was stored, with weights in half precision.
    model = stored_head("science_head")
    model = replace(model, texts=untrained.texts)
    gathered = question_sets.gather(cache_folder() / "probes", **GATHERED).items
    parts = {
        part: question_sets.whole_clusters(gathered, part, n, seed=seed)
        for part, n in (("train", max(SIZES)), ("dev", N_DEVELOPMENT), ("test", N_TEST))
    }
    n_test = {"at most": N_TEST}
    science = {
        "seed": seed,
        "encoder": "bundled",
        "fine_tune": False,
        "n_science": len(learn),
        "n_check": len(check),
    }
    parameters = GATHERED_PARAMETERS | science
    parameters |= {"n_train": max(SIZES), "n_test": n_test, "sizes": {"any of": SIZES}}
    parameters |= {"learning_rates": {"any of": RATES}, "add_some": {"any of": ADD_SOME}}
    parameters |= {"n_seeds": {"at most": N_SEEDS}}
    tables: dict[tuple[str, ...], pd.DataFrame] = {}
    answers: dict[tuple[str, ...], pd.DataFrame] = {}
    for probe in parts["test"]["probe"].unique():
        train, dev = (parts[part][parts[part]["probe"] == probe] for part in ("train", "dev"))
        sizes = tuple(min(k, len(train)) for k in SIZES)
        sweep: dict[str, Any] = {"sizes": sizes, "learning_rates": RATES, "n_seeds": N_SEEDS}
        sweep |= {"add_some": ADD_SOME, "more": spare}
        done = richardson2020.inoculate(model, train, dev, check, parts["test"], **sweep)
        as_it_came = pd.DataFrame([{"cell": -1, "k": 0, **done.before}])
        cells = pd.concat([as_it_came, done.cells.reset_index()])
        tables[(probe,)] = cells
        chosen = done.predictions.stack().rename("prediction").reset_index()
        answers[(probe,)] = chosen.astype({"prediction": np.int8})
        write("inoculation", stacked(tables, ["probe"]), {HEAD: about}, **parameters)
        predictions = stacked(answers, ["probe"]).rename(columns={"item": "item_id"})
        write("inoculation_predictions", predictions, {HEAD: about}, **parameters)
    # the test questions, and how the science model did before and after its training
    columns = ["item_id", "probe", "cluster", "hops", "distractor_set", "distractor_distance"]
    asked = parts["test"][[*columns, "answer"]]
    write("inoculation_items", asked, {HEAD: about}, **GATHERED_PARAMETERS, n_test=n_test)
    exam = pd.DataFrame(
        {
            "item_id": check["item_id"],
            "source": check["source"],
            "n_choices": check["choices"].map(len),
            "untrained": lm.grade(check, untrained.logprobs(check)).to_numpy(),
            "trained": lm.grade(check, model.logprobs(check)).to_numpy(),
        }
    )
    write("science_check", exam, {HEAD: about}, **science)


def compute_encoder_features() -> None:
    """Write the features of the crowds' tasks and their projections, in half precision."""
    for task in lalor2020_crowds.DIMENSIONS:
        items, values, affine = lalor2020_crowds.read_task(task, "bundled")
        names = [f"f{i}" for i in range(affine.shape[1])]
        projected = (values @ affine[:-1] + affine[-1]).astype(np.float16)
        counts = items.columns.difference(["item_id", "part"])
        numbers = items.astype(dict.fromkeys(counts, np.int16))
        tables = {
            f"encoder_{task}": numbers.join(pd.DataFrame(projected, columns=names)),
            f"encoder_{task}_projection": pd.DataFrame(affine, columns=names),
        }
        for name, table in tables.items():
            with data.atomic_write(data.root() / "data/facts/models" / f"{name}.parquet") as part:
                options = {"compression": "zstd", "compression_level": 19, "use_dictionary": False}
                table.to_parquet(part, index=False, **options)


def stacked(parts: dict[tuple[str, ...], pd.DataFrame], names: list[str]) -> pd.DataFrame:
    """Return tables as one, their keys as first columns."""
    return pd.concat(parts, names=names).reset_index(names).reset_index(drop=True)


def main() -> None:
    """Compute tables of facts: all of them, or those that are named."""
    steps = {
        "encoder": compute_encoder_features,
        "surprisal": compute_surprisal,
        "anticipation": compute_anticipation,
        "head": compute_head,
        "benchmarks": compute_benchmarks,
        "probes": compute_probes,
        "confusion": compute_confusion,
        "inoculation": compute_inoculation,
    }
    parser = argparse.ArgumentParser(prog="python data/build_model_facts.py")
    parser.add_argument("table", nargs="*", choices=[[], *steps], help="default: all")
    for name in parser.parse_args().table or steps:
        steps[name]()


if __name__ == "__main__":
    main()
