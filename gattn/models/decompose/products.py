"""The queries and keys that scores are products of, where a model shows only its softmax."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOST = 200
_SIDES = {
    "BmmBackward0": ("_saved_self", "_saved_mat2"),
    "MmBackward0": ("_saved_self", "_saved_mat2"),
    "BaddbmmBackward0": ("_saved_batch1", "_saved_batch2"),
}
"""The products of torch, and by which names their gradients know what was multiplied."""


@dataclass(frozen=True, eq=False)
class Product:
    """Scores (heads, queries, keys) and the queries and keys (heads, tokens, dim) of the product.

    Queries and keys have gradients to what they were made of.
    """

    scores: Tensor
    query: Tensor
    key: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Product | None:
        """Find the product that scores with a gradient come from; None if there is none."""
        waiting, seen = deque([scores.grad_fn]), 0
        while waiting and seen < _MOST:
            node: Any = waiting.popleft()
            seen += 1
            if node is None:
                continue
            if (names := _SIDES.get(node.name())) is not None:
                return cls._of(scores, *(getattr(node, name, None) for name in names))
            waiting.extend(one for one, _ in node.next_functions)
        return None

    @classmethod
    def _of(cls, scores: Tensor, query: Any, key: Any) -> Product | None:
        if not isinstance(query, Tensor) or not isinstance(key, Tensor):
            return None
        query, key = (x[None] if x.dim() == 2 else x for x in (query, key.mT))
        shape = len(query), query.shape[1], key.shape[1]
        return cls(scores, query, key) if shape == tuple(scores.shape) else None

    def terms(self, other: Product, head: int, allowed: Tensor) -> tuple[float, Tensor] | None:
        r"""Return s and b in :math:`S_{ij} = s q_i \cdot k_j + b_{ij}`, of a head, or None.

        They are found, and verified, by another run, whose b is the same.
        """
        with torch.no_grad():
            change = [
                (one - two)[allowed].double()
                for one, two in (
                    (self.scores[head], other.scores[head]),
                    (self.products(head), other.products(head)),
                )
            ]
            scores, products = change
            squares = float(products.square().sum())
            scale = float((scores * products).sum()) / squares if squares else 1.0
            most = float(scores.abs().max()) if len(scores) else 0.0
            is_so = bool(((scores - scale * products).abs() <= _EXACT * most).all())
            added = other.scores[head].double() - scale * other.products(head).double()
            return (scale, added.masked_fill(~allowed, 0.0)) if is_so else None

    def products(self, head: int) -> Tensor:
        """Return the products q·k of a head: (queries, keys)."""
        return self.query[head].detach() @ self.key[head].detach().T


_EXACT = 1e-4
"""How far what changes may be from a multiple, relative to the largest change."""
