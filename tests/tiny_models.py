"""Tiny language models with random weights and small tokenizers; tests fetch nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

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

torch.set_num_threads(1)  # such matrices are too small to share out


def trained(
    tokenizer: Tokenizer, trainer: Any, special: Sequence[str], size: int, **options: Any
) -> Tokenizer:
    """Train a tokenizer of so many pieces on the corpus; the special tokens come first."""
    options |= {"vocab_size": size, "special_tokens": list(special), "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainer(**options))
    return tokenizer


def fast(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer of transformers; ``bos="<s>"`` stands for ``bos_token="<s>"``."""
    roles = ("bos", "eos", "unk", "sep", "cls", "pad", "mask")
    named = {f"{key}_token" if key in roles else key: value for key, value in options.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def byte_pairs(special: Sequence[str], size: int) -> Tokenizer:
    """Return GPT-2's bytes: the space before a word is in its first piece."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer, special, size, initial_alphabet=alphabet)


def byte_level(vocabulary: int = 400, trim: bool = True) -> PreTrainedTokenizerFast:
    """GPT-2's kind."""
    tokenizer, end = byte_pairs(["<|endoftext|>"], vocabulary), "<|endoftext|>"
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return fast(tokenizer, bos=end, eos=end, model_max_length=CONTEXT)


def metaspace() -> PreTrainedTokenizerFast:
    """SentencePiece's kind (Llama, XLNet): a mark at the beginning of every word, the first too."""
    roles = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "sep": "<sep>", "cls": "<cls>"}
    roles |= {"pad": "<pad>", "mask": "<mask>"}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trained(tokenizer, trainers.UnigramTrainer, list(roles.values()), 150, unk_token="<unk>")
    template = {"single": "<s> $A", "special_tokens": [("<s>", 1)]}
    tokenizer.post_processor = processors.TemplateProcessing(**template)
    return fast(tokenizer, **roles)


def sentence_end() -> PreTrainedTokenizerFast:
    """T5's kind: SentencePiece, and the end-of-text token after every text."""
    tokenizer, template = metaspace(), {"single": "$A </s>", "special_tokens": [("</s>", 2)]}
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(**template)
    tokenizer.model_max_length = CONTEXT
    return tokenizer


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """RoBERTa's and BART's kind: GPT-2's bytes between <s> and </s>, with a mask token."""
    roles = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    tokenizer = byte_pairs(list(roles.values()), 400)
    ends = ("</s>", 2), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return fast(tokenizer, cls="<s>", sep="</s>", model_max_length=CONTEXT, **roles)


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: ## at pieces that continue a word, lower case.

    The pieces are written down, since the library's trainer orders ties by chance, and
    ``test_device.py`` counts what their number makes a device do.
    """
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    words = {word.lower() for line in CORPUS for word in line.split() if word.isalpha()}
    short = sorted(word for word in words if len(word) in (2, 3, 4))  # longer ones are cut
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,;!“”’")
    pieces = [*roles.values(), *letters, *(f"##{letter}" for letter in letters), *short]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return fast(tokenizer, **roles)


def end_of_word() -> PreTrainedTokenizerFast:
    """XLM's kind: </w> at the piece that ends a word."""
    roles = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<special1>"}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    special = list(roles.values())
    trained(tokenizer, trainers.BpeTrainer, special, 150, end_of_word_suffix="</w>")
    return fast(tokenizer, **roles)


def large_weights(network: torch.nn.Module) -> torch.nn.Module:
    """Give a network weights so large that its predictions differ."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.normal_(0, 0.3)
    return network.eval()


def network(family: str, tokenizer: PreTrainedTokenizerFast) -> torch.nn.Module:
    """Return a network of a family; its weights are large."""
    n, ends = len(tokenizer), {"bos_token_id": 0, "eos_token_id": 0}
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    plain = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    plain |= {"intermediate_size": 64, "max_position_embeddings": CONTEXT, **marks}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT, **ends}
    neo = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "window_size": 8, **ends}
    neo |= {"max_position_embeddings": CONTEXT, "attention_types": [[["global", "local"], 1]]}
    opt = {"ffn_dim": 64, "word_embed_proj_dim": 16, "pad_token_id": 1}
    xlm = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": CONTEXT}
    xlm |= {"bos_index": 0, "eos_index": 1, "pad_index": 2, "unk_index": 3, "mask_index": 4}
    xlm |= {"mask_token_id": 4, "n_langs": 2, "use_lang_emb": True, "lang2id": {"de": 0, "en": 1}}
    t5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    t5 |= {"vocab_size": n + 4, "n_positions": CONTEXT, "eos_token_id": tokenizer.eos_token_id}
    t5 |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
    bart = {f"{side}_layers": 2 for side in ("encoder", "decoder")} | {"d_model": 32}
    bart |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    bart |= {f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")}
    bart |= {"max_position_embeddings": CONTEXT, "decoder_start_token_id": tokenizer.eos_token_id}
    # positions start behind the padding token's
    roberta = plain | {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1}
    xlnet = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
    mamba = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    head, sizes = {
        "gpt2": ("GPT2LMHeadModel", gpt2),
        "gpt_neox": ("GPTNeoXForCausalLM", plain | {"vocab_size": n + 13}),
        "gpt_neo": ("GPTNeoForCausalLM", neo),
        "opt": ("OPTForCausalLM", plain | opt),
        "llama": ("LlamaForCausalLM", plain | {"num_key_value_heads": 1, "pad_token_id": None}),
        "mamba": ("MambaForCausalLM", mamba),
        "xlnet": ("XLNetLMHeadModel", xlnet),
        "xlm": ("XLMWithLMHeadModel", xlm),
        "bert": ("BertForMaskedLM", plain),
        "roberta": ("RobertaForMaskedLM", roberta),
        "albert": ("AlbertForMaskedLM", plain | {"embedding_size": 16}),
        "t5": ("T5ForConditionalGeneration", t5),
        "bart": ("BartForConditionalGeneration", bart),
    }[family]
    torch.manual_seed(1)
    made = getattr(transformers, head)
    return large_weights(made(made.config_class(**{"vocab_size": n} | sizes)))


def bert(head: Any, tokenizer: PreTrainedTokenizerFast, labels: Any = (), **options: Any) -> Any:
    """Return a BERT with one of transformers' heads, for a classifier with labels."""
    options |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    options |= {"intermediate_size": 64, "max_position_embeddings": CONTEXT}
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=len(tokenizer), **options, **labelled(labels))
    return large_weights(head(config))


def labelled(labels: Any) -> dict[str, Any]:
    """Return a configuration's entries for labels."""
    numbers = {"id2label": dict(enumerate(labels))}
    return numbers | {"label2id": {v: k for k, v in enumerate(labels)}} if labels else {}


TOKENIZERS = {"llama": metaspace, "xlnet": metaspace, "xlm": end_of_word, "bert": wordpiece}
TOKENIZERS |= {"albert": wordpiece}
TOKENIZERS |= {"roberta": roberta_tokenizer, "bart": roberta_tokenizer, "t5": sentence_end}


def save(folder, family: str) -> str:
    """Save a checkpoint of a family and return its folder."""
    tokenizer = TOKENIZERS.get(family, byte_level)()
    return save_network(folder, network(family, tokenizer), tokenizer)


def save_network(folder, made: Any, tokenizer: PreTrainedTokenizerFast) -> str:
    """Save a network with its tokenizer and return their folder."""
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def configure(folder: Path, **entries: Any) -> Path:
    """Give the configuration of a checkpoint other entries; return its folder."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return folder
