"""Refuses models that would run code when they are loaded: pickles, kernels, adapters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from gattn.errors import ModelError

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SAFE = ".safetensors"
_SAFE_INDEX = ".safetensors.index.json"
_FETCHED = {
    "_implementation": ("flash_attention", "sonicmoe", "deepgemm"),
    "quant_method": ("eetq", "fbgemm_fp8", "fp8", "metal", "mxfp4", "mxfp8", "nvfp4"),
}
"""Endings of settings, and beginnings of their values, for which transformers fetches kernels."""


def check_files(place: str | Path) -> None:
    """Refuse a folder or a hub name whose files would run code."""
    config = _read(place, _CONFIG)
    for name, value in _settings(config):
        _check_setting(place, name, value)
    named = str(config.get("transformers_weights") or _INDEX) if isinstance(config, dict) else ""
    if named and not named.endswith((_SAFE, _SAFE_INDEX)):
        _refuse_pickle(place, _CONFIG, named)
    for index in {_INDEX, named}:
        if index.endswith(_SAFE_INDEX):
            _check_shards(place, index, _read(place, index))
    if _find(place, "adapter_config.json"):
        raise ModelError(
            f"The model {str(place)!r} has an adapter, adapter_config.json, which gattn does not "
            "load: load it yourself with the package peft, and pass the model and its tokenizer."
        )


def _settings(thing: Any) -> Iterator[tuple[str, Any]]:
    """Walk the settings of a configuration and those nested in it."""
    if isinstance(thing, dict):
        yield from thing.items()
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ()
    for part in parts:
        yield from _settings(part)


def _check_setting(place: str | Path, name: str, value: Any) -> None:
    if name == "checkpoint_path" and value:
        _refuse_pickle(place, _CONFIG, value)
    ending = next((ending for ending in _FETCHED if _bare(name).endswith(ending)), None)
    if ending is None:
        return
    for text in value.values() if isinstance(value, dict) else [value]:
        is_named = ending == "_implementation" and "/" in str(text)
        is_fetched = str(text).startswith(_FETCHED[ending]) and _fetches_kernels()
        if is_named or is_fetched:
            raise ModelError(
                f"The model {str(place)!r} asks in {_CONFIG} for {name}={text!r}, a kernel that "
                "would be downloaded and run. Remove this from the file, or load the model "
                "yourself, and pass it and its tokenizer."
            )


def _bare(name: str) -> str:
    return name.removesuffix("_internal")


def _fetches_kernels() -> bool:
    """Return whether transformers would fetch kernels from the hub."""
    is_allowed = os.environ.get("USE_HUB_KERNELS", "yes").lower() in ("1", "on", "yes", "true")
    return is_allowed and find_spec("kernels") is not None


def _check_shards(place: str | Path, index: str, content: Any) -> None:
    """Check the files that an index of weights names."""
    if content is None:
        return
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(n, str) for n in shards.values()):
        raise ModelError(
            f"The model {str(place)!r} has an {index} without a weight_map from the names of "
            "weights to those of files: download the model again."
        )
    for name in sorted(set(shards.values())):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise ModelError(
                f"The model {str(place)!r} names in {index} the weights {name!r}, which lie "
                "outside the model's folder: download the model again."
            )
        if path.suffix != _SAFE:
            _refuse_pickle(place, index, name)


def _refuse_pickle(place: str | Path, file: str, name: Any) -> None:
    raise ModelError(
        f"{file} of the model {str(place)!r} names the weights {name!r}, which would be unpickled, "
        "and pickles can run code. Load a copy that has only safetensors weights; "
        "model.save_pretrained(folder) writes one."
    )


def _read(place: str | Path, name: str) -> Any:
    """Read a JSON file; None if there is none, or a configuration that is not JSON."""
    path = _find(place, name)
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        if name == _CONFIG:
            return None  # transformers explains what is wrong with it.
        raise ModelError(
            f"The model {str(place)!r} has a damaged {name} ({error}): download the model again."
        ) from error


def _find(place: str | Path, name: str) -> str | None:
    from transformers.utils import cached_file

    if Path(place).is_dir():
        path = Path(place) / name
        return str(path) if path.exists() else None
    found: str | None = cached_file(
        str(place),
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
