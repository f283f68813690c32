"""Layers as graphs that information passes through, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, Union, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

from gattn.analysis.reading.attention import Attention, named
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.checks import whole
from gattn.edit_records import Edits
from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.names.tokens import find_token

Passages: TypeAlias = Union[Attention, TokenGraph, Sequence[TokenGraph]]  # noqa: UP007
"""What information passes through: attention, a token graph, or one token graph per layer."""

Edges: TypeAlias = "csr_array[Any, tuple[int, int]]"


def token_graphs(given: Passages) -> list[TokenGraph]:
    """List the token graphs that were given, none of attention; refuse a mixture."""
    several = [given] if isinstance(given, TokenGraph) else given
    if not isinstance(several, (list, tuple)):
        return []
    graphs = [graph for graph in several if isinstance(graph, TokenGraph)]
    if graphs and len(graphs) < len(several):
        other = next(one for one in several if not isinstance(one, TokenGraph))
        raise SelectionError(
            f"A list has one TokenGraph per layer, not a {type(other).__name__} among them: "
            "give all layers as token graphs, or all as attention."
        )
    return graphs


@dataclass(frozen=True, eq=False)
class Layered:
    """The edges of each layer, whatever they weigh.

    Parameters
    ----------
    edges : tuple of csr_array (queries, keys)
        1 where information can pass; a single array stands for all layers.
    layers : tuple of int
        The layers' numbers; empty if there may be any number of them.
    residual : bool
        Whether each token also keeps what it has.
    positions, tokens : tuple
        The tokens' positions and texts.
    source : str
        What it was read from, in words.
    notes : tuple of str
        What to mind.
    edits : tuple of Edit
        As in `Layers`.
    """

    edges: tuple[Edges, ...]
    layers: tuple[int, ...]
    residual: bool
    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    edits: Edits = ()

    @classmethod
    def of(
        cls, given: Passages, tokens: Sequence[str], depth: int | None, residual: bool
    ) -> Layered:
        """Read attention, or token graphs."""
        given = named(given, tokens)
        if not isinstance(residual, (bool, np.bool_)):
            raise SelectionError(
                f"residual is True or False here, not {residual!r:.80}: a share of the residual "
                "stream is an argument of gattn.analysis.rollout."
            )
        if depth is not None:
            depth = whole("depth", depth, 1, SelectionError)
        if isinstance(given, TokenGraph):
            numbers = tuple(range(depth or 0))
            return cls._of_graphs([given], numbers, residual, repr(given))
        if depth is not None:
            raise SelectionError(
                "depth= repeats one TokenGraph; this has layers of its own. To repeat a head, "
                "give its head.graph."
            )
        if graphs := token_graphs(given):
            return cls._of_graphs(graphs, tuple(range(len(graphs))), residual, "token graphs")
        return cls._of_attention(
            layers_of(cast(Attention, given), signed=True, differing=True), residual
        )

    @classmethod
    def _of_graphs(
        cls, graphs: list[TokenGraph], layers: tuple[int, ...], residual: bool, source: str
    ) -> Layered:
        sizes = {(graph.num_queries, graph.num_keys, graph.query_offset) for graph in graphs}
        size = graphs[0].num_keys
        if sizes != {(size, size, 0)} or any(graph.is_bipartite for graph in graphs):
            raise SelectionError(
                "Information passes through layers of self-attention, all tokens being queries and "
                f"keys; these token graphs have (queries, keys, offset) {sorted(sizes)}."
            )
        positions = tuple(range(size))
        notes = ("as many layers as it takes",) if not layers else (f"{len(layers)} layers",)
        return cls(
            tuple(_of_graph(graph) for graph in graphs),
            layers,
            residual,
            positions,
            tuple(map(str, positions)),
            source,
            notes,
        )

    @classmethod
    def _of_attention(cls, layers: Layers, residual: bool) -> Layered:
        layers = layers.square().consecutive()
        edges = [(layers.read(n) != 0).any(0).cpu().numpy() for n in range(len(layers))]
        return cls(
            tuple(csr_array(one.astype(np.int8)) for one in edges),
            layers.layers,
            residual,
            layers.positions,
            layers.tokens,
            str(layers.read_from),
            ("edges: kept attention that is not 0, in any head of a layer", *layers.mass_notes()),
            layers.read_from.edits,
        )

    def __len__(self) -> int:
        return len(self.positions)

    def counted(self) -> Layered:
        """Return the layers, or refuse them if their number is not known."""
        if not self.layers:
            raise SelectionError("Say how many layers the token graph stands for: depth=12.")
        return self

    def attention_edges(self, depth: int) -> Edges:
        """Return the edges of the layer at a depth, counted from 0."""
        return self.edges[depth if len(self.edges) > 1 else 0]

    def passing(self, depth: int) -> Edges:
        """Return the edges of a layer, and the residual stream's if it counts."""
        return self._passing[depth if len(self.edges) > 1 else 0]

    @cached_property
    def _passing(self) -> tuple[Edges, ...]:
        if not self.residual:
            return self.edges
        keep = eye_array(len(self), dtype=np.int8, format="csr")
        return tuple(csr_array((one + keep).astype(bool).astype(np.int8)) for one in self.edges)

    def row(self, token: int | str, name: str) -> int:
        """Find the row of a token by its position, from the end, or by its text."""
        return find_token(token, self.positions, self.tokens, name)

    def between(self, key: int, query: int) -> NDArray[np.bool_]:
        """Say which tokens are on a way from a key's input to a query's output, (depth, token)."""
        depths = len(self.layers)
        forward = np.zeros((depths + 1, len(self)), dtype=bool)
        backward = np.zeros_like(forward)
        forward[0, key] = backward[depths, query] = True
        for depth in range(depths):
            forward[depth + 1] = self.passing(depth) @ forward[depth].astype(np.int32) > 0
        for depth in reversed(range(depths)):
            backward[depth] = self.passing(depth).T @ backward[depth + 1].astype(np.int32) > 0
        both: NDArray[np.bool_] = forward & backward
        return both


def check_number(walks: NDArray[np.float64], layers: int) -> None:
    """Refuse numbers of walks that double precision cannot hold."""
    if not np.isfinite(walks).all():
        raise SelectionError(
            f"In {layers} layers there are more than 1e308 walks: ask for fewer layers."
        )


def _of_graph(graph: TokenGraph) -> Edges:
    key = graph.edge_index[0].cpu().numpy().astype(np.int32)
    pointer = graph.pointer.cpu().numpy()
    ones = np.ones(len(key), dtype=np.int8)
    return csr_array((ones, key, pointer), shape=(graph.num_queries, graph.num_keys))
