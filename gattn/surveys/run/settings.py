"""What a survey is run with: its settings and its model, as the manifest keeps them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from gattn import __version__
from gattn.analysis.heads.summed.head_scores import DEFINITIONS
from gattn.models.edit.base import Edit
from gattn.models.edit.digests import ADDRESS, about_function
from gattn.models.load.limits import text_config
from gattn.models.load.loading import (
    EMBEDDED_PATH,
    find_tokenizer,
    load_tokenizer,
    model_name,
    name_of,
    not_loaded,
)
from gattn.models.load.offline import EMBEDDED
from gattn.models.run.editing import open_edits
from gattn.surveys.store.manifest import SCHEMA

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def settings(
    model: str | Path | PreTrainedModel | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what `CaptureGraphs` is made with, without loading the model's weights."""
    around: dict[str, Any] = {}
    if isinstance(model, torch.nn.Module) and (edits := open_edits(model)):
        around["edits"] = [*edits, *(options.get("edits") or ())]
    return {
        "schema": SCHEMA,
        "gattn": __version__,
        "definitions": DEFINITIONS,
        **_described(model),
        **{name: _written(value) for name, value in sorted({**options, **around}.items())},
    }


def _written(value: Any) -> Any:
    """Write an option as JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_written(one) for one in value]
    if isinstance(value, partial):
        return ADDRESS.sub("", f"{_written(value.func)}{value.args}{value.keywords}")
    if isinstance(value, FunctionType):
        return _written_function(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Edit):
        return value.record.identity
    return ADDRESS.sub("", str(value))


def _written_function(function: FunctionType) -> str:
    """Write a function's name, with a digest unless it is one of gattn's.

    Public functions of gattn are named by their package, so that moving them changes nothing.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    if name.startswith("gattn."):
        package = ".".join(function.__module__.split(".")[:2])
        is_public = getattr(sys.modules[package], function.__qualname__, None) is function
        return f"{package}.{function.__qualname__}" if is_public else name
    about = about_function(function)
    return f"{name} {sha256(ADDRESS.sub('', repr(about)).encode()).hexdigest()[:12]}"


def _described(model: str | Path | PreTrainedModel | None) -> dict[str, Any]:
    """Describe a model: its name, revision, size and tokenizer."""
    if isinstance(model, torch.nn.Module):
        config, tokenizer = model.config, find_tokenizer(model)
        name, revision = model_name(model), _weights_digest(model)
    else:
        place = _place(model)
        config, tokenizer = read_config(model)
        name = name_of(place)
        is_folder = Path(place).is_dir()
        revision = _folder_digest(Path(place)) if is_folder else config._commit_hash
    text = text_config(config)
    return {
        "model": name,
        "revision": revision,
        "architecture": (config.architectures or [type(config).__name__])[0],
        "num_layers": getattr(text, "num_hidden_layers", None),
        "num_heads": getattr(text, "num_attention_heads", None),
        "tokenizer": tokenizer and _tokenizer_digest(tokenizer),
    }


def _place(model: str | Path | None) -> str:
    return str(EMBEDDED_PATH if model in (None, EMBEDDED) else model)


def read_config(model: str | Path | None) -> Any:
    """Load a model's configuration and tokenizer, without its weights."""
    from transformers import AutoConfig

    place = _place(model)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        return config, load_tokenizer(place)
    except Exception as error:  # Foreign files can fail in any way.
        raise not_loaded(place, error) from error


def _folder_digest(folder: Path) -> str:
    """Hash the files of a model: configuration, tokenizer and weights."""
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".txt", ".model"):
            with path.open("rb") as file:
                digest.update(f"{path.name} {file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _weights_digest(model: PreTrainedModel) -> str:
    """Hash the configuration and the weights of a model in memory."""
    return _bits_digest(model.state_dict(), model.config.to_json_string())


def _bits_digest(weights: Mapping[str, torch.Tensor], about: str) -> str:
    digest = sha256(about.encode())
    for name, weight in sorted(weights.items()):
        bits = weight.detach().contiguous().flatten().view(torch.uint8).cpu().numpy()
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(bits.data)
    return f"sha256:{digest.hexdigest()}"


def _tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash everything that defines a fast tokenizer, or the vocabulary of a slow one."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    known: dict[str, Any] = json.loads(fast.to_str()) if fast else tokenizer.get_vocab()
    # Settings of the last call do not count.
    lasting = sorted((name, known[name]) for name in known.keys() - {"truncation", "padding"})
    return f"sha256:{sha256(json.dumps(lasting).encode()).hexdigest()}"
