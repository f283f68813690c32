"""Writes the heads of a trace as columns of the tables of a survey."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from gattn.errors import CaptureError
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.surveys.store.scores import Place, score_column

if TYPE_CHECKING:
    from numpy.typing import NDArray
Columns: TypeAlias = dict[str, pa.Array]
VALUES = ("score", "contribution", "value_norm")
"""What an edge may have besides its attention."""
SPECIAL = -1
"""The word number of a special token; null means that words are unknown."""
RULES: Mapping[str, type[rules.Rule]] = {
    rule.__name__: rule
    for rule in (rules.Complete, rules.Causal, rules.Window, rules.Strided, rules.Prefix)
}
"""The rules that are stored as a few numbers; other token graphs are stored as their edges."""


def _repeated(heads: Sequence[tuple[Place, AttentionGraph]], sizes: Sequence[int]) -> Columns:
    """Make the columns that name the head of each row."""
    stack, layer, head = zip(*(place for place, _ in heads), strict=True)
    names = sorted(set(stack))
    number = np.repeat(np.array([names.index(one) for one in stack], np.int32), sizes)
    return {
        "stack": pa.DictionaryArray.from_arrays(number, pa.array(names, pa.string())).cast(
            pa.string()
        ),
        "layer": pa.array(np.repeat(np.array(layer, np.int32), sizes)),
        "head": pa.array(np.repeat(np.array(head, np.int32), sizes)),
    }


def edge_columns(heads: Sequence[tuple[Place, AttentionGraph]]) -> Columns:
    """Make the columns of the table edges."""
    graphs = [graph for _, graph in heads]
    columns = _repeated(heads, [graph.graph.num_edges for graph in graphs])
    columns["query"] = pa.array(np.concatenate([graph.query for graph in graphs]).astype(np.int32))
    columns["key"] = pa.array(np.concatenate([graph.key for graph in graphs]).astype(np.int32))
    columns["attention"] = pa.array(np.concatenate([graph.attention for graph in graphs]))
    for name in VALUES:
        if any(getattr(graph, name) is not None for graph in graphs):
            parts = [_values(getattr(graph, name), graph) for graph in graphs]
            columns[name] = pa.concat_arrays(parts)
    return columns


def _values(values: NDArray[Any] | None, graph: AttentionGraph) -> pa.Array:
    kind = pa.from_numpy_dtype(graph.attention.dtype)
    return pa.nulls(len(graph.attention), kind) if values is None else pa.array(values, kind)


def query_columns(heads: Sequence[tuple[Place, AttentionGraph]]) -> Columns:
    """Make the columns of the table queries."""
    graphs = [graph for _, graph in heads]
    sizes = [graph.graph.num_queries for graph in graphs]
    columns = _repeated(heads, sizes)
    columns["query"] = pa.array(np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]))
    columns["total_mass"] = pa.array(np.concatenate([graph.total_mass for graph in graphs]))
    edges = np.concatenate([graph.total_edges for graph in graphs])
    columns["total_edges"] = pa.array(edges.astype(np.int32))
    if any(graph.sink is not None for graph in graphs):
        kind = columns["total_mass"].type
        columns["sink"] = pa.concat_arrays(
            [
                pa.nulls(size, kind) if graph.sink is None else pa.array(graph.sink, kind)
                for graph, size in zip(graphs, sizes, strict=True)
            ]
        )
    return columns


def head_columns(
    heads: Sequence[tuple[Place, AttentionGraph]], scores: Mapping[Place, Mapping[str, Any]]
) -> Columns:
    """Make the columns of the table heads, with scores."""
    graphs = [graph for _, graph in heads]
    columns = _repeated(heads, [1] * len(heads))
    columns["key_value_head"] = pa.array([graph.key_value_head for graph in graphs], pa.int32())
    columns["num_edges"] = pa.array([graph.graph.num_edges for graph in graphs], pa.int64())
    shares = np.array([graph.share_kept for graph in graphs])
    columns["kept"] = pa.array(shares, pa.float64(), mask=np.isnan(shares))
    for name in ("weight_function", "normalizer"):
        columns[name] = pa.array([getattr(graph, name) for graph in graphs], pa.string())
    columns["kept_by"] = pa.array([steps.to_text(graph.kept_by) for graph in graphs], pa.string())
    columns["graph"] = pa.array([_shape(graph.graph) for graph in graphs])
    rows = [scores.get(place, {}) for place, _ in heads]
    for name in dict.fromkeys(name for row in scores.values() for name in row):
        if name not in columns:
            columns[name] = score_column([row.get(name) for row in rows])
    return columns


def _shape(graph: TokenGraph) -> str:
    """Write what the edges do not say about a token graph: its sizes, and a simple rule."""
    shape: dict[str, Any] = {
        "num_queries": graph.num_queries,
        "num_keys": graph.num_keys,
        "query_offset": graph.query_offset,
        "is_bipartite": graph.is_bipartite,
    }
    name = type(graph.rule).__name__
    if name in RULES:
        shape["rule"] = [name, *(getattr(graph.rule, f.name) for f in fields(RULES[name]))]  # type: ignore[arg-type]
    return json.dumps(shape)


def token_columns(heads: Sequence[tuple[Place, AttentionGraph]], stacks: Sequence[str]) -> Columns:
    """Make the columns of the table tokens: one list per stack, or keys and queries."""
    rows: list[tuple[str, str, int, str, int | None]] = []
    known: dict[str, tuple[Any, ...]] = {}
    for (stack, layer, head), graph in heads:
        own = (graph.tokens, graph.query_tokens, graph.words)
        if known.setdefault(stack, own) != own:
            raise CaptureError(
                f"Layer {layer}, head {head} of the {stack} stack has other tokens than the heads "
                "before it; a survey stores one list of tokens per stack."
            )
    for stack in sorted(known, key=stacks.index):
        tokens, query_tokens, words = known[stack]
        role = "key" if query_tokens else "token"
        numbers = words or (None,) * len(tokens)
        for position, (token, word) in enumerate(zip(tokens, numbers, strict=True)):
            number = SPECIAL if words and word is None else word
            rows.append((stack, role, position, token, number))
        rows += [(stack, "query", n, token, None) for n, token in enumerate(query_tokens)]
    names = ("stack", "role", "position", "token", "word")
    kinds = (pa.string(), pa.string(), pa.int32(), pa.string(), pa.int32())
    lists = list(zip(*rows, strict=True)) or [()] * len(names)
    return {
        name: pa.array(list(values), kind)
        for name, values, kind in zip(names, lists, kinds, strict=True)
    }
