"""WordNetQA: multiple-choice probes of what a model knows of definitions, synonyms and ISA links.

After Richardson & Sabharwal (2020, section 3.1). GEN makes the questions and their keys, DISTR four wrong choices
close in the graph; the same question comes with several sets of them (perturbations), and all questions of one probe
about one concept are a cluster. Concepts are split, not questions: what is asked about in training is not asked about
in testing.

Nothing about a question is left to trust: :func:`violations` looks every one up in the graph again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from psychlm.frames import check_items
from psychlm.probes.wordnet import WordNet
from psychlm.probes.wordnet_check import violations
from psychlm.probes.wordnet_distractors import KINDS, N_DISTRACTORS, Asked, Chosen, Drawer, Rules
from psychlm.probes.wordnet_graph import Graph, Ints, Lists, build_graph
from psychlm.probes.wordnet_recipe import Probes, Recipe, split_by_concept
from psychlm.probes.wordnet_templates import PROBES, choice, templates
from psychlm.probes.wordnet_wording import Wording, shown_words, wording

_POOLED = 20  # concepts that might have been the key, for each that is, among which random distractors are drawn
_BRACES = re.compile(r"{\w+}")


class Builder:
    """Builds probes from one WordNet; its arrays are computed once and serve every recipe."""

    def __init__(self, wordnet: WordNet) -> None:
        self.wordnet = wordnet
        self.graph: Graph = build_graph(wordnet)
        self.wording: Wording = wording(wordnet)
        has_context = np.zeros(self.graph.n, dtype=bool)
        has_context[wordnet.contexts["node"]] = True
        self.rules = Rules(self.graph, self.wording, has_context)
        self.names, self.pos, self.gloss = (
            wordnet.concepts[column].to_numpy(dtype=object) for column in ("name", "pos", "gloss")
        )
        self.choices_of = shown_words(wordnet)

    def build(self, recipe: Recipe | None = None, probes: Sequence[str] = PROBES) -> Probes:
        """Build probes.

        Parameters
        ----------
        recipe : Recipe, optional
        probes : sequence of str
            Some of definitions, hypernymy, hyponymy, synonymy. Each has its own random numbers: alone or together, a
            probe comes out the same.

        Raises
        ------
        ValueError
            If a probe does not exist, or no question could be built at all.
        """
        recipe = recipe or Recipe()
        frames, counts = [], []
        for probe in probes:
            templates(probe, "n")  # says which probes there are, if this is none
            rng = np.random.default_rng([recipe.seed, PROBES.index(probe)])
            counter: Counter[str] = Counter()
            asked = self.ask(probe, recipe, rng, counter)
            frames.append(self._with_distractors(asked, recipe, rng, counter))
            counts += [{"probe": probe, "what": what, "n": n} for what, n in counter.items() if n]
        items = pd.concat(frames, ignore_index=True)
        if items.empty:
            raise ValueError(
                f"no question could be built for {list(probes)}; what was left out: {counts}"
            )
        items = check_items(items.assign(split=split_by_concept(items, recipe)))
        wrong = violations(items, self.wordnet, self.graph, max_distance=recipe.max_distance)
        if len(wrong):
            first = wrong.head().to_dict("records")
            raise RuntimeError(
                f"{len(wrong)} questions do not agree with WordNet, a defect of this package: {first}"
            )
        return Probes(
            items,
            pd.DataFrame(counts, columns=["probe", "what", "n"]),
            recipe,
            self.wordnet.version,
        )

    def ask(
        self, probe: str, recipe: Recipe, rng: np.random.Generator, counts: Counter[str]
    ) -> Asked:
        """Make the questions and keys of a probe (GEN): one entry a concept, sentence and key."""
        if probe == "synonymy":
            concept = np.flatnonzero(self.rules.has_synonyms)
            context = np.full(len(concept), -1)
        else:
            nodes = self.wordnet.contexts["node"].to_numpy()
            usable = np.flatnonzero(self._may_be_asked(probe)[nodes])
            context = usable[_some_of_each(nodes[usable], recipe.contexts_per_concept, rng)]
            concept = nodes[context]
        counts["concepts: of the kind the probe asks about"] += len(np.unique(concept))
        if recipe.max_concepts is not None and len(np.unique(concept)) > recipe.max_concepts:
            kept = np.isin(
                concept, rng.choice(np.unique(concept), recipe.max_concepts, replace=False)
            )
            concept, context = concept[kept], context[kept]
        at, answer, hops = self._keys(probe, concept, recipe, rng)
        template = rng.integers(0, len(templates(probe, "n")), len(at))
        asked = self._in_words(probe, concept[at], answer, hops, context[at], template)
        counts["keys: drawn"] += len(asked)
        return self._sound_keys(asked, recipe, counts)

    def _may_be_asked(self, probe: str) -> np.ndarray:
        """Tell which concepts have a key at all: a definition, something above them, or something below."""
        if probe == "definitions":
            return np.ones(self.graph.n, dtype=bool)
        return np.isin(np.arange(self.graph.n), self.graph.isa[:, 0 if probe == "hypernymy" else 1])

    def _keys(
        self, probe: str, concept: Ints, recipe: Recipe, rng: np.random.Generator
    ) -> tuple[Ints, Ints, Ints]:
        """Return place in ``concept``, key and hops: the concept itself, or some of HOPS(c, up or down)."""
        if probe in ("definitions", "synonymy"):
            return np.arange(len(concept)), concept, np.zeros(len(concept), dtype=np.int64)
        deepest = int(self.graph.up.hops.max(initial=0))
        found: list[tuple[Ints, Ints, Ints]] = []
        for hops in range(1, min(recipe.max_hops or deepest, deepest) + 1):
            family = self.graph.above(hops) if probe == "hypernymy" else self.graph.under(hops)
            at, answer = family.expand(concept)
            some = _some_of_each(at, recipe.answers_per_hop, rng)
            found.append((at[some], answer[some], np.full(len(some), hops)))
        if not found:
            return (np.empty(0, dtype=np.int64),) * 3
        at, answer, hops_of = (np.concatenate(part) for part in zip(*found, strict=True))
        return at, answer, hops_of

    def _in_words(
        self, probe: str, concept: Ints, answer: Ints, hops: Ints, context: Ints, template: Ints
    ) -> Asked:
        """Set beside each question the stems of the word asked about and of the whole question."""
        stemmer = self.wording.stemmer
        ways = {pos: [_BRACES.sub(" ", form) for form in templates(probe, pos)] for pos in "nvar"}
        forms = [ways[pos][t] for pos, t in zip(self.pos[concept], template, strict=True)]
        if probe == "synonymy":
            row, stem = self.wording.gloss.expand(concept)
            stems = Lists.of(row, stem, len(concept))
            questions = stemmer.lists(
                f"{a} {b}" for a, b in zip(forms, self.gloss[concept], strict=True)
            )
            return Asked(
                probe,
                concept,
                answer,
                hops,
                context,
                np.full(len(concept), -1),
                stems,
                questions,
                template,
            )
        rows = self.wordnet.contexts.iloc[context]
        lemmas = rows["lemma"].str.lower().to_numpy(dtype=object)
        keys = (f"{word}/{pos}" for word, pos in zip(lemmas, self.pos[concept], strict=True))
        word = np.array([self.graph.word_number[key] for key in keys], dtype=np.int64)
        words = stemmer.lists(f"{a} {b}" for a, b in zip(rows["word"], lemmas, strict=True))
        whole = zip(forms, rows["sentence"], lemmas, strict=True)
        questions = stemmer.lists(" ".join(parts) for parts in whole)
        return Asked(probe, concept, answer, hops, context, word, words, questions, template)

    def _sound_keys(self, asked: Asked, recipe: Recipe, counts: Counter[str]) -> Asked:
        """Leave out keys that share their definition with another concept, and those that the question gives away."""
        sound = self.rules.may_answer(asked.probe)[asked.answer]
        counts["keys: definition of several concepts"] += int((~sound).sum())
        asked = asked.take(sound)
        if recipe.filter_leaks:
            able = self.rules.may_answer(asked.probe, filter_leaks=True)[asked.answer]
            leaks = self.rules.leaks(asked, np.arange(len(asked)), asked.answer) | ~able
            counts["keys: answer word in question"] += int(leaks.sum())
            asked = asked.take(~leaks)
        return asked

    def _like_keys(self, asked: Asked, recipe: Recipe, rng: np.random.Generator) -> Ints:
        """Return the concepts that random distractors come from: such as could be keys, and far more than are.

        Drawn from the keys themselves, test keys would be known from training as wrong choices, and training keys
        stand as wrong choices in tests: a model that sees only choices and memorises would fall far below guessing.
        """
        if asked.probe in ("hypernymy", "hyponymy"):
            more = replace(recipe, answers_per_hop=_POOLED * recipe.answers_per_hop)
            return self._keys(asked.probe, np.unique(asked.concept), more, rng)[1]
        return np.flatnonzero(self.rules.may_answer(asked.probe, filter_leaks=recipe.filter_leaks))

    def _with_distractors(
        self, asked: Asked, recipe: Recipe, rng: np.random.Generator, counts: Counter[str]
    ) -> pd.DataFrame:
        """Give every question each set of distractors that its concept has."""
        drawer = Drawer(
            self.rules,
            asked,
            self._like_keys(asked, recipe, rng),
            max_distance=recipe.max_distance,
            filter_leaks=recipe.filter_leaks,
            counts=counts,
        )
        ways = {"hypernymy": ("sister", "hyponym"), "hyponymy": ("sister", "hypernym")}
        sets = [("random", 0)]
        for kind in ways.get(asked.probe, KINDS[1:]):
            sets += [(kind, distance) for distance in range(1, recipe.max_distance + 1)]
        frames = []
        for kind, distance in sets:
            chosen = drawer.four(kind, distance, rng, top_up=recipe.top_up)
            frames.append(self._frame(asked, chosen, kind, distance, rng))
        frame = pd.concat(frames, ignore_index=True)
        if not recipe.perturbations:
            frame = frame.iloc[_some_of_each(frame["_question"].to_numpy(), 1, rng)]
        counts["keys: without four distractors of any set"] += (
            len(asked) - frame["_question"].nunique()
        )
        skipped = len(np.unique(asked.concept)) - frame["concept"].nunique()
        counts["concepts: skipped, fewer than four distractors"] += skipped
        return frame.sort_values("_question", kind="stable", ignore_index=True).drop(
            columns="_question"
        )

    def _frame(
        self, asked: Asked, chosen: Chosen, kind: str, distance: int, rng: np.random.Generator
    ) -> pd.DataFrame:
        """Write questions out as an items frame; the key stands at a random place."""
        row, n = chosen.row, len(chosen.row)
        concept, answer = asked.concept[row], asked.answer[row]
        place = rng.integers(0, N_DISTRACTORS + 1, n)
        order = np.argsort(
            np.arange(N_DISTRACTORS + 1)[None, :] != place[:, None], axis=1, kind="stable"
        )
        nodes = np.empty((n, N_DISTRACTORS + 1), dtype=np.int64)
        np.put_along_axis(nodes, order, np.column_stack([answer, chosen.nodes]), axis=1)
        probe, names = asked.probe, self.names
        text = self._choice_texts(probe, nodes)
        prompts, words, lemmas = self._prompts(asked, row)
        ids = [
            f"{probe}:{c}:{context}:{a}:{kind}{distance or ''}"
            for c, context, a in zip(
                names[concept], asked.context[row].tolist(), names[answer], strict=True
            )
        ]
        columns = {
            "item_id": ids,
            "prompt": prompts,
            "choices": text,
            "answer": place,
            "probe": probe,
            "concept": names[concept],
            "pos": self.pos[concept],
            "word": words,
            "lemma": lemmas,
            "answer_concept": names[answer],
            "hops": asked.hops[row],
            "cluster": [f"{probe}:{name}" for name in names[concept]],
            "distractor_set": kind,
            "distractor_distance": distance,
            "distractor_types": np.array(KINDS, dtype=object)[chosen.kinds].tolist(),
            "distractor_distances": chosen.distances.tolist(),
            "distractor_concepts": names[chosen.nodes].tolist(),
            "_question": row,
        }
        return pd.DataFrame(columns)

    def _choice_texts(self, probe: str, nodes: Ints) -> list[list[str]]:
        distinct, place = np.unique(nodes, return_inverse=True)
        texts = [
            choice(probe, self.choices_of[node], self.gloss[node], self.pos[node])
            for node in distinct
        ]
        return (
            np.array(texts, dtype=object)[place.reshape(nodes.shape)].tolist() if len(nodes) else []
        )

    def _prompts(self, asked: Asked, row: Ints) -> tuple[list[str], list[str], list[str]]:
        concept = asked.concept[row]
        ways = {pos: templates(asked.probe, pos) for pos in "nvar"}
        forms = [
            ways[pos][t] for pos, t in zip(self.pos[concept], asked.template[row], strict=True)
        ]
        if asked.probe == "synonymy":
            prompts = [
                form.format(gloss=gloss)
                for form, gloss in zip(forms, self.gloss[concept], strict=True)
            ]
            return prompts, [""] * len(row), [""] * len(row)
        context = self.wordnet.contexts.iloc[asked.context[row]]
        words = context["word"].tolist()
        together = zip(forms, context["sentence"], words, strict=True)
        prompts = [form.format(sentence=sentence, word=word) for form, sentence, word in together]
        return prompts, words, context["lemma"].tolist()


def _some_of_each(group: Ints, n: int, rng: np.random.Generator) -> Ints:
    """Return the places of up to n random members of every group, in the order of the groups."""
    order = np.lexsort((rng.random(len(group)), group))
    ordered = group[order]
    within = np.arange(len(group)) - np.searchsorted(ordered, ordered)
    return order[within < n]
