"""Write ``lm_eval_harness.json``: what lm-evaluation-harness gives for models and 200 items.

The harness (Gao et al. 2021) has many dependencies and is no dependency of the project. To write
the file again, in an environment of its own::

    python -m venv harness
    harness/bin/pip install "lm-eval==0.4.13" -e .
    harness/bin/python tests/reference/lm_eval_harness.py

The items are the first 200 of ARC-Easy's test set with four choices, under the harness's own
template for ARC, as they are and (``chat``) as a message in each model's chat template. Only
numbers are written: log-probabilities (nats), ``acc`` (highest sum), ``acc_norm`` and ``acc_bytes``
(highest sum divided by the number of characters, or bytes, of the choice). The models are SmolLM2,
and with random weights a causal model (GPT-2) and an encoder-decoder (T5, the harness's backend
"seq2seq"). Under ``joined`` are the log-probabilities of choices that follow their prompt without a
space, so that tokenizers join both in one token.

``softmax_dtype=float64`` is an option of the harness. By default it takes torch's ``log_softmax``
of float32, which on a CPU gives each token of SmolLM2's vocabulary of 49,152 some 1.6e-5 nats too
much. Over the choices of 6 items this makes 2.2e-4 nats against a network in float64, where psychlm
is off by 2.3e-5; the size of batches makes 1.5e-5 (torch 2.13, one thread).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
N_ITEMS = 200
# the chat template of the tiny models
CHAT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]\n"


def questions():
    """Return the items that both programs score."""
    from psychlm.corpora import read_arc

    items = read_arc("mcqa/arc/ARC-Easy-Test")
    return items[items["choices"].map(len) == 4][:N_ITEMS].reset_index(drop=True)


def joined_questions():
    """Return items whose choices go on where the prompt ends, without a space."""
    import pandas as pd

    rows = [
        ("She is un", ["happy now", "able to sit", "seen by us"]),
        ("It cost $", ["3,000", "30", "3"]),
        ("The answer is (", ["A)", "B)", "C)"]),
        ('He said "', ["I don't know", "the end", "a café"]),
        ("The hor", ["se fell", "ses fell", "ror of it"]),
        ("Finally Mar", ["ia sat down", "y sat down"]),
        ("She was talk", ["ing to Barry", "ative men", "ed about"]),
        ("on May 1", ["0 dollars", "000 dollars", "st, she"]),
        ("no space before the comma", [", and", ". The", "-separated"]),
    ]
    items = pd.DataFrame(rows, columns=["prompt", "choices"])
    items.insert(0, "item_id", [f"j{i}" for i in range(len(items))])
    return items.assign(answer=0)


def save_tiny(folder: Path, name: str) -> str:
    """Save GPT-2 or T5 with two layers, 2048 positions and random weights, drawn with seed 0.

    T5's tokenizer is of BART's kind: training one of its own kind gives other pieces each time.
    """
    import tiny_models
    import torch
    import transformers

    made = {"tiny-gpt2": tiny_models.byte_level, "tiny-t5": tiny_models.roberta_tokenizer}
    tokenizer = made[name]()
    tokenizer.model_max_length = 2048
    tokenizer.chat_template = CHAT
    end, n_pieces = tokenizer.eos_token_id, len(tokenizer)
    torch.manual_seed(0)
    if name == "tiny-gpt2":
        sizes = {"n_positions": 2048, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": end}
        config = transformers.GPT2Config(vocab_size=n_pieces, eos_token_id=end, **sizes)
        network = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
        sizes |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
        config = transformers.T5Config(vocab_size=n_pieces, eos_token_id=end, **sizes)
        network = transformers.T5ForConditionalGeneration(config)
    return tiny_models.save_network(folder / name, network, tokenizer)


TINY = ["tiny-gpt2", "tiny-t5"]


def log_probabilities(samples: list[dict]) -> list[list[float]]:
    """Return the log-probability of each choice of the harness's samples."""
    ordered = sorted(samples, key=lambda one: one["doc_id"])
    return [[round(pair[0], 6) for pair in one["filtered_resps"]] for one in ordered]


def main() -> None:
    """Run the harness on both models and write its numbers."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from psychlm.lm import _load

    banks = {"first_items": questions(), "joined": joined_questions()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = []
        for bank, items in banks.items():
            rows = items[["prompt", "choices", "answer"]].to_dict("records")
            (folder / f"{bank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            task = {
                "task": bank,
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(folder / f"{bank}.jsonl")}},
                "test_split": "test",
                "output_type": "multiple_choice",
                "doc_to_text": "Question: {{prompt}}\nAnswer:",
                "doc_to_choice": "{{choices}}",
                "doc_to_target": "answer",
                "metric_list": [{"metric": f"acc{kind}"} for kind in ("", "_norm", "_bytes")],
            }
            if bank == "joined":
                task |= {"doc_to_text": "{{prompt}}", "target_delimiter": ""}
            tasks.append(task)
        folders = {"smollm2": str(_load.find_checkpoint("smollm2").folder)}
        folders |= {model: save_tiny(folder, model) for model in TINY}
        written = {
            "lm_eval": lm_eval.__version__,
            "items": banks["first_items"]["item_id"].tolist(),
        }
        for model, address in folders.items():
            options = {
                "model": "hf",
                "model_args": f"pretrained={address},dtype=float32,softmax_dtype=float64",
                "task_manager": TaskManager(),
                "device": "cpu",
                "batch_size": 8,
                "log_samples": True,
                "bootstrap_iters": 0,
            }
            plain = lm_eval.simple_evaluate(**options, tasks=tasks)["samples"]
            chat = lm_eval.simple_evaluate(**options, tasks=tasks[:1], apply_chat_template=True)
            samples = sorted(plain["first_items"], key=lambda one: one["doc_id"])
            metrics = ("acc", "acc_norm", "acc_bytes")
            written[model] = {
                "logprobs": log_probabilities(samples),
                **{metric: [int(one[metric]) for one in samples] for metric in metrics},
                "joined": log_probabilities(plain["joined"]),
                "chat": log_probabilities(chat["samples"]["first_items"]),
            }
    parts = [f" {json.dumps(name)}: {json.dumps(part)}" for name, part in written.items()]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    (HERE / "lm_eval_harness.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
