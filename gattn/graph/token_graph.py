"""Token graphs: who may attend to whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.caching import cached_property, cached_tensor, fields_alone
from gattn.checks import check_memory, whole
from gattn.door import draw
from gattn.errors import GraphError
from gattn.graph.arrays import as_tensor, check_inside, whole_numbers
from gattn.graph.constructions import bigbird_rule, expander_rule, nearest_rule, pairs_of
from gattn.graph.counting import count_edges
from gattn.graph.listing import list_edges
from gattn.graph.networks import edges_of_network, to_network
from gattn.graph.ordering import arrange
from gattn.graph.rules.base import BLOCK_PAIRS, Rule
from gattn.graph.rules.combined import Combined, Disjoint, combined
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import FARTHEST, Keys, list_keys
from gattn.graph.rules.neighbourhoods import Neighbourhoods, pointer_of
from gattn.graph.rules.simple import Causal, Complete, Documents, Globals, Prefix, Strided, Window
from gattn.graph.walking import blocks_of_rows

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

    from gattn.drawing.one_head.draw_head import Layout

_FEW_QUERIES = 1 << 12


@dataclass(frozen=True, eq=False)
class TokenGraph:
    """Who may attend to whom.

    Nodes are token positions; the edge j -> i exists where query i may attend to key j. Row r of
    the queries stands at position ``query_offset + r``, so a decoding step with a cache of n keys
    is ``TokenGraph.causal(1, num_keys=n, query_offset=n - 1)``.

    A structured graph stays a rule: it costs no memory until its edges are asked for. Graphs of
    one size combine as sets of edges: ``a & b``, ``a | b``, ``a - b``.

    Parameters
    ----------
    rule : Rule
        Which pairs are edges. Use the named constructors rather than this one.
    num_queries, num_keys : int
        The numbers of rows and columns.
    query_offset : int
        The position of the first query.
    is_bipartite : bool
        Whether queries and keys are different tokens, as in cross-attention.
    is_reordered : bool
        Whether the edges were given in another order than the graph's own. Numbers of its edges
        are then refused, as it is not clear which order they follow: see `sorted`.

    Examples
    --------
    >>> graph = TokenGraph.causal(3)
    >>> graph.num_edges
    6
    >>> graph.edge_index.tolist()
    [[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]
    """

    rule: Rule
    num_queries: int
    num_keys: int
    query_offset: int = 0
    is_bipartite: bool = False
    is_reordered: bool = field(default=False, metadata={"is_stored": False})

    __getstate__ = fields_alone

    def __post_init__(self) -> None:
        for name in ("num_queries", "num_keys", "query_offset"):
            given = getattr(self, name)
            size = given if type(given) is int and given >= 0 else whole(name, given, 0, GraphError)
            if size > FARTHEST:
                raise GraphError(f"{name} must be at most 2**40, not {size!r:.60}.")
            object.__setattr__(self, name, size)
        if not isinstance(self.rule, Rule) or not isinstance(self.is_bipartite, bool):
            raise GraphError(
                "A TokenGraph takes a rule and whether it is bipartite, not "
                f"{self.rule!r:.80} and {self.is_bipartite!r:.80}; use the named constructors, "
                "such as TokenGraph.causal."
            )

    def __repr__(self) -> str:
        sizes = f"{self.num_queries} x {self.num_keys}"
        offset = f", query_offset={self.query_offset}" if self.query_offset else ""
        bipartite = ", bipartite" if self.is_bipartite else ""
        return f"TokenGraph({self.rule}, {sizes}{offset}{bipartite})"

    # Structured graphs

    @classmethod
    def complete(cls, num_tokens: int) -> TokenGraph:
        """Every token attends to every token, itself included."""
        return cls(Complete(), num_tokens, num_tokens)

    @classmethod
    def causal(
        cls, num_queries: int, *, num_keys: int | None = None, query_offset: int = 0
    ) -> TokenGraph:
        """Forbid the future: k <= q. ``num_keys`` defaults to all up to the last query's own."""
        keys = num_queries + query_offset if num_keys is None else num_keys
        return cls(Causal(), num_queries, keys, query_offset)

    @classmethod
    def window(cls, num_tokens: int, size: int, *, causal: bool = True) -> TokenGraph:
        """Allow the last `size` keys, `q - size < k <= q`; `|q - k| <= size` where not causal."""
        size = _positive(size=size)
        rule = Window(size - 1, 0) if causal else Window(size, size)
        return cls(rule, num_tokens, num_tokens)

    @classmethod
    def dilated(cls, num_tokens: int, size: int, dilation: int) -> TokenGraph:
        """`|q - k| <= size` and `(q - k) mod dilation = 0`."""
        size, dilation = _positive(size=size), _positive(dilation=dilation)
        return cls(Window(size, size, dilation), num_tokens, num_tokens)

    @classmethod
    def prefix(cls, num_tokens: int, length: int) -> TokenGraph:
        """Causal, and everyone reads the first `length` tokens."""
        length = _positive(length=length)
        return cls(Combined("|", Causal(), Prefix(length)), num_tokens, num_tokens)

    @classmethod
    def documents(cls, ids: Sequence[int] | Tensor, *, causal: bool = False) -> TokenGraph:
        """Tokens attend within their own document; ``ids`` has one document id a token."""
        found = whole_numbers(ids, "ids")
        if found.dim() != 1:
            raise GraphError(f"ids must be one id a token, not {tuple(found.shape)}.")
        rule: Rule = Documents(found.cpu().clone())
        if causal:
            rule = Combined("&", rule, Causal())
        return cls(rule, len(found), len(found))

    @classmethod
    def strided(cls, num_tokens: int, stride: int) -> TokenGraph:
        """Causal and (q - k) mod stride = 0 (Child et al. 2019)."""
        stride = _positive(stride=stride)
        return cls(Combined("&", Causal(), Strided(stride)), num_tokens, num_tokens)

    @classmethod
    def longformer(
        cls, num_tokens: int, size: int, global_positions: Sequence[int] = ()
    ) -> TokenGraph:
        """`|q - k| <= size`, and full rows and columns of some positions (Beltagy et al. 2020)."""
        size = _positive(size=size)
        positions = whole_numbers(global_positions, "global_positions").unique().cpu()
        check_inside(positions, num_tokens, "global_positions")
        rule = Combined("|", Window(size, size), Globals(positions))
        return cls(rule, num_tokens, num_tokens)

    @classmethod
    def bigbird(
        cls, num_tokens: int, block_size: int, *, random_blocks: int = 3, seed: int = 0
    ) -> TokenGraph:
        """Block attention of BigBird (Zaheer et al. 2020).

        Each block attends to itself and its two neighbours; the first and the last block attend
        to all and are attended by all; each block attends to `random_blocks` of the remaining
        ones, drawn with `seed`.
        """
        block_size = _positive(block_size=block_size)
        num_tokens = whole("num_tokens", num_tokens, 0, GraphError)
        random_blocks = whole("random_blocks", random_blocks, 0, GraphError)
        block_size = min(block_size, max(num_tokens, 1))
        rule = bigbird_rule(num_tokens, block_size, random_blocks, seed)
        return cls(rule, num_tokens, num_tokens)

    @classmethod
    def self_loops(cls, num_tokens: int) -> TokenGraph:
        """Every token attends to itself alone."""
        return cls(Window(0, 0), num_tokens, num_tokens)

    @classmethod
    def bipartite(cls, num_queries: int, num_keys: int) -> TokenGraph:
        """Cross-attention: every query attends to every key, and they are different tokens."""
        return cls(Complete(), num_queries, num_keys, is_bipartite=True)

    # Explicit graphs

    @classmethod
    def expander(
        cls, num_tokens: int, degree: int, *, seed: int = 0, max_tries: int = 100
    ) -> TokenGraph:
        """Random regular expander (Exphormer, Shirzad et al. 2023).

        The union of `degree` random permutations and their inverses, drawn again until its
        Laplacian's second eigenvalue reaches ``2 d - 2 sqrt(2 d - 1) - 0.1``. Graphs of up to 10
        tokens are complete.

        Raises
        ------
        GraphError
            Where no draw out of `max_tries` is a good expander.
        """
        degree = _positive(degree=degree)
        num_tokens = whole("num_tokens", num_tokens, 0, GraphError)
        if num_tokens <= 10:
            return cls.complete(num_tokens)
        rule = expander_rule(num_tokens, degree, seed, max_tries)
        return cls(rule, num_tokens, num_tokens)

    @classmethod
    def nearest(cls, features: Tensor | ArrayLike, k: int, *, causal: bool = False) -> TokenGraph:
        """Each token attends to the `k` tokens nearest to it in Euclidean distance, itself first.

        Parameters
        ----------
        features : Tensor or array
            Shape (tokens, dim).
        k : int
            Neighbours a token, itself included; fewer where fewer are allowed.
        causal : bool
            Whether a token may choose only among itself and those before it.
        """
        k = _positive(k=k)
        features = as_tensor(features, "features")
        if features.dim() != 2 or not bool(torch.isfinite(features).all()):
            raise GraphError(
                f"features must be finite and (tokens, dim), not {tuple(features.shape)}."
            )
        return cls(nearest_rule(features, k, causal), len(features), len(features))

    @classmethod
    def from_mask(cls, mask: Tensor | ArrayLike, *, is_bipartite: bool = False) -> TokenGraph:
        """Edges where ``mask[query, key]`` is True (torch's ``MultiheadAttention`` masks say the
        opposite: pass ``~attn_mask``).
        """  # noqa: D205
        mask = as_tensor(mask, "mask")
        if mask.dim() != 2 or mask.dtype != torch.bool:
            raise GraphError(
                f"mask must be a boolean (queries, keys), True where an edge is, not {mask.dtype} "
                f"{tuple(mask.shape)}; for an additive mask pass `mask == 0`."
            )
        query, key = mask.nonzero(as_tuple=True)
        rule = Edges.from_pairs(query, key, mask.shape[0])
        return cls(rule, mask.shape[0], mask.shape[1], is_bipartite=is_bipartite)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor | ArrayLike,
        num_tokens: int | None = None,
        *,
        num_queries: int | None = None,
        num_keys: int | None = None,
    ) -> TokenGraph:
        """Edges from torch-geometric's ``edge_index = [key; query]``; duplicates merge.

        Give `num_tokens`, or for cross-attention `num_queries` and `num_keys`. A token graph sorts
        its edges by query, then key; numbers of edges that were given in another order go to
        `AttentionGraph.from_edges`, or through `arrange`.
        """
        edge_index = whole_numbers(edge_index, "edge_index")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise GraphError(
                "edge_index must have shape (2, edges), rows key and query, not "
                f"{tuple(edge_index.shape)}."
            )
        if num_tokens is not None:
            num_queries = num_keys = num_tokens
        if num_queries is None or num_keys is None:
            raise GraphError("Give num_tokens, or both num_queries and num_keys.")
        num_queries = whole("num_queries", num_queries, 0, GraphError)
        num_keys = whole("num_keys", num_keys, 0, GraphError)
        check_inside(edge_index[0], num_keys, "the keys edge_index[0]")
        check_inside(edge_index[1], num_queries, "the queries edge_index[1]")
        rule = Edges.from_pairs(edge_index[1], edge_index[0], num_queries)
        steps = edge_index.diff()
        rises = (steps[1] > 0) | ((steps[1] == 0) & (steps[0] > 0))  # no product, which overflows
        return cls(
            rule,
            num_queries,
            num_keys,
            is_bipartite=num_tokens is None,
            is_reordered=not bool(rises.all()),
        )

    @classmethod
    def from_edges(
        cls, edges: Iterable[tuple[int | str, int | str]], tokens: int | Sequence[str]
    ) -> TokenGraph:
        """Edges from pairs (key, query), each a position or, where it occurs once, a token's text.

        Parameters
        ----------
        edges : iterable of pairs
            The way the information runs: ``("dog", "chased")`` lets "chased" read "dog".
        tokens : sequence of str, or int
            The tokens' texts, or how many there are.
        """
        if isinstance(tokens, SupportsIndex):
            words, size = list[str](), whole("tokens", tokens, 0, GraphError)
        else:
            words = list(tokens)
            size = len(words)
        return cls.from_edge_index(pairs_of(edges, words), size)

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any]) -> TokenGraph:
        """Edges from a NetworkX graph: (j, i) lets i read j; an undirected edge goes both ways.

        Nodes 0 .. n-1 are positions; other nodes take positions in the graph's own order. A
        directed graph on ``("key", j)`` and ``("query", i)`` alone is bipartite. A sink outside of
        the text, which is no token, is left out.
        """
        edge_index, sizes = edges_of_network(graph)
        return cls.from_edge_index(edge_index, **sizes)

    @classmethod
    def disjoint_union(cls, graphs: Sequence[TokenGraph]) -> TokenGraph:
        """Graphs side by side in one, as torch-geometric batches them."""
        if any(graph.query_offset for graph in graphs):
            raise GraphError("Graphs with a query_offset cannot be joined: their positions differ.")
        if len({graph.is_bipartite for graph in graphs}) > 1:
            raise GraphError("Bipartite graphs and others cannot be joined.")
        query_starts = _starts([graph.num_queries for graph in graphs])
        key_starts = _starts([graph.num_keys for graph in graphs])
        rule = Disjoint(tuple(graph.rule for graph in graphs), query_starts[:-1], key_starts[:-1])
        bipartite = bool(graphs) and graphs[0].is_bipartite
        reordered = any(graph.is_reordered for graph in graphs)
        return cls(rule, query_starts[-1], key_starts[-1], 0, bipartite, reordered)

    # Algebra

    def __and__(self, other: TokenGraph) -> TokenGraph:
        """Keep the edges that are in both."""
        return self._combine("&", other)

    def __or__(self, other: TokenGraph) -> TokenGraph:
        """Join the edges of both."""
        return self._combine("|", other)

    def __sub__(self, other: TokenGraph) -> TokenGraph:
        """Cut the edges of the other."""
        return self._combine("-", other)

    def _combine(self, operation: str, other: TokenGraph) -> TokenGraph:
        if not isinstance(other, TokenGraph):
            return NotImplemented
        if self._size != other._size:
            raise GraphError(f"{self!r} {operation} {other!r}: the graphs must have one size.")
        rule = combined(operation, self.rule, other.rule)
        return replace(self, rule=rule, is_reordered=self.is_reordered or other.is_reordered)

    @property
    def _size(self) -> tuple[int, int, int, bool]:
        return self.num_queries, self.num_keys, self.query_offset, self.is_bipartite

    @property
    def device(self) -> torch.device | None:
        """Where explicit edges are; None for a rule, which serves every device."""
        return self.rule.device

    def without_self_loops(self) -> TokenGraph:
        """Cut the edges from a token to itself."""
        if self.is_bipartite:
            return self
        return replace(self, rule=combined("-", self.rule, Window(0, 0)))

    # What it says

    def allowed(self, rows: Keys, columns: Keys) -> Tensor:
        """Say which pairs of some rows and keys are edges.

        Parameters
        ----------
        rows, columns : slice or Tensor
            Queries counted from 0, and keys. Tensors of shape (..., h) and (..., w) whose leading
            dimensions broadcast are blocks side by side.

        Returns
        -------
        Tensor
            Booleans (..., rows, columns), on the device of the tensors.
        """
        given = [part.device for part in (rows, columns) if isinstance(part, Tensor)]
        device = given[0] if given else self.rule.device
        query = list_keys(rows, device) + self.query_offset
        return self.rule.allowed(query[..., :, None], list_keys(columns, device)[..., None, :])

    def row_blocks(
        self, max_pairs: int = BLOCK_PAIRS, most_rows: int | None = None
    ) -> Iterator[tuple[slice, Keys, Tensor]]:
        """Walk the graph a few queries at a time, in bounded memory.

        Parameters
        ----------
        max_pairs : int
            How many pairs a block has at most, unless it is a single row.
        most_rows : int, optional
            How many rows a block has at most.

        Yields
        ------
        rows : slice
            The queries of the block.
        columns : slice or Tensor
            The keys that they reach and maybe others: a slice where they (nearly) fill a run, else
            int64, sorted, without duplicates.
        allowed : Tensor
            Booleans (rows, columns).
        """
        for rows, columns in blocks_of_rows(self, max_pairs, most_rows):
            yield rows, columns, self.allowed(rows, columns)

    @cached_tensor
    def in_degree(self) -> Tensor:
        """The number of keys that each query may attend to, shape (queries,)."""
        check_memory(8 * self.num_queries, f"The numbers of keys of all queries of {self}")
        device = self.rule.device or torch.device("cpu")
        positions = torch.arange(self.num_queries, device=device) + self.query_offset
        degrees = self.rule.degrees(positions, self.num_keys)
        if degrees is None:
            counts = [allowed.sum(1) for _, _, allowed in self.row_blocks()]
            degrees = torch.cat([positions[:0], *counts])
        return degrees

    @property
    def num_tokens(self) -> int:
        """How many tokens the keys, and where not bipartite the queries, stand for."""
        if self.is_bipartite:
            return self.num_keys
        return max(self.num_keys, self.num_queries + self.query_offset)

    @cached_property
    def num_edges(self) -> int:
        """How many edges there are: counted, not listed."""
        if self.num_queries <= _FEW_QUERIES:
            return int(self.in_degree.sum())
        found = count_edges(self.rule, self.query_offset, self.num_queries, self.num_keys)
        return int(self.in_degree.sum()) if found is None else found

    @cached_tensor
    def neighbourhoods(self) -> Neighbourhoods:
        """The edges query by query, as sparse products read them."""
        return list_edges(self)

    @cached_tensor
    def edge_index(self) -> Tensor:
        """The edges as torch-geometric's ``[key; query]`` (rows of queries, from 0).

        Shape (2, edges), sorted by query, then key, so that a neighbourhood is a slice.
        """
        return torch.stack([self.neighbourhoods.key, self.neighbourhoods.query])

    @cached_tensor
    def pointer(self) -> Tensor:
        """Where each neighbourhood starts among the edges, shape (queries + 1,)."""
        return pointer_of(self.in_degree)

    def mask(self) -> Tensor:
        """Whether query i may attend to key j, booleans of shape (queries, keys)."""
        device = self.rule.device or torch.device("cpu")
        size = self.num_queries * self.num_keys
        check_memory(size, f"The mask of {self}", "walk it with row_blocks()")
        dense = torch.zeros(self.num_queries, self.num_keys, dtype=torch.bool, device=device)
        for rows, columns, allowed in self.row_blocks():
            dense[rows].scatter_(1, list_keys(columns, device).expand_as(allowed), allowed)
        return dense

    @property
    def has_self_loops(self) -> bool:
        """Whether some token may attend to itself."""
        if self.is_bipartite:
            return False
        last = min(self.query_offset + self.num_queries, self.num_keys)
        first = min(self.query_offset, last)
        return any(
            bool(self.rule.allowed(some, some).any())
            for start in range(first, last, BLOCK_PAIRS)
            for some in [
                torch.arange(start, min(start + BLOCK_PAIRS, last), device=self.rule.device)
            ]
        )

    @property
    def is_dag(self) -> bool:
        """Whether no information can return to where it came from (a self-loop is a return)."""
        if self.is_bipartite:
            return True
        if self.has_self_loops:
            return False
        key, query = self.edge_index
        if bool((key < query + self.query_offset).all()):
            return True
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        size = self.num_tokens
        ends = ((query + self.query_offset).cpu().numpy(), key.cpu().numpy())
        matrix = coo_array((torch.ones(len(key)).numpy(), ends), shape=(size, size))
        components, _ = connected_components(matrix.tocsr(), connection="strong")
        return bool(components == size)

    def sorted(self) -> TokenGraph:
        """Take the edges as given by query, then key, as they stand in ``edge_index``.

        Numbers of edges that were given in another order are refused, as nobody can tell whether
        they follow that order or the graph's own. ``graph.sorted()`` takes them in the graph's own,
        into which `arrange` brings others.
        """
        return replace(self, is_reordered=False) if self.is_reordered else self

    def arrange(self, edge_index: Tensor | ArrayLike, edge_features: Tensor | ArrayLike) -> Tensor:
        """Bring features of the edges of `edge_index` into the order of ``graph.sorted()``.

        Raises
        ------
        GraphError
            Where `edge_index` does not hold each edge of this graph once: a doubled edge would
            make it ambiguous whose feature counts.
        """
        return arrange(self, edge_index, edge_features)

    def to(self, device: torch.device | str) -> TokenGraph:
        """Move explicit edges to a device (a rule without edges is on every device)."""
        if self.rule.device is None:
            return self
        return replace(self, rule=self.rule.to(torch.device(device)))

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Build the directed graph with an edge (j, i) where query i may attend to key j.

        Nodes are positions, or ``("key", j)`` and ``("query", i)`` where the graph is bipartite.
        """
        return to_network(self)

    def draw(self, layout: Layout = "matrix", *, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw who may attend to whom; see `gattn.drawing.draw_token_graph`."""
        return draw(self, layout, ax=ax, **options)


def _positive(**sizes: int) -> int:
    ((name, size),) = sizes.items()
    return whole(name, size, 1, GraphError)


def _starts(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes, initial=0))
