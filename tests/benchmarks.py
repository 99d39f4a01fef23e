"""What benchmarks share: their scale, rates, and networks of usual sizes with random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sized
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import BertProcessing
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import (
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from psychlm import lm

END = "<|endoftext|>"
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def scale(usual: str = "1") -> float:
    """Return what ``PSYCHLM_BENCH_SCALE`` multiplies sizes by."""
    return float(os.environ.get("PSYCHLM_BENCH_SCALE", usual))


def measure(benchmark, call: Callable, unit: str, n: int, rounds: int = 3) -> Any:
    """Time a call, and keep how many of a unit it does per processor second."""
    result = benchmark.pedantic(call, rounds=rounds, iterations=1)
    rate = n / benchmark.stats["min"]
    benchmark.extra_info |= {unit: n, f"{unit}_per_cpu_second": rate}
    return result


def wordpiece(texts: Iterable[str], vocabulary: int = 8000) -> PreTrainedTokenizerFast:
    """Return BERT's kind of tokenizer, trained on texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL.values())
    options = {"vocab_size": vocabulary, "special_tokens": special, "show_progress": False}
    tokenizer.train_from_iterator(texts, WordPieceTrainer(**options))
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {f"{role}_token": token for role, token in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **roles)


def minilm(head: type[PreTrainedModel], tokenizer: Sized, **options: Any) -> PreTrainedModel:
    """Return an encoder of all-MiniLM-L6-v2's size under one of transformers' heads."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
    options |= {"vocab_size": len(tokenizer), "num_attention_heads": 12}
    return head(BertConfig(**sizes, **options)).eval()


def gpt2(texts: Iterable[str], vocabulary: int, **sizes: int) -> lm.LanguageModel:
    """Return a GPT-2 whose tokenizer is trained on texts; of its small size unless given."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": vocabulary, "special_tokens": [END], "show_progress": False}
    tokenizer.train_from_iterator(texts, BpeTrainer(initial_alphabet=alphabet, **options))
    roles = {f"{role}_token": END for role in ("bos", "eos", "pad")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=1024, **roles)
    config = GPT2Config(vocab_size=len(fast), bos_token_id=0, eos_token_id=0, **sizes)
    return lm.wrap(GPT2LMHeadModel(config), fast, name="random gpt2")
