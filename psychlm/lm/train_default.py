"""Train the language model that ships with the package: ``python -m psychlm.lm.train_default``.

A small Llama (two blocks, 192 units, 8,000 byte-level word pieces) on 20 novels and seven NLTK corpora in natural
casing and spacing. Its target mixes the next piece with a Kneser-Ney trigram's distribution over next pieces. It is
checkpointed every few minutes and resumes where it stopped; ``psychlm/lm/default/`` holds what it wrote.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from psychlm import data
from psychlm.lm.pieces import BOS, Text, batch, openings, prepare, rows_at
from psychlm.lm.teacher import TrigramTeacher
from psychlm.lm.training_text import paragraphs, without

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates; the defaults are those of the model that ships."""

    vocabulary: int = 8000
    width: int = 192
    blocks: int = 2
    feed_forward: int = 448
    heads: int = 3
    tied: bool = False
    context: int = 128  # pieces in a row, the beginning-of-text piece among them
    rows: int = 16  # rows in a batch
    rate_matrices: float = 0.01  # Muon, for the blocks' matrices, scaled to AdamW's step sizes
    rate_vectors: float = 0.004  # AdamW, for embeddings, output and norms
    warm_up: int = 60  # steps in which the rates rise from nothing
    cool_down: float = 0.4  # last share of the steps, in which the rates fall linearly to nothing
    averaged: float = 0.1  # share of the steps behind it that the average of the weights spans
    taught: float = 0.6  # weight of the trigram's distribution in the target
    seed: int = 20200416


def ucl_sentences() -> pd.DataFrame:
    """Return the UCL corpus (Frank et al. 2013) with GPT-2 and cloze surprisals (de Varda et al. 2023)."""
    return pd.read_csv(data.path("ucl2023/all_measures"), keep_default_na=False, na_values=[""])


def training_paragraphs() -> Iterator[tuple[str, bool]]:
    """Yield the paragraphs of the training text, each with whether it is free of the UCL corpus's sentences."""
    marked = without(ucl_sentences()["sentence"].unique(), paragraphs())
    return ((paragraph, clean) for _, paragraph, clean in marked)


def build(recipe: Recipe) -> Any:
    """Build the untrained model; the blocks' last matrices begin at zero, so that training starts from word pairs."""
    torch.manual_seed(recipe.seed)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
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
    )
    for block in model.model.layers:
        torch.nn.init.zeros_(block.self_attn.o_proj.weight)
        torch.nn.init.zeros_(block.mlp.down_proj.weight)
    return model


def optimisers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon (Jordan et al. 2024) for the blocks' matrices and AdamW for all else."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    held = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in held]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.rate_matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            rest, lr=recipe.rate_vectors, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        ),
    ]


