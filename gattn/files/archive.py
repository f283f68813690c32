"""The ``.gattn`` file: complete heads and traces in one safetensors file.

Its metadata holds one JSON text under the key ``gattn``: schema version, kind and content, with a
checksum. Arrays are named by the SHA-256 of their content, so the checksum covers them and equal
arrays are stored once. A structured token graph is stored as its rule. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gattn import edit_records
from gattn.edit_records import Described
from gattn.errors import FileError, GraphError
from gattn.files.checking import DEEPEST, check_graph
from gattn.files.plain import from_json, parsed, to_json
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace, Stack

_KEY = "gattn"
_SCHEMA = 1
_MOST_BYTES, _BYTES_PER_BYTE = 1 << 28, 256
"""How much memory any file may need, and how much per byte of its size."""
_KINDS = {"bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"}
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
            f"{type(thing).__name__}: save a networkx.DiGraph as .json or .graphml."
        )
    document = {"schema": _SCHEMA, "kind": kind, "shared": packer.shared, "content": content}
    text = _canonical(document | {"checksum": _checksum(document)})
    save_file(packer.arrays, path, {_KEY: text})


def read(path: Path) -> AttentionGraph | AttentionTrace:
    """Read a head or a trace, and verify its checksum."""
    try:
        with safe_open(path, framework="np") as file:
            document = _checked(path, (file.metadata() or {}).get(_KEY))
            arrays = _Arrays(path, file)
            unpacker = _Unpacker(arrays.read, path.stat().st_size)
            unpacker.unpack_shared(document["shared"])
            if document["kind"] == "trace":
                return unpacker.unpack_trace(document["content"])
            return unpacker.unpack_head(document["content"])
    except SafetensorError as error:
        raise FileError(
            f"{path} is not a .gattn file, or is damaged ({error}): save it again."
        ) from error
    except FileError:
        raise
    except OSError:
        raise
    except Exception as error:  # Foreign files can fail in any way.
        raise FileError(
            f"{path} does not have the layout of schema {_SCHEMA}: {error!r:.400}."
        ) from error


def _checked(path: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise FileError(f"{path} is a safetensors file that gattn did not write.")
    document: dict[str, Any] = parsed(text, 4 * DEEPEST)
    if document["schema"] != _SCHEMA:
        raise FileError(
            f"{path} has schema {document['schema']}, but this gattn reads {_SCHEMA}: a newer "
            "gattn wrote it; upgrade gattn."
        )
    checksum = document.pop("checksum")
    if checksum != _checksum(document):
        raise FileError(f"{path} is damaged: its checksum {checksum} does not match.")
    return document


class _Arrays:
    """Reads the arrays of a file as copies, whose total size is limited."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._checked: set[str] = set()
        self._left = max(_MOST_BYTES, _BYTES_PER_BYTE * path.stat().st_size)

    def read(self, name: str, kind: str) -> NDArray[Any]:
        """Read an array, and verify its checksum, which is its name."""
        if kind not in _KINDS:
            raise FileError(f"{self._path} holds an array of the unknown type {kind!r:.80}.")
        stored: NDArray[Any] = self._file.get_tensor(name)
        if stored.dtype.name != kind and (stored.dtype.name, kind) != ("int32", "int64"):
            raise FileError(f"{self._path} announces {kind} but holds {stored.dtype.name}.")
        array = stored.astype(kind, copy=False)
        self._left -= array.nbytes
        if self._left < 0:
            raise FileError(
                f"{self._path} needs far more memory than its size can justify: save it again."
            )
        if name not in self._checked and _digest(stored) != name:
            raise FileError(
                f"{self._path} is damaged: the checksum of the array {name} does not match."
            )
        self._checked.add(name)
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
        stored = [one.name for one in fields(value) if one.metadata.get("is_stored", True)]
        parts = {name: getattr(value, name) for name in stored}
        if not parts.get("edits", True):
            del parts["edits"]  # So that versions without edits can read the file.
        if isinstance(value, AttentionGraph):
            parts |= {"graph": _readable(value), "kept_by": steps.to_text(value.kept_by)}
        packed = {type(value).__name__: {name: self.pack(part) for name, part in parts.items()}}
        return self._share(packed) if isinstance(value, TokenGraph) else packed

    def _share(self, packed: dict[str, Any]) -> dict[str, int]:
        place = self._places.setdefault(_canonical(packed), len(self.shared))
        if place == len(self.shared):
            self.shared.append(packed)
        return {"$shared": place}

    def _store(self, array: NDArray[Any]) -> list[str]:
        """Store an array, integers in 4 bytes if they fit; return its name and type."""
        kind = array.dtype.newbyteorder("=")
        stored = np.ascontiguousarray(array, kind)
        if kind == np.int64 and (not array.size or abs(array).max() < 2**31):
            stored = stored.astype(np.int32)
        name = _digest(stored)
        self.arrays[name] = stored
        return [name, kind.name]


