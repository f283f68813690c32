"""Packs heads and traces as JSON and arrays."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gattn import edit_records
from gattn.edit_records import Described
from gattn.errors import GraphError
from gattn.files.checking import check_graph
from gattn.files.plain import to_json
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.geometry import Geometry
from gattn.heads.geometry.written import KINDS
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

CLASSES: dict[str, type[Any]] = {
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
        *KINDS.values(),
    )
}


def canonical(document: dict[str, Any]) -> str:
    """Write a document as JSON in one way only, for checksums."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(array: NDArray[Any]) -> str:
    """Hash an array, its type and its shape."""
    digest = sha256(f"{array.dtype.name} {array.shape}".encode())
    digest.update(array.data)
    return digest.hexdigest()


class Packer:
    """Turns heads into JSON and arrays; token graphs and tuples are stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.shared: list[Any] = []
        self._places: dict[str, int] = {}

    def pack_trace(self, trace: AttentionTrace) -> dict[str, Any]:
        """Turn a trace into JSON."""
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
        """Turn a head, or anything that a head holds, into JSON."""
        if isinstance(value, torch.Tensor):
            kind = torch.int64 if value.dtype == torch.int32 else value.dtype
            return {"$tensor": self._store(value.detach().to("cpu", kind).numpy())}
        if isinstance(value, np.ndarray):
            return {"$array": self._store(value)}
        if isinstance(value, tuple):
            return self._share({"$tuple": [self.pack(part) for part in value]})
        if isinstance(value, Described):
            return {"$edit": edit_records.written(value)}
        if type(value).__name__ not in CLASSES:
            return to_json(value)
        stored = [one.name for one in fields(value) if one.metadata.get("is_stored", True)]
        parts = {name: getattr(value, name) for name in stored}
        for name in ("edits", "geometry", "query_geometry", "segments"):
            if parts.get(name, True) is None or parts.get(name) == ():
                del parts[name]  # So that versions without it can read the file.
        if isinstance(value, AttentionGraph):
            parts |= {"graph": _readable(value), "kept_by": steps.to_text(value.kept_by)}
        packed = {type(value).__name__: {name: self.pack(part) for name, part in parts.items()}}
        return self._share(packed) if isinstance(value, TokenGraph | Geometry) else packed

    def _share(self, packed: dict[str, Any]) -> dict[str, int]:
        place = self._places.setdefault(canonical(packed), len(self.shared))
        if place == len(self.shared):
            self.shared.append(packed)
        return {"$shared": place}

    def _store(self, array: NDArray[Any]) -> list[str]:
        """Store an array, integers in 4 bytes if they fit; return its name and type."""
        kind = array.dtype.newbyteorder("=")
        stored = np.ascontiguousarray(array, kind)
        if kind == np.int64 and (not array.size or abs(array).max() < 2**31):
            stored = stored.astype(np.int32)
        name = digest_of(stored)
        self.arrays[name] = stored
        return [name, kind.name]


def _readable(head: AttentionGraph) -> TokenGraph:
    """Return a head's token graph, with its edges listed if `read` would refuse the rule.

    A rule of one's own is code, which no file holds.
    """
    try:
        if not _is_known(head.graph.rule):
            raise GraphError(f"{head.graph.rule} is not one of gattn's rules.")
        check_graph(head.graph, head.attention.nbytes)
    except GraphError:
        key, query = head.graph.edge_index
        rule = rules.Edges.from_pairs(query, key, head.graph.num_queries, head.graph.query_offset)
        return replace(head.graph, rule=rule)
    return head.graph


def _is_known(rule: Any) -> bool:
    """Return whether a rule, and all rules in it, are gattn's own."""
    if CLASSES.get(type(rule).__name__) is not type(rule):
        return False
    parts = (getattr(rule, one.name) for one in fields(rule))
    inner = (one for part in parts for one in (part if isinstance(part, tuple) else (part,)))
    return all(_is_known(one) for one in inner if isinstance(one, rules.Rule))
