"""Packs an attention graph as a block of a page: its numbers, rounded and compressed.

A block is base64 of raw deflate of these arrays, one after the other, little endian, each as byte
planes (the lowest bytes of all its numbers, then the next ones):

- if the pattern is "explicit": the number of edges of each query, u32; the key of each edge, u32,
  minus the previous key of its query if there is one. The patterns "complete" (all keys) and
  "causal" (the keys 0 .. i + offset of query i) store no edges;
- for each kind of value in the header's order, u16 per edge: u means
  ``low + u * (high - low) / levels``, and 65535 means no value, such as a score of -inf;
- the attention of each query before edges were dropped, f32;
- if there is a sink, the attention that each query gave it, u16 in the same code.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.graph.rules.simple import Causal
from gattn.heads.head import AttentionGraph, Floats

LEVELS = 65534
"""How many steps the finest code has from the least to the largest value."""

_NONE = 65535


@dataclass(frozen=True)
class Packed:
    """The bytes of a graph, and its entry in the header."""

    data: bytes
    entry: dict[str, Any]


def pack(head: AttentionGraph, levels: int) -> Packed:
    """Pack a graph's numbers.

    Parameters
    ----------
    head : AttentionGraph
        The graph.
    levels : int
        How many steps the code has from the least to the largest value.

    Returns
    -------
    Packed
        The bytes, not yet compressed, and ``pattern``, ``values`` and ``sink`` for the header.
    """
    pattern = pattern_of(head)
    parts = _edges(head) if pattern == "explicit" else []
    scales = {name: _scale(name, values) for name, values in head.edge_values.items()}
    for name, values in head.edge_values.items():
        parts.append(planes(_coded(values, *scales[name], levels)))
    parts.append(planes(head.total_mass.astype("<f4")))
    sink = None
    if head.sink is not None:
        sink = _scale("attention", head.sink)
        parts.append(planes(_coded(head.sink, *sink, levels)))
    return Packed(b"".join(parts), {"pattern": pattern, "values": scales, "sink": sink})


def pattern_of(head: AttentionGraph) -> str:
    """Classify the edges: "complete", "causal", or "explicit" if they must be listed."""
    graph = head.graph
    if graph.num_keys != graph.num_tokens:
        return "explicit"
    degree = graph.in_degree.numpy()
    if (degree == graph.num_keys).all():
        return "complete"
    ends = np.minimum(np.arange(graph.num_queries) + graph.query_offset + 1, graph.num_keys)
    if graph.is_bipartite or not np.array_equal(degree, ends) or not ends.all():
        return "explicit"
    if isinstance(graph.rule, Causal) or np.array_equal(head.key[np.cumsum(ends) - 1], ends - 1):
        return "causal"
    return "explicit"


def deflated(data: bytes) -> bytes:
    """Compress runs only, which is smaller and faster here than searching for repeats."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return deflate.compress(data) + deflate.flush()


def block(data: bytes) -> str:
    """Compress bytes and write them as base64."""
    return b64encode(deflated(data)).decode("ascii")


def _edges(head: AttentionGraph) -> list[bytes]:
    key, start = head.key, head.graph.pointer.numpy()[:-1]
    step = np.diff(key, prepend=0)
    first = start[start < len(key)]
    step[first] = key[first]
    return [planes(numbers.astype("<u4")) for numbers in (head.graph.in_degree.numpy(), step)]


def _scale(name: str, values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    least, largest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return (min(0.0, least), max(1.0, largest)) if name == "attention" else (least, largest)


def _coded(values: Floats, low: float, high: float, levels: int) -> NDArray[np.uint16]:
    step = (high - low) / levels or 1.0
    coded = (values.astype(np.float64) - low) / step
    return np.where(np.isfinite(coded), np.rint(coded), _NONE).astype("<u2")


def planes(numbers: NDArray[Any]) -> bytes:
    """Write numbers as byte planes."""
    data = np.ascontiguousarray(numbers)
    return data.view(np.uint8).reshape(-1, data.itemsize).T.tobytes()


def rounded_up(size: float) -> str:
    """Write two digits, rounded up."""
    written = Context(prec=2, rounding=ROUND_CEILING).create_decimal(size)
    return np.format_float_positional(float(written), trim="-")
