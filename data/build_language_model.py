"""Train the language model that ships with the package: ``python data/build_language_model.py``.

A small Llama (two blocks, 192 units, 8,000 byte-level BPE tokens) on 20 novels and seven NLTK
corpora in natural casing and spacing. Its target mixes the next token with a Kneser-Ney trigram's
distribution over next tokens: one pass over a text gives a neural model one next token per context,
the counts of the same text a whole distribution, so that a small model learns in one epoch what it
else needs several for (Hinton, Vinyals & Dean 2015; Kneser & Ney 1995; Chen & Goodman 1999).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from analyses.running_text import mark_overlap, paragraphs
from psychlm import data, lm

BOS = "<|endoftext|>"  # the first token of the vocabulary, number 0
HELD_OUT_EVERY, HELD_OUT_BLOCK = 60, 50  # of every 60 blocks of 50 paragraphs, one is held out


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates; the defaults are those of the model that ships."""

    vocabulary: int = 8000
    width: int = 192
    blocks: int = 2
    feed_forward: int = 448
    heads: int = 3
    tied: bool = False
    context: int = 128  # tokens in a row, the beginning-of-text token among them
    rows: int = 16  # rows in a batch
    rate_matrices: float = 0.01  # Muon, for the blocks' matrices, scaled to AdamW's step sizes
    rate_vectors: float = 0.004  # AdamW, for embeddings, output and norms
    warm_up: int = 60  # steps in which the rates rise from nothing
    cool_down: float = 0.4  # last share of the steps, in which the rates fall linearly to nothing
    averaged: float = 0.1  # share of the steps behind it that the average of the weights spans
    taught: float = 0.6  # weight of the trigram's distribution in the target
    seed: int = 20200416


def training_paragraphs() -> Iterator[tuple[str, bool]]:
    """Yield paragraphs of the training text, and whether each is free of the UCL sentences."""
    ucl = pd.read_csv(data.path("ucl2023/all_measures"), keep_default_na=False, na_values=[""])
    marked = mark_overlap(ucl["sentence"].unique(), paragraphs())
    return ((paragraph, clean) for _, paragraph, clean in marked)


# Text as rows of tokens


@dataclass(frozen=True)
class Text:
    """The training text as tokens: a stream, where its sentences begin, and the part held out."""

    stream: np.ndarray  # (n,) uint16
    starts: np.ndarray  # positions at which a sentence begins
    held_out: np.ndarray  # (m,) uint16
    held_out_starts: np.ndarray
    openers: np.ndarray  # (V,) for each token with a leading space, the same without it (or itself)
    held_out_words: int
    n_left_out: int  # paragraphs left out for a sentence that tests will read


