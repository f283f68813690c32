"""Token graphs: who may attend to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.caching import cached_property, cached_tensor, fields_alone
from gattn.checks import check_memory, whole
from gattn.door import DrawnByKind, Pictured
from gattn.errors import GraphError
from gattn.graph import cycles, drawn, explicit, networks, ordering, structured
from gattn.graph.counting import degrees_of, number_of_edges
from gattn.graph.listing import list_edges
from gattn.graph.rules.base import BLOCK_PAIRS, Rule, check_answer
from gattn.graph.rules.folding import combined
from gattn.graph.rules.keys import FARTHEST, Keys, list_keys
from gattn.graph.rules.neighbourhoods import Neighbourhoods, pointer_of
from gattn.graph.rules.simple import Window
from gattn.graph.walking import blocks_of_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gattn.drawing.one_head.draw_head import Layout


@dataclass(frozen=True, eq=False)
class TokenGraph(Pictured):
    """Who may attend to whom.

    Nodes are token positions; the edge j -> i exists if query i may attend to key j. Row r of the
    queries is at position ``query_offset + r``, so a decoding step with a cache of n keys is
    ``TokenGraph.causal(1, num_keys=n, query_offset=n - 1)``.

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
        Whether the edges were given in another order than the graph's own. The graph then refuses
        numbers of edges, as it is unclear which order they follow: see `sorted`.

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
        rows, columns = min(self.num_queries, 2), min(self.num_keys, 3)
        # gattn's own rules are tested, and graphs of them are built in every call.
        if rows and columns and not type(self.rule).__module__.startswith("gattn."):
            found = self.allowed(slice(0, rows), slice(0, columns))
            check_answer(self.rule, found, rows, columns)

    def __repr__(self) -> str:
        sizes = f"{self.num_queries} x {self.num_keys}"
        offset = f", query_offset={self.query_offset}" if self.query_offset else ""
        bipartite = ", bipartite" if self.is_bipartite else ""
        return f"TokenGraph({self.rule}, {sizes}{offset}{bipartite})"

    # Graphs that a few numbers describe

    complete = classmethod(structured.complete)
    causal = classmethod(structured.causal)
    window = classmethod(structured.window)
    dilated = classmethod(structured.dilated)
    strided = classmethod(structured.strided)
    prefix = classmethod(structured.prefix)
    documents = classmethod(structured.documents)
    longformer = classmethod(structured.longformer)
    bigbird = classmethod(drawn.bigbird)
    expander = classmethod(drawn.expander)
    self_loops = classmethod(structured.self_loops)
    bipartite = classmethod(structured.bipartite)

    # Graphs from edges, masks, features and other graphs

    from_mask = classmethod(explicit.from_mask)
    from_edge_index = classmethod(explicit.from_edge_index)
    from_edges = classmethod(explicit.from_edges)
    from_networkx = classmethod(networks.from_networkx)
    nearest = classmethod(explicit.nearest)
    disjoint_union = classmethod(explicit.disjoint_union)

    # Algebra

    def __and__(self, other: TokenGraph) -> TokenGraph:
        """Keep the edges that are in both."""
        return self._combine("&", other)

    def __or__(self, other: TokenGraph) -> TokenGraph:
        """Join the edges of both."""
        return self._combine("|", other)

    def __sub__(self, other: TokenGraph) -> TokenGraph:
        """Cut the other's edges."""
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
        """Where explicit edges are stored; None for a rule, which serves every device."""
        return self.rule.device

    def without_self_loops(self) -> TokenGraph:
        """Cut the edges from a token to itself."""
        if self.is_bipartite:
            return self
        return replace(self, rule=combined("-", self.rule, Window(0, 0)))

    # Its edges

    def allowed(self, rows: Keys, columns: Keys) -> Tensor:
        """Return which pairs of the given rows and keys are edges.

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
            The keys that they reach, and possibly others: a slice if they fill a run (nearly),
            else int64, sorted, without duplicates.
        allowed : Tensor
            Booleans (rows, columns).
        """
        for rows, columns in blocks_of_rows(self, max_pairs, most_rows):
            yield rows, columns, self.allowed(rows, columns)

    @cached_tensor
    def in_degree(self) -> Tensor:
        """The number of keys that each query may attend to, shape (queries,)."""
        return degrees_of(self)

    @property
    def num_tokens(self) -> int:
        """How many tokens there are: the keys alone, if the graph is bipartite."""
        if self.is_bipartite:
            return self.num_keys
        return max(self.num_keys, self.num_queries + self.query_offset)

    @cached_property
    def num_edges(self) -> int:
        """How many edges there are: counted, not listed."""
        if self.on_host is not self:
            return self.on_host.num_edges
        return number_of_edges(self)

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
        """Whether any token may attend to itself."""
        return cycles.has_self_loops(self)

    @property
    def is_dag(self) -> bool:
        """Whether the graph has no cycle; a self-loop is one."""
        return cycles.is_dag(self)

    def sorted(self) -> TokenGraph:
        """Declare that numbers of edges follow the graph's own order, that of ``edge_index``.

        A graph whose edges were given in another order refuses such numbers, as they might follow
        either order. `permutation` says where each of its edges stands in a list of edges, and
        `arrange` brings numbers in the given order into the graph's own.
        """
        return replace(self, is_reordered=False) if self.is_reordered else self

    def to(self, device: torch.device | str) -> TokenGraph:
        """Move explicit edges to a device; a rule without edges serves every device."""
        if self.rule.device is None:
            return self
        moved = replace(self, rule=self.rule.to(torch.device(device)))
        if self.rule.device.type == "cpu":
            moved.__dict__["_copy_on_host"] = self
        return moved

    @property
    def on_host(self) -> TokenGraph:
        """The graph with its edges in main memory, where what is computed together is planned."""
        # A graph that kept itself would wait for the garbage collector.
        is_there = self.device is None or self.device.type == "cpu"
        return self if is_there else self._copy_on_host

    @cached_property
    def _copy_on_host(self) -> TokenGraph:
        return self.to("cpu")

    permutation = ordering.permutation
    arrange = ordering.arrange
    to_networkx = networks.to_networkx

    if TYPE_CHECKING:

        def draw(
            self,
            layout: Layout = "matrix",
            *,
            tokens: Sequence[str] = (),
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            labels: bool = True,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""
    else:
        draw = DrawnByKind()
