"""Finds the edges that a softmax over segments shares attention out over: the frames tell.

torch-geometric's softmax is given scores and the node that each belongs to. The other end of each
edge is known to whoever called it: message passing (after self-loops were added), an aggregation,
or a function that has the edge_index. What is found must fit the softmax, or it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.graphs.frames import (
    PROPAGATES,
    arguments_of,
    frame_of_forward,
    frames,
    is_a,
    plain,
)
from gattn.models.doors.graphs.indices import (
    NotNeighboursError,
    are_equal,
    check_inside,
    count_nodes,
    first_known,
)
from gattn.models.read.on_graphs.seen_edges import Ends

_CHOOSE_NODES = ("SelectTopK", "EdgePooling")
"""Their softmax makes scores by which nodes are chosen, not attention."""
_READ_ONLY = {
    "HypergraphConv": "the layer uses each attention twice, from nodes to hyperedges and back, and "
    "the degrees of both count all edges, so that no edit is the removal of an edge"
}
_SIDES = ("src", "dst")
_CALLS = ("_call_impl", "_wrapped_call_impl")
"""The code of torch that calls a module's forward."""


def find_ends(frame: FrameType | None, index: Tensor, num_nodes: int | None) -> Ends | None:
    """Find the edges of a softmax, called from a frame, whose scores belong to nodes `index`.

    Returns
    -------
    Ends or None
        None if it is no attention.

    Raises
    ------
    NotNeighboursError
        If it may be attention, but its edges are not known.
    """
    called = None
    for one in frames(frame):
        module = one.f_locals.get("self")
        name = one.f_code.co_name
        if called is None and isinstance(module, nn.Module):
            called = one
        if name in PROPAGATES and is_a(module, "MessagePassing") and "edge_index" in one.f_locals:
            return _of_message_passing(one, frame, index)
    if called is None:
        return None
    module = called.f_locals["self"]
    if type(module).__name__ in _CHOOSE_NODES:
        return None
    found = _of_listed_edges(frame, called, index, num_nodes)
    if found is None and (is_a(module, "Aggregation") or _is_same(called, "batch", index)):
        found = _of_readout(module, index, num_nodes)
    if found is None:
        raise NotNeighboursError(
            "it takes a softmax over segments, but no edge_index there has these segments as a row"
        )
    return found


# Message passing


def _of_message_passing(frame: FrameType, caller: FrameType | None, index: Tensor) -> Ends:
    known = frame.f_locals
    conv, edge_index, size = known["self"], known["edge_index"], known.get("mutable_size")
    if getattr(conv, "decomposed_layers", 1) > 1:
        raise NotNeighboursError(
            "it attends in several parts (decomposed_layers), which gattn does not read: leave out "
            "decomposed_layers"
        )
    i, j = (1, 0) if conv.flow == "source_to_target" else (0, 1)
    key, query = _rows(edge_index, i, j)
    kind = _edge_type(conv, frame)
    if not are_equal(query, index):
        relation = _relation(frame, caller, query, index)
        if relation is None:
            raise NotNeighboursError(
                "the softmax is not over the edges of each node: its segments are not the "
                f"{'targets' if i else 'sources'} of the edges along which messages pass"
            )
        mask, kind = relation
        key, query = key[mask], query[mask]
    size = list(size) if size is not None else [None, None]
    num_queries = first_known(size[i], size[j])
    num_keys = first_known(size[j], size[i])
    if num_queries is None or num_keys is None:
        num_queries = num_keys = count_nodes(query, key)
    check_inside(query, num_queries)
    check_inside(key, num_keys)
    is_bipartite = num_queries != num_keys or _reads_other_nodes(conv, frame)
    names, sizes, nodes_named = (
        _names(conv, frame, num_keys, num_queries) if is_bipartite else ({}, {}, ())
    )
    nodes = num_keys, num_queries
    adds = _aggregation(conv, frame, caller)
    return Ends(
        *(conv, key, query, *nodes, is_bipartite, kind),
        names=names,
        sizes=sizes,
        keys_by_node=nodes_named,
        aggregation=adds,
    )


