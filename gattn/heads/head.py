"""Attention graphs: one head's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray

from gattn import door
from gattn.checks import refuse_hidden, whole
from gattn.edit_records import Edits, checked, identities, in_words
from gattn.errors import CaptureError, ShapeError
from gattn.graph.ordering import refuse_numbers
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.neighbourhoods import padded_rows
from gattn.graph.token_graph import TokenGraph
from gattn.heads import edge_lists, merging, networks, steps
from gattn.keep import Keep, as_keep

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from matplotlib.axes import Axes
    from scipy.sparse import csr_array

    from gattn.drawing.one_head.draw_head import Layout

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

_WHOLE = ("total_edges", "positions", "query_positions")
_LISTS: Mapping[str, tuple[type, ...]] = {
    "tokens": (str,),
    "query_tokens": (str,),
    "words": (int, type(None)),
}
_TEXTS = ("model", "weight_function", "normalizer")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionGraph:
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
        The score w(i, j) of each edge, before normalising.
    contribution : array (edges,), optional
        The length ‖A_ij W_O^h v_j‖ of what each edge adds to the attention's output.
    value_norm : array (edges,), optional
        The length ‖A_ij v_j‖ of what each edge carries, before the output projection.
    sink : array (queries,), optional
        What each query gave to a sink outside the sequence.
    tokens : tuple of str
        The token at each node; the keys' tokens where the graph is bipartite.
    query_tokens : tuple of str
        The queries' tokens where the graph is bipartite.
    words : tuple of int or None
        The word that each token is a part of; None for special tokens.
    generated : int
        How many of the tokens (of the queries where the graph is bipartite) the model generated:
        the last ones.
    positions : array of int, optional
        The position of each node in the text; 0, 1, 2 ... where not given.
    query_positions : array of int, optional
        The same for the queries where the graph is bipartite.
    layer, head : int, optional
        Where in the model the graph comes from.
    key_value_head : int, optional
        With grouped queries, the head of keys and values that this head reads; None where every
        head has its own.
    model, weight_function, normalizer : str
        What computed it.
    kept_by : tuple of Keep and Step
        How it came by its edges, one step after the other, as in ``(TopK(8), NoSelfLoops())``;
        see `gattn.heads.steps`.
    edits : tuple of Edit
        The edits that the model ran with, those of other heads too; a file keeps an `EditRecord`
        of each, which equals it.

    Raises
    ------
    ShapeError
        Where the arrays or `generated` do not fit the graph.
    GraphError
        Where the graph's edges were given in another order than its own, so that it is not clear
        which edge has which number; `from_edges` keeps them together.
    CaptureError
        Where attention is not finite, a score is NaN, or a length or mass is negative or not
        finite.
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
    layer: int | None = None
    head: int | None = None
    key_value_head: int | None = None
    model: str = ""
    weight_function: str = ""
    normalizer: str = ""
    kept_by: steps.Kept = steps.ALL
    edits: Edits = ()

    def __post_init__(self) -> None:
        self._check_types()
        refuse_numbers(
            self.graph,
            "attention",
            "Where it follows the edges as given, AttentionGraph.from_edges(edge_index, attention) "
            "keeps each number with its edge.",
        )
        queries, nodes = self.graph.num_queries, self.graph.num_tokens
        sizes = {
            "total_mass": (self.total_mass, queries),
            "total_edges": (self.total_edges, queries),
            "sink": (self.sink, queries),
            "tokens": (self.tokens or None, nodes),
            "query_tokens": (self.query_tokens or None, queries),
            "words": (self.words or None, nodes),
            "positions": (self.positions, nodes),
            "query_positions": (self.query_positions, queries),
        }
        self._check_sizes(sizes)
        # Last, for it walks over the queries, which by now are as many as the numbers given.
        edges = self.graph.num_edges
        self._check_sizes({name: (values, edges) for name, values in self.edge_values.items()})
        for name in ("layer", "head", "key_value_head"):
            if (place := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, place, 0, ShapeError))
        nodes = queries if self.graph.is_bipartite else nodes
        generated = whole("generated", self.generated, 0, ShapeError, most=nodes)
        object.__setattr__(self, "generated", generated)
        try:
            object.__setattr__(self, "edits", checked(self.edits))
        except TypeError as error:
            raise ShapeError(f"{error}.") from error
        self._check_numbers()

    def _check_types(self) -> None:
        """Refuse what is no array of one axis of the right type, and tokens that are no texts."""
        kinds = dict.fromkeys(self.edge_values, "f") | {"total_mass": "fiu", "sink": "f"}
        for name, kind in (kinds | dict.fromkeys(_WHOLE, "iu")).items():
            values = getattr(self, name)
            if values is None or (
                isinstance(values, np.ndarray)
                and values.ndim == 1
                and values.dtype.kind in kind
                and values.dtype.itemsize <= 8  # no long doubles
            ):
                continue
            given = f"{getattr(values, 'dtype', type(values).__name__)} {np.shape(values)}"
            wanted = "whole numbers" if kind == "iu" else "floats of 16, 32 or 64 bits"
            raise ShapeError(f"{name} must be a NumPy array of {wanted} (n,), not {given}.")
        for name, types in _LISTS.items():
            for found in set(map(type, getattr(self, name))):
                if not issubclass(found, types):
                    raise ShapeError(
                        f"{name} must be a tuple of {types[0].__name__}, not of {found.__name__}."
                    )
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ShapeError(f"{name} must be a str, not {getattr(self, name)!r:.80}.")
        steps.check(self.kept_by)

    @staticmethod
    def _check_sizes(sizes: Mapping[str, tuple[Any, int]]) -> None:
        for name, (values, size) in sizes.items():
            if values is not None and len(values) != size:
                raise ShapeError(f"{name} must have {size} entries, not {len(values)}.")

    def _check_numbers(self) -> None:
        """Refuse numbers that would spoil every sum; only a score may be infinite."""
        for name, values in self.edge_values.items():
            wrong = np.isnan(values) if name == "score" else ~np.isfinite(values)
            if name in ("contribution", "value_norm"):
                wrong |= values < 0
            if wrong.any():
                edge = int(np.flatnonzero(wrong)[0])
                key, query = self.graph.edge_index[:, edge].tolist()
                reason = (
                    "it is a length, and lengths are at least 0"
                    if np.isfinite(values[edge])
                    else "look for NaN or infinity in what computed it, such as half precision "
                    "that overflowed"
                )
                raise CaptureError(
                    f"The {name} of query {query} to key {key} is {values[edge]}: {reason}."
                )
        for name in ("sink", "total_mass"):
            masses = getattr(self, name)
            if masses is not None and not np.isfinite(masses).all():
                query = int(np.flatnonzero(~np.isfinite(masses))[0])
                raise CaptureError(
                    f"The {name} of query {query} is {masses[query]}: it must be finite."
                )
        if (self.total_mass < 0).any():
            query = int(np.flatnonzero(self.total_mass < 0)[0])
            raise CaptureError(
                f"The total_mass of query {query} is {self.total_mass[query]}: it is a sum of "
                "|attention|, which is at least 0."
            )
        if (self.dropped_edges < 0).any():
            query = int(np.flatnonzero(self.dropped_edges < 0)[0])
            raise ShapeError(
                f"total_edges of query {query} is {self.total_edges[query]}, but it has "
                f"{self.graph.in_degree[query]} edges."
            )

    def __repr__(self) -> str:
        place = "".join(f"{part}, " for part in self.place())
        edits = f", {in_words(self.edits)}" if self.edits else ""
        return (
            f"AttentionGraph({place}{self.graph.num_tokens} tokens, {self.graph.num_edges} edges, "
            f"keep={steps.to_text(self.kept_by)}, {self.share_kept:.1%} of the attention{edits})"
        )

    def place(self) -> list[str]:
        """Say where in the model the graph comes from, as in ``["layer 1", "head 3"]``.

        Cross-attention, where queries are other tokens than keys, says so first.
        """
        numbers = {
            "layer": self.layer,
            "head": self.head,
            "key-value head": self.key_value_head,
        }
        known = [f"{name} {number}" for name, number in numbers.items() if number is not None]
        return ["cross-attention", *known] if known and self.graph.is_bipartite else known

    @classmethod
    def from_dense(
        cls,
        attention: Any,
        graph: TokenGraph | None = None,
        *,
        tokens: Sequence[str] = (),
        **attributes: Any,
    ) -> AttentionGraph:
        """Read a matrix A, ``A[i, j]`` what query i gives to key j.

        Parameters
        ----------
        attention : array or Tensor (queries, keys)
            The attention; entries where `graph` has no edge are not read.
        graph : TokenGraph, optional
            The edges; every non-zero entry where not given.
        tokens : sequence of str
            The tokens' texts.
        **attributes
            Further fields of `AttentionGraph`, such as ``layer`` and ``head``.
        """
        if getattr(attention, "dims", ()) == ("key", "query"):
            raise ShapeError("attention must be (queries, keys), but this one is transposed.")
        refuse_hidden("attention", attention, ShapeError)
        if isinstance(attention, torch.Tensor):
            attention = attention.detach().cpu()
            if attention.dtype == torch.bfloat16:  # NumPy has no such dtype
                attention = attention.float()
        matrix = np.asarray(attention)
        if matrix.ndim != 2 or matrix.dtype.kind != "f" or matrix.dtype.itemsize > 8:
            raise ShapeError(
                f"attention must be a (queries, keys) array of floats, not {matrix.dtype} "
                f"{matrix.shape}."
            )
        if graph is None:
            graph = TokenGraph.from_mask(torch.from_numpy(matrix != 0))
        graph = graph.to("cpu").sorted()
        if matrix.shape != (graph.num_queries, graph.num_keys):
            raise ShapeError(
                f"attention is {matrix.shape}, but the token graph has {graph.num_queries} queries "
                f"and {graph.num_keys} keys."
            )
        key, query = graph.edge_index.numpy()
        values = matrix[query, key]
        return cls(
            graph,
            values,
            total_mass=np.bincount(query, np.abs(values), graph.num_queries).astype(matrix.dtype),
            total_edges=graph.in_degree.numpy(),
            tokens=tuple(tokens),
            **edge_lists.with_arrays(attributes),
        )

    @staticmethod
    def from_edges(
        edge_index: Any, attention: Any, tokens: Sequence[str] = (), **attributes: Any
    ) -> AttentionGraph:
        """Read edges and the attention of each, which stay together whatever their order.

        Parameters
        ----------
        edge_index : array, Tensor or lists (2, edges)
            torch-geometric's ``[key; query]``, each edge once.
        attention : array, Tensor or list (edges,)
            The attention of each edge, in the order of `edge_index`.
        tokens : sequence of str
            The tokens' texts (of the keys, where `query_tokens` are given). Without them give
            ``num_tokens``, or for cross-attention ``num_queries`` and ``num_keys``.
        **attributes
            Further fields of `AttentionGraph`: ``score``, ``contribution`` and ``value_norm`` are
            (edges,) in the order of `edge_index`, too; ``query_tokens`` makes cross-attention.

        Raises
        ------
        GraphError
            Where an edge is there twice, or leads to a token that is not there.
        ShapeError
            Where there is not one number for each edge.
        CaptureError
            Where a number is not finite.

        Examples
        --------
        >>> edges = [[1, 0, 0], [1, 1, 0]]  # keys, and the queries that read them
        >>> AttentionGraph.from_edges(edges, [0.7, 0.3, 1.0], ["the", "dog"]).to_dense().tolist()
        [[1.0, 0.0], [0.3, 0.7]]
        """
        return AttentionGraph(**edge_lists.fields_of(edge_index, attention, tokens, **attributes))

    # Edges

    @property
    def key(self) -> Ints:
        """The key of each edge, as an index of nodes."""
        index: Ints = self.graph.edge_index[0].numpy()
        return index

    @property
    def query(self) -> Ints:
        """The query of each edge, as a row."""
        index: Ints = self.graph.edge_index[1].numpy()
        return index

    @property
    def edge_values(self) -> dict[str, Floats]:
        """The numbers of each edge by name: ``attention``, and which others are stored."""
        others = ("score", "contribution", "value_norm")
        stored = {name: getattr(self, name) for name in others}
        return {"attention": self.attention} | {
            name: values for name, values in stored.items() if values is not None
        }

    @property
    def kept_mass(self) -> Floats:
        """The mass `Σ_j |A_ij|` of each query's kept edges, shape (queries,)."""
        mass = np.bincount(self.query, np.abs(self.attention), self.graph.num_queries)
        return mass.astype(self.attention.dtype)

    @property
    def share_kept(self) -> float:
        """The share of the attention's mass that the kept edges hold."""
        total = float(self.total_mass.sum())
        return float(self.kept_mass.sum()) / total if total else 1.0

    @property
    def dropped_edges(self) -> Ints:
        """How many edges each query lost, shape (queries,)."""
        kept: Ints = self.graph.in_degree.numpy()
        return self.total_edges - kept

    @property
    def node_positions(self) -> Ints:
        """The position of each node in the text, shape (tokens,)."""
        return np.arange(self.graph.num_tokens) if self.positions is None else self.positions

    def labels(self) -> list[str]:
        """Name each node: its token, or where there are no tokens its position."""
        if self.tokens:
            return list(self.tokens)
        return [str(position) for position in self.node_positions]

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
        for edges, present in padded_rows(self.graph.edge_index[1], self.graph.num_queries):
            chosen[edges[keep.select(attention[edges], present)].numpy()] = True
        return self._with_edges(chosen, keep)

    def without_self_loops(self) -> AttentionGraph:
        """Drop the edges from a token to itself: what remains of a causal head is a DAG."""
        if self.graph.is_bipartite:
            return self
        chosen = self.key != self.query + self.graph.query_offset
        return self._with_edges(chosen, steps.NoSelfLoops())

    def _with_edges(self, chosen: NDArray[np.bool_], step: Keep | steps.Step) -> AttentionGraph:
        row, key = torch.from_numpy(self.query[chosen]), torch.from_numpy(self.key[chosen])
        rule = Edges.from_pairs(row, key, self.graph.num_queries, self.graph.query_offset)
        values: dict[str, Any] = {name: some[chosen] for name, some in self.edge_values.items()}
        return replace(
            self,
            graph=replace(self.graph, rule=rule),
            kept_by=steps.after(self.kept_by, step),
            **values,
        )

    # Nodes

    def subgraph(self, nodes: Iterable[int | str]) -> AttentionGraph:
        """Keep some tokens, by position, from the end, or by text (every token of that text).

        Nodes keep their positions; edges to other tokens count as dropped. In a bipartite graph a
        position or text chooses among queries and keys alike.
        """
        return merging.subgraph(self, nodes)

    def merge(
        self, spans: Iterable[tuple[int, int]], query_spans: Iterable[tuple[int, int]] = ()
    ) -> AttentionGraph:
        """Merge spans of neighbouring tokens into one node each: sum over keys, mean over queries.

        Parameters
        ----------
        spans : iterable of (start, stop)
            Half-open, not overlapping; a token outside every span stands alone. Where the graph is
            bipartite, spans of keys.
        query_spans : iterable of (start, stop)
            Spans of queries, where the graph is bipartite.

        Notes
        -----
        Rows that summed to 1 still do. Merged nodes count from 0 anew. Scores and lengths are not
        carried over: the score of a merged edge is not defined, and the length of a sum is not the
        sum of the lengths.
        """
        return merging.merge(self, spans, query_spans)

    def merge_words(self) -> AttentionGraph:
        """Merge the tokens of each word into one node (of the keys, where bipartite)."""
        return merging.merge_words(self)

    # Other forms

    def to_dense(self) -> Floats:
        """Build the matrix A, (queries, keys), 0 where no edge was kept."""
        matrix = np.zeros((self.graph.num_queries, self.graph.num_keys), self.attention.dtype)
        matrix[self.query, self.key] = self.attention
        return matrix

    def to_scipy(self) -> csr_array[Any, tuple[int, int]]:
        """Build the sparse matrix A, (queries, keys)."""
        from scipy.sparse import csr_array

        shape = (self.graph.num_queries, self.graph.num_keys)
        return csr_array((self.attention, self.key, self.graph.pointer.numpy()), shape=shape)

    def to_pandas(self) -> pd.DataFrame:
        """List the edges: positions and tokens of query and key, and their `edge_values`.

        The edits that the model ran with are in ``attrs["edits"]``, which CSV cannot hold.
        """
        import pandas as pd

        keys, queries = self.node_ids()
        key_tokens, query_tokens = self.labels(), self.query_labels()
        tokens = {
            "query_token": [query_tokens[i] for i in self.query],
            "key_token": [key_tokens[i] for i in self.key],
        }
        table = {
            "query": [queries[i] for i in self.query],
            "key": [keys[i] for i in self.key],
            # Arrow, in which pandas stores text, refuses lone surrogates.
            **{name: pd.Series(texts, dtype=object) for name, texts in tokens.items()},
            **self.edge_values,
        }
        made = pd.DataFrame(table)
        if self.edits:
            made.attrs["edits"] = identities(self.edits)
        return made

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

    def to_networkx(self, *, self_loops: bool = True, distance: bool = False) -> nx.DiGraph[Any]:
        """Build the directed graph with an edge (j, i), key to query, for each kept edge.

        See `gattn.heads.networks.to_networkx` for its attributes.
        """
        return networks.to_networkx(self, self_loops=self_loops, distance=distance)

    @staticmethod
    def from_networkx(graph: nx.DiGraph[Any], weight: str = "weight") -> AttentionGraph:
        """Read a graph that `to_networkx` built, or any directed graph with edge weights.

        `weight` names the attribute that holds the attention; see `gattn.heads.networks`.
        """
        return AttentionGraph(**networks.fields_from(graph, weight))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file of the kind its suffix says; see `gattn.files.save`."""
        door.save(self, path)

    def draw(self, layout: Layout = "arcs", *, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the graph on Axes; see `gattn.drawing.draw_head`."""
        return door.draw(self, layout, ax=ax, **options)

    @overload
    def to_html(self, path: None = None, **options: Any) -> str: ...
    @overload
    def to_html(self, path: str | PathLike[str], **options: Any) -> None: ...
    def to_html(self, path: str | PathLike[str] | None = None, **options: Any) -> str | None:
        """Write a page to look at, one HTML file; see `gattn.drawing.page.to_html`."""
        return door.to_html(self, path, **options)

    def _repr_html_(self) -> str | None:
        return door.notebook_html(self)

    def draw_text(self, query: int | str | None = None, **options: Any) -> Axes:
        """Write the text, shaded by what a query reads of it; see `gattn.drawing.draw_text`."""
        return door.draw_text(self, query, **options)
