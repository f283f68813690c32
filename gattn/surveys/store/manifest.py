"""The manifest of a survey: what it was run with, as its folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from gattn.errors import FileError
from gattn.files.plain import parsed
from gattn.files.whole_files import replacing

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


def manifest_of(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder that must be a survey."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise FileError(
            f"{folder} is not a survey: expected a folder with a manifest.json, as gattn.survey "
            "writes it."
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
