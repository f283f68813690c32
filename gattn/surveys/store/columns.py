"""Writes traces as columns.

A text is one row with lists of structs (`text_row`), which any engine can pass on; on disk, the
lists are tables of their own (`tables_of`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gattn.edit_records import to_text
from gattn.errors import CaptureError
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.surveys.store.scores import Place, encodable, of_one_kind, score_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns: TypeAlias = dict[str, pa.Array]

LISTS = ("edges", "queries", "heads", "tokens")
"""The tables with many rows per text; `texts` and `failures` have one."""

TEXTS = pa.schema(
    [
        ("text_id", pa.int64()),
        ("text", pa.string()),
        ("num_tokens", pa.int32()),
        ("num_edges", pa.int64()),
        ("metadata", pa.string()),
        ("edits", pa.string()),
    ]
)
FAILURES = pa.schema(
    [
        ("text_id", pa.int64()),
        ("reason", pa.string()),
        ("text", pa.string()),
        ("metadata", pa.string()),
    ]
)
VALUES = ("score", "contribution", "value_norm")
"""What an edge may have besides its attention."""

SPECIAL = -1
"""The word number of a special token; null means that words are unknown."""

RULES: Mapping[str, type[rules.Rule]] = {
    rule.__name__: rule
    for rule in (rules.Complete, rules.Causal, rules.Window, rules.Strided, rules.Prefix)
}
"""The rules that are stored as a few numbers; other token graphs are stored as their edges."""


def text_row(
    text_id: int,
    trace: AttentionTrace,
    scores: Mapping[Place, Mapping[str, Any]],
    metadata: str = "{}",
) -> pa.Table:
    """Write a trace as one row.

    Parameters
    ----------
    text_id : int
        The text's number.
    trace : AttentionTrace
        Its trace.
    scores : mapping of (stack, layer, head) to scores
        The scores of each head.
    metadata : str
        A JSON object.
    """
    heads = _ordered(trace)
    columns = {
        "edges": _edges(heads),
        "queries": _queries(heads),
        "heads": _heads(heads, scores),
        "tokens": _tokens(heads, list(trace.stacks)),
    }
    first = heads[0][1].graph
    return _row(
        text_id,
        trace.text or None,  # token ids have none
        metadata,
        num_tokens=first.num_keys,
        num_edges=len(columns["edges"]["key"]),
        edits=to_text(trace.edits) if trace.edits else None,
        lists=columns,
    )


def failed_row(
    text_id: int | None,
    text: str | None,
    metadata: str,
    reason: str,
    num_tokens: int | None = None,
) -> pa.Table:
    """Write a text that could not be captured as one row; invalid Unicode is escaped."""
    text = None if text is None else encodable(text)
    return _row(text_id, text, metadata, num_tokens=num_tokens, reason=encodable(reason))


def _row(
    text_id: int | None,
    text: str | None,
    metadata: str,
    *,
    num_tokens: int | None = None,
    num_edges: int | None = None,
    edits: str | None = None,
    reason: str | None = None,
    lists: Mapping[str, Columns] | None = None,
) -> pa.Table:
    row = {
        "text_id": pa.array([text_id], pa.int64()),
        "text": pa.array([text], pa.string()),
        "metadata": pa.array([metadata], pa.string()),
        "reason": pa.array([reason], pa.string()),
        "num_tokens": pa.array([num_tokens], pa.int32()),
        "num_edges": pa.array([num_edges], pa.int64()),
        "edits": pa.array([edits], pa.string()),
    }
    for name, columns in (lists or {}).items():
        struct = pa.StructArray.from_arrays(list(columns.values()), list(columns))
        row[name] = pa.LargeListArray.from_arrays(pa.array([0, len(struct)], pa.int64()), struct)
    return pa.table(row)


def joined(rows: Sequence[pa.Table]) -> pa.Table:
    """Stack rows without copying; the lists of a failure are null."""
    none = failed_row(None, None, "{}", "").slice(0, 0)
    return pa.concat_tables([none, *of_one_kind(rows)], promote_options="permissive")


def tables_of(rows: pa.Table) -> dict[str, pa.Table]:
    """Split rows into the tables of a survey, leaving out empty ones."""
    failed = pc.is_valid(rows["reason"]).to_numpy()
    captured, failures = _chosen(rows, ~failed), _chosen(rows, failed)
    tables = {"texts": captured.select(TEXTS.names).cast(TEXTS)}
    if len(failures):
        tables["failures"] = failures.select(FAILURES.names).cast(FAILURES)
    if len(captured):
        tables |= {name: _flat(captured, name) for name in LISTS}
    return tables


def _chosen(rows: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
    """Select rows by slicing; filtering would copy all edges."""
    return pa.concat_tables([rows.slice(0, 0), *(rows.slice(n, 1) for n in np.flatnonzero(chosen))])


def _flat(rows: pa.Table, name: str) -> pa.Table:
    """Write the structs of each list as rows that begin with their text's number."""
    chunks = []
    for batch in rows.select(["text_id", name]).to_batches():
        lists = batch.column(1)
        structs = lists.flatten()
        text_id = np.repeat(batch.column(0).to_numpy(), np.diff(lists.offsets.to_numpy()))
        columns = dict(zip((one.name for one in structs.type), structs.flatten(), strict=True))
        # A column that is null in the whole part is left out: in other parts it may hold text.
        known = {name: one for name, one in columns.items() if not pa.types.is_null(one.type)}
        chunks.append(pa.table({"text_id": text_id, **known}))
    return pa.concat_tables(chunks, promote_options="permissive")


def _ordered(trace: AttentionTrace) -> list[tuple[Place, AttentionGraph]]:
    found = [
        ((name, *place), stack[place])
        for name, stack in sorted(trace.stacks.items())
        for place in sorted(stack)
    ]
    if not found:
        raise CaptureError("The trace has no heads: there is nothing to store.")
    for place, head in found:
        if head.positions is not None or head.query_positions is not None or head.generated:
            raise CaptureError(
                f"The head {place} has chosen or generated tokens; a survey stores whole texts."
            )
    return found


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


def _edges(heads: Sequence[tuple[Place, AttentionGraph]]) -> Columns:
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


def _queries(heads: Sequence[tuple[Place, AttentionGraph]]) -> Columns:
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


def _heads(
    heads: Sequence[tuple[Place, AttentionGraph]], scores: Mapping[Place, Mapping[str, Any]]
) -> Columns:
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
    names = dict.fromkeys(name for row in scores.values() for name in row)
    for name in names:
        if name not in columns:
            columns[name] = score_column([scores.get(place, {}).get(name) for place, _ in heads])
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


def _tokens(heads: Sequence[tuple[Place, AttentionGraph]], stacks: Sequence[str]) -> Columns:
    """List the tokens of each stack: one list, or keys and queries if they differ."""
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
