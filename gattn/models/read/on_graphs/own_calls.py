"""Reads a call of gattn's own layers, which need no proof: it says itself what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.engines import edges
from gattn.engines.call import AttentionCall, EdgeList
from gattn.engines.choice import choose_for_graphs
from gattn.errors import CaptureError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads.nouns import GRAPH
from gattn.models.read.on_graphs.seen_edges import edge_type, features_on, places_in
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit


@dataclass(kw_only=True)
class OwnCall(SeenCall):
    """One call of a layer of gattn: `attention` on a token graph, its batch flattened."""

    attention: AttentionCall

    @classmethod
    def of(
        cls,
        name: str,
        module: nn.Module,
        call: AttentionCall,
        output: Tensor,
        is_bipartite: bool,
        part: int,
        is_named: bool,
    ) -> OwnCall:
        """Describe a call and its output, (batch, queries, heads, value dim)."""
        name = name or type(module).__name__
        if call.graph.query_offset:
            raise CaptureError(
                f"{name} attends from queries that begin at position {call.graph.query_offset}, "
                "after tokens that gattn did not see: run the whole sequence at once."
            )
        is_graph = isinstance(call.graph, EdgeList) and not is_bipartite and not part
        stack = (edge_type(name) or (GRAPH if is_graph else "")) if is_named else ""
        return cls(
            name,
            module,
            call.query,
            call.key,
            call.value,
            output,
            dropout=call.dropout,
            is_cross=is_bipartite,
            part=part,
            stack=f"{stack}, part {part + 1}" if stack and part else stack,
            is_foreign=isinstance(call.graph, EdgeList),
            is_named=is_named,
            is_seen_again=False,
            attention=on_token_graph(call, name, is_bipartite),
        )


@dataclass(frozen=True, eq=False)
class OwnReading(Reading):
    """A call of gattn's own layers; edges are listed where they suit it better than tiles."""

    lists: bool = False

    @property
    def splits_heads(self) -> bool:
        """Whether some heads can be computed without the others: weight functions may not."""
        return False

    @property
    def lists_edges(self) -> bool:
        """Whether edges are listed, rather than tokens paired."""
        return self.lists

    def features_on(self, features: Tensor | None, graph: TokenGraph) -> Tensor | None:
        """Take the features of the edges that an edited graph keeps."""
        if features is None or features.dim() == 3 or graph is self.graph:
            return features
        return features_on(self.graph, features, graph, "it has no edge features there")


def read_own(call: OwnCall, place: Place, edits: Sequence[Sequence[Edit]]) -> list[Reading]:
    """Read a call, elements with the same edits together."""
    whole, readings = call.attention, []
    lists = whole.features_to_value is not None or choose_for_graphs(whole) is edges

    def kind(element: int) -> list[int]:
        return [id(edit) for edit in edits[element]]

    for _, group in groupby(range(len(call.query)), kind):
        elements = list(group)
        some = slice(elements[0], elements[-1] + 1)
        tensors = {name: getattr(whole, name)[some] for name in ("query", "key", "value")}
        readings.append(
            OwnReading(
                elements,
                [place.sequences[element] for element in elements],
                place.queries[elements[0]],
                place.keys[elements[0]],
                replace(whole, **tensors),
                tuple(edits[elements[0]]),
                groups=1,
                lists=lists,
            )
        )
    return list(readings)


def has_parallel_edges(call: AttentionCall) -> bool:
    """Return whether edges of a softmax are parallel, which `SeenEdges` shows as one."""
    if not isinstance(call.graph, EdgeList) or not call.is_shared_out_by_softmax:
        return False
    index = call.graph.edge_index
    return len(call.query) == 1 and index.shape[1] > index.unique(dim=1).shape[1]


def on_token_graph(call: AttentionCall, name: str, is_bipartite: bool) -> AttentionCall:
    """Put a call on a plain list of edges on a token graph, which edits change."""
    graph, features = call.graph, call.edge_features
    if isinstance(graph, TokenGraph):
        return call
    assert isinstance(graph, EdgeList)
    key, query = graph.edge_index
    rule = Edges.from_pairs(query, key, graph.num_queries)
    found = TokenGraph(rule, graph.num_queries, graph.num_keys, 0, is_bipartite)
    if found.num_edges < graph.num_edges:
        raise CaptureError(
            f"The edge_index that {name} is called with has parallel edges, several from one node "
            "to another, which an attention graph shows as one: gattn can add them up for one "
            "graph at a time and a softmax without a sink. Coalesce it first "
            "(torch_geometric.utils.coalesce)."
        )
    if features is not None and features.dim() == 2:
        features = features[torch.argsort(places_in(found, query, key))]
    return replace(call, graph=found, edge_features=features)
