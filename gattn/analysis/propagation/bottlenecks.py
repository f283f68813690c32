"""Bottlenecks: the fewest tokens or edges that all information between two tokens passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from gattn.analysis.propagation.layered import Layered, Passages
from gattn.analysis.reading.results import Table, column
from gattn.errors import SelectionError

_ENDLESS = 1 << 30
_MOST_DRAWN = 2000


class Bottlenecks(Table):
    """A minimum cut, one row per token or edge. Its picture shows it among all that passes."""


def bottlenecks(
    given: Passages,
    key: int | str,
    query: int | str,
    *,
    tokens: Sequence[str] = (),
    cut: Literal["tokens", "edges"] = "tokens",
    depth: int | None = None,
    residual: bool = True,
) -> Bottlenecks:
    """Find the narrowest place between what one token put in and what another gives out.

    Parameters
    ----------
    given, tokens
        As in `gattn.analysis.reach`.
    key, query : int or str
        The token where information enters the first layer, and the one where it leaves the last:
        positions, negative from the end, or texts.
    cut : {"tokens", "edges"}
        What is cut: tokens between two layers, with all that they hold there, or edges of
        attention. The residual stream cannot be cut.
    depth : int, optional
        How many layers a token graph stands for.
    residual : bool
        Whether tokens keep what they have in each layer.

    Returns
    -------
    Bottlenecks
        A minimum cut: without these, nothing gets from key to query, and no smaller set does that.
        By Menger's theorem there are as many paths that share no token, or no edge. Of several
        minimum cuts it is the one nearest to the key. Tokens have the columns ``layer`` (the one
        that they come out of), ``position`` and ``token``; edges ``layer``, ``query``, ``key``,
        ``query_token`` and ``key_token``. There are no rows if nothing gets there anyway.

    Raises
    ------
    SelectionError
        If nothing could be cut (tokens in a single layer, or a token from itself with the residual
        stream), there are no such tokens, and as in `reach`.

    References
    ----------
    Ford and Fulkerson (1956), Maximal flow through a network.
    """
    stack = Layered.of(given, tokens, depth, residual).counted()
    source, target = stack.row(key, "key"), stack.row(query, "query")
    if cut not in ("tokens", "edges"):
        raise SelectionError(f'cut is "tokens" or "edges", not {cut!r}.')
    start, end = stack.positions[source], stack.positions[target]
    if cut == "edges" and residual and source == target:
        raise SelectionError(f"The residual stream carries token {end} to itself, without edges.")
    if cut == "tokens" and len(stack.layers) == 1:
        raise SelectionError('In one layer there are no tokens between: ask for cut="edges".')
    between = stack.between(source, target)
    choose = _token_cut if cut == "tokens" else _edge_cut
    chosen = choose(stack, between, source, target) if between.any() else []
    return Bottlenecks.of(
        _rows(stack, chosen, cut),
        name="bottlenecks",
        computed_from=stack.source,
        edits=stack.edits,
        notes=[f"between the input at {start} and the output at {end}", *stack.notes],
        tokens=list(stack.tokens),
        between=[np.flatnonzero(some).tolist() for some in between],
        cut=chosen,
        edges=_few_edges(stack, between),
    )


def _token_cut(
    stack: Layered, between: NDArray[np.bool_], source: int, target: int
) -> list[tuple[int, ...]]:
    """Choose tokens, as (depth, row): each is two nodes of the network, its way in and out."""
    numbers = _numbers(between)
    count = int(between.sum())
    inner = np.argwhere(between[1:-1]) + np.array([1, 0])
    ways_in = numbers[inner[:, 0], inner[:, 1]]
    links = _links(stack, between, numbers)
    starts, ends = np.concatenate([links[:, 3] + count, ways_in]), links[:, 4]
    ends = np.concatenate([ends, ways_in + count])
    capacity = np.concatenate([np.full(len(links), _ENDLESS), np.ones(len(inner), dtype=int)])
    first, last = numbers[0, source] + count, numbers[-1, target]
    side = _source_side(starts, ends, capacity, 2 * count, first, last)
    return [tuple(place) for place in inner[side[ways_in] & ~side[ways_in + count]].tolist()]


def _edge_cut(
    stack: Layered, between: NDArray[np.bool_], source: int, target: int
) -> list[tuple[int, ...]]:
    """Choose edges, as (depth, query's row, key's row)."""
    numbers = _numbers(between)
    links = _links(stack, between, numbers)
    can_cut = links[:, 1] != links[:, 2] if stack.residual else np.ones(len(links), dtype=bool)
    capacity = np.where(can_cut, 1, _ENDLESS)
    first, last = numbers[0, source], numbers[-1, target]
    side = _source_side(links[:, 3], links[:, 4], capacity, int(between.sum()), first, last)
    crossing = side[links[:, 3]] & ~side[links[:, 4]]
    return [tuple(place) for place in links[crossing, :3].tolist()]


def _numbers(between: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Give numbers to the tokens at each depth that something passes; others are -1."""
    numbers = np.full(between.shape, -1)
    numbers[between] = np.arange(between.sum())
    return numbers


def _links(
    stack: Layered, between: NDArray[np.bool_], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """List what passes, one per row: depth, query, key, and the numbers of key and query."""
    found = [np.zeros((0, 5), dtype=np.int64)]
    for depth in range(len(stack.layers)):
        edges = coo_array(stack.passing(depth))
        query, key = (np.asarray(side, dtype=np.int64) for side in edges.coords)
        both = between[depth, key] & between[depth + 1, query]
        query, key = query[both], key[both]
        ends = numbers[depth, key], numbers[depth + 1, query]
        found.append(np.stack([np.full(len(key), depth), query, key, *ends], axis=1))
    return np.concatenate(found)


def _source_side(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    capacity: NDArray[np.int64],
    nodes: int,
    source: int,
    target: int,
) -> NDArray[np.bool_]:
    """Return which nodes are still reached from the source when the flow is greatest."""
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    side = np.zeros(nodes, dtype=bool)
    network = csr_array((capacity.astype(np.int32), (starts, ends)), shape=(nodes, nodes))
    left = csr_array(network - maximum_flow(network, source, target).flow)
    left.eliminate_zeros()
    side[breadth_first_order(left, source, return_predecessors=False)] = True
    return side


def _few_edges(stack: Layered, between: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """List what passes, for the picture, unless it would be a blot."""
    links = _links(stack, between, _numbers(between))
    return [tuple(link) for link in links[:, :3].tolist()] if len(links) <= _MOST_DRAWN else []


def _rows(stack: Layered, chosen: list[tuple[int, ...]], cut: str) -> dict[str, Any]:
    if cut == "tokens":
        return {
            "layer": [stack.layers[depth - 1] for depth, _ in chosen],
            "position": [stack.positions[row] for _, row in chosen],
            "token": column(stack.tokens[row] for _, row in chosen),
        }
    return {
        "layer": [stack.layers[depth] for depth, *_ in chosen],
        "query": [stack.positions[query] for _, query, _ in chosen],
        "key": [stack.positions[key] for *_, key in chosen],
        "query_token": column(stack.tokens[query] for _, query, _ in chosen),
        "key_token": column(stack.tokens[key] for *_, key in chosen),
    }
