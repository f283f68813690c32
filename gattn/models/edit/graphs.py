"""Edits with a graph: the model is restricted to its edges, or uses its attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.engines.tiles import RowBlock
from gattn.errors import EditError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.models.edit.base import Edit, edit_class
from gattn.models.edit.where.heads import Numbers

if TYPE_CHECKING:
    from gattn.models.read.places import Side
    from gattn.models.read.reading import Reading


@edit_class
class Restrict(Edit):
    """Restrict attention to the model's edges that are also in a graph.

    Parameters
    ----------
    graph : TokenGraph
        A graph on at least as many tokens as the sequence will have.
    layer, head, stack
        Where, as in `Cut`.

    Examples
    --------
    >>> Restrict(TokenGraph.window(512, 64))  # a model with global attention, as a local one
    """

    graph: TokenGraph
    layer: Numbers = None
    head: Numbers = None
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.graph, TokenGraph):
            raise EditError(
                "Restrict takes a TokenGraph, such as TokenGraph.window(num_tokens, 8), not "
                f"{self.graph!r:.60}."
            )
        _check_begins(self, self.graph)

    def changes(self, reading: Reading) -> Tensor:
        """Return which queries of a call lose edges."""
        graph = reading.graph.on_host
        return self.loses(self.allowed(graph, reading), graph)

    @staticmethod
    def loses(left: TokenGraph, graph: TokenGraph) -> Tensor:
        """Return which queries have fewer edges left than in a graph."""
        return left.on_host.in_degree != graph.on_host.in_degree

    def meets(self, reading: Reading) -> bool:
        """Return whether it removes edges of a call."""
        return super().meets(reading) and bool(self.changes(reading).any())

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Keep the edges that are in both graphs."""
        queries, keys, given = reading.queries, reading.keys, self.graph.on_host
        if given.is_bipartite != graph.is_bipartite:
            which, more = "is on one sequence, the given one joins two", ""
            if graph.is_bipartite:
                which, more = "joins two sequences, the given one is on one", ", is_bipartite=True"
            raise EditError(
                f"{self}: the model's graph {which}. Expected a graph such as "
                f"TokenGraph.from_mask(mask{more})."
            )
        _check_fits(self, given.num_queries, given.num_keys, reading)
        is_told = queries.positions is not None or keys.positions is not None
        follows = given.rule.device is None and (not graph.is_bipartite or not queries.first)
        if follows and not keys.first and not is_told:
            return graph & replace(graph, rule=given.rule)
        rows = slice(queries.first, queries.first + len(queries))
        if is_told:
            row, key = _inside(given, queries, keys).nonzero(as_tuple=True)
        elif given.rule.device is None:
            positions = torch.arange(rows.start, rows.stop, device="cpu")
            inside = given.rule.allowed(
                positions[:, None], keys.first + torch.arange(len(keys), device="cpu")
            )
            row, key = inside.nonzero(as_tuple=True)
        else:
            row, key, _ = _edges(given, rows)
            key = key - keys.first
            is_there = (key >= 0) & (key < len(keys))
            row, key = row[is_there], key[is_there]
        return graph & replace(
            graph, rule=Edges.from_pairs(row, key, len(queries), graph.query_offset)
        )