def _aggregation(conv: nn.Module, frame: FrameType, caller: FrameType | None) -> str:
    """Name what makes one of a node's messages, unless it adds them up, or takes the softmax."""
    aggregates = getattr(conv, "aggr_module", None)
    if not is_a(aggregates, "Aggregation") or is_a(aggregates, "SumAggregation"):
        return ""
    for one in frames(caller):
        if one.f_locals.get("self") is aggregates:
            return ""
        if one is frame:
            break
    return type(aggregates).__name__


def _rows(edge_index: Any, i: int, j: int) -> tuple[Tensor, Tensor]:
    """Take the keys and queries of edges, in any of torch-geometric's forms."""
    utils = sys.modules["torch_geometric.utils"]
    if not isinstance(edge_index, Tensor):  # a SparseTensor of torch_sparse
        row, column, _ = edge_index.coo()
        return column, row
    if utils.is_torch_sparse_tensor(edge_index):
        rows, _ = utils.to_edge_index(edge_index)
        return rows[1], rows[0]
    rows = plain(edge_index)
    return rows[j], rows[i]


def _relation(
    frame: FrameType, caller: FrameType | None, query: Tensor, index: Tensor
) -> tuple[Tensor, str] | None:
    """Find the edges of one relation, where a module attends within each."""
    for one in frames(caller):
        if one is frame:
            return None
        for value in one.f_locals.values():
            if not isinstance(value, Tensor) or value.dtype != torch.bool:
                continue
            if value.shape == query.shape and are_equal(query[value], index):
                number = one.f_locals.get("r")
                return value, f"relation {number}" if isinstance(number, int) else "relation"
    return None


def _edge_type(conv: nn.Module, frame: FrameType) -> str:
    """Name the type of edges that a module with several of them attends over."""
    of = frame_of_forward(conv, frame)
    found = None if of is None else of.f_locals.get("edge_type")
    if isinstance(found, tuple) and all(isinstance(part, str) for part in found):
        return " ".join(found)
    return found.replace("__", " ") if isinstance(found, str) else ""


