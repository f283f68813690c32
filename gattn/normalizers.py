"""Normalizers: how the scores of a neighbourhood become attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.errors import ContractError
from gattn.neighbourhoods import padded_rows


class Normalizer(nn.Module):
    """Turns the scores of each neighbourhood into attention.

    A subclass writes `forward` on whole rows. A score of -inf marks a pair that is no edge; it
    must come out as attention 0 with gradient 0, and so must a row without edges: never NaN.

    Attributes
    ----------
    is_distribution : bool
        Whether each row that has an edge sums to 1 (together with a sink, where there is one).
    has_sink : bool
        Whether what a row lacks to 1 went to a sink outside the sequence.
    is_signed : bool
        Whether attention may be negative.
    """

    is_distribution: bool = False
    has_sink: bool = False
    is_signed: bool = False

    def forward(self, scores: Tensor) -> Tensor:
        """Normalise along the last axis: (..., H, Q, K) -> the same shape.

        Per-head parameters have shape (H, 1, 1).
        """
        raise ContractError(f"{type(self).__name__} must define forward(scores).")

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Normalise over ragged neighbourhoods: (..., H, E) -> the same shape.

        The default pads neighbourhoods of near-equal degree to rows and calls `forward`.

        Parameters
        ----------
        scores : Tensor
            One score an edge, shape (..., H, E).
        query : Tensor
            The query of each edge, shape (E,), in any order.
        num_queries : int
            How many queries there are.
        """
        parts, places = [scores[..., :0]], [query[:0]]
        for edges, present in padded_rows(query, num_queries):
            padded = scores[..., edges].masked_fill(~present, -torch.inf)
            parts.append(self(padded)[..., present])
            places.append(edges[present])
        return torch.cat(parts, dim=-1)[..., torch.argsort(torch.cat(places))]


class Softmax(Normalizer):
    r"""The softmax :math:`A_{ij} = e^{w_{ij}} / \sum_{k \in N(i)} e^{w_{ik}}`.

    Half precision is summed in float32.
    """

    is_distribution = True
    is_plain = True

    def forward(self, scores: Tensor) -> Tensor:
        """Normalise rows."""
        wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        empty = (wide == -torch.inf).all(-1, keepdim=True)
        attention = torch.softmax(wide.masked_fill(empty, 0.0), dim=-1)
        return attention.masked_fill(empty, 0.0).to(scores.dtype)
