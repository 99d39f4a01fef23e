"""Questions drawn at random, each looked up with NLTK's own objects: links walked one by one,
senses looked up in the index. Sizes of WordNet 3.0: wnstats(7WN). Positions of keys: the
chi-squared test of SciPy."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from conftest import absent
from scipy.stats import chisquare

from analyses import richardson2020
from psychlm.data import DataMissingError
from psychlm.probes import wordnet
from psychlm.probes.distractors import FUNCTION_WORDS
from psychlm.probes.wordnet_qa import PROBES, Builder, Recipe

RECIPE = Recipe(seed=7, max_concepts=130)


@pytest.fixture(scope="module")
def builder():
    """Verbs only: a tenth of the concepts, and every relation that nouns have but instances."""
    try:
        return Builder(wordnet.load(pos="v"))
    except DataMissingError:
        absent("WordNet (Debian's wordnet-base)")


@pytest.fixture(scope="module")
def built(builder):
    return builder.build(RECIPE)


@pytest.fixture(scope="module")
def reader(builder):
    with wordnet.open_reader(wordnet.find()) as nltk_reader:
        yield nltk_reader


@pytest.fixture(scope="module")
def higher(reader):
    """Return a function: the hops to each concept above one, link by link through NLTK."""

    @cache
    def walk(name):
        found, edge, hops = {}, [reader.synset(name)], 0
        while edge:
            hops += 1
            parents = dict.fromkeys(parent for synset in edge for parent in synset.hypernyms())
            edge = [u for u in parents if u.name() not in found and u.name() != name]
            found |= {u.name(): hops for u in edge}
        return found

    return walk


@pytest.mark.exhaustive
@pytest.mark.usefixtures("builder")  # skipped without WordNet
def test_the_whole_of_wordnet_is_read_and_asked_about() -> None:
    read = wordnet.load()
    sizes = read.concepts["pos"].value_counts()
    assert sizes.to_dict() == {"n": 82_115, "v": 13_767, "a": 18_156, "r": 3_621}
    senses = read.lemmas.groupby(read.concepts["pos"].to_numpy()[read.lemmas["node"]]).size()
    assert (senses["n"], senses["v"]) == (146_312, 25_047)  # pairs of word and sense
    assert read.version == "3.0"
    built = Builder(read).build(RECIPE)
    assert set(built.items["probe"]) == set(PROBES)
    assert built.items["hops"].max() == 4


def test_hops_are_those_of_walking_link_by_link(builder, higher, rng):
    graph, names = builder.graph, builder.names
    for node in rng.integers(0, graph.n, 300):
        here = graph.up.below == node
        mine = dict(zip(names[graph.up.above[here]], graph.up.hops[here].tolist(), strict=True))
        assert mine == higher(names[node])


def test_sister_families_are_those_of_walking_link_by_link(builder, reader, rng):
    graph, names = builder.graph, builder.names
    number = {name: node for node, name in enumerate(names)}
    usable = np.flatnonzero(np.diff(graph.parents.indptr) > 0)
    for node in rng.choice(usable, 40, replace=False):
        synset = reader.synset(names[node])
        own = {synset, *synset.closure(lambda s: s.hypernyms())}
        own |= set(synset.closure(lambda s: s.hyponyms()))
        edge = {child for parent in synset.hypernyms() for child in parent.hyponyms()} - {synset}
        seen = set()
        for depth in (1, 2, 3):
            fresh = sorted(number[s.name()] for s in edge - seen - own)[:50]
            found = graph.sister_distance(np.full(len(fresh), node), np.array(fresh, dtype=int))
            assert (found == depth).all()
            seen |= edge
            edge = {child for s in edge for child in s.hyponyms()}


def test_keys_stand_in_the_relation_and_no_distractor_does(built, reader, higher):
    @cache
    def lemmas(name):
        return [word.replace("_", " ").lower() for word in reader.synset(name).lemma_names()]

    @cache
    def exact(word, pos):
        senses = [sense.name() for sense in reader.synsets(word.replace(" ", "_"), pos)]
        return [name for name in senses if word.lower() in lemmas(name)]

    isa = built.items[built.items["probe"].isin(["hypernymy", "hyponymy"])]
    assert len(isa) > 1500
    for q in isa.itertuples():
        up = q.probe == "hypernymy"
        below, above = (q.concept, q.answer_concept) if up else (q.answer_concept, q.concept)
        assert higher(below)[above] == q.hops
        for other in q.distractor_concepts:
            words = lemmas(other)[:3]
            pairs = [(a, b) for a in exact(q.lemma, q.pos) for w in words for b in exact(w, q.pos)]
            for asked, shown in [*pairs, (q.concept, other)]:
                low, high = (asked, shown) if up else (shown, asked)
                assert low != high, q.item_id
                assert high not in higher(low), q.item_id


def test_definitions_and_synonyms_have_one_right_choice(built, reader):
    items = built.items[built.items["probe"].isin(["definitions", "synonymy"])]
    assert len(items) > 400
    for q in items.itertuples():
        own = reader.synset(q.concept)
        for other in map(reader.synset, q.distractor_concepts):
            assert other.definition() != own.definition()
            folded = {word.lower() for word in other.lemma_names()}
            if q.probe == "definitions":
                assert q.lemma.replace(" ", "_").lower() not in folded
            else:
                shown = {word.lower() for word in other.lemma_names()[:3]}
                assert not shown & {word.lower() for word in own.lemma_names()}


def test_distractors_are_of_the_kind_and_distance_recorded(built, higher):
    for q in built.items.sample(1000, random_state=1).itertuples():
        columns = (q.distractor_concepts, q.distractor_types, q.distractor_distances)
        for other, kind, distance in zip(*columns, strict=True):
            above, below = higher(q.concept).get(other, 0), higher(other).get(q.concept, 0)
            if kind in ("hypernym", "hyponym"):
                assert distance == (above if kind == "hypernym" else below)
            if kind == "random":
                assert distance == above == below == 0
            assert kind in (q.distractor_set, "random")
            assert distance in (q.distractor_distance, 0)


def test_no_question_holds_a_word_of_its_key(built, builder):
    words = dict(zip(builder.names, builder.rules.shown_words, strict=True))
    for q in built.items.drop_duplicates(["probe", "prompt", "answer_concept"]).itertuples():
        prompt = f" {re.sub(r'[^a-z0-9]+', ' ', q.prompt.lower())} "
        if q.probe != "definitions":
            tokens = set(re.findall("[a-z0-9]+", " ".join(words[q.answer_concept]).lower()))
            assert not (tokens - FUNCTION_WORDS) & set(prompt.split()), q.item_id
        if q.probe != "synonymy":
            key, word = q.choices[q.answer].lower(), q.word.lower()
            assert f" {word} " not in f" {key} " or word in FUNCTION_WORDS


def test_the_same_seed_gives_the_same_questions_and_each_probe_is_its_own(builder, built):
    small = Recipe(seed=7, max_concepts=60)
    together = builder.build(small, ["hyponymy", "synonymy"]).items
    alone = builder.build(small, ["synonymy"]).items
    again = together[together["probe"] == "synonymy"].reset_index(drop=True).drop(columns="split")
    pd.testing.assert_frame_equal(alone.drop(columns="split"), again)
    other = builder.build(Recipe(seed=8, max_concepts=60), ["synonymy"]).items
    assert set(other["concept"]) != set(alone["concept"])


def test_concepts_are_whole_in_the_splits_and_keys_stand_at_every_place_alike(built):
    splits = built.items.groupby(["probe", "concept"])["split"].nunique()
    assert splits.max() == 1
    sizes = built.sizes()
    assert (sizes["train"] <= RECIPE.max_train).all()
    assert (sizes[["train", "dev", "test"]] > 0).all(axis=None)
    assert (sizes[["train", "dev", "test"]].sum(axis=1) == sizes["with_perturbations"]).all()
    assert chisquare(np.bincount(built.items["answer"], minlength=5)).pvalue > 1e-4


def test_distractors_as_general_as_the_key_stand_above_about_as_many_concepts(builder, higher):
    recipe = Recipe(seed=7, max_concepts=130, as_general=True)
    items = builder.build(recipe, ["hypernymy"]).items
    n_below = np.bincount(builder.graph.up.above, minlength=builder.graph.n)
    below = dict(zip(builder.names, n_below, strict=True))
    keys = items["answer_concept"].map(below)
    others = np.array([[below[name] for name in names] for names in items["distractor_concepts"]])
    kinds = np.array(items["distractor_types"].tolist())
    level = np.log2(1 + others).astype(int)
    same = level == np.log2(1 + keys.to_numpy()).astype(int)[:, None]
    assert (same | (kinds == "random")).all()  # random ones fill up small groups
    assert (kinds == "matched").mean() > 0.5
    # The most general choice is the key about as often as any other choice.
    assert (others < keys.to_numpy()[:, None]).all(axis=1).mean() < 0.35
    for row in items.head(50).itertuples():
        assert not set(row.distractor_concepts) & set(higher(row.concept))


def test_a_distractor_that_is_right_as_well_is_noticed(builder, built):
    """A parent of the concept, which is more general too, among the distractors of hypernymy."""
    assert not richardson2020.check_questions(builder, built.items).any(axis=None)
    deep = built.items[(built.items["probe"] == "hypernymy") & (built.items["hops"] > 1)][:20]
    number = pd.Series(range(builder.graph.n), index=builder.names)
    nodes = [builder.graph.parents[[node]].indices[0] for node in number[deep["concept"]]]
    parents = builder.names[nodes]
    pairs = zip(parents, deep["distractor_concepts"], strict=True)
    spoilt = deep.assign(distractor_concepts=[[parent, *names[1:]] for parent, names in pairs])
    assert richardson2020.check_questions(builder, spoilt)["second right answer"].all()
    farther = deep.assign(hops=deep["hops"] + 1)
    assert richardson2020.check_questions(builder, farther)["wrong"].all()
