"""Reads a call of gattn's own layers, which need no proof: it says itself what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.engines import edges
from gattn.engines.call import AttentionCall
from gattn.engines.choice import choose_for_graphs
from gattn.engines.edge_list import EdgeList
from gattn.errors import CaptureError, EditError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.models.read.on_graphs.seen_edges import edge_type, places_in
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
    ) -> OwnCall:
        """Describe a call and its output, (batch, queries, heads, value dim)."""
        name = name or type(module).__name__
        if call.graph.query_offset:
            raise CaptureError(
                f"{name} attends from queries that begin at position {call.graph.query_offset}, "
                "after tokens that gattn did not see: run the whole sequence at once."
            )
        is_graph = isinstance(call.graph, EdgeList) and not is_bipartite and not part
        stack = edge_type(name) or ("graph" if is_graph else "")
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
        key, query = graph.edge_index
        places = places_in(self.graph, query, key)
        if bool((places < 0).any()):
            lost = int((places < 0).nonzero()[0])
            raise EditError(
                f"The given graph has an edge from key {int(key[lost])} to query "
                f"{int(query[lost])}, which has no edge features in the model: leave it out."
            )
        return features[places.to(features.device)]


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
            "to another, which an attention graph does not tell apart: coalesce it first "
            "(torch_geometric.utils.coalesce)."
        )
    if features is not None and features.dim() == 2:
        features = features[torch.argsort(places_in(found, query, key))]
    return replace(call, graph=found, edge_features=features)
