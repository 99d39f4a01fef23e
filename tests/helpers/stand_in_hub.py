"""What the papers' profile fetches, in small: models of a local hub, and datasets as released.

Architectures, tokenizers and layouts are those of the originals; weights are random and texts are
made of a few words."""

import hashlib
import json
import string
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tiny_models
from huggingface_hub import constants
from serving import serving

FAMILIES = {
    "openai-community/gpt2": "gpt2",
    "FacebookAI/xlm-mlm-ende-1024": "xlm",
    "xlnet/xlnet-base-cased": "xlnet",
    "FacebookAI/roberta-large": "roberta",
    "google-bert/bert-base-cased": "bert",
    "FacebookAI/roberta-base": "roberta",
    "albert/albert-base-v2": "albert",
}
# the classes that the originals' tokenizers have; XLM's needs a package
TOKENIZERS = {"gpt2": "GPT2Tokenizer", "xlnet": "XLNetTokenizer", "roberta": "RobertaTokenizer"}
TOKENIZERS |= {"xlm": "XLMTokenizer"} if find_spec("sacremoses") else {}
ADDED = {"xlm": [f"<special{k}>" for k in range(10)], "xlnet": ["<eop>", "<eod>"]}
# every character in a word and at its end, which real tokenizers know
CHARACTERS = [f"{c}{c}{c} {c}" for c in string.ascii_letters + string.digits + string.punctuation]


def commit_of(name: str) -> str:
    """Return the commit that a stand-in has."""
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def write_model(folder: Path, family: str) -> None:
    """Write a checkpoint whose tokenizer opens as the original's."""
    with mock.patch.object(tiny_models, "CORPUS", tiny_models.CORPUS + CHARACTERS):
        tokenizer = tiny_models.TOKENIZERS.get(family, tiny_models.byte_level)()
    tokenizer.add_tokens(ADDED.get(family, []))
    tiny_models.save_network(folder, tiny_models.network(family, tokenizer), tokenizer)
    if family not in TOKENIZERS:
        return
    file = folder / "tokenizer_config.json"
    kept = json.loads(file.read_text()) | {"tokenizer_class": TOKENIZERS[family]}
    file.write_text(json.dumps(kept))
    if family == "xlm":  # two files of its own
        pieces = json.loads((folder / "tokenizer.json").read_text())["model"]
        (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()))
        merges = "".join(f"{' '.join(pair)} 1\n" for pair in pieces["merges"])
        (folder / "merges.txt").write_text(merges)
        (folder / "tokenizer.json").unlink()


def write(home: Path) -> dict[str, str]:
    """Write the models into a folder as the hub's cache lays them out; return the environment."""
    for name, family in FAMILIES.items():
        repository = home / "hub" / f"models--{name.replace('/', '--')}"
        write_model(repository / "snapshots" / commit_of(name), family)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit_of(name))
    return {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_OFFLINE": "1"}


def pairs(ids: Sequence[str], seed: int) -> Iterator[str]:
    """Yield sentence pairs as SNLI and MNLI have them, each with a premise of its own; one word
    tells the label."""
    rng, labels = np.random.default_rng(seed), ["entailment", "neutral", "contradiction"]
    for name in ids:
        label = rng.integers(3)
        first, second = rng.choice(["man", "sea", "horse"]), ["boat", "cup", "sandwich"][label]
        record = {"pairID": name, "gold_label": labels[label]}
        record["sentence1"] = f"the {'old ' * rng.integers(1, 5)}{first} {name}"
        record["sentence2"] = f"the {second} of {rng.choice(['Maria', 'Barry'])}"
        record["annotator_labels"] = [labels[label]] * 4 + [labels[rng.integers(3)]]
        yield json.dumps(record)


def archive(folder: Path, name: str, parts: dict[str, list[str]]) -> str:
    """Write lines into a zip file, in a folder of the archive's name, as released."""
    file = folder / f"{name}.zip"
    with zipfile.ZipFile(file, "w") as opened:
        for part, lines in parts.items():
            opened.writestr(f"{name}/{part}", "\n".join(lines) + "\n")
    return str(file)


def inference_archives(folder: Path, crowd: Sequence[str], n: int = 400) -> dict[str, str]:
    """Write SNLI and MNLI; SNLI's training part holds the pairs that the crowd read."""
    names = [f"{k}.jpg#0r1n" for k in range(3 * n)]
    parts = {"train": [*crowd, *names[:n]], "dev": names[n : 2 * n], "test": names[2 * n :]}
    snli = {
        f"snli_1.0_{part}.jsonl": list(pairs(ids, seed))
        for seed, (part, ids) in enumerate(parts.items(), start=1)
    }
    mnli = {"multinli_1.0_train.jsonl": list(pairs([f"{k}n" for k in range(400)], 4))}
    made = {"snli_1.0": snli, "multinli_1.0": mnli}
    return {name: archive(folder, name, parts) for name, parts in made.items()}


@contextmanager
def served(name: str, folder: Path) -> Iterator[list[str]]:
    """Let a model be fetched from a server here, as from the hub; yield the files that are sent."""
    sent: list[str] = []
    about = json.dumps({"id": name, "sha": commit_of(name)}).encode()
    files = [{"path": file.name, "size": file.stat().st_size} for file in folder.iterdir()]
    tree = json.dumps([file | {"type": "file", "oid": "0"} for file in files]).encode()

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            file, is_file = folder / Path(self.path).name, "/resolve/" in self.path
            if is_file and not file.is_file():
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.end_headers()
                return
            of_hub = tree if "/tree/" in self.path else about
            content = file.read_bytes() if is_file else of_hub
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit_of(name))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
                sent.extend([file.name] if is_file else [])

    with serving(Hub) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", address.rstrip("/"))
        template = f"{address}{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield sent
