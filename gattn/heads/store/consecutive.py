"""Token graphs with consecutive queries, joined into one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph.rules.base import Rule
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.neighbourhoods import pointer_of
from gattn.graph.rules.simple import Window
from gattn.graph.token_graph import TokenGraph


class ConsecutiveGraph(NamedTuple):
    """A graph whose rows begin at `row` and whose positions count from `first_key`."""

    graph: TokenGraph
    first_key: int
    row: int

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.row + self.graph.num_queries

    @property
    def position(self) -> int:
        """The position of the first query."""
        return self.graph.query_offset + (0 if self.graph.is_bipartite else self.first_key)

    def first_rows(self, rows: int) -> ConsecutiveGraph:
        """Take the queries before a row; in self-attention, also drop the keys after them."""
        if self.stop <= rows:
            return self
        graph, count = self.graph, rows - self.row
        some = replace(graph, num_queries=count, rule=_first_rows(graph, count))
        if graph.is_bipartite:
            return self._replace(graph=some)
        keys = min(graph.num_keys, graph.query_offset + count)
        if _last_key(some) >= keys:
            raise CaptureError(
                f"Tokens that others attend to were taken back: {graph} is not causal, so what "
                "follows cannot be recorded. Record it in a context of its own."
            )
        return self._replace(graph=replace(some, num_keys=keys))

    def spans(self) -> Tensor | None:
        """Return the start and stop of each query's keys, (2, queries); None if not intervals.

        Queries without keys have 0 for both.
        """
        graph = self.graph
        keys = graph.rule.interval(
            torch.arange(graph.num_queries, device="cpu") + graph.query_offset
        )
        if keys is None:
            return None
        ends = torch.stack(keys).clamp(0, graph.num_keys)
        return (ends + self.first_key) * (ends[0] < ends[1])


def joined(pieces: list[ConsecutiveGraph], *, of_all_edges: bool) -> TokenGraph:
    """Join graphs: by a rule with exactly their edges, or else by listing their edges.

    If not all edges were kept, the kept edges replace the rule, so the first graph's rule will do.
    """
    first = pieces[0]
    if len(pieces) == 1 and not first.first_key:
        return first.graph
    whole = replace(
        first.graph,
        num_queries=pieces[-1].stop,
        num_keys=max(piece.first_key + piece.graph.num_keys for piece in pieces),
        query_offset=first.position,
    )
    if not of_all_edges:
        return whole
    rule = _common_rule(whole, pieces)
    if rule is not None:
        return replace(whole, rule=rule)
    degree = torch.cat([piece.graph.in_degree for piece in pieces])
    key = torch.cat([piece.graph.edge_index[0] + piece.first_key for piece in pieces])
    return replace(whole, rule=Edges(pointer_of(degree), key, whole.query_offset))


def check_order(first: ConsecutiveGraph, piece: ConsecutiveGraph) -> None:
    """Refuse a graph that does not follow those before it."""
    if piece.graph.is_bipartite and first.graph.is_bipartite:
        if (piece.graph.num_keys, piece.first_key) == (first.graph.num_keys, first.first_key):
            return
        expected = f"the same {first.graph.num_keys} keys"
    elif piece.graph.is_bipartite or first.graph.is_bipartite:
        expected = f"is_bipartite={first.graph.is_bipartite}"
    elif piece.position == first.position + piece.row:
        return
    else:
        expected = f"its first query at position {first.position + piece.row}"
    raise CaptureError(
        f"{piece.graph}, counted from position {piece.first_key}, does not follow the "
        f"{piece.row} queries before it: expected {expected}. Capture it by itself."
    )


def _first_rows(graph: TokenGraph, count: int) -> Rule:
    """Return the rule of the first queries; of listed edges, only theirs."""
    edges = graph.rule.listed()
    if edges is None:
        return graph.rule
    pointer = graph.pointer[: count + 1]
    return Edges(pointer, graph.edge_index[0, : int(pointer[-1])], graph.query_offset)


def _last_key(graph: TokenGraph) -> int:
    """Find the last key that any query may attend to; -1 if there is none."""
    keys = graph.rule.interval(torch.arange(graph.num_queries, device="cpu") + graph.query_offset)
    if keys is None:
        return int(graph.edge_index[0].max()) if graph.num_edges else -1
    return int(keys[1].clamp(0, graph.num_keys).max()) - 1


def _common_rule(whole: TokenGraph, pieces: list[ConsecutiveGraph]) -> Rule | None:
    """Find a rule that gives the whole exactly the edges of its pieces."""
    spans = [span for piece in pieces if (span := piece.spans()) is not None]
    if len(spans) < len(pieces):
        return None
    wanted = torch.cat(spans, dim=1)
    rules = {piece.graph.rule: None for piece in pieces}
    if not whole.is_bipartite:
        rules[_narrowest_window(wanted, whole.query_offset)] = None
    for rule in rules:
        found = ConsecutiveGraph(replace(whole, rule=rule), 0, 0).spans()
        if found is not None and torch.equal(found, wanted):
            return rule
    return None


def _narrowest_window(spans: Tensor, offset: int) -> Rule:
    """Find the narrowest window with all keys, as a sliding cache has after its first drop."""
    some = spans[0] < spans[1]
    query = torch.arange(len(some), device="cpu")[some] + offset
    before = max((query - spans[0, some]).tolist(), default=0)
    after = max((spans[1, some] - 1 - query).tolist(), default=0)
    return Window(max(before, 0), max(after, 0))
