"""Attention graphs as tables of edges, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.edit_records import from_identity, identities
from gattn.errors import GraphError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.geometry import Geometry, written
from gattn.heads.given.columns import Nodes, check_columns, numbers_in
from gattn.heads.given.edge_lists import (
    Duplicates,
    from_edges,
    of_edges,
    refuse_counted,
    texts,
    with_arrays,
)

if TYPE_CHECKING:
    import pandas as pd

    from gattn.heads.head import AttentionGraph

_OTHERS = ("score", "contribution", "value_norm")
_ARRAYS = ("total_mass", "total_edges", "sink", "positions", "query_positions")
_PLAIN = (
    *("tokens", "query_tokens", "words", "generated", "layer", "head", "key_value_head"),
    *("model", "weight_function", "normalizer", "stack", "segments"),
)
_GEOMETRIES = ("geometry", "query_geometry")
_GRAPH = ("num_queries", "num_keys", "query_offset", "is_bipartite")


def to_pandas(head: AttentionGraph) -> pd.DataFrame:
    """List the edges: positions and tokens of query and key, and their `edge_values`.

    What rows of edges cannot hold is in the frame's ``attrs``, which CSV loses and Parquet keeps:
    the model's edits in ``attrs["edits"]``, and in ``attrs["gattn"]``, for `from_pandas`, the
    tokens and each query's whole attention.
    """
    import pandas as pd

    keys, queries = head.node_ids()
    key_tokens, query_tokens = head.labels(), head.query_labels()
    tokens = {
        "query_token": [query_tokens[i] for i in head.query],
        "key_token": [key_tokens[i] for i in head.key],
    }
    table = {
        "query": [queries[i] for i in head.query],
        "key": [keys[i] for i in head.key],
        # Arrow, in which pandas stores text, refuses lone surrogates.
        **{name: pd.Series(texts, dtype=object) for name, texts in tokens.items()},
        **head.edge_values,
    }
    made = pd.DataFrame(table)
    if head.edits:
        made.attrs["edits"] = identities(head.edits)
    made.attrs["gattn"] = _facts(head)
    return made


def _facts(head: AttentionGraph) -> str:
    """Write what rows cannot hold as one text, which pandas need not copy with every frame."""
    arrays = {name: getattr(head, name) for name in _ARRAYS}
    facts = {name: values.tolist() for name, values in arrays.items() if values is not None}
    facts |= {name: getattr(head, name) for name in _PLAIN}
    for name in _GEOMETRIES:
        if (places := getattr(head, name)) is not None:
            axes = {axis: values.tolist() for axis, values in places.coordinates().items()}
            facts[name] = [written.to_text(places), axes]
    graph = {name: getattr(head.graph, name) for name in _GRAPH}
    return json.dumps(facts | {"graph": graph, "kept_by": steps.to_text(head.kept_by)})


def from_pandas(
    cls: type[AttentionGraph],
    /,
    frame: pd.DataFrame,
    tokens: Sequence[str] = (),
    *,
    query_tokens: Sequence[str] = (),
    num_tokens: int | None = None,
    num_queries: int | None = None,
    num_keys: int | None = None,
    query: str = "query",
    key: str = "key",
    attention: str = "attention",
    duplicates: Duplicates = "error",
    **attributes: Any,
) -> AttentionGraph:
    """Read a table of edges, one per row, in any order.

    A frame that `to_pandas` made comes back complete: rows removed since count as dropped. For any
    other frame give the tokens, or how many there are; then no edge counts as dropped.

    Parameters
    ----------
    frame : DataFrame
        Its columns `query` and `key` hold positions, or texts of `tokens` that occur once. Columns
        ``score``, ``contribution`` and ``value_norm`` are read if they are there, and ``layer`` and
        ``head`` if they hold one number; `AttentionTrace.from_pandas` reads several heads.
    tokens : sequence of str
        The tokens' texts (of the keys, if `query_tokens` are given).
    query_tokens : sequence of str
        The queries' texts, in cross-attention.
    num_tokens : int, optional
        How many tokens there are, if they have no texts.
    num_queries, num_keys : int, optional
        The same in cross-attention.
    query, key, attention : str
        The columns of the queries, the keys, and the attention that each query gives its key.
    duplicates : "error" or "sum"
        Whether an edge given several times is an error, or has the sum of its attention.
    **attributes
        Further fields of `AttentionGraph`, such as ``layer``. With ``positions``, the positions in
        the frame are these.

    Raises
    ------
    GraphError
        If a column is missing, an edge is given twice or its token does not exist, or the number of
        tokens is not known.
    ShapeError
        If a column holds something else.
    CaptureError
        If a number is not finite.

    Examples
    --------
    >>> edges = {"query": ["dog", "dog"], "key": ["the", "dog"], "weight": [0.3, 0.7]}
    >>> frame = pd.DataFrame(edges)
    >>> AttentionGraph.from_pandas(frame, ["the", "dog"], attention="weight").to_dense().tolist()
    [[0.0, 0.0], [0.3, 0.7]]
    """
    check_columns(frame, query, key, attention)
    refuse_counted(attributes)
    names = {"query": query, "key": key, "attention": attention}
    attributes = _one_place(frame, names) | _edits(frame) | with_arrays(cls, attributes)
    numbers = {name: numbers_in(frame, name) for name in _OTHERS if name in frame.columns}
    values = numbers_in(frame, attention)
    is_sized = any(size is not None for size in (num_tokens, num_queries, num_keys))
    if is_sized or len(tokens) or len(query_tokens) or "gattn" not in frame.attrs:
        tokens, query_tokens = texts(tokens, "tokens"), texts(query_tokens, "query_tokens")
        is_bipartite = bool(query_tokens) or num_queries is not None
        sides = Nodes(tokens, attributes.get("positions"))
        rows = Nodes(query_tokens, attributes.get("query_positions")) if is_bipartite else sides
        index = np.stack([sides.find(frame[key]), rows.find(frame[query])])
        return from_edges(
            cls, index, values, tokens, query_tokens=query_tokens, num_tokens=num_tokens,
            num_queries=num_queries, num_keys=num_keys, duplicates=duplicates,
            **numbers, **attributes,
        )  # fmt: skip
    facts = _read_facts(frame)
    index, graph = _known_edges(frame[key], frame[query], facts)
    read = of_edges(index, graph, {"attention": values, **numbers}, duplicates)
    kind = read["attention"].dtype
    for name in _ARRAYS:
        if name in facts:
            is_mass = name in ("total_mass", "sink")
            read[name] = np.array(facts[name], dtype=kind if is_mass else np.int64)
    read |= {name: _plain(facts[name]) for name in _PLAIN if name in facts}
    read |= {name: _geometry(*facts[name]) for name in _GEOMETRIES if name in facts}
    return cls(**(read | {"kept_by": steps.from_text(facts["kept_by"])} | attributes))


def _one_place(frame: pd.DataFrame, names: Mapping[str, str]) -> dict[str, Any]:
    """Read the columns layer and head, and refuse several heads or texts in one frame."""
    found: dict[str, Any] = {}
    for name in ("text_id", "stack", "layer", "head"):
        if name not in frame.columns or name in names.values() or not len(frame):
            continue
        several = frame[name].unique().tolist()
        if len(several) > 1:
            instead = (
                f"choose one, as in frame[frame[{name!r}] == {several[0]!r}]"
                if name == "text_id"
                else "AttentionTrace.from_pandas reads several heads"
            )
            raise GraphError(
                f"An attention graph is of one head, but the frame's column {name!r} has "
                f"{len(several)} values: {instead}."
            )
        if name in ("layer", "head"):
            found[name] = several[0]
    return found


def _edits(frame: pd.DataFrame) -> dict[str, Any]:
    edits = frame.attrs.get("edits", ())
    return {"edits": tuple(map(from_identity, edits))} if edits else {}


def _read_facts(frame: pd.DataFrame) -> dict[str, Any]:
    try:
        facts = json.loads(frame.attrs["gattn"])
        graph = facts["graph"]
        sizes = [int(graph[name]) for name in _GRAPH[:3]]
        is_whole = len(facts["total_mass"]) == sizes[0] and "kept_by" in facts
    except (TypeError, ValueError, LookupError) as error:
        raise GraphError(
            "The frame's attrs['gattn'] is not what to_pandas wrote: give tokens= or num_tokens=."
        ) from error
    if not is_whole:
        raise GraphError("The frame's attrs['gattn'] is damaged: give tokens= or num_tokens=.")
    read: dict[str, Any] = facts
    return read


def _known_edges(
    keys: pd.Series[Any], queries: pd.Series[Any], facts: Mapping[str, Any]
) -> tuple[NDArray[np.int64], TokenGraph]:
    """Read the edges [key; query row] and their graph, where all about the tokens is known."""
    graph = facts["graph"]
    offset = graph["query_offset"]
    nodes = Nodes(facts["tokens"], facts.get("positions"))
    is_bipartite = bool(graph["is_bipartite"])
    key = nodes.find(keys)
    if is_bipartite:
        query = Nodes(facts["query_tokens"], facts.get("query_positions")).find(queries)
    else:
        query = nodes.find(queries) - offset
    for name, places, size in (
        (keys.name, key, graph["num_keys"]),
        (queries.name, query, graph["num_queries"]),
    ):
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
            raise GraphError(
                f"The column {name!r} names tokens that the frame's graph does not have: give "
                "tokens= or num_tokens=."
            )
    pairs = torch.from_numpy(query), torch.from_numpy(key)
    rule = Edges.from_pairs(*pairs, graph["num_queries"], offset)
    made = TokenGraph(rule, graph["num_queries"], graph["num_keys"], offset, is_bipartite)
    return np.stack([key, query]), made


def _geometry(text: str, axes: Mapping[str, Any]) -> Geometry:
    try:
        return written.from_text(text, {name: np.array(some) for name, some in axes.items()})
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise GraphError(f"The frame's attrs['gattn'] holds no geometry: {error}.") from error


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
