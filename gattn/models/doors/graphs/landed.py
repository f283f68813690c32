"""The messages of a layer that writes out its sums over edges: attention times a value each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gattn.models.read.on_graphs.seen_edges import Take


class Wanted:
    """Proves the messages of a call, and hands them to those who want them.

    Parameters
    ----------
    attention : Tensor (edges, heads)
        The attention of the call, in the model's order.
    takes : sequence of function
        Who wants them, once these messages, and nothing else, are summed up at their nodes.
    """

    def __init__(self, attention: Tensor, takes: Sequence[Take]) -> None:
        self._attention, self._takes = attention.detach(), takes

    def met(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Tensor,
        order: Tensor | None,
    ) -> Tensor | None:
        """Return what a function made of attention and values, if it is their product by heads.

        It is computed once more with each head's attention times another power of two, which loses
        no digit. None if that is not as many times larger.
        """
        edges, heads = self._attention.shape
        given = self._attention if order is None else self._attention[order]
        factors = scales(heads, given)
        found: list[Tensor] = []

        def larger(x: Any) -> Any:
            is_it = isinstance(x, Tensor) and x.numel() == given.numel() and len(x) == edges
            if not is_it or not torch.equal(x.detach().reshape(given.shape), given):
                return x
            found.append(x)
            return (given * factors).reshape(x.shape)

        if result.shape[:1] != (edges,) or result.numel() % max(given.numel(), 1):
            return None
        with torch.no_grad():
            again = func(*tree_map(larger, args), **tree_map(larger, kwargs))
        parts, twice = (x.detach().reshape(edges, heads, -1) for x in (result, again))
        if len(found) != 1 or not torch.equal(parts * factors[:, None].to(parts.dtype), twice):
            return None
        return (
            parts.clone() if order is None else torch.empty_like(parts).index_copy_(0, order, parts)
        )

    def land(self, summed: Any, messages: Tensor | None, order: Tensor | None) -> None:
        """Hand on messages that are summed up as they were."""
        if messages is None or not isinstance(summed, Tensor):
            return
        wanted = messages if order is None else messages[order]
        if summed.numel() == wanted.numel() and torch.equal(
            summed.detach().reshape(wanted.shape), wanted
        ):
            for take in self._takes:
                take(messages)


def scales(heads: int, like: Tensor) -> Tensor:
    """Return a power of two for each head."""
    return 2.0 ** (torch.arange(heads, device=like.device) % 8 + 1).to(like.dtype)