def _names(
    conv: nn.Module, frame: FrameType, num_keys: int, num_queries: int
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Name nodes of several types that a module lays side by side: keys by type of edge, too.

    Also say how many there are of each, and name keys without the type of edge.
    """
    of = frame_of_forward(conv, frame)
    keys, queries = (None if of is None else of.f_locals.get(f"{n}_offset") for n in _SIDES)
    if not isinstance(keys, dict) or not isinstance(queries, dict):
        return {}, {}, ()
    key_kinds = [(kind[0], f" {kind[1]}") for kind in keys]
    query_kinds = [(kind, "") for kind in queries]
    sizes = {
        "tokens": _sizes([*keys.values(), num_keys]),
        "query_tokens": _sizes([*queries.values(), num_queries]),
    }
    names = {
        "tokens": _numbered(key_kinds, sizes["tokens"]),
        "query_tokens": _numbered(query_kinds, sizes["query_tokens"]),
    }
    return names, sizes, _numbered([(kind[0], "") for kind in keys], sizes["tokens"])


def _sizes(starts: list[int]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in pairwise(starts))


def _numbered(kinds: list[tuple[str, str]], sizes: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(
        f"{before} {n}{after}"
        for (before, after), size in zip(kinds, sizes, strict=True)
        for n in range(size)
    )


def _reads_other_nodes(conv: nn.Module, frame: FrameType) -> bool:
    """Return whether keys are other nodes than queries, though there are as many."""
    given = arguments_of(conv, frame)
    if any(isinstance(one, dict) for one in given):  # of several types of nodes
        of = frame_of_forward(conv, frame)
        source, target = (None if of is None else of.f_locals.get(f"{n}_type") for n in _SIDES)
        return source is None or source != target
    return any(_is_pair(one) and not _are_same(*one) for one in given)


def _are_same(one: Tensor, other: Tensor | None) -> bool:
    """Return whether two tensors are the same nodes: one tensor, or views of the same numbers."""
    if one is other or other is None:
        return one is other
    is_alike = one.shape == other.shape and one.stride() == other.stride()
    return is_alike and one.data_ptr() == other.data_ptr() and one.numel() > 0


def _is_pair(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], Tensor) and (value[1] is None or isinstance(value[1], Tensor))


# Without message passing


def _of_listed_edges(
    frame: FrameType | None, called: FrameType, index: Tensor, num_nodes: int | None
) -> Ends | None:
    """Find an edge_index whose row the segments are, in functions up to the module that attends.

    An edge_index is surer than two lists of nodes, of which the other may be numbers of another
    kind. Least sure is a pair whose rows are the same: an edge_index of self-loops alone, or one
    list of nodes that is repeated for two heads. Only the surest that are there count.
    """
    found, loops = _listed(_up_to(called, frame), index)
    if not found:  # Its forward may have the edges, and give a method of it the nodes.
        found, others = _listed(_further(called), index)
        found = found or loops or others
    if len(found) > 1:
        raise NotNeighboursError("several lists of edges fit its softmax over segments")
    if not found:
        return None
    (key, query) = found[0]
    module = called.f_locals["self"]
    read_only = _READ_ONLY.get(type(module).__name__, "")
    num_queries = first_known(num_nodes, count_nodes(query))
    check_inside(query, num_queries)
    if read_only or (count_nodes(key) > num_queries and num_nodes is not None):
        return Ends(module, key, query, count_nodes(key), num_queries, True, read_only=read_only)
    num_queries = max(num_queries, count_nodes(key))
    return Ends(module, key, query, num_queries, num_queries, is_listed=True)


def _up_to(called: FrameType, frame: FrameType | None) -> Iterator[FrameType]:
    for one in frames(frame):
        yield one
        if one is called:
            return


def _further(called: FrameType) -> Iterator[FrameType]:
    """Walk the frames around a method of a module, as far as the module runs."""
    module = called.f_locals["self"]
    for one in frames(called.f_back):
        owner = one.f_locals.get("self")
        if one.f_code.co_name in _CALLS or (isinstance(owner, nn.Module) and owner is not module):
            return
        yield one


def _listed(
    some: Iterator[FrameType], index: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """List the edges that frames know and whose row the segments are, and pairs of equal rows."""
    pairs: list[tuple[Tensor, Tensor]] = []
    beside: list[tuple[Tensor, Tensor]] = []
    loops: list[tuple[Tensor, Tensor]] = []
    for one in some:
        for value in one.f_locals.values():
            for key, query in _both_ways(value, index):
                _add(loops if torch.equal(key, query) else pairs, key, query)
            for key, query in _beside(value, index):
                _add(beside, key, query)
    return pairs or beside, loops


def _add(known: list[tuple[Tensor, Tensor]], key: Tensor, query: Tensor) -> None:
    """Add edges to those that are known, unless they are among them."""
    if not any(torch.equal(key, other) for other, _ in known):
        known.append((key, query))


def _both_ways(value: Any, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return
    if value.dim() != 2 or 2 not in value.shape or value.layout != torch.strided:
        return
    for rows in (plain(value), plain(value).T):
        for query, key in ((1, 0), (0, 1)) if len(rows) == 2 else ():
            if are_equal(rows[query], index):
                yield rows[key], rows[query]


def _beside(value: Any, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Take a list of nodes beside that of the queries, where both are apart."""
    is_list = isinstance(value, Tensor) and value.dtype == torch.long and value.dim() == 1
    if is_list and value.shape == index.shape and not are_equal(plain(value), index):
        yield plain(value), index


def _of_readout(module: nn.Module, index: Tensor, num_nodes: int | None) -> Ends:
    """Let each graph of a batch read its nodes."""
    key = torch.arange(len(index), device=index.device)
    count = first_known(num_nodes, count_nodes(index))
    return Ends(module, key, index, len(key), count, True)


def _is_same(frame: FrameType, name: str, index: Tensor) -> bool:
    value = frame.f_locals.get(name)
    return isinstance(value, Tensor) and are_equal(plain(value), index)