def prepare(vocabulary: int) -> tuple[Tokenizer, Text]:
    """Train a tokenizer, tokenise and split the text."""
    marked = list(training_paragraphs())
    texts = [paragraph for paragraph, clean in marked if clean]
    # byte-level BPE that puts no space before a text
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    encoded = tokenizer.encode_batch([f"{text}\n" for text in texts])
    ids = [np.array(one.ids, dtype=np.uint16) for one in encoded]
    is_held_out = (np.arange(len(texts)) // HELD_OUT_BLOCK) % HELD_OUT_EVERY == 0
    stream = np.concatenate([own for own, out in zip(ids, is_held_out, strict=True) if not out])
    held_out = np.concatenate([own for own, out in zip(ids, is_held_out, strict=True) if out])
    # each token with a leading space and its twin without, which opens a text
    tokens = tokenizer.get_vocab()
    openers = np.arange(len(tokens))
    for token, number in tokens.items():
        openers[number] = tokens.get(token.removeprefix("Ġ"), number)
    # sentences begin after a line's end, or with a capital after a full stop and perhaps a quote
    written = pd.Series([tokenizer.id_to_token(i) for i in range(len(tokens))])
    ends = written.str.contains(r"[.!?][\"')]*$").to_numpy()
    line, capital = (written == "Ċ").to_numpy(), written.str.contains(r"^Ġ[\"']?[A-Z]").to_numpy()

    def sentence_starts(text: np.ndarray) -> np.ndarray:
        begins = line[text[:-1]] | (ends[text[:-1]] & capital[text[1:]])
        return np.concatenate([[0], 1 + np.flatnonzero(begins)])

    n_words = sum(len(text.split()) for text, out in zip(texts, is_held_out, strict=True) if out)
    starts, held_out_starts = sentence_starts(stream), sentence_starts(held_out)
    n_left_out = len(marked) - len(texts)
    text = Text(stream, starts, held_out, held_out_starts, openers, n_words, n_left_out)
    return tokenizer, text


def rows_at(
    stream: np.ndarray, starts: np.ndarray, places: np.ndarray, openers: np.ndarray, context: int
) -> np.ndarray:
    """Return (n, context) rows: BOS, then text from the first sentence after each place."""
    begin = starts[np.minimum(np.searchsorted(starts, places), len(starts) - 1)]
    begin = np.minimum(begin, len(stream) - context)
    rows = stream[begin[:, None] + np.arange(-1, context - 1)].astype(np.int64)
    rows[:, 0], rows[:, 1] = 0, openers[rows[:, 1]]
    return rows


def batch(text: Text, step: int, n_rows: int, context: int, seed: int) -> np.ndarray:
    """Return the (n_rows, context) rows of a step; each epoch cuts the stream at other places."""
    span = context - 1
    tiles = len(text.stream) // span - 2
    epoch, number = divmod(step, tiles // n_rows)
    rng = np.random.default_rng([seed, epoch])
    offset, order = rng.integers(span), rng.permutation(tiles)
    places = offset + span * order[number * n_rows : (number + 1) * n_rows]
    return rows_at(text.stream, text.starts, places, text.openers, context)


class TrigramTeacher:
    """Dense next-token distributions of an interpolated Kneser-Ney trigram.

    ``p(w|uv) = max(c(uvw) - D, 0) / c(uv) + D N(uv·) / c(uv) p(w|v)`` with one discount per order,
    ``D = n1 / (n1 + 2 n2)``, and continuation counts for the bigram and the unigram.

    Parameters
    ----------
    stream : (n,) int array
        A text as token ids.
    openings : (m, 3) int array
        Beginnings of texts: the beginning-of-text token and the two after it.
    vocabulary : int
        V, the number of tokens; the bigram is kept dense, V x V in float32.
    """

    def __init__(self, stream: np.ndarray, openings: np.ndarray, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        v = np.int64(vocabulary)
        running = np.lib.stride_tricks.sliding_window_view(stream, 3)
        first, second, third = np.concatenate([running, openings]).astype(np.int64).T
        types, counts = np.unique((first * v + second) * v + third, return_counts=True)
        self._contexts, rows = np.unique(types // v, return_inverse=True)
        self._seen, self._freed = self._discount(counts, rows, types % v, len(self._contexts))
        # nothing precedes the openings: their pairs have plain counts, the others continuation
        # counts
        begun = openings[:, 0].astype(np.int64) * v + openings[:, 1]
        pairs, continuations = np.unique(np.r_[types % v**2, begun], return_counts=True)
        bigram, freed = self._discount(continuations, pairs // v, pairs % v, vocabulary)
        unigram = np.bincount(pairs % v, minlength=vocabulary) + 0.5
        self.bigram = bigram.toarray().astype(np.float32)
        self.bigram += np.outer(freed, unigram / unigram.sum()).astype(np.float32)

    def _discount(
        self, counts: np.ndarray, rows: np.ndarray, columns: np.ndarray, n_rows: int
    ) -> tuple[sparse.csr_matrix, np.ndarray]:
        """Return the discounted relative counts and, per row, the mass that the discount freed."""
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = once / (once + 2 * twice) if twice else 0.75
        totals = np.bincount(rows, weights=counts, minlength=n_rows)
        kept = (np.maximum(counts - discount, 0) / totals[rows]).astype(np.float32)
        seen = sparse.csr_matrix((kept, (rows, columns)), shape=(n_rows, self.vocabulary))
        mass = np.bincount(rows, weights=kept, minlength=n_rows)
        return seen, (1 - mass).astype(np.float32)

    def __call__(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return (n, V) next-token distributions after two tokens; -1 in ``before``: after one."""
        keys = np.asarray(before, dtype=np.int64) * self.vocabulary + last
        place = np.minimum(np.searchsorted(self._contexts, keys), len(self._contexts) - 1)
        known = np.flatnonzero((self._contexts[place] == keys) & (np.asarray(before) >= 0))
        freed = np.ones(len(keys), dtype=np.float32)
        freed[known] = self._freed[place[known]]
        dense = self.bigram[last] * freed[:, None]
        seen = self._seen[place[known]].tocoo()
        dense[known[seen.row], seen.col] += seen.data
        return dense


# Training


def build(recipe: Recipe) -> Any:
    """Build the model; its blocks' last matrices are zero: training starts from word pairs."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=recipe.tied,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model: Any = LlamaForCausalLM(config)
    for block in model.model.layers:
        torch.nn.init.zeros_(block.self_attn.o_proj.weight)
        torch.nn.init.zeros_(block.mlp.down_proj.weight)
    return model


def taught_loss(model: Any, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy (nats per token) of target distributions (n, V), in bfloat16."""
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model.lm_head(model.model(rows[:, :-1]).last_hidden_state).flatten(0, 1)
    logits = logits.float()
    return (torch.logsumexp(logits, -1) - (target * logits).sum(-1)).mean()


class Run:
    """A training run: text, teacher, model and optimisers."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer, self.text = prepare(recipe.vocabulary)
        # the first tokens of every sentence as they look at the beginning of a text
        begin = self.text.starts[self.text.starts < len(self.text.stream) - 2]
        first = self.text.openers[self.text.stream[begin]]
        openings = np.stack([np.zeros_like(first), first, self.text.stream[begin + 1]], axis=1)
        self.teacher = TrigramTeacher(self.text.stream, openings, recipe.vocabulary)
        self.model = build(recipe).to(device)
        self.average = build(recipe).to(device)  # of the weights over the last tenth of the steps
        # Muon (Jordan et al. 2024) for the blocks' matrices and AdamW for all else
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        own = {id(p) for p in matrices}
        rest = [p for p in self.model.parameters() if id(p) not in own]
        muon = {"lr": recipe.rate_matrices, "adjust_lr_fn": "match_rms_adamw"}
        adamw = {"lr": recipe.rate_vectors, "betas": (0.9, 0.98), "fused": True}
        self.optimisers: list[Any] = [
            torch.optim.Muon(matrices, weight_decay=0.01, **muon),
            torch.optim.AdamW(rest, weight_decay=0.01, **adamw),
        ]
        self.loss = torch.compile(taught_loss)
        self.step = 0

    def one_step(self, steps: int) -> float:
        """Take one of so many steps; return its loss in nats per token."""
        recipe = self.recipe
        rows = batch(self.text, self.step, recipe.rows, recipe.context, recipe.seed)
        # target: the teacher's distribution mixed with the token that came
        before = np.concatenate([np.full((len(rows), 1), -1), rows[:, :-2]], axis=1).ravel()
        target = self.teacher(before, rows[:, :-1].ravel()) * recipe.taught
        target[np.arange(len(target)), rows[:, 1:].ravel()] += 1 - recipe.taught
        tensors = (torch.from_numpy(part).to(self.device) for part in (rows, target))
        loss = self.loss(self.model, *tensors)
        loss.backward()
        # the rates rise, stay level, and fall at the end
        left = (steps - self.step) / (steps * recipe.cool_down)
        share = min((self.step + 1) / recipe.warm_up, 1.0, left)
        rates = recipe.rate_matrices, recipe.rate_vectors
        for optimiser, rate in zip(self.optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 1 / (1 + self.step * recipe.averaged))
        return float(loss.detach())

    def train(self, steps: int) -> dict[str, float]:
        """Train so many steps, and print loss and perplexity; return the measured figures."""
        while self.step < steps:
            loss = self.one_step(steps)
            if self.step % 100 == 0:
                print(self.step, f"{loss:.3f} {self.perplexity(96):.1f}", flush=True)
        n_tokens = self.step * self.recipe.rows * (self.recipe.context - 1)
        return {"step": self.step, "pieces": n_tokens, "perplexity": self.perplexity()}

    @torch.inference_mode()
    def perplexity(self, n_rows: int | None = None) -> float:
        """Return exp(nats per token x tokens per word) of the held-out text."""
        text, context = self.text, self.recipe.context
        n_rows = n_rows or len(text.held_out) // context
        places = np.linspace(0, len(text.held_out) - 2 * context, n_rows).astype(int)
        rows = rows_at(text.held_out, text.held_out_starts, places, text.openers, context)
        tokens = torch.from_numpy(rows).to(self.device)
        losses = [float(self.average(p, labels=p).loss) * len(p) for p in tokens.split(32)]
        return float(np.exp(sum(losses) / len(rows) * len(text.held_out) / text.held_out_words))


def export(run: Run, folder: Path, figures: dict[str, float]) -> None:
    """Write the model in float16 safetensors with its tokenizer and, in ``training.json``, recipe
    and figures.

    The card beside it (``README.md``) repeats the figures; correlations with GPT-2 and people are
    those that ``tests/lm/test_default.py`` computes.
    """
    model = build(run.recipe)
    model.load_state_dict(run.average.state_dict())
    model.half().save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=run.tokenizer,
        bos_token=BOS,
        eos_token=BOS,
        model_max_length=run.recipe.context,
    )
    fast.save_pretrained(folder)
    figures = figures | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_pieces": len(run.text.stream),
        "held_out_words": int(run.text.held_out_words),
        "paragraphs_left_out": int(run.text.n_left_out),
    }
    record = json.dumps({"recipe": asdict(run.recipe), "measured": figures}, indent=2)
    with data.atomic_write(folder / "training.json") as part:
        part.write_text(record + "\n", encoding="utf-8")


def main() -> None:
    """Train, export and print the figures reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--out", type=Path, default=Path(lm.__file__).parent / "default")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    run = Run(Recipe(), asked.device)
    figures = run.train(asked.steps)
    export(run, asked.out, figures)
    print(json.dumps(figures, indent=2), flush=True)


if __name__ == "__main__":
    main()
