"""A call of attention over listed edges, as a door has seen it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from gattn.errors import EditError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.nouns import GRAPH
from gattn.models.read.on_graphs.merging import Merged, merged
from gattn.models.read.seen_call import SeenCall
from gattn.normalizers.base import widened

Take = Callable[[Tensor], None]
"""What takes the messages of a call: (edges, heads, ...), in the model's order."""


@dataclass(frozen=True, eq=False)
class Ends:
    """The two ends of the edges that a softmax shares attention out over, in the model's order.

    Parameters
    ----------
    module : nn.Module
        The module that attends.
    key, query : Tensor
        The nodes at both ends of each edge, shape (E,).
    num_keys, num_queries : int
        How many nodes there are.
    is_bipartite : bool
        Whether keys and queries are different nodes.
    kind : str
        The type of the edges, where a module attends over several types one after another.
    read_only : str
        Why their attention must not be edited, if so.
    names : mapping
        The names of keys (`tokens`) and of queries (`query_tokens`), where several types of nodes
        lie side by side.
    sizes : mapping
        Then also how many nodes of each type there are.
    keys_by_node : tuple of str
        Then also the names of keys without the type of their edges, by which edits find them, too.
    is_listed : bool
        Whether the edges were found as a list, without message passing that tells where values go.
    aggregation : str
        The class that makes one of a node's messages, if it does not add them up.
    """

    module: nn.Module
    key: Tensor
    query: Tensor
    num_keys: int
    num_queries: int
    is_bipartite: bool = False
    kind: str = ""
    read_only: str = ""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keys_by_node: tuple[str, ...] = ()
    is_listed: bool = False
    aggregation: str = ""


@dataclass(kw_only=True)
class SeenEdges(SeenCall):
    """One call of softmax attention over listed edges.

    The tensors of `SeenCall` have no dims: what is known are scores. Parallel edges (the same key
    and query) count as one edge, whose attention is the sum of theirs.

    Parameters
    ----------
    ends : Ends
        The edges.
    scores, attention : Tensor (E, heads)
        Each edge's score and attention, in the model's order; edits replace the attention.
    takes : list of function
        Who takes the messages of a layer that sums them up itself.
    """

    ends: Ends
    scores: Tensor
    attention: Tensor
    takes: list[Take] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        name: str,
        ends: Ends,
        scores: Tensor,
        attention: Tensor,
        part: int = 0,
        *,
        is_named: bool = True,
    ) -> SeenEdges:
        """Describe a call by its edges, scores and attention; names are those of known nodes."""
        heads = scores.shape[1]
        query = scores.new_zeros(1, heads, ends.num_queries, 0)
        key = scores.new_zeros(1, heads, ends.num_keys, 0)
        stack = ends.kind or edge_type(name) or ("" if ends.is_bipartite else GRAPH)
        stack = stack if is_named else ""
        return cls(
            name or type(ends.module).__name__,
            ends.module,
            query,
            key,
            key,
            query.transpose(1, 2),
            is_cross=ends.is_bipartite,
            part=part,
            is_foreign=True,
            is_named=is_named,
            is_seen_again=False,
            token_names=ends.names if is_named else {},
            token_spellings=ends.keys_by_node if is_named else (),
            stack=f"{stack}, part {part + 1}" if stack and part else stack,
            ends=ends,
            scores=scores,
            attention=attention,
        )

    @cached_property
    def merged(self) -> Merged:
        """The edges on a token graph, where parallel edges are one."""
        return merged(self.ends)

    @property
    def graph(self) -> TokenGraph:
        """The edges, without duplicates."""
        return self.merged.graph

    @property
    def places(self) -> Tensor:
        """Which edge of the graph each edge of the model is, shape (E,)."""
        return self.merged.places

    @property
    def has_parallel_edges(self) -> bool:
        """Whether several edges run from one node to another."""
        return self.merged.has_parallel_edges

    @cached_property
    def merged_scores(self) -> Tensor:
        """The score of each edge of the graph, (edges, heads): log-sum-exp of parallel edges."""
        return self.merged.log_summed(widened(self.scores).cpu())

    def spread(self, attention: Tensor, heads: Sequence[int] | slice = slice(None)) -> Tensor:
        """Give each edge of the model its share of the attention of the graph's edges.

        Parameters
        ----------
        attention : Tensor
            Shape (edges of the graph, heads).
        heads : sequence of int, optional
            Which heads these are; all by default.

        Returns
        -------
        Tensor
            Shape (E, heads), on the CPU.
        """
        whole = attention.index_select(0, self.places)
        if not self.has_parallel_edges:
            return whole
        some = self.merged.parallel
        scores = widened(self.scores).cpu().index_select(0, some)
        share = torch.exp(scores - self.merged_scores.index_select(0, self.places[some]))
        # Edges that score -inf have no share of nothing.
        shared = whole.index_select(0, some) * share[:, heads].nan_to_num(0.0)
        return whole.index_copy(0, some, shared)

    def on_graph(self, gradient: Tensor) -> Tensor:
        """Give each edge of the graph the gradient at its attention, shared as parallel edges do.

        Parameters
        ----------
        gradient : Tensor
            That at the attention of the model's edges, shape (E, heads).

        Returns
        -------
        Tensor
            Shape (edges of the graph, heads), on the CPU.
        """
        gradient = widened(gradient).cpu()
        ones = gradient.new_ones(self.graph.num_edges, gradient.shape[1])
        return self.merged.summed(gradient * self.spread(ones))


def edge_type(name: str) -> str:
    """Read the type of edges in a module's name: torch-geometric has a module for each."""
    last = name.rpartition(".")[2].strip("<>")
    parts = last.split("___" if "___" in last else "__")
    return " ".join(parts) if len(parts) == 3 and all(parts) else ""


def places_in(graph: TokenGraph, query: Tensor, key: Tensor) -> Tensor:
    """Find edges among those of a graph; -1 where it does not have one."""
    known_key, known_query = graph.edge_index
    codes, wanted = known_query * graph.num_keys + known_key, query * graph.num_keys + key
    if not len(codes):
        return torch.full_like(wanted, -1)
    places = torch.searchsorted(codes, wanted).clamp_max(len(codes) - 1)
    return torch.where(codes[places] == wanted, places, -1)


def features_on(whole: TokenGraph, features: Tensor, graph: TokenGraph, reason: str) -> Tensor:
    """Take the features (edges, F) of a graph for the edges of an edited one.

    Raises
    ------
    EditError
        If that has further edges; `reason` says why they cannot be added.
    """
    key, query = graph.edge_index
    places = places_in(whole, query, key)
    if bool((places < 0).any()):
        lost = int((places < 0).nonzero()[0])
        raise EditError(
            f"The given graph has an edge from key {int(key[lost])} to query {int(query[lost])}, "
            f"which the model's graph does not have: {reason}."
        )
    return features[places.to(features.device)]
