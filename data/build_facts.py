"""Build ``data/facts/`` from the original files: ``python data/build_facts.py``.

Facts are numbers of public studies (graded responses, ratings, reading times, lengths, frequencies,
surprisals) that come with the project, so that a bare clone analyses real data. Wording is not
among them: a word is reduced to its *shape*, in which every letter is "a" and every digit "0"
("Don't," is "aaa'a,"), from which lengths and exclusions follow. Sources and licences stand in
``data/README.md``. A test compares the tables with the originals.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from psychlm import data
from psychlm.corpora import NLI_LABELS, reading_times, text
from psychlm.frames import is_shape, word_shape

Tables = dict[str, pd.DataFrame]


def laverghetta2021_tables() -> Tables:
    """Return the graded responses of people and models to GLUE's diagnostic, and its items."""
    file = data.path("laverghetta2021/diagnostic_results")
    # The second row of the file names each model's parent, the last one holds sums.
    table = pd.read_csv(file, sep="\t", quoting=3, keep_default_na=False).iloc[1:-1]
    item_id = table["ID"].astype(int).reset_index(drop=True).rename("item_id")
    phases, panel = (
        pd.read_csv(data.path(f"laverghetta2021/{name}"), dtype={"person": str})
        for name in ("human_responses", "human_panel")
    )
    category = phases.drop_duplicates("item_id").set_index("item_id")["category"]
    items = pd.DataFrame(
        {
            "item_id": item_id,
            "answer": table["Label"].map(NLI_LABELS.index).to_numpy(),
            "category": item_id.map(category),
            "subcategory": table["Subcategory name"].to_numpy(),
            "domain": table["Domain"].to_numpy(),
        }
    )
    models = table.iloc[:, 6:].astype(np.int8).reset_index(drop=True)
    return {
        "items": items,
        "models": pd.concat([item_id, models], axis=1),
        "phases": phases[["person", "category", "item_id", "correct"]],
        "panel": panel[["person", "item_id", "correct"]],
    }


def lalor2016_tables() -> Tables:
    """Return labels of SNLI pairs as places in NLI_LABELS (-1: none); the first row is gold."""
    tables = {}
    for group in (4, 5):
        options = {"index_col": "userid", "dtype": str, "keep_default_na": False}
        given = pd.read_csv(data.path(f"lalor2016/irt_file_{group}"), **options)
        gold_file = data.path(f"lalor2016/group_{group}")
        gold = pd.read_csv(gold_file, sep=" ", header=None, index_col=0, dtype=str)[1]
        gold_row = gold.map(NLI_LABELS.index)[given.columns].to_frame("gold").T
        places = {label[0]: place for place, label in enumerate(NLI_LABELS)} | {"na": -1}
        codes = given.apply(lambda column, places=places: column.map(places))
        table = pd.concat([gold_row, codes]).astype(np.int8)
        tables[f"group_{group}"] = table.rename_axis("userid").reset_index()
    return tables


def lalor2018_tables() -> Tables:
    """Return the ratings of SST phrases, 1 to 5."""
    ratings = pd.read_csv(data.path("lalor2018/response_patterns"), index_col="uuid")
    return {"ratings": ratings.astype(np.int8).copy().reset_index()}


def metabench_tables() -> Tables:
    """Return graded answers of language models, and their scores on whole benchmarks."""
    names = ("arc", "gsm8k", "mmlu", "truthfulqa", "winogrande", "leaderboard")
    return {name: pd.read_parquet(data.path(f"metabench/{name}")) for name in names}


def sap2024_tables() -> Tables:
    """Return single self-paced reading times, and the surprisals of the words read."""
    sentences = pd.read_csv(data.path("sap2024/sentences"), keep_default_na=False)
    shape = word_shape(sentences.pop("word"))
    sentences.insert(2, "word_shape", shape)
    return {"readings": pd.read_parquet(data.path("sap2024/readings")), "sentences": sentences}


def corpus_tables(name: str) -> Tables:
    """Return the words (as shapes), reading times and surprisals of a reading-time corpus."""
    readers = {
        "ucl2023": reading_times.ucl,
        "naturalstories": reading_times.natural_stories,
        "provo": reading_times.provo,
    }
    corpus = readers[name]()
    if is_shape(corpus.words["word"]):
        raise data.DataMissingError(f"the original files of {name} cannot be had; see notes")
    words = corpus.words.assign(word=word_shape(corpus.words["word"]))
    tables = {"words": words.rename(columns={"word": "word_shape"}), "readings": corpus.readings}
    if "log_frequency" not in words:  # the release has no frequencies: count words in the novels
        frequency = reading_times.log_frequency(corpus.words["word"], text.novel_counts())
        tables["frequency"] = words[["text_id", "word_id"]].assign(log_frequency=frequency)
    return tables | ({} if corpus.surprisals is None else {"surprisals": corpus.surprisals})


STUDIES: dict[str, Callable[[], Tables]] = {
    "laverghetta2021": laverghetta2021_tables,
    "lalor2016": lalor2016_tables,
    "lalor2018": lalor2018_tables,
    "metabench": metabench_tables,
    "sap2024": sap2024_tables,
    "ucl2023": lambda: corpus_tables("ucl2023"),
    "naturalstories": lambda: corpus_tables("naturalstories"),
    "provo": lambda: corpus_tables("provo"),
}


def main() -> None:
    """Write all tables of facts."""
    for study, tables in STUDIES.items():
        for name, table in tables().items():
            file = data.root() / "data" / "facts" / study / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            with data.atomic_write(file) as part:
                table.to_parquet(part, index=False, compression="zstd", compression_level=19)
            print(f"{file.stat().st_size / 1e3:8.1f} kB  {study}/{name}")


if __name__ == "__main__":
    main()
