"""Reads a call over listed edges as graph attention, and proves that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.errors import CaptureError, EditError
from gattn.graph.token_graph import TokenGraph
from gattn.models.read.on_graphs.seen_edges import SeenEdges, features_on
from gattn.models.read.places import Place
from gattn.models.read.reading import GivenBias, Reading
from gattn.normalizers import Softmax
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit

_NO_MESSAGE = (
    "the model computes no message along it. Add the edge to the edge_index that the model is "
    "called with"
)


@dataclass(frozen=True, eq=False)
class EdgeReading(Reading):
    """A call over listed edges, read as graph attention on the CPU.

    Its edge features are the model's own scores, (edges, heads). `unedited` is the model's own
    attention, (heads, edges).
    """

    unedited: Tensor
    has_parallel_edges: bool = False

    @property
    def lists_edges(self) -> bool:
        """Whether edges are listed, rather than tokens paired."""
        return True

    def features_on(self, features: Tensor | None, graph: TokenGraph) -> Tensor | None:
        """Take the features of the edges that an edited graph keeps."""
        if graph is self.graph or features is None:
            return features
        return features_on(self.graph, features, graph, _NO_MESSAGE)


def read_edges(call: SeenEdges, place: Place, edits: Sequence[Sequence[Edit]]) -> list[Reading]:
    """Read a call, and prove that attention computed from its scores is the model's own."""
    some = tuple(edits[0])
    if some and call.ends.read_only:
        raise EditError(f"{some[0]} cannot be applied in {call.where}: {call.ends.read_only}.")
    queries, keys = call.ends.num_queries, call.ends.num_keys
    scores = call.merged_scores
    heads = scores.shape[1]
    key = scores.new_zeros(1, heads, keys, 0)
    attention = AttentionCall(
        scores.new_zeros(1, heads, queries, 0),
        key,
        call.graph,
        GivenBias(),
        Softmax(),
        key,
        scores,
    )
    with torch.no_grad():
        unedited = _verified(call)
    reading = EdgeReading(
        [0],
        place.sequences[:1],
        place.queries[0],
        place.keys[0],
        attention,
        some,
        groups=1,
        unedited=unedited,
        has_parallel_edges=call.has_parallel_edges,
    )
    return [reading]


def _verified(call: SeenEdges) -> Tensor:
    """Prove that the model's attention is the softmax of its scores over each query's edges.

    Returns
    -------
    Tensor
        The model's attention, (heads, edges of the graph).
    """
    given = widened(call.attention).cpu()
    if not len(given):
        return call.merged_scores.T
    if not bool(given.sum().isfinite()) and bool((broken := ~given.isfinite()).any()):
        edge, head = broken.nonzero()[0].tolist()
        raise CaptureError(
            f"The attention in {call.where} is NaN or infinite at head {head}, query "
            f"{int(call.ends.query[edge])}; expected numbers. Look for NaN or infinity in the "
            "weights and inputs."
        )
    found = call.merged.summed(given)
    is_half = call.attention.dtype in (torch.float16, torch.bfloat16)
    error = _error(call, found)
    if not error < (3e-2 if is_half else 1e-4):
        raise CaptureError(
            f"{call.where} ({type(call.module).__name__}) does not share attention out over each "
            f"node's edges as gattn reads it: it differs by up to {error:.1e}. Nothing was "
            "captured or edited."
        )
    return found.T


def _error(call: SeenEdges, attention: Tensor) -> float:
    """Return how far attention (edges, heads) is from the softmax of each query's scores."""
    query = call.graph.edge_index[1]
    computed = Softmax().on_edges(call.merged_scores.T, query, call.ends.num_queries).T
    return float((computed - attention).abs().max())
