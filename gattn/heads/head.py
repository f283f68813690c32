"""Attention graphs: the attention of one head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.edit_records import Edits
from gattn.errors import SelectionError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.neighbourhoods import padded_rows
from gattn.graph.token_graph import TokenGraph
from gattn.heads import fields, frames, from_networks, merging, networks, steps
from gattn.heads.drawn.heads import DrawnHead
from gattn.heads.geometry import Geometry
from gattn.heads.geometry.located import Located, Make, Side, located_head
from gattn.heads.given import edge_lists, matrices
from gattn.heads.given.weights import warned, warned_of_form
from gattn.keep import Keep, as_keep
from gattn.on_page import Shown

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionGraph(Located, DrawnHead, Shown):
    """One head's attention on its kept edges.

    Parameters
    ----------
    graph : TokenGraph
        The kept edges.
    attention : array (edges,)
        The attention A_ij of each edge, in the graph's edge order.
    total_mass : array (queries,)
        The mass `Σ_j |A_ij|` of each query before edges were dropped, a sink excluded.
    total_edges : array (queries,)
        How many edges each query had before edges were dropped.
    score : array (edges,), optional
        The score w(i, j) of each edge, before normalizing.
    contribution : array (edges,), optional
        The length ‖A_ij W_O^h v_j‖ of what each edge adds to the attention's output.
    value_norm : array (edges,), optional
        The length ‖A_ij v_j‖ of what each edge carries, before the output projection.
    sink : array (queries,), optional
        The attention of each query to a sink outside the sequence.
    tokens : tuple of str
        The token at each node; in a bipartite graph, the keys' tokens.
    query_tokens : tuple of str
        The queries' tokens, in a bipartite graph.
    words : tuple of int or None
        The word that each token belongs to; None for special tokens.
    generated : int
        How many of the tokens (in a bipartite graph, of the queries) the model generated: the last
        ones.
    positions : array of int, optional
        The position of each node in the text; by default 0, 1, 2 ...
    query_positions : array of int, optional
        The same for the queries of a bipartite graph.
    geometry : Geometry, optional
        Where the tokens lie (in a bipartite graph, the keys): a `Grid`, `Times` or `Layout`.
    query_geometry : Geometry, optional
        The same for the queries of a bipartite graph.
    layer, head : int, optional
        Where in the model the graph comes from.
    key_value_head : int, optional
        With grouped queries, the key-value head that this head reads; None if every head has its
        own.
    model, weight_function, normalizer : str
        What computed it.
    kept_by : tuple of Keep and Step
        How its edges were chosen, step by step, as in ``(TopK(8), NoSelfLoops())``; see
        `gattn.heads.steps`.
    edits : tuple of Edit
        The edits that the model ran with, including those of other heads; a file keeps an
        `EditRecord` of each, which equals it.
    stack : str
        The name of its stack, where its trace has several or it is "graph", of the edges of data.
        Pictures name one of several.
    segments : tuple of int
        The part of the text that each token belongs to, such as the first or second sentence of a
        pair: a tokenizer's ``token_type_ids``, where the run had several.

    Raises
    ------
    ShapeError
        If the arrays or `generated` do not fit the graph.
    GraphError
        If the graph's edges were given in another order than its own, so that it is unclear which
        number belongs to which edge; `from_edges` keeps them together.
    CaptureError
        If attention is not finite, a score is NaN, or a length or mass is negative or not finite.
    """

    graph: TokenGraph
    attention: Floats
    total_mass: Floats
    total_edges: Ints
    score: Floats | None = None
    contribution: Floats | None = None
    value_norm: Floats | None = None
    sink: Floats | None = None
    tokens: tuple[str, ...] = ()
    query_tokens: tuple[str, ...] = ()
    words: tuple[int | None, ...] = ()
    generated: int = 0
    positions: Ints | None = None
    query_positions: Ints | None = None
    geometry: Geometry | None = None
    query_geometry: Geometry | None = None
    layer: int | None = None
    head: int | None = None
    key_value_head: int | None = None
    model: str = ""
    weight_function: str = ""
    normalizer: str = ""
    kept_by: steps.Kept = steps.ALL
    edits: Edits = ()
    stack: str = ""
    segments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value in fields.checked(self).items():
            object.__setattr__(self, name, value)

    __repr__ = fields.to_text
    place = fields.place

    def _located(self, make: Make, side: Side | None, stack: str | None) -> AttentionGraph:
        if stack is not None:
            raise SelectionError(f"A head has no stacks: leave out stack={stack!r:.80}.")
        return located_head(self, make, side)

    from_dense = classmethod(warned_of_form(fields.from_dense))
    from_edges = classmethod(warned(edge_lists.from_edges))
    from_scipy = classmethod(warned(warned_of_form(matrices.from_scipy)))
    from_pandas = classmethod(warned(frames.from_pandas))

    # Edges

    @property
    def key(self) -> Ints:
        """The key of each edge, as an index of nodes."""
        index: Ints = self.graph.neighbourhoods.key.numpy()
        return index

    @property
    def query(self) -> Ints:
        """The query of each edge, as a row."""
        index: Ints = self.graph.neighbourhoods.query.numpy()
        return index

    @property
    def edge_values(self) -> dict[str, Floats]:
        """The numbers stored per edge, by name: ``attention``, and any others."""
        others = ("score", "contribution", "value_norm")
        stored = {name: values for name in others if (values := getattr(self, name)) is not None}
        return {"attention": self.attention, **stored}

    @property
    def kept_mass(self) -> Floats:
        """The mass `Σ_j |A_ij|` of each query's kept edges, shape (queries,)."""
        mass = np.bincount(self.query, np.abs(self.attention), self.graph.num_queries)
        return mass.astype(self.attention.dtype)

    @property
    def share_kept(self) -> float:
        """The share of the attention that is on kept edges."""
        total = float(self.total_mass.sum())
        return float(self.kept_mass.sum()) / total if total else 1.0

    @property
    def dropped_edges(self) -> Ints:
        """How many edges of each query were dropped, shape (queries,)."""
        kept: Ints = self.graph.in_degree.numpy()
        return self.total_edges - kept

    @property
    def node_positions(self) -> Ints:
        """The position of each node in the text, shape (tokens,)."""
        return np.arange(self.graph.num_tokens) if self.positions is None else self.positions

    def labels(self) -> list[str]:
        """Name each node: its token, or its position if tokens are unknown."""
        return list(self.tokens) or [str(position) for position in self.node_positions]

    def query_labels(self) -> list[str]:
        """Name each query."""
        if self.graph.is_bipartite:
            return list(self.query_tokens) or [str(position) for position in self.node_ids()[1]]
        offset = self.graph.query_offset
        return self.labels()[offset : offset + self.graph.num_queries]

    def keep(self, keep: Keep) -> AttentionGraph:
        """Keep fewer edges, and count the others as dropped."""
        keep = as_keep(keep)
        attention = torch.from_numpy(self.attention)
        chosen = np.zeros(self.graph.num_edges, dtype=bool)
        for edges, present, _ in padded_rows(self.graph.edge_index[1], self.graph.num_queries):
            chosen[edges[keep.select(attention[edges], present)].numpy()] = True
        return self._with_edges(chosen, keep)

    def without_self_loops(self) -> AttentionGraph:
        """Drop edges from a token to itself; what remains of a causal head is a DAG."""
        if self.graph.is_bipartite:
            return self
        chosen = self.key != self.query + self.graph.query_offset
        return self._with_edges(chosen, steps.NoSelfLoops())

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The runs of tokens of one segment, half-open, in order; empty if there are no segments.

        A text has several where its tokenizer tells its sentences apart, by ``token_type_ids``.
        """
        size = len(self.segments)
        starts = [i for i in range(size) if not i or self.segments[i] != self.segments[i - 1]]
        return list(zip(starts, [*starts[1:], size], strict=False))

    def _with_edges(self, chosen: NDArray[np.bool_], step: Keep | steps.Step) -> AttentionGraph:
        row, key = torch.from_numpy(self.query[chosen]), torch.from_numpy(self.key[chosen])
        rule = Edges.from_pairs(row, key, self.graph.num_queries, self.graph.query_offset)
        values: dict[str, Any] = {name: some[chosen] for name, some in self.edge_values.items()}
        graph, kept_by = replace(self.graph, rule=rule), steps.after(self.kept_by, step)
        return replace(self, graph=graph, kept_by=kept_by, **values)

    # Nodes

    subgraph = merging.subgraph
    between = merging.between
    merge = merging.merge
    merge_words = merging.merge_words

    # Other forms

    def to_dense(self) -> Floats:
        """Build the matrix A, (queries, keys), 0 for edges that were not kept."""
        matrix = np.zeros((self.graph.num_queries, self.graph.num_keys), self.attention.dtype)
        matrix[self.query, self.key] = self.attention
        return matrix

    def to_scipy(self) -> csr_array[Any, tuple[int, int]]:
        """Build the sparse matrix A, (queries, keys)."""
        from scipy.sparse import csr_array

        shape = (self.graph.num_queries, self.graph.num_keys)
        return csr_array((self.attention, self.key, self.graph.pointer.numpy()), shape=shape)

    to_pandas = frames.to_pandas

    def node_ids(self) -> tuple[list[int], list[int]]:
        """List the positions of keys and of queries."""
        positions: list[int] = self.node_positions.tolist()
        if self.graph.is_bipartite:
            rows = range(self.graph.num_queries)
            chosen = self.query_positions
            return positions, list(rows) if chosen is None else chosen.tolist()
        offset = self.graph.query_offset
        queries = positions[offset : offset + self.graph.num_queries]
        return positions[: self.graph.num_keys], queries

    to_networkx = networks.to_networkx

    @staticmethod
    def from_networkx(
        graph: nx.DiGraph[Any], weight: str = "weight", *, default: float | None = None
    ) -> AttentionGraph:
        """Read a graph that `to_networkx` built, or any directed graph with edge weights.

        Parameters
        ----------
        graph : networkx.DiGraph
            Its edges run from key to query.
        weight : str
            The edge attribute that holds the attention.
        default : float, optional
            The attention of edges without that attribute. By default such edges are an error: a
            weight is never made up.

        Raises
        ------
        GraphError
            If the graph is undirected or a multigraph, or an edge has no `weight`.
        """
        return AttentionGraph(**from_networks.fields_from(graph, weight, default))
