"""The edges of all heads as one graph: a node for each token and head, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gattn.caching import cached_tensor
from gattn.graph.rules.neighbourhoods import Neighbourhoods


@dataclass(frozen=True, eq=False)
class HeadEdges(Neighbourhoods):
    """The edges of `base` in each of `heads` heads; node n of head h is ``n * heads + h``.

    So tensors (tokens, heads, dim) are read as they lie, and a query's edges, head after head,
    stand together.
    """

    base: Neighbourhoods = field(kw_only=True)
    heads: int = field(kw_only=True)
    place: Tensor = field(kw_only=True)
    """Where each edge of each head stands, (edges, heads)."""

    @staticmethod
    def of(base: Neighbourhoods, heads: int) -> HeadEdges:
        """List them."""
        most = heads * max(base.num_edges, base.num_queries, base.num_keys)
        kind = torch.int32 if most < 1 << 31 else torch.int64
        pointer, key = base.pointer.to(kind), base.key.to(kind)
        head = torch.arange(heads, device=key.device, dtype=kind)
        start, degree = pointer[:-1], pointer.diff()
        starts = (heads * start[:, None] + degree[:, None] * head).flatten()
        edge = torch.arange(base.num_edges, device=key.device, dtype=kind)
        first = edge + (heads - 1) * start.index_select(0, base.query)
        place = first[:, None] + degree.index_select(0, base.query)[:, None] * head
        keys = torch.empty_like(place).flatten()
        keys[place.flatten()] = (key[:, None] * heads + head).flatten()
        ends = starts.new_full((1,), heads * base.num_edges)
        return HeadEdges(
            torch.cat([starts, ends]),
            keys,
            heads * base.num_keys,
            base=base,
            heads=heads,
            place=place,
        )

    @cached_tensor
    def source(self) -> Tensor:
        """Which number of (edges, heads), flattened, stands at each place: the inverse."""
        place = self.place.flatten()
        return torch.empty_like(place).scatter_(
            0, place.long(), torch.arange(len(place), device=place.device, dtype=place.dtype)
        )

    @cached_tensor
    def reversed(self) -> Neighbourhoods:
        """The same edges from queries to keys; sorted by those of `base`, which are fewer."""
        back = self.base.reversed
        assert back.order is not None
        edges = HeadEdges.of(back, self.heads)
        order = self.place.index_select(0, back.order).flatten().index_select(0, edges.source)
        return Neighbourhoods(edges.pointer, edges.key, edges.num_keys, order)


def per_head(edges: Neighbourhoods, heads: int) -> HeadEdges:
    """List the edges of all heads; these stay for the next calls, for two numbers of heads."""
    known: dict[int, HeadEdges] = edges.__dict__.setdefault("per_head", {})
    found = known.get(heads)
    if found is None:
        with torch.inference_mode(False):
            found = HeadEdges.of(edges, heads)
        if len(known) > 1:
            known.clear()
        known[heads] = found
    return found


def differentiable(
    again: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    gradient: Tensor,
) -> tuple[Tensor | None, ...]:
    """Compute gradients that have gradients, by functions that torch differentiates."""
    with torch.enable_grad():
        output = again(*inputs)
        wanted = [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]
        found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if is_needed else None for is_needed in needed)