@edit_class
class Use(Edit):
    """Replace a head's attention by a given graph: one edited in NetworkX, or another run's.

    Its attention is used as it is: dropped edges have none.

    Parameters
    ----------
    graph : AttentionGraph
        A graph on at least as many tokens as the sequence will have.
    layer, head : int or sequence of int
        Which layer and head run with it, as in `Cut`.
    stack : str, optional
        Which stack, where the model has several.
    """

    graph: AttentionGraph
    layer: Numbers
    head: Numbers = None
    stack: str | None = None

    is_after = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.graph, AttentionGraph):
            raise EditError(
                "Use takes an AttentionGraph, such as the head trace[2, 1] of another run, not "
                f"{self.graph!r:.60}."
            )
        if self.graph.positions is not None or self.graph.query_positions is not None:
            raise EditError("Use takes a graph of all tokens, not a subgraph.")
        _check_begins(self, self.graph.graph)

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Use the given graph's edges."""
        given = self.graph.graph
        _check_fits(self, given.num_queries, given.num_keys, reading)
        row, key, _ = self._edges(slice(0, len(reading.queries)), reading)
        if len(key) and not 0 <= int(key.min()) <= int(key.max()) < len(reading.keys):
            raise EditError(f"{self}: {_not_there(row, key, reading)}")
        if (padding := ~reading.queries.are_tokens).any():
            own_key, own_row = graph.edge_index
            is_own = padding[own_row]
            row, key = torch.cat((row, own_row[is_own])), torch.cat((key, own_key[is_own]))
        rule = Edges.from_pairs(row, key, len(reading.queries), graph.query_offset)
        return replace(graph, rule=rule)

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Put the graph's attention in place of the model's."""
        row, key, value = self._edges(block.rows, reading)
        columns = list_keys(block.columns).cpu()
        column = torch.searchsorted(columns, key)
        given = torch.zeros(attention.shape[-2:], dtype=attention.dtype, device="cpu")
        given[row, column] = value.to(attention.dtype)
        found = given.to(attention.device).expand_as(attention)
        are_tokens = reading.queries.are_tokens[block.rows].to(attention.device)
        return torch.where(are_tokens[:, None], found, attention)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Put the graph's attention in place of the model's; the edges are the graph's own."""
        _, _, value = self._edges(slice(0, len(reading.queries)), reading)
        return value[edges].to(attention).expand_as(attention)

    def _edges(self, rows: slice, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
        """List the edges of some rows of a call: row within these, key, attention."""
        queries, keys, graph = reading.queries, reading.keys, self.graph.graph
        attention = torch.as_tensor(self.graph.attention, device="cpu")
        if queries.positions is None and keys.positions is None:
            first = queries.first
            row, key, edges = _edges(graph, slice(first + rows.start, first + rows.stop))
            return row, key - keys.first, attention[edges]
        number = torch.full((max(graph.num_keys, keys.end),), -1, device="cpu")
        number[keys.at] = torch.arange(len(keys), device="cpu")
        at = torch.where(queries.are_tokens, queries.at, graph.num_queries)  # No edges.
        found = [_edges(graph, slice(one, one + 1)) for one in at[rows].tolist()]
        row = torch.repeat_interleave(
            torch.arange(len(found), device="cpu"),
            torch.tensor([len(key) for _, key, _ in found], device="cpu"),
        )
        key = torch.cat([key for _, key, _ in found])
        return row, number[key], torch.cat([attention[edges] for _, _, edges in found])


def _not_there(row: Tensor, key: Tensor, reading: Reading) -> str:
    """Say which query of a graph reads a key that a call does not have."""
    queries, keys = reading.queries, reading.keys
    is_outside = (key < 0) | (key >= len(keys))
    query = int(queries.at[row[is_outside][0]])
    if keys.positions is None:
        stop = keys.first + len(keys) - 1
        rest = f"in the sequence, whose keys are {keys.first} .. {stop}."
    else:
        window = sorted(set(keys.at[keys.are_tokens].tolist()))
        rest = f"among those that it attends to in its window, {window}: use a graph within these."
    return f"query {query} of the graph reads a key that is not {rest}"


def _inside(given: TokenGraph, queries: Side, keys: Side) -> Tensor:
    """Say which pairs of slots a graph allows; those of padding stay as they are."""
    found = torch.ones(len(queries), len(keys), dtype=torch.bool, device="cpu")
    row, column = (side.are_tokens.nonzero()[:, 0] for side in (queries, keys))
    found[row[:, None], column] = given.allowed(queries.at[row], keys.at[column]).cpu()
    return found


def _check_begins(edit: Edit, graph: TokenGraph) -> None:
    if graph.query_offset:
        raise EditError(
            f"{type(edit).__name__} takes a graph of all tokens, but the queries of this one start "
            f"at position {graph.query_offset}."
        )


def _check_fits(edit: Edit, num_queries: int, num_keys: int, reading: Reading) -> None:
    needed = [side.num_tokens for side in (reading.queries, reading.keys)]
    if num_queries < needed[0] or num_keys < needed[1]:
        raise EditError(
            f"{edit}: the graph has {num_queries} queries and {num_keys} keys, but the sequence "
            f"now has {needed[0]} and {needed[1]}; build it for all tokens, generated ones too."
        )


def _edges(graph: TokenGraph, rows: slice) -> tuple[Tensor, Tensor, slice]:
    """List the edges of some queries: row within these, key; and the slice of edges."""
    pointer = graph.pointer[rows.start : rows.stop + 1].cpu()
    edges = slice(int(pointer[0]), int(pointer[-1]))
    row = torch.repeat_interleave(torch.arange(len(pointer) - 1, device="cpu"), pointer.diff())
    return row, graph.edge_index[0, edges].cpu(), edges
