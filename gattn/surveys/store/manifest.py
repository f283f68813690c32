"""The manifest of a survey: its settings, its model and its texts."""

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
from gattn.analysis.heads.head_scores import DEFINITIONS
from gattn.errors import FileError
from gattn.files.plain import parsed
from gattn.files.whole_files import replacing
from gattn.models.edit.base import Edit
from gattn.models.edit.digests import ADDRESS, about_function
from gattn.models.load.loading import (
    EMBEDDED,
    EMBEDDED_PATH,
    find_tokenizer,
    load_tokenizer,
    model_name,
    name_of,
    not_loaded,
)
from gattn.models.run.editing import open_edits

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SCHEMA = 1
MANIFEST = "manifest.json"
_CHECKSUM = "sha256"
_NEEDED: Mapping[str, type] = {"model": str, "keep": str, "num_texts": int}
"""The fields that readers of a survey rely on."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a survey, or None if there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = parsed(path.read_text(encoding="utf-8"))
        schema, checksum = manifest["schema"], manifest.pop(_CHECKSUM, None)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise FileError(f"{path} is not the manifest of a survey ({error!r:.400}).") from error
    if schema != SCHEMA:
        raise FileError(
            f"{path} has schema {schema!r:.80}, but this gattn reads {SCHEMA}: upgrade gattn."
        )
    if checksum not in (None, _checksum(manifest)):
        raise FileError(
            f"{path} is damaged: its checksum does not match. If you changed the file yourself, "
            f"remove its {_CHECKSUM!r}."
        )
    for name, kind in _NEEDED.items():
        value = manifest.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise FileError(
                f"{path} is not the manifest of a survey: {name!r} must be a {kind.__name__}, not "
                f"{value!r:.80}."
            )
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    """Hash the content of a manifest, whatever its layout."""
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, which makes a folder a survey."""
    with replacing(folder / MANIFEST) as part:
        known = dict(manifest)
        text = json.dumps(known | {_CHECKSUM: _checksum(known)}, indent=2)
        part.write_text(text + "\n", encoding="utf-8")


_DIGESTS = {
    "inputs": "the texts differ",
    "revision": "the model's files or weights differ",
    "tokenizer": "the tokenizer differs",
    "definitions": "its scores have the definitions of another version of gattn",
}
"""How to report settings that are digests, which mean nothing to people."""


def check_same(folder: Path, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Check that a survey is resumed with the settings that it began with; list differences."""
    differences = [
        _DIGESTS.get(name, f"{name} is {known.get(name)!r} there and {asked.get(name)!r} here")
        for name in asked
        if known.get(name) != asked.get(name)
    ]
    if differences:
        raise FileError(
            f"{folder} holds another survey: {'; '.join(differences)}. Choose another folder, or "
            "use the same settings to resume."
        )


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
    text_config = config.get_text_config()
    return {
        "model": name,
        "revision": revision,
        "architecture": (config.architectures or [type(config).__name__])[0],
        "num_layers": getattr(text_config, "num_hidden_layers", None),
        "num_heads": getattr(text_config, "num_attention_heads", None),
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