def taught_loss(model: Any, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy in nats a piece between target distributions (n, V) and the model, in bfloat16."""
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model.lm_head(model.model(rows[:, :-1]).last_hidden_state).flatten(0, 1)
    logits = logits.float()
    return (torch.logsumexp(logits, -1) - (target * logits).sum(-1)).mean()


def soft_target(teacher: TrigramTeacher, rows: np.ndarray, taught: float) -> np.ndarray:
    """Return (rows x (context - 1), V) targets: the teacher's distribution mixed with the piece that came."""
    before = np.concatenate([np.full((len(rows), 1), -1), rows[:, :-2]], axis=1).ravel()
    target = teacher(before, rows[:, :-1].ravel())
    target *= taught
    target[np.arange(len(target)), rows[:, 1:].ravel()] += 1 - taught
    return target


@torch.inference_mode()
def held_out_perplexity(model: Any, text: Text, recipe: Recipe, n_rows: int | None = None) -> float:
    """Return the perplexity per word of the held-out text: nats a piece by pieces a word, exponentiated.

    Parameters
    ----------
    n_rows : int, optional
        Read only so many rows, evenly spaced; all of the text unless given.
    """
    n_rows = n_rows or len(text.held_out) // recipe.context
    at = np.linspace(0, len(text.held_out) - 2 * recipe.context, n_rows).astype(int)
    rows = rows_at(text.held_out, text.held_out_starts, at, text.openers, recipe.context)
    tokens = torch.from_numpy(rows).to(model.device)
    losses = [float(model(part, labels=part).loss) * len(part) for part in tokens.split(32)]
    return float(np.exp(sum(losses) / len(rows) * len(text.held_out) / text.held_out_words))


@torch.inference_mode()
def ucl_correlations(model: Any, tokenizer: Tokenizer) -> dict[str, float]:
    """Return Pearson's r of our word surprisals with GPT-2's and with the cloze test's on the UCL corpus.

    Words with attached punctuation or clitics are left out; pieces of a word are summed.
    """
    table = ucl_sentences()
    sentences = list(table["sentence"].unique())
    encoded = tokenizer.encode_batch(sentences)
    pieces = np.zeros((len(encoded), 1 + max(len(e.ids) for e in encoded)), dtype=np.int64)
    for row, e in zip(pieces, encoded, strict=True):
        row[1 : 1 + len(e.ids)] = (
            e.ids
        )  # what pads a row stands after its words and cannot reach them
    ids = torch.from_numpy(pieces).to(model.device)
    logits = model(ids[:, :-1]).logits.float()
    nats = torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").cpu().numpy()
    words = [np.cumsum([t.startswith("Ġ") for t in e.tokens]) for e in encoded]
    ours = {
        s: np.bincount(w, weights=n[: len(w)])
        for s, w, n in zip(sentences, words, nats, strict=True)
    }
    positions = table["item"].str.split().str.len()
    table["ours"] = [ours[s][i] for s, i in zip(table["sentence"], positions, strict=True)]
    plain = table[table["word"].map(lambda w: bool(re.fullmatch("[A-Za-z]+", w)))]
    return {
        "r_gpt2": float(plain["ours"].corr(plain["s_GPT2"])),
        "r_cloze": float(plain["ours"].corr(plain["cloze_s"])),
        "r_cloze_of_gpt2": float(plain["s_GPT2"].corr(plain["cloze_s"])),
    }


class Run:
    """A training run that can be stopped at any time and resumed from its last checkpoint."""

    def __init__(self, folder: Path, recipe: Recipe, device: str) -> None:
        self.folder, self.recipe, self.device = folder, recipe, device
        self.tokenizer, self.text = prepare(folder, training_paragraphs(), recipe.vocabulary)
        self.teacher = TrigramTeacher(self.text.stream, openings(self.text), recipe.vocabulary)
        self.model = build(recipe).to(device)
        self.average = build(recipe).to(device)  # of the weights over the last tenth of the steps
        self.optimisers = optimisers(self.model, recipe)
        self.loss = torch.compile(taught_loss)
        self.step = 0
        if self.checkpoint.is_file():
            state = torch.load(self.checkpoint, weights_only=True, map_location=device)
            self.model.load_state_dict(state["model"])
            self.average.load_state_dict(state["average"])
            for optimiser, held in zip(self.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(held)
            self.step = state["step"]

    @property
    def checkpoint(self) -> Path:
        """The file that a killed run resumes from."""
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint beside its place, then move it there."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        fresh = self.checkpoint.with_suffix(".writing")
        torch.save(state, fresh)
        fresh.replace(self.checkpoint)

    def rate(self, steps: int) -> float:
        """Return the share of the full learning rates at this step: up, level, and down at the end.

        A level rate lets a run be cut short or drawn out: only the last part knows where the end is.
        """
        return min(
            (self.step + 1) / self.recipe.warm_up,
            1.0,
            (steps - self.step) / (steps * self.recipe.cool_down),
        )

    def one_step(self, steps: int) -> float:
        """Take one of so many steps; return its loss in nats a piece."""
        recipe = self.recipe
        rows = batch(self.text, self.step, recipe.rows, recipe.context, recipe.seed)
        target = torch.from_numpy(soft_target(self.teacher, rows, recipe.taught)).to(self.device)
        loss = self.loss(self.model, torch.from_numpy(rows).to(self.device), target)
        loss.backward()
        rates = recipe.rate_matrices, recipe.rate_vectors
        for optimiser, rate in zip(self.optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * self.rate(steps)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 1 / (1 + self.step * recipe.averaged))
        return float(loss.detach())

    def train(self, steps: int, every_minutes: float = 6.0) -> dict[str, float]:
        """Train up to so many steps in all; report and checkpoint every few minutes."""
        last, losses = time.monotonic(), []
        while self.step < steps:
            losses.append(self.one_step(steps))
            if time.monotonic() - last > 60 * every_minutes:
                self.save()
                print(json.dumps(self.measured(96) | {"loss": float(np.mean(losses))}), flush=True)
                last, losses = time.monotonic(), []
        self.save()
        return self.measured()

    def measured(self, n_rows: int | None = None) -> dict[str, float]:
        """Return the figures of the model as it stands (of the mean of its weights over its last steps)."""
        figures = {
            "step": self.step,
            "pieces": self.step * self.recipe.rows * (self.recipe.context - 1),
            "perplexity": held_out_perplexity(self.average, self.text, self.recipe, n_rows),
        }
        return figures | ucl_correlations(self.average, self.tokenizer)


def export(run: Run, folder: Path, figures: dict[str, float]) -> None:
    """Write the model in float16 safetensors with its tokenizer, its card and the figures that the card prints."""
    model = build(run.recipe)
    model.load_state_dict(run.average.state_dict())
    model.half().save_pretrained(folder)
    window = run.recipe.context
    fast = PreTrainedTokenizerFast(
        tokenizer_object=run.tokenizer, bos_token=BOS, eos_token=BOS, model_max_length=window
    )
    fast.save_pretrained(folder)
    text = run.text
    figures |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_pieces": len(text.stream),
        "held_out_words": int(text.held_out_words),
        "paragraphs_left_out": int(text.n_left_out),
    }
    record = {"recipe": asdict(run.recipe), "measured": figures}
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    said = asdict(run.recipe) | figures | {"epochs": figures["pieces"] / len(text.stream)}
    card = (HERE / "default_card.md").read_text(encoding="utf-8").format(**said)
    (folder / "README.md").write_text(card, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Train, export and say what was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=2400, help="steps in all, over every resumption"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("data/derived/default-model"),
        help="checkpoint and text",
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "default", help="where the finished model goes"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    run = Run(asked.folder, Recipe(), asked.device)
    figures = run.train(asked.steps)
    export(run, asked.out, figures)
    print(json.dumps(figures, indent=2), flush=True)


if __name__ == "__main__":
    main()
