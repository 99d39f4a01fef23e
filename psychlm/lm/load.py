"""From a hub name or a folder to a language model that is pinned, safe to open and known by its kind.

Weights come from safetensors unless pickles are allowed by name; code from a checkpoint is never run; every weight
must come from the checkpoint, so that no randomly initialised output layer ever gives a number. A hub name is resolved
to the commit it stands for, a folder to the SHA-256 of its files: either is the ``revision`` that results carry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

DEFAULT_FOLDER = Path(__file__).parent / "default"
UNBOUNDED_WINDOW = (
    2048  # tokens; for models without a limit of their own (Mamba, XLNet): a window, not a limit
)

Kind = Literal["causal", "permutation", "masked", "left-masked"]

_HEADLESS = re.compile(
    r"For(Sequence|Token|Image|Audio)Classification|ForMultipleChoice|QuestionAnswering|NextSentence"
)


class ModelError(ValueError):
    """A language model cannot be had or cannot do what is asked: the message says which, why, and what to do."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model, its tokenizer, and what results must say of them."""

    network: Any  # a transformers model, in evaluation mode
    tokenizer: Any
    name: str  # hub name or folder
    revision: (
        str | None
    )  # commit of the hub, "sha256:..." of a folder, None where it is not known (then no cache)
    kind: Kind  # how it predicts: see surprisal
    context_tokens: int  # longest input in tokens, special ones counted

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.network.parameters()).device

    @property
    def n_vocabulary(self) -> int:
        """Number of outputs of the model (a tokenizer may use fewer)."""
        return int(self.network.config.get_text_config().vocab_size)


def load(
    name_or_path: str | Path = "default",
    device: str = "auto",
    *,
    revision: str | None = None,
    kind: Kind | None = None,
    dtype: str | None = None,
    allow_pickle: bool = False,
) -> LanguageModel:
    """Open a language model.

    Parameters
    ----------
    name_or_path : str or Path
        ``"default"`` (the small model that ships with the package), a folder, or a name on the Hugging Face hub, which
        may carry its revision: ``"gpt2"``, ``"EleutherAI/pythia-70m@step143000"``.
    device : str
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
    revision : str, optional
        Branch, tag or commit on the hub. Whatever is given is resolved to a commit, which results carry; give that
        commit to get the same weights for ever.
    kind : {"causal", "permutation", "masked", "left-masked"}, optional
        How the model predicts; read from the checkpoint's configuration unless given.
    dtype : str, optional
        ``"float32"``, ``"bfloat16"`` or ``"float16"``; by default float32 on CPU, the checkpoint's own on a GPU.
    allow_pickle : bool
        Also open weights stored as pickles (``pytorch_model.bin``), which torch reads in its restricted mode. Only
        for checkpoints you trust.

    Returns
    -------
    LanguageModel

    Raises
    ------
    ModelError
        If the model, its revision or its tokenizer cannot be had; it has no language-model head; it would need code
        from the checkpoint; or it has no safetensors.
    """
    name, revision, folder = place(str(name_or_path), revision)
    where = torch_device(device)
    if folder is None:
        revision = commit(name, revision)
    source: dict[str, Any] = {"trust_remote_code": False} | (
        {"revision": revision} if folder is None else {}
    )
    address = str(folder or name)
    with plain_errors(name):
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForMaskedLM,
            AutoTokenizer,
        )

        config = AutoConfig.from_pretrained(address, **source)
        kind = kind or _kind(config, name)
        opener: Any = AutoModelForMaskedLM if kind == "masked" else AutoModelForCausalLM
        options = source | {"dtype": dtype_of(dtype, where)}
        network = open_weights(opener, address, name, config, options, allow_pickle)
        tokenizer = AutoTokenizer.from_pretrained(address, **source)
    return wrap(
        network.to(where),
        tokenizer,
        name=name,
        revision=fingerprint(folder) if folder else revision,
        kind=kind,
    )


def wrap(
    network: Any,
    tokenizer: Any,
    *,
    name: str = "in memory",
    revision: str | None = None,
    kind: Kind | None = None,
) -> LanguageModel:
    """Make a language model of a transformers model and tokenizer that are already in memory.

    Results of a model without a revision are not cached, for nothing says when it changes.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ModelError(f"kind {kind!r} is unknown; choose one of {list(get_args(Kind))}")
    network.eval().requires_grad_(False)
    network.config.get_text_config().use_cache = (
        False  # nothing is generated: past keys and values would be waste
    )
    kind = kind or _kind(network.config, name)
    if kind.endswith("masked") and tokenizer.mask_token_id is None:
        raise ModelError(
            f"{name} predicts masked tokens, but its tokenizer has no mask token; use its own tokenizer"
        )
    if len(tokenizer) > (n := int(network.config.get_text_config().vocab_size)):
        raise ModelError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, the model {n}: they do not belong together"
        )
    return LanguageModel(
        network, tokenizer, name, revision, kind, context_tokens(network, tokenizer)
    )


def place(name: str, revision: str | None) -> tuple[str, str | None, Path | None]:
    """Return the model's name, its revision, and its folder where it has one."""
    if name == "default":
        if not (DEFAULT_FOLDER / "config.json").is_file():
            raise ModelError(
                f"the default model is not in {DEFAULT_FOLDER}; this copy of the package is incomplete. Reinstall it, "
                "or name another model: load('gpt2')"
            )
        return name, None, DEFAULT_FOLDER
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} holds no config.json, so it is no checkpoint; save one with save_pretrained"
            )
        if revision is not None:
            raise ModelError(
                f"{folder} is a folder, which has no revisions; leave revision={revision!r} out"
            )
        return name, None, folder
    if folder.is_absolute() or name.startswith((".", "~")):
        raise ModelError(
            f"there is no folder {folder}; check the path, or give the name of a model on the hub"
        )
    name, _, tagged = name.partition("@")
    if tagged and revision not in (None, tagged):
        raise ModelError(
            f"{name} is asked for at two revisions, {tagged!r} and {revision!r}; give one"
        )
    return name, revision or tagged or None, None


