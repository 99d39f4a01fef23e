"""Published responses. References: the original files, and numbers printed in the papers."""

import json
import runpy

import numpy as np
import pandas as pd
import pytest
from conftest import absent

from psychlm import corpora, data, lm
from psychlm.corpora import reading_times

facts = runpy.run_path(str(data.root() / "data" / "build_facts.py"))
# A part of it is computed again in tests/analyses/test_wilcox2023.py.
LONG = pytest.param("wilcox2023", marks=pytest.mark.exhaustive)


@pytest.mark.needs_share
@pytest.mark.parametrize("study", [*sorted(facts["STUDIES"].keys() - {"wilcox2023"}), LONG])
def test_committed_facts_equal_the_originals(study: str) -> None:
    for name, table in facts["STUDIES"][study]().items():
        stored = data.facts(f"{study}/{name}")
        kept = [column for column in table if column != "date"]  # of the computation
        # estimates depend on where the iterations of a fit stop
        rtol = 1e-3 if study == "comprehenotes" else 1e-5
        pd.testing.assert_frame_equal(stored[kept], table[kept], rtol=rtol)


def test_stored_shares_of_a_general_ability_follow_from_the_stored_loadings() -> None:
    items = data.facts("metabench/abilities").set_index("item")
    stored = data.facts("metabench/general_shares").set_index("of")
    shares = facts["general_shares"](items[["general", "own"]], items["benchmark"])
    pd.testing.assert_series_equal(shares, stored["share"], check_names=False)
    squares = items[["general", "own"]] ** 2
    of_all = squares["general"].sum() / squares.to_numpy().sum()
    assert shares["all"] == pytest.approx(of_all)
    assert items["benchmark"].value_counts().tolist() == [8] * 5


@pytest.mark.exhaustive  # a minute
def test_stored_loadings_on_a_general_ability_are_those_of_the_fit() -> None:
    for name, table in facts["metabench_abilities"]().items():
        pd.testing.assert_frame_equal(data.facts(f"metabench/{name}"), table, atol=1e-3)


def test_facts_are_below_five_megabytes_and_hold_the_words_of_two_free_texts_alone() -> None:
    files = list((data.root() / "data" / "facts").rglob("*.parquet"))
    models = {file for file in files if file.parent.name == "models"}
    for part in (models, set(files) - models):  # models' results apart
        assert sum(file.stat().st_size for file in part) < 5e6
    for file in files:
        table = pd.read_parquet(file)
        worded = {"word", "prompt", "sentence", "text"} & set(table.columns)
        free = file.parent.name in ("sap2024", "naturalstories")
        assert worded <= ({"word"} if free else set()), file
        if "word_shape" in table:
            assert not table["word_shape"].str.contains(r"[^\Wa0_]").any()


@pytest.mark.usefixtures("no_data")
def test_responses_have_their_published_sizes_and_need_neither_share_nor_network() -> None:
    data.forget_asked()
    crowd, study = corpora.lalor2018(), corpora.laverghetta2021()
    assert crowd.graded.shape == (999, 131) and (crowd.graded.mean() >= 0.5).all()
    assert set(corpora.lalor2018_ratings().to_numpy().ravel()) == {1, 2, 3, 4, 5}
    assert data.asked()["facts/lalor2018/ratings"] is not None
    crowd = corpora.lalor2016(5)
    assert crowd.key.value_counts().to_dict() == dict.fromkeys(corpora.NLI_LABELS, 30)
    assert crowd.items_keyed("neutral").shape == (983, 30)
    assert study.panel.shape == (19, 104) and study.models.shape == (240, 812)
    assert (len(study.population("transformer")), len(study.population("lstm"))) == (183, 57)
    sizes = {code: 14 if code == "LE" else 15 for code in corpora.LAVERGHETTA_CATEGORIES}
    assert {code: rows.shape[1] for code, rows in study.phases.items()} == sizes
    assert set(study.category_items("MN")) <= set(study.panel.columns)
    models = study.persons[study.persons["population"] != "human"]  # described by their names
    assert models["architecture"].nunique() < 15 and "conv" not in set(models["architecture"])
    assert not {"snlli", "sni"} & set(models["finetuned"].dropna())
    answers = corpora.lsat6()
    # proportions correct: Bock & Lieberman (1970), also in Rizopoulos (2006, section 4.1)
    assert answers.mean().tolist() == pytest.approx([0.924, 0.709, 0.553, 0.763, 0.870], abs=5.1e-4)
    answers, scores = corpora.metabench("gsm8k"), corpora.metabench_scores()["gsm8k"]
    assert corpora.metabench("arc").shape == (4280, 100)
    assert answers.mean(axis=1).corr(scores) > 0.95
    with pytest.raises(data.DataMissingError):
        study.wording()
    with pytest.raises(data.DataError, match=r"no table of facts 'x/y'; there are .*lalor2016"):
        data.facts("x/y")


@pytest.mark.needs_share
def test_the_wording_of_laverghetta2021_is_that_of_the_diagnostic() -> None:
    study = corpora.laverghetta2021()
    wording = study.wording()
    pairs = corpora.read_items("laverghetta2021/diagnostic_results")
    joined = wording.merge(pairs, on="item_id", validate="one_to_one")
    assert len(joined) == len(pairs) == len(study.items)
    assert (joined["prompt_x"] == joined["prompt_y"] + "\n" + joined["hypothesis"]).all()
    assert (joined["answer_x"] == joined["answer_y"]).all()


