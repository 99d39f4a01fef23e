"""What tests compare with: transformers alone, one input at a time, in float64."""

from typing import Any

import numpy as np
import torch

from psychlm.lm import LanguageModel


@torch.inference_mode()
def log_probabilities(
    network: Any, ids: list[int], temperature: float = 1.0, **options: Any
) -> np.ndarray:
    """Return what a network says at each token of an input, (n_tokens, n_vocabulary), nats."""
    logits = network(torch.tensor([ids]), **options).logits[0]
    return torch.log_softmax(logits.double() / temperature, dim=-1).numpy()


def next_tokens(model: LanguageModel, read: list[int], temperature: float = 1.0) -> np.ndarray:
    """Return log p of every token after each of those read, nats.

    A permutation model has no place for what follows the last."""
    if model.kind != "permutation":
        return log_probabilities(model.network, read, temperature)
    tables, order = [], torch.arange(len(read))
    for here in range(1, len(read)):  # one target at a time, hidden from all as what follows it
        given = {"perm_mask": (order[None, :] >= order[:, None]).float()[None]}
        given["target_mapping"] = (order == here).float()[None, None]
        tables.append(log_probabilities(model.network, read, temperature, **given))
    return np.concatenate(tables)


def last_nats(model: LanguageModel, ids: list[int], n: int) -> np.ndarray:
    """Return the log-probabilities of the last n tokens of an input read from the left, nats."""
    table = next_tokens(model, ids)
    return np.array([table[i - 1, ids[i]] for i in range(len(ids) - n, len(ids))])


def tokens_and_words(model: LanguageModel, text: str) -> tuple[list[int], np.ndarray]:
    """Return the ids of a text with single spaces, and the word that each belongs to."""
    encoded = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ends = np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
    last = [end - 1 for _, end in encoded["offset_mapping"]]
    return encoded["input_ids"], np.searchsorted(ends, last, side="right")


def token_nats(model: LanguageModel, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probability of each token of a text, nats, and its word.

    A model that reads from the left has its start token before the text; a masked model reads the
    text with the token and the rest of its word masked (Kauf & Ivanova 2023), a left-masked one the
    tokens before and one mask."""
    ids, word = tokens_and_words(model, text)
    tokenizer, nats = model.tokenizer, []
    if model.kind in ("causal", "permutation"):
        return last_nats(model, [tokenizer.bos_token_id, *ids], len(ids)), word
    for i, token in enumerate(ids):
        if model.kind == "masked":
            hidden = (word == word[i]) & (np.arange(len(ids)) >= i)
            read = np.where(hidden, tokenizer.mask_token_id, ids).tolist()
            read, options = [tokenizer.cls_token_id, *read, tokenizer.sep_token_id], {}
        else:
            read = [tokenizer.bos_token_id, *ids[:i], tokenizer.mask_token_id]
            options = {"langs": torch.ones(1, len(read), dtype=torch.long)}
        nats.append(log_probabilities(model.network, read, **options)[i + 1, token])
    return np.array(nats), word


def token_bits(model: LanguageModel, text: str) -> np.ndarray:
    """Return the surprisals of the tokens of a text, bits."""
    return -token_nats(model, text)[0] / np.log(2)
