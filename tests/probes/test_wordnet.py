"""WordNet's graph and files. References: brute force over small random sets, and a WordNet of
twelve concepts written in Princeton's format."""

import zipfile

import numpy as np
import pandas as pd
import pytest
import tiny_wordnet

from psychlm.data import DataError, DataMissingError
from psychlm.probes import wordnet
from psychlm.probes.distractors import near_pairs
from psychlm.probes.wordnet import closure, collect, contain
from psychlm.probes.wordnet_qa import Builder, Recipe


@pytest.fixture
def birds(tmp_path):
    return tiny_wordnet.write(tmp_path / "wordnet", tiny_wordnet.BIRDS)


# the arrays


def test_hops_are_the_fewest_and_a_circle_of_links_puts_nothing_above_itself():
    found = closure(np.array([[0, 1], [1, 0], [1, 2], [2, 3], [0, 3]]), 4)
    pairs = set(zip(found.below.tolist(), found.above.tolist(), found.hops.tolist(), strict=True))
    linked = {(0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 3, 1), (0, 3, 1)}
    assert pairs == linked | {(0, 2, 2), (1, 3, 2)}


def test_nearly_equal_sets_are_found_as_by_comparing_all(rng):
    sets = [np.unique(rng.integers(0, 12, rng.integers(0, 7))) for _ in range(150)]
    rows = np.repeat(np.arange(150), [len(s) for s in sets])
    lists = collect(rows, np.concatenate(sets), (150, 12))
    found = set(zip(*(part.tolist() for part in near_pairs(lists, 0.6)), strict=True))
    together = [(i, j) for j in range(150) for i in range(j) if len(sets[i]) and len(sets[j])]

    def jaccard(a, b):
        return len(np.intersect1d(a, b)) / len(np.union1d(a, b))

    assert found == {(i, j) for i, j in together if jaccard(sets[i], sets[j]) >= 0.6}
    assert len(found) > 20


# a small WordNet


def test_words_are_found_in_their_sentences_inflected_or_not(birds):
    read = wordnet.load(birds)
    contexts = read.contexts.set_index("lemma")["word"]
    assert contexts["goose"] == "geese"  # by the list of exceptions
    assert contexts["Hedwig"] == "Hedwig"
    assert read.version == "3.0"
    relations = read.triples().groupby("relation").size()
    assert relations.to_dict() == {"def": 12, "ext": 12, "lemma": 16, "isa-up": 9, "isa-down": 9}


def test_an_instance_is_no_type_but_no_wrong_answer_either(birds):
    builder = Builder(wordnet.load(birds))
    questions = builder.build(Recipe(max_distance=2), ["hypernymy", "hyponymy"]).items
    assert "hedwig.n.01" not in set(questions["concept"]) | set(questions["answer_concept"])
    assert "owl.n.01" not in set(questions.query("probe == 'hyponymy'")["concept"])
    # What stands above it in any chain would be right: it is no distractor of a bird.
    number = pd.Series(range(builder.graph.n), index=builder.names)
    hedwig, above = number[["hedwig.n.01"] * 2], number[["owl.n.01", "bird.n.01"]]
    linked = builder.graph.isa_or_instance
    assert contain(linked, hedwig.to_numpy(), above.to_numpy()).all()


def test_another_sense_of_the_word_is_never_a_distractor(birds):
    built = Builder(wordnet.load(birds)).build(Recipe(max_distance=2), ["definitions"])
    concepts = built.items.set_index("concept")["distractor_concepts"]
    owls, carps = (set(concepts.loc[[name]].explode()) for name in ("owl.n.01", "carp.n.01"))
    assert owls and "hood.n.01" not in owls  # "owl" is a word of both
    assert "hood.n.01" in carps


def test_concepts_with_fewer_than_four_distractors_are_skipped_and_counted(birds):
    built = Builder(wordnet.load(birds)).build(Recipe(max_distance=2), ["definitions", "synonymy"])
    counts = built.counts.set_index(["probe", "what"])["n"]
    assert counts["synonymy", "concepts: skipped, fewer than four distractors"] == 4
    assert "synonymy" not in set(built.items["probe"])
    assert {len(names) for names in built.items["distractor_concepts"]} == {4}


def test_nothing_to_ask_is_an_error_that_says_what_was_left_out(birds):
    for probe, message in (
        ("synonymy", "no question could be built.*skipped, fewer than four"),
        ("antonymy", "no probe is named 'antonymy'"),
    ):
        with pytest.raises(ValueError, match=message):
            Builder(wordnet.load(birds)).build(Recipe(), [probe])
    for number in ("max_hops", "max_distance"):
        with pytest.raises(ValueError, match=f"{number} is 0"):
            Recipe(**{number: 0})


# files that are not there, or broken


def test_a_missing_wordnet_is_an_error_that_says_how_to_get_it(tmp_path, monkeypatch):
    message = r"lacks \['data.noun'.*apt-get install wordnet-base.*nltk.downloader"
    with pytest.raises(DataMissingError, match=message):
        wordnet.find(tmp_path)
    monkeypatch.setenv("PSYCHLM_WORDNET", str(tmp_path / "nowhere"))
    with pytest.raises(DataMissingError, match=r"nowhere \(\$PSYCHLM_WORDNET\) is no WordNet"):
        wordnet.load()
    monkeypatch.delenv("PSYCHLM_WORDNET")
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    with pytest.raises(DataMissingError, match="no WordNet on this machine.*PSYCHLM_WORDNET"):
        wordnet.load()


def test_a_variable_and_nltks_archive_lead_to_it(birds, tmp_path, monkeypatch):
    monkeypatch.setenv("PSYCHLM_WORDNET", str(birds))
    assert wordnet.find() == birds.resolve()
    monkeypatch.delenv("PSYCHLM_WORDNET")
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    (tmp_path / "corpora").mkdir()
    with zipfile.ZipFile(tmp_path / "corpora" / "wordnet.zip", "w") as archive:
        for file in birds.iterdir():
            archive.write(file, f"wordnet/{file.name}")
    assert len(wordnet.load().concepts) == len(tiny_wordnet.BIRDS)


def test_broken_files_are_an_error_that_names_the_folder(birds):
    for file, old, broken in (
        ("data.noun", b" 001 @ ", b" 003 @ "),  # links that are not there
        ("data.noun", b"goose", b"go\xffse"),
        ("data.noun", (birds / "data.noun").read_bytes()[-500:], b""),
        ("index.noun", b" 1 0 1 0 ", b" 2 0 1 0 "),
    ):
        whole = (birds / file).read_bytes()
        assert old in whole
        (birds / file).write_bytes(whole.replace(old, broken, 1))
        with pytest.raises(DataError, match="WordNet in .* cannot be read.*apt-get install"):
            wordnet.load(birds)
        (birds / file).write_bytes(whole)
