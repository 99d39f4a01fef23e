"""Build ``data/facts/`` from the original files: ``python data/build_facts.py``.

Facts are numbers of public studies (graded responses, ratings, reading times, lengths, frequencies,
surprisals) that come with the project, so that a bare clone analyses real data. Two texts come too,
which anyone may pass on: the SAP Benchmark and Natural Stories. Else wording is not among them: a
word is reduced to its *shape*, in which every letter is "a" and every digit "0" ("Don't," is
"aaa'a,"), from which lengths and exclusions follow. Sources and licences stand in
``data/README.md``. A test compares the tables with the originals.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import torch

from analyses import lalor2020_comprehenotes as comprehenotes
from analyses import lalor2020_test_sets, running_text, wilcox2023
from psychlm import data, frames, irt
from psychlm.corpora import NLI_LABELS, novels, reading_times, responses
from psychlm.corpora.reading_times import Corpus
from psychlm.frames import FrameError, word_shape
from psychlm.irt.multidimensional import NORMAL_METRIC

Tables = dict[str, pd.DataFrame]

# Columns of released surprisals, and the models that they are of.
UCL_GPT = {
    "s_GPT2": "GPT-2",
    "s_GPT2_medium": "GPT-2 medium",
    "s_GPT2_large": "GPT-2 large",
    "s_GPT2_xl": "GPT-2 XL",
    "s_GPTNeo_125M": "GPT-Neo 125M",
    "s_GPTNeo": "GPT-Neo 1.3B",
    "s_GPTNeo_2.7B": "GPT-Neo 2.7B",
}
UCL_MODELS = {"bigram": "2-gram", "trigram": "3-gram", "tetragram": "4-gram", "rnn": "RNN"}
UCL_MODELS |= {"psg": "PSG", **UCL_GPT}
UCL_MEASURES = {
    "RTfirstfix": "first_fixation_ms",
    "RTfirstpass": "gaze_ms",
    "RTrightbound": "right_bounded_ms",
    "RTgopast": "go_past_ms",
    "self_paced_reading_time": "self_paced_ms",
}
MEAN_READER = "mean"  # the subject of readings that were released as means over people


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


def general_shares(loadings: pd.DataFrame, benchmark: pd.Series) -> pd.Series:
    """Return how much of what items share is general: in all, and by benchmark.

    It is the share of the sums of squared loadings on "general" and "own"; and omega hierarchical,
    the general ability's share of the variance of the sum of all items.
    """
    squares = (loadings**2).groupby(benchmark).sum()
    shares = squares["general"] / squares.sum(axis=1)
    general = loadings["general"].sum() ** 2
    own = (loadings["own"].groupby(benchmark).sum() ** 2).sum()
    unique = len(loadings) - squares.to_numpy().sum()
    of_all = squares["general"].sum() / squares.to_numpy().sum()
    omega = general / (general + own + unique)
    return pd.concat([pd.Series({"omega_hierarchical": omega, "all": of_all}), shares])


def metabench_abilities(n_items: int = 8, n_draws: int = 500) -> Tables:
    """Return how items of five benchmarks load on a general ability and on the benchmark's own.

    Of each benchmark as many items are drawn, which 10 to 90 % of the models that answered all five
    answered correctly. A bifactor 2PL is fitted, with a prior that keeps slopes of items finite
    that abilities separate. Errors are those of sandwich estimates with organisations as units, as
    their models resemble each other, by draws from the estimates' normal distribution.
    """
    rng = np.random.default_rng(38)
    names = ("arc", "gsm8k", "mmlu", "truthfulqa", "winogrande")
    answers = pd.concat({name: responses.metabench(name) for name in names}, axis=1).dropna()
    middling = answers.columns[answers.mean().between(0.1, 0.9)]
    middling = middling.to_frame(index=False, name=["benchmark", "item"])
    drawn = middling.groupby("benchmark").sample(n_items, random_state=rng)
    answers = answers[list(drawn.itertuples(index=False, name=None))]
    answers.columns = [" ".join(map(str, column)) for column in answers.columns]
    benchmark = pd.Series(drawn["benchmark"].to_numpy(), answers.columns, name="benchmark")
    priors = {"slope": irt.Normal(0, 3)}
    fit = irt.fit_dimensions(answers, benchmark, priors=priors, standard_errors=False)
    assert fit.converged

    integral = fit.integral
    inverse, _ = integral.covariance(integral.estimates)
    assert inverse is not None
    scores = integral.scores(integral.estimates).numpy()[integral.spec.answers.row]
    organisation = answers.index.str.split("/").str[0]
    summed = pd.DataFrame(scores).groupby(organisation.to_numpy()).sum().to_numpy()
    sandwich = inverse @ summed.T @ summed @ inverse
    draws = rng.multivariate_normal(integral.estimates.numpy(), sandwich, n_draws)

    def loadings(estimates: np.ndarray) -> pd.DataFrame:
        slopes = integral.unpack(torch.from_numpy(estimates))[0][:2].numpy().T / NORMAL_METRIC
        scaled = slopes / np.sqrt(1 + (slopes**2).sum(axis=1, keepdims=True))
        return pd.DataFrame(scaled, answers.columns, ["general", "own"])

    found = loadings(integral.estimates.numpy())
    shares = general_shares(found, benchmark).rename("share").to_frame()
    shares["se"] = pd.DataFrame([general_shares(loadings(x), benchmark) for x in draws]).std()
    shares["n_models"] = len(answers)
    shares["n_organisations"] = organisation.nunique()
    return {
        "abilities": found.join(benchmark).rename_axis("item").reset_index(),
        "general_shares": shares.rename_axis("of").reset_index(),
    }


def sap2024_tables() -> Tables:
    """Return single self-paced reading times, and the words read with their surprisals."""
    sentences = pd.read_csv(data.path("sap2024/sentences"), keep_default_na=False)
    return {"readings": pd.read_parquet(data.path("sap2024/readings")), "sentences": sentences}


def checked(
    words: pd.DataFrame, readings: pd.DataFrame, surprisals: pd.DataFrame | None = None
) -> Corpus:
    """Return a corpus whose frames keep their contracts."""
    words = frames.check_words(words, whole_texts=False)
    return Corpus(words, frames.check_readings(readings), surprisals)


def ucl() -> Corpus:
    """Read the UCL corpus; times are means over people, surprisals in nats as released."""
    file = data.path("ucl2023/all_measures")
    table = pd.read_csv(file, keep_default_na=False, na_values=[""])
    table = table.sort_values(["sent_id", "context_length"], ignore_index=True)
    text_id, word_id = table["sent_id"].astype(str), table["context_length"] + 1
    keys = pd.DataFrame({"text_id": text_id, "word_id": word_id})
    words = keys.assign(
        word=table["word"],
        position=table["context_length"],
        length_chars=table["length"],
        log_frequency=table["Subtlex_log10"],
        cloze_probability=table["cloze_p_smoothed"],
        cloze_surprisal_bits=table["cloze_s"] / np.log(2),
    )
    times = table[list(UCL_MEASURES)].rename(columns=UCL_MEASURES)
    readings = pd.concat([keys.assign(subject=MEAN_READER), times], axis=1)
    bits = table[list(UCL_MODELS)].rename(columns=UCL_MODELS) / np.log(2)
    return checked(words, readings, pd.concat([keys, bits], axis=1))


def natural_stories() -> Corpus:
    """Read Natural Stories; tokens of GPT-3 are summed over the word that they begin in."""
    names = ("all_stories", "processed_wordinfo", "all_stories_gpt3")
    story_file, time_file, token_file = (data.path(f"naturalstories/{name}") for name in names)
    options = {"sep": "\t", "quoting": 3, "keep_default_na": False}
    words = pd.read_csv(story_file, **options).sort_values(["item", "zone"], ignore_index=True)
    words = words.rename(columns={"item": "text_id", "zone": "word_id"}).astype({"text_id": str})
    times = pd.read_csv(time_file, **options)
    readings = pd.DataFrame(
        {
            "subject": MEAN_READER,
            "text_id": times["item"].astype(str),
            "word_id": times["zone"],
            "self_paced_ms": times["meanItemRT"],
            "n_readers": times["nItem"],
        }
    ).sort_values(["text_id", "word_id"], ignore_index=True)

    # Tokens belong to the word that they begin in: count the letters of both.
    tokens = pd.read_csv(token_file, keep_default_na=False, na_values={"logprob": [""]})
    parts = []
    for text_id, of_text in words.groupby("text_id", sort=False):
        mine = tokens[tokens["story"] + 1 == int(text_id)]
        ends = of_text["word"].str.replace(" ", "").str.len().cumsum().to_numpy()
        token_ends = mine["token"].str.replace(r"\s", "", regex=True).str.len().cumsum().to_numpy()
        if len(mine) == 0 or token_ends[-1] != ends[-1]:
            raise FrameError(f"the tokens of text {text_id!r} do not spell its words")
        starts = np.r_[0, token_ends[:-1]]
        place = np.searchsorted(ends, starts, side="right").clip(max=len(of_text) - 1)
        bits = -mine["logprob"].to_numpy() / np.log(2)
        total = pd.Series(bits).groupby(place).sum(min_count=1)
        total[place[np.isnan(bits)]] = np.nan
        total = total.reindex(range(len(of_text))).to_numpy()
        parts.append(of_text[["text_id", "word_id"]].assign(**{"GPT-3 davinci": total}))
    words = words[["text_id", "word_id", "word"]].assign(
        position=words["word_id"], length_chars=words["word"].str.len()
    )
    return checked(words, readings, pd.concat(parts, ignore_index=True))


def provo() -> Corpus:
    """Read Provo: the shared task's words are found in the passages by their letters."""
    passage_file, word_file = data.path("provo/provo_texts"), data.path("provo/provo_words")
    passages = pd.read_csv(passage_file, keep_default_na=False)
    spelled = passages["text"].str.replace("Õ", "'").str.split()  # an apostrophe in Mac Roman
    words = pd.DataFrame({"text_id": passages["text_id"].astype(str), "word": spelled})
    words = words.explode("word", ignore_index=True)
    words["word_id"] = words.groupby("text_id").cumcount() + 1
    words = words.assign(position=words["word_id"], length_chars=words["word"].str.len())
    table = pd.read_csv(word_file, keep_default_na=False, na_values=[""])
    ours, theirs = (
        [re.sub(r"\W", "", word).lower() for word in column]
        for column in (words["word"], table["word"])
    )
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    in_words, in_table = np.array(
        [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    ).T
    measures = {"FFD": "first_fixation_scaled", "GPT": "go_past_scaled", "TRT": "total_scaled"}
    measures |= {"nFix": "n_fixations_scaled", "fixProp": "fixated_percent"}
    keys = words[["text_id", "word_id"]].iloc[in_words].reset_index(drop=True)
    times = table[list(measures)].iloc[in_table].reset_index(drop=True).rename(columns=measures)
    readings = pd.concat([keys.assign(subject=MEAN_READER), times], axis=1)
    print(f"{len(table) - len(in_table)} of {len(table)} words are not found in the passages")
    return Corpus(frames.check_words(words), readings)


def corpus_tables(name: str) -> Tables:
    """Return words (as shapes, unless anyone may pass them on), reading times and surprisals."""
    corpus = {"ucl2023": ucl, "naturalstories": natural_stories, "provo": provo}[name]()
    words = corpus.words
    if name != "naturalstories":
        shape = word_shape(words["word"])
        words = words.assign(word=shape).rename(columns={"word": "word_shape"})
    tables = {"words": words, "readings": corpus.readings}
    if "log_frequency" not in words:  # the release has no frequencies: count words in the novels
        frequency = reading_times.log_frequency(corpus.words["word"], novels.word_counts())
        tables["frequency"] = words[["text_id", "word_id"]].assign(log_frequency=frequency)
    return tables | ({} if corpus.surprisals is None else {"surprisals": corpus.surprisals})


def comprehenotes_tables() -> Tables:
    """Return estimates of our fits to ComprehENotes, whose responses are not committed.

    ``fits`` says of each model what it was fitted to (the SHA-256 of the responses) and how.
    """
    fitted = comprehenotes.fits(responses.comprehenotes())
    topic = pd.read_csv(data.path("comprehenotes/items")).set_index("item")["topic"]
    prior = comprehenotes.PRIORS["slope"]
    options = {
        "common": "3PL, one guessing parameter, estimated first and then held",
        "prior": f"3PL, guessing held as in common, prior of slopes {prior}",
        "free": "3PL, guessing by item",
    }
    about = {
        "options": options,
        "loglik": {name: fit.loglik for name, fit in fitted.items()},
        "n_persons": dict.fromkeys(fitted, fitted["common"].n_persons),
        "responses_sha256": dict.fromkeys(
            fitted, data.registry().loc["comprehenotes/responses", "sha256"]
        ),
        "date": dict.fromkeys(fitted, datetime.now(UTC).date().isoformat()),
    }
    described = pd.DataFrame(about).rename_axis("model").reset_index()
    columns = ["model", "item", "topic", "a", "se_a", "d", "b", "c", "se_c"]
    parts = [
        fit.items.assign(model=name, topic=topic).reset_index().reindex(columns=columns)
        for name, fit in fitted.items()
    ]
    return {"estimates": pd.concat(parts, ignore_index=True), "fits": described}


def wilcox2023_tables() -> Tables:
    """Return held-out gains of surprisal and entropy in eleven languages, computed here."""
    words = wilcox2023.words()
    return {
        "gains": wilcox2023.gains(words),
        "link": wilcox2023.link_gains(words),
        "curves": wilcox2023.curves(words),
    }


def frank2013_tables() -> Tables:
    """Return the single readings behind the UCL corpus's means, by that corpus's ids.

    The two releases number the sentences differently, so that they are matched by their text.
    """
    readings = pd.read_parquet(data.path("frank2013/eyetracking_readings"))
    printed = readings.drop_duplicates(["sent_nr", "word_pos"]).sort_values(["sent_nr", "word_pos"])
    sentences = printed.groupby("sent_nr")["word"].agg(" ".join)
    file = data.path("ucl2023/all_measures")
    means = pd.read_csv(file, keep_default_na=False, na_values=[""])
    of_text = means.drop_duplicates("sent_id").set_index("sentence")["sent_id"]
    text_id = readings["sent_nr"].map(sentences.map(of_text))
    table = pd.DataFrame(
        {
            "subject": readings["subj_nr"].map("{:02d}".format),
            "text_id": text_id.astype(str),
            "word_id": readings["word_pos"],
        }
    )
    measures = {name: UCL_MEASURES[name] for name in UCL_MEASURES if name in readings}
    table = table.join(readings[list(measures)].rename(columns=measures).astype(np.int16))
    return {"readings": table.sort_values(["subject", "text_id", "word_id"], ignore_index=True)}


STUDIES: dict[str, Callable[[], Tables]] = {
    "laverghetta2021": laverghetta2021_tables,
    "lalor2016": lalor2016_tables,
    "lalor2018": lalor2018_tables,
    "metabench": metabench_tables,
    "sap2024": sap2024_tables,
    "comprehenotes": comprehenotes_tables,
    "novels": lambda: {"ucl_overlap": running_text.ucl_overlap()},
    "ucl2023": lambda: corpus_tables("ucl2023"),
    "naturalstories": lambda: corpus_tables("naturalstories"),
    "provo": lambda: corpus_tables("provo"),
    "wilcox2023": wilcox2023_tables,
    "frank2013": frank2013_tables,
}

# Computed from stored facts, in half an hour; notebook 39 computes a sample of selections again.
COMPUTED: dict[str, Callable[[], Tables]] = {
    "lalor2018": lambda: {"selections": lalor2020_test_sets.selections()},
    "metabench": metabench_abilities,
}


def main() -> None:
    """Write all tables of facts."""
    for study, tables in [*STUDIES.items(), *COMPUTED.items()]:
        for name, table in tables().items():
            file = data.root() / "data" / "facts" / study / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            with data.atomic_write(file) as part:
                table.to_parquet(part, index=False, compression="zstd", compression_level=19)
            print(f"{file.stat().st_size / 1e3:8.1f} kB  {study}/{name}")


if __name__ == "__main__":
    main()
