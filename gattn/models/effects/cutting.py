"""What cutting each edge of a layer changes in a metric, to first order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gattn.engines import tiles
from gattn.engines.call import AttentionCall
from gattn.engines.tensors.sparse import edge_products
from gattn.engines.tiles import RowBlock
from gattn.errors import CaptureError
from gattn.graph.rules.keys import list_keys
from gattn.heads.head import AttentionGraph
from gattn.models.edit.applying import parts
from gattn.models.effects.gradients import LayerOutput, is_of_output
from gattn.models.effects.layer_edges import LayerEdges
from gattn.models.read.on_graphs.seen_edges import places_in
from gattn.models.read.reading import Reading
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import neighbourhood_maxima, neighbourhood_sums


def read_cuts(
    reading: Reading, heads: list[int], renormalize: bool, name: str
) -> CutOutputs | CutEdges:
    """Read a call, to estimate cuts of the edges of some heads."""
    normalizer = reading.attention.normalizer
    if renormalize and not isinstance(normalizer, Softmax):
        raise CaptureError(
            f"{name} normalizes by {normalizer!r}, but how the other edges share out what a cut "
            "edge had is known of a softmax: pass renormalize=False, or measure cuts with "
            "gattn.effect."
        )
    if is_of_output(reading) and not reading.lists_edges:
        return CutOutputs.read(reading, heads, renormalize)
    return CutEdges.of(reading, heads, renormalize)


@dataclass(eq=False)
class CutOutputs(LayerOutput):
    """Heads of a layer: their values, and the effect of cutting each query's strongest edge.

    `value` is (heads, keys, dim), `output` and, without the strongest edges, `rest` are (heads,
    queries, dim), `strongest` is the key of that edge, (heads, queries).
    """

    value: Tensor
    output: Tensor | None = None
    rest: Tensor | None = None
    strongest: Tensor | None = None

    @classmethod
    def read(cls, reading: Reading, heads: list[int], renormalize: bool) -> CutOutputs:
        """Read a call; without renormalizing its values suffice."""
        (part,) = parts(reading, heads)
        call, own = part.attention, part.own
        layer = cls(heads, reading.queries.slots, call.value[0].detach().cpu()[own])
        if not renormalize:
            return layer
        found = [_without_strongest(call, block) for block in tiles.row_blocks(call)]
        output, rest, strongest = (
            torch.cat([x[0].cpu()[own] for x in some], 1) for some in zip(*found, strict=True)
        )
        return replace(layer, output=output, rest=rest, strongest=strongest)

    def estimates(self, graph: AttentionGraph) -> Tensor:
        """Estimate the effect of cutting each edge of a head."""
        assert self.gradient is not None
        row = self.heads.index(graph.head or 0)
        gradient, value = self.gradient[row].cpu(), self.value[row]
        key, query = graph.graph.edge_index
        edges = graph.graph.neighbourhoods
        of_value = edge_products(gradient[None], value[None], edges)[0]
        attention = torch.from_numpy(graph.attention)
        if self.output is None or self.rest is None or self.strongest is None:
            return -attention * of_value
        of_output = (gradient * self.output[row]).sum(-1)
        of_cut = (gradient * (self.rest[row] - self.output[row])).sum(-1)
        is_strongest = key == self.strongest[row, query]
        return _shared(attention, of_value, of_output[query], of_cut[query], is_strongest)


def _without_strongest(call: AttentionCall, block: RowBlock) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of some rows, that without each row's strongest edge, and its key."""
    assert block.scores is not None
    keys = list_keys(block.columns, call.value.device)
    value = call.value[:, :, keys]
    strongest = block.attention.argmax(-1, keepdim=True)
    rest = call.normalizer(block.scores.scatter(-1, strongest, -torch.inf))
    return block.attention @ value, rest @ value, keys[strongest[..., 0]]


@dataclass(eq=False)
class CutEdges(LayerEdges):
    """A layer whose estimates are made of the gradient at the attention of each edge."""

    normalizer: Normalizer = field(default_factory=Softmax)
    renormalize: bool = True

    @classmethod
    def of(cls, reading: Reading, heads: list[int], renormalize: bool) -> Self:
        """Read a call."""
        normalizer = reading.attention.normalizer
        return replace(cls.read(reading, heads), normalizer=normalizer, renormalize=renormalize)

    def estimates(self, graph: AttentionGraph) -> Tensor:
        """Estimate the effect of cutting each edge of a head."""
        some = places_in(self.graph, *graph.graph.edge_index.flip(0))
        return self._cuts[graph.head or 0].cpu()[some]

    @cached_property
    def _cuts(self) -> Tensor:
        """The estimate for each edge, (heads, edges)."""
        slope, attention = self.gradient, self.attention
        assert slope is not None
        slope = slope.to(attention)
        if not self.renormalize:
            return -attention * slope
        query, count = self.graph.edge_index[1].to(slope.device), self.graph.num_queries
        is_strongest = attention == neighbourhood_maxima(attention, query, count)[:, query]
        # Of several that are as strong, the first is taken: it holds at most half.
        places = torch.arange(len(query), dtype=torch.float64, device=slope.device)
        places = places.masked_fill(~is_strongest, len(query))
        is_strongest &= places == -neighbourhood_maxima(-places, query, count)[:, query]
        left = self.scores.masked_fill(is_strongest, -torch.inf)
        rest = self.normalizer.on_edges(left, query, count)
        of_output = neighbourhood_sums(attention * slope, query, count)[:, query]
        of_cut = neighbourhood_sums((rest - attention) * slope, query, count)[:, query]
        return _shared(attention, slope, of_output, of_cut, is_strongest)


def _shared(
    attention: Tensor, of_value: Tensor, of_output: Tensor, of_cut: Tensor, is_strongest: Tensor
) -> Tensor:
    """Estimate cuts whose attention the other edges share out, all given for each edge.

    Only the strongest edge may hold so much that 1 - A is too little to divide by.
    """
    weak = attention.masked_fill(is_strongest, 0.0)
    return torch.where(is_strongest, of_cut, weak / (1 - weak) * (of_output - of_value))