def _readable(head: AttentionGraph) -> TokenGraph:
    """Give a head's token graph, with its edges listed if `read` would refuse the rule."""
    try:
        check_graph(head.graph, head.attention.nbytes)
    except GraphError:
        key, query = head.graph.edge_index
        rule = rules.Edges.from_pairs(query, key, head.graph.num_queries, head.graph.query_offset)
        return replace(head.graph, rule=rule)
    return head.graph


class _Unpacker:
    """Undoes `_Packer`. It builds only the classes of a fixed table, and checks them.

    Parameters
    ----------
    array : callable
        Reads an array by its name and type.
    size : int
        The size of the file in bytes, which limits the number of shared parts, nested ones too.
    """

    def __init__(self, array: Callable[[str, str], NDArray[Any]], size: int) -> None:
        self._array, self._size = array, size
        self._shared: list[Any] = []
        self._parts: list[int] = []
        self._count = 0

    def unpack_shared(self, shared: list[Any]) -> None:
        for value in shared:
            self._count = 0
            made = self.unpack(value)
            if self._count > self._size:
                raise ValueError("its shared parts are nested, and need more than the file holds")
            self._shared.append(made)
            self._parts.append(self._count)

    def unpack_trace(self, content: dict[str, Any]) -> AttentionTrace:
        stacks = {
            self._text(name): Stack(
                self._text(own_name),
                {_place(layer, head): self.unpack_head(graph) for layer, head, graph in heads},
            )
            for name, own_name, heads in content["stacks"]
        }
        # The first version stored neither the number of generated tokens nor the text.
        generated, text = content.get("generated", 0), self._text(content.get("text", ""))
        return AttentionTrace(stacks, self._text(content["model"]), generated, text=text)

    def unpack_head(self, content: Any) -> AttentionGraph:
        head = self.unpack(content)
        if not isinstance(head, AttentionGraph):
            raise TypeError(f"expected an AttentionGraph, not a {type(head).__name__}")
        return head

    def _text(self, value: Any) -> str:
        text = self.unpack(value)
        if not isinstance(text, str):
            raise TypeError(f"expected a text, not a {type(text).__name__}")
        return text

    def unpack(self, value: Any) -> Any:
        self._count += 1
        if not isinstance(value, dict):
            return value
        ((mark, content),) = value.items()
        if mark == "$shared":
            return self._find(content)
        if mark == "$array":
            return self._array(*content)
        if mark == "$tensor":
            return torch.from_numpy(self._array(*content))
        if mark == "$edit":
            return edit_records.read(content)
        if mark == "$tuple":
            return tuple(self.unpack(part) for part in content)
        if mark in _CLASSES:
            return self._build(_CLASSES[mark], content)
        return from_json(value)

    def _find(self, place: Any) -> Any:
        if type(place) is not int or not 0 <= place < len(self._shared):
            raise LookupError(f"nothing is shared at {place!r:.80}")
        self._count += self._parts[place]
        return self._shared[place]

    def _build(self, kind: type[Any], content: dict[str, Any]) -> Any:
        parts = {name: self.unpack(part) for name, part in content.items()}
        if kind is AttentionGraph and isinstance(parts.get("kept_by"), str):
            parts["kept_by"] = steps.from_text(parts["kept_by"])
        made = kind(**parts)
        if kind is TokenGraph:
            check_graph(made, self._size)
        return made


def _place(layer: Any, head: Any) -> tuple[int, int]:
    if any(type(number) is not int or number < 0 for number in (layer, head)):
        raise ValueError(f"expected a layer and a head, not {layer!r:.80} and {head!r:.80}")
    return layer, head