def torch_device(device: str) -> torch.device:
    """Return where to compute; a GPU that is asked for must be there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r} was asked for, and torch {torch.__version__} sees no GPU; use device='cpu'"
        )
    return torch.device(device)


def dtype_of(dtype: str | None, device: torch.device) -> Any:
    """Return the number type of the weights."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ModelError(f"dtype {dtype!r} is unknown; choose 'float32', 'bfloat16' or 'float16'")
    return getattr(torch, dtype)


def commit(name: str, revision: str | None) -> str:
    """Resolve a revision on the hub to its commit; without a network, to the one in the local cache."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision  # a commit already
    try:
        return str(HfApi().model_info(name, revision=revision, timeout=20).sha)
    except RevisionNotFoundError as error:
        raise ModelError(
            f"{name} has no revision {revision!r} on the hub; see huggingface.co/{name}/commits, or leave it out for "
            "the newest"
        ) from error
    except GatedRepoError as error:
        raise ModelError(
            f"{name} asks for consent on the hub: accept its terms there and log in (hf auth login)"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{name!r} is neither a folder here nor a public model on the hub; check its spelling"
        ) from error
    except (
        OSError,
        RuntimeError,
    ):  # no network, or told to stay off it: perhaps it was fetched before
        pass
    except Exception as error:  # the HTTP library's own errors derive from Exception
        if type(error).__module__.partition(".")[0] not in (
            "httpx",
            "httpx2",
            "requests",
            "huggingface_hub",
        ):
            raise
    try:
        cached = snapshot_download(
            name, revision=revision, local_files_only=True, allow_patterns="config.json"
        )
    except (LocalEntryNotFoundError, FileNotFoundError) as error:
        raise ModelError(
            f"the hub cannot be reached, and {name} was never fetched to this machine; check the network, give the "
            "folder of a copy, or use load('default'), which needs no network"
        ) from error
    return Path(cached).name


def _kind(config: Any, name: str) -> Kind:
    """Read from a configuration how its model predicts."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    architecture, family = (config.architectures or [""])[0], config.model_type
    if _HEADLESS.search(architecture):
        raise ModelError(
            f"{name} is a {architecture}: it has no language-model head; use the model it was made from"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({family}), which predicts no text by itself; use a causal model"
        )
    if family == "xlnet":
        return "permutation"
    if family in ("xlm", "flaubert"):
        return "causal" if config.causal else "left-masked"
    autoregressive = architecture.endswith(("LMHeadModel", "ForCausalLM")) or getattr(
        config, "is_decoder", False
    )
    if family in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not autoregressive:
        return "masked"
    if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "causal"
    raise ModelError(
        f"{name} is of the family {family!r}, for which transformers has no language-model head"
    )


def open_weights(
    opener: Any,
    address: str,
    name: str,
    config: Any,
    options: dict[str, Any],
    allow_pickle: bool,
    head: str = "language-model head",
) -> Any:
    """Open the weights with one of transformers' auto classes; every one of them must be in the checkpoint."""
    try:
        network, report = opener.from_pretrained(
            address,
            config=config,
            output_loading_info=True,
            use_safetensors=None if allow_pickle else True,
            **options,
        )
    except OSError as error:
        if "safetensors" not in str(error) or allow_pickle:
            raise
        raise ModelError(
            f"{name} has no weights as safetensors (perhaps pickles, which can run code when opened); convert it with "
            "huggingface.co/spaces/safetensors/convert, or, if you trust its makers, load(..., allow_pickle=True)"
        ) from error
    lacking = sorted(report["missing_keys"]) + [str(key) for key in report["mismatched_keys"]]
    if lacking:
        raise ModelError(
            f"{name} has no {head}: {type(network).__name__} needs {lacking[:4]}, which the checkpoint does not hold "
            "and which would be random; use "
            + (
                "the pre-trained model it was made from"
                if "language" in head
                else "a model fine-tuned for the task"
            )
        )
    return network


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Say in the user's words what transformers could not do; its bar for every load stays quiet."""
    from transformers.utils import logging

    noisy = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"{name} needs a library that is not installed: {str(error).strip().splitlines()[0]}"
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            raise ModelError(
                f"{name} brings its own code, which psychlm never runs; use a model that transformers knows"
            ) from error
        raise ModelError(
            f"{name} cannot be opened: {str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if noisy:
            logging.enable_progress_bar()


def context_tokens(network: Any, tokenizer: Any) -> int:
    """Return the longest input: the positions a model has learned, where it has learned positions."""
    config = network.config.get_text_config()
    stated = (
        getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")
    )
    limits = [limit for limit in stated if isinstance(limit, int) and limit > 0]
    if not limits:
        return UNBOUNDED_WINDOW
    limit = limits[0]
    for module_name, module in network.named_modules():
        if (
            module_name.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            limit -= module.padding_idx + 1  # RoBERTa's positions start after the padding index
    return int(min(limit, tokenizer.model_max_length))


def fingerprint(folder: Path) -> str:
    """Return ``sha256:`` and the hash of a checkpoint's files: configuration, tokenizer and weights."""
    digest = hashlib.sha256()
    kinds = (".json", ".safetensors", ".bin", ".txt", ".model")
    for file in sorted(file for file in folder.iterdir() if file.suffix in kinds):
        with file.open("rb") as handle:
            digest.update(
                f"{file.name}:{hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode()
            )
    return f"sha256:{digest.hexdigest()}"
