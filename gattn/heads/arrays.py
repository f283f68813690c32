"""Arrays of attention as attention graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.edit_records import from_identity
from gattn.errors import GraphError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.edge_lists import as_floats, texts
from gattn.heads.head import AttentionGraph
from gattn.heads.labelled import Labelled, is_labelled, read_labelled
from gattn.heads.merging import unless_counted
from gattn.keep import All, Keep, as_keep

_SIZES = "(layers, heads, queries, keys)"


def heads_from(
    attention: Any,
    tokens: Sequence[str] = (),
    *,
    query_tokens: Sequence[str] = (),
    graph: TokenGraph | None = None,
    keep: Keep = All(),  # noqa: B008
    model: str = "",
) -> dict[tuple[int, int], AttentionGraph]:
    """Build the heads of a trace, by (layer, head); see `AttentionTrace.from_arrays`."""
    keep = as_keep(keep)
    if graph is not None and not isinstance(graph, TokenGraph):
        raise GraphError(
            f"graph must be a TokenGraph, such as TokenGraph.causal(5), not {graph!r}."
        )
    tokens, query_tokens = texts(tokens, "tokens"), texts(query_tokens, "query_tokens")
    labels = read_labelled(attention) if is_labelled(attention) else None
    layers = list(_layers(attention if labels is None else labels.numbers))
    for n, layer in enumerate(layers):
        _check_layer(layer, n, layers[0])
    names: dict[str, Any] = {"tokens": tokens, "query_tokens": query_tokens}
    if graph is None:
        is_bipartite = bool(query_tokens) or (labels is not None and not labels.is_square)
        graph = _graph_of(layers, is_bipartite=is_bipartite)
    graph = graph.to("cpu").sorted()
    if labels is not None:
        names = _names_of(labels, graph, names)
    heads = {}
    for n, layer in enumerate(layers):
        for h, matrix in enumerate(layer):
            place = (n, h) if labels is None else (labels.layers[n], labels.heads[h])
            heads[place] = _head(
                matrix, graph, keep, layer=place[0], head=place[1], model=model, **names
            )
    return heads


def _names_of(labels: Labelled, graph: TokenGraph, given: dict[str, Any]) -> dict[str, Any]:
    """Return what heads keep of an array's labels, and refuse what they cannot keep."""
    if labels.holds_residual:
        raise ShapeError(
            "This array includes the residual stream, which a trace cannot hold: pass the array "
            "itself to the analyses."
        )
    found = {"tokens": labels.key_tokens, "query_tokens": labels.query_tokens}
    for name, side in (("tokens", "key"), ("query_tokens", "query")):
        if given[name] and found[name]:
            raise ShapeError(f"The array names its tokens, as {side}_token: leave out {name}=.")
    names = {name: given[name] or some for name, some in found.items()}
    places: dict[str, Any] = {
        "positions": unless_counted(np.array(labels.keys)),
        "edits": tuple(map(from_identity, labels.edits)),
    }
    if graph.is_bipartite:
        return places | names | {"query_positions": unless_counted(np.array(labels.queries))}
    start, stop = graph.query_offset, graph.query_offset + len(labels.queries)
    queries, keys = labels.queries, labels.keys
    if labels.is_square and not names["tokens"]:
        names["tokens"] = names["query_tokens"]
    rows = names["tokens"][start:stop]
    if keys[start:stop] != queries or (names["query_tokens"] or rows) != rows:
        raise ShapeError(
            "The labels of query and key are of different tokens: if that is so, pass graph="
            f"TokenGraph.bipartite({len(queries)}, {len(keys)})."
        )
    return places | {"tokens": names["tokens"]}


def _head(matrix: Tensor, graph: TokenGraph, keep: Keep, **attributes: Any) -> AttentionGraph:
    head = AttentionGraph.from_dense(matrix, graph, **attributes)
    dense = matrix.cpu().numpy()
    if np.count_nonzero(dense) > np.count_nonzero(head.attention):
        query, key = np.argwhere((dense != 0) & (head.to_dense() == 0))[0].tolist()
        raise GraphError(
            f"Layer {head.layer}, head {head.head} has attention {dense[query, key]:.3g} of query "
            f"{query} to key {key}, where {graph} has no edge: give the token graph of the model."
        )
    return head if isinstance(keep, All) else head.keep(keep)


def _layers(attention: Any) -> Iterator[Tensor]:
    """Iterate over the layers, each (heads, queries, keys)."""
    if isinstance(attention, (list, tuple)):
        for n, part in enumerate(attention):
            yield _one_layer(part, n)
        return
    if hasattr(attention, "attentions"):
        raise ShapeError(f"Pass the .attentions of the {type(attention).__name__}.")
    values = as_floats(attention, "attention")
    if values.dim() != 4:
        raise ShapeError(
            f"Attention is an array {_SIZES}, or a list of layers (heads, queries, keys), not "
            f"{tuple(values.shape)}; for one matrix there is AttentionGraph.from_dense."
        )
    yield from values


def _one_layer(part: Any, n: int) -> Tensor:
    if part is None:
        raise ShapeError(f"Layer {n} has no attention: leave such layers out.")
    if isinstance(part, tuple):
        raise ShapeError(
            f"Layer {n} is a tuple of {len(part)}: what generate() gives are steps of layers. Pass "
            "one step's layers, or capture(prompt, ..., generate=...) for all of them."
        )
    values = as_floats(part, "attention")
    if values.dim() == 4 and len(values) != 1:
        raise ShapeError(
            f"Layer {n} holds a batch of {len(values)} texts: choose one, as in "
            "[layer[0] for layer in attentions], and leave out its padding."
        )
    values = values[0] if values.dim() == 4 else values
    if values.dim() != 3:
        raise ShapeError(
            f"A layer is (heads, queries, keys), but layer {n} is {tuple(values.shape)}."
        )
    return values


def _check_layer(layer: Tensor, n: int, first: Tensor) -> None:
    if layer.shape[1:] != first.shape[1:]:
        raise ShapeError(
            f"Layer {n} has queries and keys {tuple(layer.shape[1:])}, layer 0 has "
            f"{tuple(first.shape[1:])}: a trace is of one text."
        )
    if 0 in layer.shape:
        raise ShapeError(f"Layer {n} is empty: {tuple(layer.shape)}.")
    if not bool(torch.isfinite(layer).all()):
        head, query, key = (~torch.isfinite(layer)).nonzero()[0].tolist()
        raise ShapeError(
            f"Layer {n}, head {head} gives query {query} and key {key} "
            f"{float(layer[head, query, key])}: attention must be finite. Leave out padding and "
            "rows that attend to nothing."
        )


def _graph_of(layers: Sequence[Tensor], *, is_bipartite: bool) -> TokenGraph:
    """Return who may attend: a causal graph if no head of any layer attends to a later token."""
    if not layers:
        raise ShapeError("There are no layers.")
    queries, keys = layers[0].shape[1:]
    if is_bipartite or queries != keys:
        return TokenGraph.bipartite(queries, keys)
    ahead = any(bool(layer.triu(1).any()) for layer in layers)
    return TokenGraph.complete(keys) if ahead else TokenGraph.causal(keys)
