"""The ``.gattn`` file: heads and traces, whole, in one safetensors file.

Its metadata holds one JSON text under the key ``gattn``: schema version, kind and content, with a
checksum. Arrays are named by the SHA-256 of what they hold, so the checksum covers them and equal
ones are stored once. A structured token graph is stored as its rule. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gattn import edit_records, rules
from gattn.edit_records import Described
from gattn.errors import FileError, GattnError
from gattn.files.plain import from_json, to_json
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph
from gattn.trace import AttentionTrace, Stack

_KEY = "gattn"
_SCHEMA = 1
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        AttentionGraph,
        TokenGraph,
        rules.Blocks,
        rules.Causal,
        rules.Combined,
        rules.Complete,
        rules.Crossing,
        rules.Disjoint,
        rules.Documents,
        rules.Edges,
        rules.Globals,
        rules.Prefix,
        rules.Strided,
        rules.Window,
    )
}


def write(thing: AttentionGraph | AttentionTrace, path: Path) -> None:
    """Write a head or a trace."""
    packer = _Packer()
    if isinstance(thing, AttentionTrace):
        kind, content = "trace", packer.pack_trace(thing)
    elif isinstance(thing, AttentionGraph):
        kind, content = "head", packer.pack(thing)
    else:
        raise FileError(
            f"A .gattn file holds an AttentionGraph or an AttentionTrace, not a "
            f"{type(thing).__name__}; save a networkx.DiGraph as .json or .graphml."
        )
    document = {"schema": _SCHEMA, "kind": kind, "shared": packer.shared, "content": content}
    text = _canonical(document | {"checksum": _checksum(document)})
    save_file(packer.arrays, path, {_KEY: text})


def read(path: Path) -> AttentionGraph | AttentionTrace:
    """Read a head or a trace, and hold it against its checksum."""
    try:
        with safe_open(path, framework="np") as file:
            document = _checked(path, (file.metadata() or {}).get(_KEY))
            unpacker = _Unpacker(lambda name: _read_array(path, file, name))
            unpacker.unpack_shared(document["shared"])
            if document["kind"] == "trace":
                return unpacker.unpack_trace(document["content"])
            head: AttentionGraph = unpacker.unpack(document["content"])
            return head
    except SafetensorError as error:
        raise FileError(
            f"{path} is not a .gattn file, or is damaged ({error}); save it again."
        ) from error
    except FileError:
        raise
    except (
        GattnError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise FileError(f"{path} is not laid out as schema {_SCHEMA} says: {error!r}.") from error


def _checked(path: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise FileError(f"{path} is a safetensors file that gattn did not write.")
    document: dict[str, Any] = json.loads(text)
    if document["schema"] != _SCHEMA:
        raise FileError(
            f"{path} has schema {document['schema']}, and this gattn reads {_SCHEMA}: a newer "
            "gattn wrote it; upgrade gattn."
        )
    checksum = document.pop("checksum")
    if checksum != _checksum(document):
        raise FileError(f"{path} is damaged: its content does not have its checksum {checksum}.")
    return document


def _read_array(path: Path, file: Any, name: str) -> NDArray[Any]:
    array: NDArray[Any] = file.get_tensor(name)
    if _digest(array) != name:
        raise FileError(f"{path} is damaged: the array {name} does not have its checksum.")
    return array


def _canonical(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(document: dict[str, Any]) -> str:
    return sha256(_canonical(document).encode()).hexdigest()


def _digest(array: NDArray[Any]) -> str:
    digest = sha256(f"{array.dtype.name} {array.shape}".encode())
    digest.update(array.data)
    return digest.hexdigest()


class _Packer:
    """Turns heads into JSON and arrays; token graphs and tuples are stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.shared: list[Any] = []
        self._places: dict[str, int] = {}

    def pack_trace(self, trace: AttentionTrace) -> dict[str, Any]:
        stacks = [
            [to_json(name), to_json(stack.name), self._pack_stack(stack)]
            for name, stack in trace.stacks.items()
        ]
        return {
            "model": to_json(trace.model),
            "generated": to_json(trace.generated),
            "text": to_json(trace.text),
            "stacks": stacks,
        }

    def _pack_stack(self, stack: Stack) -> list[Any]:
        return [[layer, head, self.pack(graph)] for (layer, head), graph in stack.items()]

    def pack(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._store(value.detach().cpu().numpy())}
        if isinstance(value, np.ndarray):
            return {"$array": self._store(value)}
        if isinstance(value, tuple):
            return self._share({"$tuple": [self.pack(part) for part in value]})
        if isinstance(value, Described):
            return {"$edit": edit_records.written(value)}
        if type(value).__name__ not in _CLASSES:
            return to_json(value)
        values = {one.name: getattr(value, one.name) for one in fields(value)}
        if not values.get("edits", True):
            del values["edits"]  # Versions that do not know of edits read files without any.
        packed = {type(value).__name__: {name: self.pack(x) for name, x in values.items()}}
        return self._share(packed) if isinstance(value, TokenGraph) else packed

    def _share(self, packed: dict[str, Any]) -> dict[str, int]:
        place = self._places.setdefault(_canonical(packed), len(self.shared))
        if place == len(self.shared):
            self.shared.append(packed)
        return {"$shared": place}

    def _store(self, array: NDArray[Any]) -> list[str]:
        """Store an array, whole numbers in 4 bytes where they fit; give its name and its kind."""
        kind = array.dtype.newbyteorder("=")
        stored = np.ascontiguousarray(array, kind)
        if kind == np.int64 and (not array.size or abs(array).max() < 2**31):
            stored = stored.astype(np.int32)
        name = _digest(stored)
        self.arrays[name] = stored
        return [name, kind.name]


class _Unpacker:
    """Undoes `_Packer`. Only the classes of a fixed table are ever built."""

    def __init__(self, array: Callable[[str], NDArray[Any]]) -> None:
        self._array = array
        self._shared: list[Any] = []

    def unpack_shared(self, shared: list[Any]) -> None:
        for value in shared:
            self._shared.append(self.unpack(value))

    def unpack_trace(self, content: dict[str, Any]) -> AttentionTrace:
        stacks = {
            self.unpack(name): Stack(
                self.unpack(own_name),
                {(layer, head): self.unpack(graph) for layer, head, graph in heads},
            )
            for name, own_name, heads in content["stacks"]
        }
        # Files of the first version do not tell what was generated, nor the text.
        generated, text = content.get("generated", 0), self.unpack(content.get("text", ""))
        return AttentionTrace(stacks, self.unpack(content["model"]), generated, text=text)

    def unpack(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((mark, content),) = value.items()
        if mark == "$shared":
            return self._shared[content]
        if mark == "$array":
            return self._load(*content)
        if mark == "$tensor":
            return torch.from_numpy(self._load(*content))
        if mark == "$edit":
            return edit_records.read(content)
        if mark == "$tuple":
            return tuple(self.unpack(part) for part in content)
        if mark in _CLASSES:
            return _CLASSES[mark](**{name: self.unpack(part) for name, part in content.items()})
        return from_json(value)

    def _load(self, name: str, kind: str) -> NDArray[Any]:
        return self._array(name).astype(kind, copy=False)
