"""Rebuilds traces from the columns of a survey."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gattn.edit_records import from_text
from gattn.errors import FileError
from gattn.files.checking import check_graph
from gattn.files.plain import parsed
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.surveys.store.columns import RULES, SPECIAL, VALUES
from gattn.surveys.store.scores import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def trace_of(tables: Mapping[str, pa.Table], model: str) -> AttentionTrace:
    """Rebuild the trace of a text from its rows; it has the heads that the tables have."""
    try:
        return _trace(tables, model)
    except Exception as error:  # Foreign files can fail in any way.
        found = ", ".join(map(str, tables["texts"]["text_id"].to_pylist()))
        raise FileError(
            f"The rows of text {found} do not form a trace ({error!r:.400}): write the survey "
            "again."
        ) from error


def _trace(tables: Mapping[str, pa.Table], model: str) -> AttentionTrace:
    names = _names(tables["tokens"])
    edges, queries = (_by_head(tables[name]) for name in ("edges", "queries"))
    none = {name: column[:0].to_numpy() for name, column in _columns(tables["edges"]).items()}
    edits = _edits(tables["texts"])
    stacks: dict[str, dict[tuple[int, int], AttentionGraph]] = {}
    for row in tables["heads"].to_pylist():
        place = (row["stack"], row["layer"], row["head"])
        facts = names[row["stack"]] | edits
        if len(names) > 1:
            facts["stack"] = row["stack"]
        head = _graph(row, edges.get(place, none), queries[place], facts, model)
        stacks.setdefault(row["stack"], {})[row["layer"], row["head"]] = head
    text = tables["texts"]["text"][0].as_py() or ""
    named = {name: Stack(name, stacks[name]) for name in names if name in stacks}
    return AttentionTrace(named, model, text=text)


def _edits(texts: pa.Table) -> dict[str, Any]:
    """Read the edits that a text ran with; the first versions did not store them."""
    told = texts["edits"][0].as_py() if "edits" in texts.column_names else None
    return {"edits": from_text(told)} if told else {}


def _by_head(table: pa.Table) -> dict[Place, dict[str, NDArray[Any]]]:
    """Split sorted rows by head."""
    columns: dict[str, Any] = {name: one.to_numpy() for name, one in _columns(table).items()}
    stack = table["stack"].combine_chunks().dictionary_encode()
    code = stack.indices.to_numpy()
    layer, head = table["layer"].to_numpy(), table["head"].to_numpy()
    change = np.flatnonzero((np.diff(code) != 0) | (np.diff(layer) != 0) | (np.diff(head) != 0))
    starts = [0, *(change + 1).tolist()] if len(table) else []
    stops = [*starts[1:], len(table)]
    names = stack.dictionary.to_pylist()
    found = {
        (names[code[start]], int(layer[start]), int(head[start])): {
            name: values[start:stop] for name, values in columns.items()
        }
        for start, stop in zip(starts, stops, strict=False)
    }
    if len(found) < len(starts):
        raise ValueError("the rows of a head are not next to each other")
    return found


def _columns(table: pa.Table) -> dict[str, Any]:
    """Return the columns other than those that name the head."""
    names = [name for name in table.column_names if name not in ("stack", "layer", "head")]
    return {name: table[name] for name in names}


def _names(tokens: pa.Table) -> dict[str, dict[str, Any]]:
    """Return the token names of each stack, as `AttentionGraph` takes them."""
    names: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"tokens": [], "query_tokens": [], "words": []}
    )
    for row in tokens.to_pylist():
        own = names[row["stack"]]
        own["query_tokens" if row["role"] == "query" else "tokens"].append(row["token"])
        if row["word"] is not None:
            own["words"].append(None if row["word"] == SPECIAL else row["word"])
    return names


def _graph(
    row: Mapping[str, Any],
    edges: Mapping[str, NDArray[Any]],
    queries: Mapping[str, NDArray[Any]],
    facts: Mapping[str, Any],
    model: str,
) -> AttentionGraph:
    shape = parsed(row["graph"])
    query = edges["query"]
    if row["num_edges"] != len(query):
        raise ValueError(f"{len(query)} edges of {row['num_edges']}")
    if shape["num_queries"] != len(queries["query"]):
        raise ValueError(f"{len(queries['query'])} queries for the graph {row['graph']:.200}")
    rule = shape.pop("rule", None)
    if rule is not None:
        shape["rule"] = RULES[rule[0]](*rule[1:])
    else:
        if (np.diff(query, append=shape["num_queries"] - 1) < 0).any():
            raise ValueError("the edges are out of order, or of queries that are not there")
        degree = np.bincount(query, minlength=shape["num_queries"])
        pointer = torch.from_numpy(np.concatenate([[0], degree.cumsum()]))
        key = torch.from_numpy(edges["key"].astype(np.int64))
        shape["rule"] = rules.Edges(pointer, key, shape["query_offset"])
    graph = TokenGraph(**shape)
    check_graph(graph, edges["attention"].nbytes)
    further: dict[str, Any] = {
        name: tuple(some) if isinstance(some, list) else some for name, some in facts.items()
    }
    further |= {name: edges[name] for name in VALUES if _is_known(edges.get(name))}
    sink = queries.get("sink")
    return AttentionGraph(
        graph,
        edges["attention"],
        queries["total_mass"],
        queries["total_edges"].astype(np.int64),
        sink=sink if _is_known(sink) else None,
        layer=row["layer"],
        head=row["head"],
        key_value_head=row["key_value_head"],
        model=model,
        weight_function=row["weight_function"],
        normalizer=row["normalizer"],
        kept_by=steps.from_text(row["kept_by"]),
        **further,
    )


def _is_known(values: NDArray[Any] | None) -> bool:
    """Return whether values were stored: null is read as NaN, which stored values never are."""
    return values is not None and not (len(values) and bool(np.isnan(values).all()))
