"""Tiny language models with random weights and small tokenizers; tests fetch nothing."""

from __future__ import annotations

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    XLMConfig,
    XLMWithLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

CORPUS = [
    "The old man the boat.",
    "The horse raced past the barn fell.",
    "“I don’t know,” she said; he did.",
    "She wound up talking to Barry about her time in India.",
    "the boats the men the sea and the old horse",
    "Finally Maria sat down with a cup of tea and a sandwich.",
    "A café, a naïve plan, and 3,000 dollars!",
] * 5
CONTEXT = 64

torch.set_num_threads(
    1
)  # such matrices are too small to share out: threads would only wait for each other


def byte_level(vocabulary: int = 400, trim: bool = True) -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes, the space before a word in its first piece."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder, tokenizer.post_processor = (
        decoders.ByteLevel(),
        processors.ByteLevel(trim_offsets=trim),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        model_max_length=CONTEXT,
    )


def byte_piece(byte: int) -> str:
    """Return the character that a byte-level vocabulary writes for a byte."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
        chr(byte)
    )[0][0]


def metaspace() -> PreTrainedTokenizerFast:
    """SentencePiece's kind (Llama, XLNet): a mark at the beginning of every word, the first too."""
    special = ["<unk>", "<s>", "</s>", "<sep>", "<cls>", "<pad>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=150,
            special_tokens=special,
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        sep_token="<sep>",
        cls_token="<cls>",
        pad_token="<pad>",
        mask_token="<mask>",
    )


def sentence_end() -> PreTrainedTokenizerFast:
    """T5's kind: SentencePiece, and the end-of-text token after every text."""
    tokenizer = metaspace()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.model_max_length = CONTEXT
    return tokenizer


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """RoBERTa's and BART's kind: GPT-2's bytes between <s> and </s>, with a mask token."""
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    names |= {"cls": "<s>", "sep": "</s>"}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(dict.fromkeys(names.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    tokens = {f"{role}_token": token for role, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **tokens)


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: ## at pieces that continue a word, lower case."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False),
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def end_of_word() -> PreTrainedTokenizerFast:
    """XLM's kind: </w> at the piece that ends a word."""
    special = ["<s>", "</s>", "<pad>", "<unk>", "<special1>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.WhitespaceSplit(),
        decoders.BPEDecoder(suffix="</w>"),
    )
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=150,
            special_tokens=special,
            end_of_word_suffix="</w>",
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        mask_token="<special1>",
    )


def network(family: str, tokenizer: PreTrainedTokenizerFast) -> torch.nn.Module:
    """Return a network of a family, with weights so large that its predictions differ."""
    n = len(tokenizer)
    plain = {
        "vocab_size": n,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    gpt2 = {
        "vocab_size": n,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    xlm = {
        "vocab_size": n,
        "emb_dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_index": 0,
        "eos_index": 1,
        "pad_index": 2,
        "unk_index": 3,
        "mask_index": 4,
        "mask_token_id": 4,
        "n_langs": 2,
        "use_lang_emb": True,
        "lang2id": {"de": 0, "en": 1},
    }
    layers = {"attention_types": [[["global", "local"], 1]], "window_size": 8}
    neo = {
        "vocab_size": n,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 0,
    } | layers
    t5 = {
        "vocab_size": n + 4,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "n_positions": CONTEXT,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    bart = {
        "vocab_size": n,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": CONTEXT,
        "decoder_start_token_id": tokenizer.eos_token_id,
    }
    # positions start behind the padding token's
    roberta = plain | {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1}
    torch.manual_seed(1)
    makers = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**gpt2)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**plain | {"vocab_size": n + 13})),
        "gpt_neo": lambda: GPTNeoForCausalLM(GPTNeoConfig(**neo)),
        "opt": lambda: OPTForCausalLM(
            OPTConfig(**plain, ffn_dim=64, word_embed_proj_dim=16, pad_token_id=1)
        ),
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(**plain, num_key_value_heads=1, pad_token_id=None)
        ),
        "mamba": lambda: MambaForCausalLM(
            MambaConfig(vocab_size=n, hidden_size=32, num_hidden_layers=2, state_size=4)
        ),
        "xlnet": lambda: XLNetLMHeadModel(
            XLNetConfig(vocab_size=n, d_model=32, n_layer=2, n_head=2, d_inner=64)
        ),
        "xlm": lambda: XLMWithLMHeadModel(XLMConfig(**xlm)),
        "bert": lambda: BertForMaskedLM(BertConfig(**plain)),
        "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**roberta)),
        "t5": lambda: T5ForConditionalGeneration(T5Config(**t5)),
        "bart": lambda: BartForConditionalGeneration(BartConfig(**bart)),
    }
    made = makers[family]()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.normal_(0, 0.3)
    return made.eval()


TOKENIZERS = {"llama": metaspace, "xlnet": metaspace, "xlm": end_of_word, "bert": wordpiece}
TOKENIZERS |= {"roberta": roberta_tokenizer, "bart": roberta_tokenizer, "t5": sentence_end}


def save(folder, family: str) -> str:
    """Save a checkpoint of a family and return its folder."""
    tokenizer = TOKENIZERS.get(family, byte_level)()
    network(family, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