@pytest.mark.needs_share
@pytest.mark.parametrize(("group", "n_persons"), [(4, 976), (5, 983)])
def test_our_grading_of_lalor2016_is_the_authors_own(group: int, n_persons: int) -> None:
    crowd = corpora.lalor2016(group)
    coded = pd.read_csv(data.path(f"lalor2016/irt_file_{group}_coded"), index_col="userid")
    assert crowd.graded.shape == (n_persons, 90)
    pd.testing.assert_frame_equal(crowd.graded, coded.astype(float), check_names=False)


@pytest.mark.filterwarnings("ignore:words are missing")
@pytest.mark.needs_share
@pytest.mark.parametrize("reader", ["ucl", "provo"])
def test_a_corpus_without_its_text_gives_the_same_numbers_and_no_surprisal(request, reader):
    whole = getattr(reading_times, reader)()
    if any("words are shapes" in note for note in whole.notes):
        absent(f"the text of reading_times.{reader}")
    request.getfixturevalue("no_data")
    bare = getattr(reading_times, reader)()
    pd.testing.assert_frame_equal(bare.readings, whole.readings)
    if whole.surprisals is not None:
        pd.testing.assert_frame_equal(bare.surprisals, whole.surprisals)
    for ours, theirs in zip(
        reading_times.exclude(bare.words), reading_times.exclude(whole.words), strict=True
    ):
        shared = theirs.columns.drop("word", errors="ignore")
        pd.testing.assert_frame_equal(ours[shared], theirs[shared])
    assert any("words are shapes" in note for note in bare.notes)
    with pytest.raises(data.DataMissingError, match="these words are shapes"):
        lm.surprisal(bare.words, "default")


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(("reader", "begins"), [("natural_stories", "If you were to"), ("sap", "")])
def test_texts_that_anyone_may_pass_on_come_with_the_project(reader, begins) -> None:
    corpus = getattr(reading_times, reader)()
    assert not any("words are shapes" in note for note in corpus.notes)
    first = corpus.words[corpus.words["text_id"] == "1"]
    assert " ".join(first["word"]).startswith(begins)
    bits = lm.surprisal(first.head(40), "default", cache=False)["surprisal_bits"]
    assert bits.between(0, 60).all()


@pytest.mark.needs_share
def test_grades_in_real_harness_logs_are_those_of_their_log_probabilities():
    banks = ("hellaswag", "truthfulqa", "winogrande")
    files = [data.path(f"lm_eval_logs/metabench_{bank}_secondary") for bank in banks]
    folder = files[0].parents[1]
    graded = corpora.read_responses(folder)
    assert graded.shape == (1, 300)
    tasks = graded.columns.str.rpartition(":").get_level_values(0)
    assert tasks.value_counts().tolist() == [136, 106, 58]
    logs = [file for file in folder.rglob("*.jsonl") if "hellaswag" in file.name]
    samples = [json.loads(line) for line in logs[0].read_text().splitlines()]
    names = [name for name in graded if "hellaswag" in name]
    scores = pd.DataFrame([[float(nats) for nats, _ in s["filtered_resps"]] for s in samples])
    expected = lm.grade(pd.Series([int(s["target"]) for s in samples]), scores)
    assert graded.loc["EleutherAI/pythia-14m", names].tolist() == expected.tolist()


def test_gold_labels_of_phrases_are_those_of_table_4_2() -> None:
    gold = corpora.lalor2018("gold")
    bold = {"24617": "positive", "18959": "positive", "150510": "negative"}  # Lalor (2020)
    assert gold.key[list(bold)].to_dict() == bold
    right = gold.labels == gold.key[gold.labels.columns].to_numpy()
    assert gold.graded.equals(right.astype(float))
    with pytest.raises(ValueError, match="'majority' or the treebank's 'gold'"):
        corpora.lalor2018("silver")  # type: ignore[arg-type]


@pytest.mark.needs_share
def test_117_of_the_treebanks_131_labels_are_the_majority_of_the_released_ratings() -> None:
    """Recounted from the authors' file and the stored positivities, without the reader."""
    ratings = pd.read_csv(data.path("lalor2018/response_patterns"), index_col="uuid")
    treebank = data.published("socher2013.sentiment").set_index("phrase_id")["positivity"]
    assert sorted(ratings.columns.astype(int)) == sorted(treebank.index)
    majority = (ratings > 2).mean() > 0.5
    equal = majority.to_numpy() == (treebank[ratings.columns.astype(int)] > 0.4).to_numpy()
    assert (len(equal), equal.sum()) == (131, 117)


def test_the_treebanks_labels_are_means_of_three_or_four_answers_on_25_points():
    """Socher et al. (2013): annotators move a slider of 25 points, so that a mean of three is a
    multiple of 1/72, of four of 1/96; a mistyped digit is not."""
    positivity = data.published("socher2013.sentiment")["positivity"].to_numpy()
    off = [np.abs(positivity - (positivity * n).round() / n) for n in (72, 96)]
    assert len(positivity) == 131 and np.min(off, axis=0).max() < 6e-6
