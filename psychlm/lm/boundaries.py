"""Where words begin and end in a vocabulary of word pieces: what the correction of word probabilities needs.

Tokenizers of the GPT-2 and SentencePiece kinds mark the *beginning* of a word: the space before it is the first
character of its first piece. That a word has ended is then said only by the piece that follows, so the summed
surprisal of a word's pieces lacks "it ends here" and holds "the word before it ended". With S the pieces that begin
with white space and the end-of-text token, the probability of word w after context c is (Pimentel & Meister 2024,
*How to compute the probability of a word*, theorem 2; Oh & Schuler 2024)

    p(w | c) = p(pieces of w | c)  p(S | c, pieces of w) / p(S | c).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psychlm.lm.load import LanguageModel


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for (Radford et al. 2019)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def begins_with_space(tokenizer: Any) -> NDArray[np.bool_] | None:
    """Return which tokens begin with white space, or None where the tokenizer does not mark beginnings of words.

    Byte-level and SentencePiece (Metaspace) tokenizers mark beginnings; WordPiece (BERT) and end-of-word (XLM) do not.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    kinds = json.dumps(decoder, ensure_ascii=False)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if '"ByteLevel"' in kinds:
        return _flags(pieces, _first_bytes)
    if '"Metaspace"' in kinds or "▁" in kinds:
        return _flags(pieces, _first_characters)
    return None


def _flags(pieces: Sequence[str | None], text_of: Any) -> NDArray[np.bool_]:
    return np.array(
        [piece is not None and text_of(piece)[:1].isspace() for piece in pieces], dtype=bool
    )


def _first_bytes(piece: str) -> str:
    """Return the text that the first bytes of a byte-level piece spell, empty if they do not spell a character."""
    values = _byte_of_character()
    spelled = bytes(values.get(character, ord("?")) for character in piece[:4])
    return next((text for n in range(1, 5) if (text := spelled[:n].decode("utf-8", "ignore"))), "")


def _first_characters(piece: str) -> str:
    """Return the beginning of a SentencePiece piece as text; ``<0x0A>`` is a byte."""
    if piece.startswith("<0x") and piece.endswith(">"):
        return chr(int(piece[3:5], 16))
    return piece[:1].replace("▁", " ")


def boundary_sets(model: LanguageModel, begins: NDArray[np.bool_]) -> torch.Tensor:
    """Return the sets of tokens whose probability mass is wanted, as columns of zeros and ones.

    Returns
    -------
    Tensor, shape (n_vocabulary, 3)
        All tokens; those that end a word (white space, end of text); those that cannot begin after white space.
    """
    sets = torch.ones(model.n_vocabulary, 3)
    spaced = torch.zeros(model.n_vocabulary, dtype=torch.bool)
    spaced[: len(begins)] = torch.from_numpy(begins)
    sets[:, 2] = (~spaced).float()
    if model.tokenizer.eos_token_id is not None:
        spaced[model.tokenizer.eos_token_id] = True
    sets[:, 1] = spaced.float()
    return sets.to(model.device)
