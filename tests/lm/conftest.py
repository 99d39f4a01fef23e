"""Tiny models that several modules share: made once, and copied where a test spoils one."""

import shutil
from pathlib import Path

import pytest
import tiny_models

from psychlm import lm


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> Path:
    """Return the folder of a checkpoint of GPT-2's kind."""
    return Path(tiny_models.save(tmp_path_factory.mktemp("gpt2"), "gpt2"))


@pytest.fixture
def copy(gpt2, tmp_path) -> Path:
    """Return a checkpoint that a test may spoil."""
    return shutil.copytree(gpt2, tmp_path / "copy")


@pytest.fixture(scope="session")
def models():
    """Return a function that gives the model in memory of a family."""
    made = {}

    def model(family: str) -> lm.LanguageModel:
        if family not in made:
            tokenizer = tiny_models.TOKENIZERS.get(family, tiny_models.byte_level)()
            made[family] = lm.wrap(tiny_models.network(family, tokenizer), tokenizer)
        return made[family]

    return model
