"""Text and cloze answers drawn from the model that ships, for where the real ones are not at hand.

In this world the default model *is* the population: what it writes is the language, and people's cloze answers are
samples from it. Nothing found there is a finding, but every step of an analysis can be tried.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import torch

from psychlm.corpora.norms import Norms, is_bare, split_sentences
from psychlm.lm.load import load
from psychlm.lm.surprisal import surprisal

LONGEST_PIECES = 40
CLOZE_PEOPLE = 100
ENDED = re.compile(r"[^.!?]*[A-Za-z][^.!?]*[.!?]")


def sentences(n: int, seed: int) -> list[str]:
    """Let the default model write, and return the first sentence of each of ``n`` beginnings that comes to an end."""
    model = load("default", device="cpu")
    opening = torch.full((n, 1), model.tokenizer.bos_token_id or model.tokenizer.eos_token_id)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        pieces = model.network.generate(
            opening,
            attention_mask=torch.ones_like(opening),
            do_sample=True,
            top_k=0,
            use_cache=True,
            max_new_tokens=LONGEST_PIECES,
            pad_token_id=model.tokenizer.eos_token_id,
        )
    written = model.tokenizer.batch_decode(pieces, skip_special_tokens=True)
    found = (ENDED.match(" ".join(text.split())) for text in written)
    return [match[0] for match in found if match and len(match[0].split()) > 3]


def norms(n: int, seed: int) -> Norms:
    """Return simulated norms: sentences the default model wrote, and answers of 100 people who guess as it does.

    With k of 100 people saying the word, its smoothed share is (k + 1/2) / (100 + 1). Two "released" columns are the
    model's own surprisal, and that surprisal with noise of 3 bits.
    """
    rng = np.random.default_rng(seed)
    words = split_sentences(pd.Series(sentences(n, seed)))
    truth = surprisal(words, "default", cache=False)["surprisal_bits"].to_numpy()
    said = rng.binomial(CLOZE_PEOPLE, np.exp2(-truth).clip(0, 1))
    table = words.assign(
        cloze_surprisal_bits=-np.log2((said + 0.5) / (CLOZE_PEOPLE + 1)),
        bare=is_bare(words["word"]),
        **{"the truth": truth, "a noisy model": truth + rng.normal(0, 3, len(words))},
    )
    return Norms(words, table[table["word_id"] > 1], ("the truth", "a noisy model"), "simulated")
