"""WordNetQA: multiple-choice probes of what a model knows of definitions, synonyms and ISA links.

After Richardson & Sabharwal (2020, section 3.1). A question shows a word of a concept c in an
example sentence (in synonymy, the definition of c). GEN makes the question and its key:

- definitions: the gloss of c;  synonymy: the words of c;
- hypernymy, hyponymy: a concept of HOPS(c, up) or HOPS(c, down).

DISTR adds four wrong choices close in the graph (:mod:`psychlm.probes.distractors`). The same
question comes with several sets of them (perturbations); all questions of a probe about one concept
are a cluster. Concepts are split, not questions: what is asked about in training is not asked about
in testing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from psychlm.frames import check_items
from psychlm.probes.distractors import (
    KINDS,
    N_DISTRACTORS,
    ChoiceRules,
    Questions,
    choose_distractors,
)
from psychlm.probes.wordnet import Ints, IsaGraph, WordNet, expand

PROBES = ("definitions", "hypernymy", "hyponymy", "synonymy")
SPLITS = ("train", "dev", "test")
# Keys drawn for a concept at each number of hops, for questions and for the pool of distractors
ASKED = 1
POOLED = 20
DEV_SHARE = 0.2  # of the concepts outside training, those for development

# After the kinds of Richardson & Sabharwal (2020, Table 2), in our words. A template ends where a
# choice may follow. Verbs have their own, since an act is not "a kind of thing".
_READ = "Read this sentence: “{sentence}”"
_SAYS = "Someone says: “{sentence}”"
_GIVEN = "Given the context “{sentence}”,"
_TAKE = "Take “{word}” as it is meant in “{sentence}”"
TEMPLATES = {
    "definitions": (
        f"{_READ} Which of these definitions fits “{{word}}” as it is used there?",
        f"{_SAYS} What does “{{word}}” mean here?",
        "As used in “{sentence}”, the expression “{word}” means",
        "In the context “{sentence}”, the best explanation of “{word}” is",
    ),
    "hypernymy": (
        "In “{sentence}”, what is called “{word}” is a kind of",
        f"{_READ} Which of these is a more general term for “{{word}}” as it is meant there?",
        f"{_SAYS} The concept “{{word}}” then belongs to which wider class?",
        f"{_GIVEN} “{{word}}” is a type of",
    ),
    "hypernymy of verbs": (
        "In “{sentence}”, what is called “{word}” is one way",
        f"{_READ} Which of these is a more general term for “{{word}}” as it is meant there?",
        f"{_SAYS} The act “{{word}}” is then a special case of which act?",
        f"{_GIVEN} to do what “{{word}}” says is in particular",
    ),
    "hyponymy": (
        f"{_TAKE} Which of these is a specific kind of it?",
        f"{_SAYS} Which of these concepts is a special type of what “{{word}}” names here?",
        f"{_GIVEN} a narrower term for “{{word}}” is",
        "In the sense of “{sentence}”, an example of a kind of “{word}” is",
    ),
    "hyponymy of verbs": (
        f"{_TAKE} Which of these is a specific way of doing it?",
        f"{_SAYS} Which of these acts is a special case of what “{{word}}” names here?",
        f"{_GIVEN} a narrower term for “{{word}}” is",
        "In the sense of “{sentence}”, a particular manner of what “{word}” says is",
    ),
    "synonymy": (
        "Which set of words has the meaning “{gloss}”?",
        "“{gloss}”: this defines which of the following words?",
        "The definition “{gloss}” belongs to",
        "Someone looks for words that mean “{gloss}” Which of these should they choose?",
    ),
}


def templates(probe: str, pos: str) -> tuple[str, ...]:
    """Return the templates of a probe for a part of speech (n, v, a or r)."""
    if probe not in PROBES:
        raise ValueError(f"no probe is named {probe!r}; there are {list(PROBES)}")
    return TEMPLATES.get(f"{probe} of verbs" if pos == "v" else probe, TEMPLATES[probe])


def choice_text(probe: str, words: Sequence[str], gloss: str, pos: str) -> str:
    """Write a concept as a choice: its definition, its words, or both.

    >>> choice_text("hypernymy", ["sit", "sit down"], "be seated", "v")
    'to sit (or sit down), meaning ‘be seated’'
    """
    if probe == "definitions":
        return gloss
    if probe == "synonymy":
        return ", ".join(words)
    others = f" (or {', '.join(words[1:])})" if len(words) > 1 else ""
    return f"{'to ' if pos == 'v' else ''}{words[0]}{others}, meaning ‘{gloss}’"


@dataclass(frozen=True)
class Recipe:
    """The options of a build; the same recipe and WordNet give the same questions."""

    seed: int = 0
    max_hops: int | None = 4  # deepest HOPS(c, r) asked about (4: the paper's Figure 3); None: all
    max_distance: int = 3  # of sister families, hypernyms and hyponyms that are distractors
    # Distractors of hypernymy and hyponymy stand above about as many concepts as the key (the same
    # power of two), instead of being relatives of the concept. The paper's are not so: a hypernym
    # stands above the concept's sisters and hyponyms, and its wording shows it.
    as_general: bool = False
    # Leave out keys and distractors that repeat the word asked about or stand in the question.
    filter_leaks: bool = True
    max_concepts: int | None = None  # drawn for each probe; None: all
    max_train: int = 3000  # most training questions, and never more than half of all

    def __post_init__(self) -> None:
        least = {"max_hops": 1, "max_concepts": 1, "max_distance": 1, "max_train": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; it must be {low} or more")


@dataclass(frozen=True)
class Probes:
    """Questions that were built, and what was left out on the way."""

    # An items frame with five choices; then probe, concept, pos, word (as it stands in the
    # question; empty in synonymy), lemma, answer_concept, hops (0 where question and key are of one
    # concept), cluster, distractor_set and distractor_distance (0 for random ones), and for the
    # four distractors in the order of the choices distractor_types, distractor_distances,
    # distractor_concepts; split.
    items: pd.DataFrame
    counts: pd.DataFrame  # probe, what, n: what was struck out or left out, by reason
    recipe: Recipe

    def sizes(self) -> pd.DataFrame:
        """Return one row per probe: questions, concepts, mean size of a cluster, splits."""
        unique = self.items.drop_duplicates(["probe", "prompt", "answer_concept"])
        groups = self.items.groupby("probe", observed=True)
        table = unique.groupby("probe", observed=True).size().to_frame("unique")
        table["with_perturbations"] = groups.size()
        table["concepts"] = groups["concept"].nunique()
        table["cluster_size"] = groups.size() / groups["cluster"].nunique()
        splits = pd.crosstab(self.items["probe"], self.items["split"])
        table = table.join(splits.reindex(columns=list(SPLITS), fill_value=0))
        return table.reindex([probe for probe in PROBES if probe in table.index])


class Builder:
    """Builds probes from one WordNet; its arrays are computed once and serve every recipe.

    Examples
    --------
    >>> from psychlm.probes import wordnet
    >>> Builder(wordnet.load()).build(Recipe(max_concepts=100)).sizes()  # doctest: +SKIP
    """

    def __init__(self, wordnet: WordNet) -> None:
        self.wordnet = wordnet
        columns = (wordnet.concepts[name] for name in ("name", "pos", "gloss"))
        self.names, self.pos, self.gloss = (column.to_numpy(dtype=object) for column in columns)
        self.graph = IsaGraph(wordnet)
        self.rules = ChoiceRules(wordnet, self.graph)

    def build(self, recipe: Recipe | None = None, probes: Sequence[str] = PROBES) -> Probes:
        """Build probes: some of definitions, hypernymy, hyponymy, synonymy.

        Built alone or together, a probe has the same questions; the split is one for all probes.
        ValueError if a probe does not exist, or no question could be built.
        """
        recipe = recipe or Recipe()
        frames = []
        counts = []
        for probe in probes:
            templates(probe, "n")  # raises if there is no such probe
            rng = np.random.default_rng([recipe.seed, PROBES.index(probe)])
            counter: Counter[str] = Counter()
            questions = self._questions(probe, recipe, rng, counter)
            frames.append(self._with_distractors(questions, recipe, rng, counter))
            counts += [{"probe": probe, "what": what, "n": n} for what, n in counter.items() if n]
        items = pd.concat(frames, ignore_index=True)
        if items.empty:
            raise ValueError(f"no question could be built for {probes}; left out: {counts}")
        items = check_items(items.assign(split=split_by_concept(items, recipe)))
        table = pd.DataFrame(counts, columns=["probe", "what", "n"])
        return Probes(items, table, recipe)

    def _questions(
        self, probe: str, recipe: Recipe, rng: np.random.Generator, counts: Counter[str]
    ) -> Questions:
        """Make the questions and keys of a probe (GEN): one row per concept, sentence and key."""
        rules = self.rules
        contexts = self.wordnet.contexts
        # Concepts and sentences: those with a key at all, one sentence each.
        if probe == "synonymy":
            concept = np.flatnonzero(rules.has_synonyms)
            context = np.full(len(concept), -1)
        else:
            nodes = contexts["node"].to_numpy()
            context = np.arange(len(nodes))
            if probe != "definitions":  # below something, or above something
                with_links = self.graph.isa[:, 0 if probe == "hypernymy" else 1]
                context = np.flatnonzero(np.isin(nodes, with_links))
            context = context[_sample_groups(nodes[context], 1, rng)]
            concept = nodes[context]
        unique = np.unique(concept)
        counts["concepts: of the kind the probe asks about"] += len(unique)
        if recipe.max_concepts is not None and len(unique) > recipe.max_concepts:
            kept = np.isin(concept, rng.choice(unique, recipe.max_concepts, replace=False))
            concept = concept[kept]
            context = context[kept]
        # Keys, and a template for each.
        position, answer, hops = self._keys(probe, concept, recipe.max_hops, ASKED, rng)
        concept = concept[position]
        context = context[position]
        template = rng.integers(0, len(TEMPLATES[probe]), len(position))
        # The stems of the word in question and of the whole question, for the filter of leaks.
        pos = self.pos[concept]
        forms = [templates(probe, part)[i] for part, i in zip(pos, template, strict=True)]
        texts = [re.sub(r"{\w+}", " ", form) for form in forms]
        if probe == "synonymy":
            word = np.full(len(concept), -1)
            word_stems = rules.gloss[concept]
            texts = [f"{a} {b}" for a, b in zip(texts, self.gloss[concept], strict=True)]
        else:
            rows = contexts.iloc[context]
            lemmas = rows["lemma"].str.lower()
            word = (lemmas + "/" + pos).map(self.graph.word_number).to_numpy(dtype=np.int64)
            word_stems = rules.stemmer.lists(rows["word"] + " " + lemmas)
            texts = [" ".join(parts) for parts in zip(texts, rows["sentence"], lemmas, strict=True)]
        question_stems = rules.stemmer.lists(texts)
        columns = (concept, answer, hops, context, word, word_stems, question_stems, template)
        questions = Questions(probe, *columns)
        # Leave out keys that share their definition, and those that the question gives away.
        counts["keys: drawn"] += len(questions)
        sound = rules.may_answer(probe)[questions.answer]
        counts["keys: definition of several concepts"] += int((~sound).sum())
        questions = questions.take(sound)
        if recipe.filter_leaks:
            able = rules.may_answer(probe, filter_leaks=True)[questions.answer]
            leaks = rules.leaks(questions, np.arange(len(questions)), questions.answer) | ~able
            counts["keys: answer word in question"] += int(leaks.sum())
            questions = questions.take(~leaks)
        return questions

    def _keys(
        self, probe: str, concept: Ints, max_hops: int | None, n: int, rng: np.random.Generator
    ) -> Ints:
        """Return rows of position in ``concept``, key (itself, or up to n of HOPS(c, r) for each
        r), hops."""
        if probe in ("definitions", "synonymy"):
            return np.stack([np.arange(len(concept)), concept, np.zeros_like(concept)])
        deepest = int(self.graph.up.hops.max(initial=0))
        parts = [np.empty((3, 0), dtype=np.int64)]
        for hops in range(1, min(max_hops or deepest, deepest) + 1):
            family = self.graph.family("above" if probe == "hypernymy" else "below", hops)
            position, answer = expand(family, concept)
            some = _sample_groups(position, n, rng)
            parts.append(np.stack([position[some], answer[some], np.full(len(some), hops)]))
        return np.concatenate(parts, axis=1)

    def _with_distractors(
        self, questions: Questions, recipe: Recipe, rng: np.random.Generator, counts: Counter[str]
    ) -> pd.DataFrame:
        """Give every question each set of distractors that its concept has (DISTR)."""
        probe = questions.probe
        # Random distractors come from concepts that could be keys, and from far more than are:
        # drawn from the keys themselves, test keys would be known from training as wrong choices,
        # and a model that sees only choices and memorises would fall far below guessing.
        if probe in ("hypernymy", "hyponymy"):
            unique = np.unique(questions.concept)
            pool = self._keys(probe, unique, recipe.max_hops, POOLED, rng)[1]
        else:
            pool = np.flatnonzero(self.rules.may_answer(probe, filter_leaks=recipe.filter_leaks))
        kinds = {"hypernymy": ("sister", "hyponym"), "hyponymy": ("sister", "hypernym")}
        distances = range(1, recipe.max_distance + 1)
        sets = [(kind, distance) for kind in kinds.get(probe, KINDS[1:4]) for distance in distances]
        sets = [("matched", 0)] if recipe.as_general and probe in kinds else [("random", 0), *sets]
        options: dict[str, Any] = {"max_distance": recipe.max_distance, "counts": counts}
        options["filter_leaks"] = recipe.filter_leaks
        parts = []
        for kind, distance in sets:
            chosen = choose_distractors(self.rules, questions, pool, kind, distance, rng, **options)
            parts.append(self._frame(questions, *chosen, kind, distance, rng))
        frame = pd.concat(parts, ignore_index=True)
        n_asked = frame["_question"].nunique()
        counts["keys: without four distractors of any set"] += len(questions) - n_asked
        n_skipped = len(np.unique(questions.concept)) - frame["concept"].nunique()
        counts["concepts: skipped, fewer than four distractors"] += n_skipped
        frame = frame.sort_values("_question", kind="stable", ignore_index=True)
        return frame.drop(columns="_question")

    def _frame(
        self,
        questions: Questions,
        rows: Ints,
        distractors: Ints,
        kinds: Ints,
        kind: str,
        distance: int,
        rng: np.random.Generator,
    ) -> pd.DataFrame:
        """Return questions with their distractors as an items frame."""
        asked = questions.take(rows)
        probe = asked.probe
        # The key stands at a random place, the distractors in their order around it.
        key_position = rng.integers(0, N_DISTRACTORS + 1, len(asked))
        is_key = np.arange(N_DISTRACTORS + 1) == key_position[:, None]
        nodes = np.empty(is_key.shape, dtype=np.int64)
        nodes[is_key], nodes[~is_key] = asked.answer, distractors.ravel()
        # Choices: each concept is written once.
        distinct, which = np.unique(nodes, return_inverse=True)
        columns = (self.rules.shown_words[distinct], self.gloss[distinct], self.pos[distinct])
        texts = np.empty(len(distinct), dtype=object)
        texts[:] = [choice_text(probe, *parts) for parts in zip(*columns, strict=True)]
        # Prompts: the template with its sentence and word, or with the definition.
        shown = pd.DataFrame("", index=range(len(asked)), columns=["sentence", "word", "lemma"])
        if probe != "synonymy":
            shown = self.wordnet.contexts.iloc[asked.context].reset_index(drop=True)
        names = self.names[asked.concept]
        key_names = self.names[asked.answer]
        pos = self.pos[asked.concept]
        fields = shown.assign(gloss=self.gloss[asked.concept]).to_dict("records")
        parts = zip(pos, asked.template, fields, strict=True)
        ids = [
            f"{probe}:{name}:{sentence}:{key_name}:{kind}{distance or ''}"
            for name, sentence, key_name in zip(names, asked.context, key_names, strict=True)
        ]
        items = {
            "item_id": ids,
            "prompt": [templates(probe, part)[i].format(**field) for part, i, field in parts],
            "choices": texts[which.reshape(nodes.shape)].tolist(),
            "answer": key_position,
            "probe": probe,
            "concept": names,
            "pos": pos,
            "word": shown["word"],
            "lemma": shown["lemma"],
            "answer_concept": key_names,
            "hops": asked.hops,
            "cluster": f"{probe}:" + names,
            "distractor_set": kind,
            "distractor_distance": distance,
            "distractor_types": np.array(KINDS, dtype=object)[kinds].tolist(),
            "distractor_distances": np.where(kinds > 0, distance, 0).tolist(),
            "distractor_concepts": self.names[distractors].tolist(),
            "_question": rows,
        }
        return pd.DataFrame(items)


def _sample_groups(group: Ints, n: int, rng: np.random.Generator) -> Ints:
    """Return the positions of up to n random members of every group, in the order of the groups."""
    order = np.lexsort((rng.random(len(group)), group))
    ordered = group[order]
    within = np.arange(len(group)) - np.searchsorted(ordered, ordered)
    return order[within < n]


def split_by_concept(items: pd.DataFrame, recipe: Recipe) -> pd.Series:
    """Assign every question to train, dev or test, all questions about one concept to the same.

    In one random order for all probes, concepts go to training as long as their questions fit into
    ``max_train`` and half of all questions, and of the others the first :data:`DEV_SHARE` to dev.
    """
    concepts = np.unique(items["concept"].to_numpy(dtype=str))
    order = np.random.default_rng([recipe.seed, len(PROBES)]).permutation(len(concepts))
    rank = pd.Series(order, index=concepts)
    sizes = items.groupby(["probe", "concept"], observed=True).size().rename("n").reset_index()
    sizes = sizes.assign(rank=sizes["concept"].map(rank)).sort_values(["probe", "rank"])
    n_before = sizes.groupby("probe", observed=True)["n"]
    train = n_before.cumsum() <= np.minimum(recipe.max_train, n_before.transform("sum") // 2)
    others = sizes.loc[~train].groupby("probe", observed=True)["n"]
    dev = others.cumsum() <= DEV_SHARE * others.transform("sum")
    dev = dev.reindex(sizes.index, fill_value=False)
    sizes["split"] = np.select([train, dev], ["train", "dev"], "test")
    split_of = sizes.set_index(["probe", "concept"])["split"]
    return items[["probe", "concept"]].join(split_of, on=["probe", "concept"])["split"]
