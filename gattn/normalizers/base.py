"""The base of all normalizers, and reductions over ragged neighbourhoods."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gattn.errors import ContractError
from gattn.graph.rules.neighbourhoods import PaddedRows, padded_rows

HALF = torch.float16, torch.bfloat16


class Normalizer(nn.Module):
    """Turns the scores of each neighbourhood into attention.

    A subclass writes `forward` on whole rows. A score of -inf marks a pair that is not an edge: it
    must become attention 0 with gradient 0, also in a row without edges, and never NaN. A subclass
    that can do better than padded rows also writes `on_edges`.

    Attributes
    ----------
    is_distribution : bool
        Whether each row that has an edge sums to 1 (together with a sink, where there is one).
    has_sink : bool
        Whether what is missing to 1 went to a sink outside the sequence.
    is_signed : bool
        Whether attention may be negative.

    Examples
    --------
    >>> class Halves(Normalizer):
    ...     def forward(self, scores):
    ...         wide = widened(scores)  # half precision is summed in float32
    ...         positive = torch.relu(wide)
    ...         return (positive / (1 + positive.sum(-1, keepdim=True))).to(scores.dtype)

    Hold it to the contract, and use it:

    >>> gattn.testing.check_normalizer(Halves())
    >>> q = torch.randn(2, 5, 4)
    >>> gattn.graph_attention(q, q, q, gattn.TokenGraph.causal(5), normalizer=Halves()).shape
    torch.Size([2, 5, 4])
    """

    is_distribution: bool = False
    has_sink: bool = False
    is_signed: bool = False

    def forward(self, scores: Tensor) -> Tensor:
        """Normalize along the last axis: (..., H, Q, K) -> the same shape.

        A parameter per head has shape (H, 1, 1).
        """
        raise ContractError(f"{type(self).__name__} must define forward(scores).")

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Normalize over ragged neighbourhoods: (..., H, E) -> the same shape.

        The default pads neighbourhoods of near-equal degree to rows and calls `forward`.

        Parameters
        ----------
        scores : Tensor
            One score per edge, shape (..., H, E).
        query : Tensor
            The query of each edge, rising, shape (E,).
        num_queries : int
            How many queries there are.
        """
        return self.on_padded_rows(scores, padded_rows(query, num_queries))

    def on_padded_rows(self, scores: Tensor, groups: Iterable[PaddedRows]) -> Tensor:
        """Normalize neighbourhoods that were padded before: (..., H, E) -> the same shape."""
        attention = torch.zeros_like(scores)
        for edges, present, slots in groups:
            padded = self(scores[..., edges].masked_fill(~present, -torch.inf))
            shares = padded.flatten(-2).index_select(-1, slots)
            places = edges.flatten().index_select(0, slots)
            attention = attention.index_copy(-1, places, shares)
        return attention

    @property
    def pads_rows(self) -> bool:
        """Whether neighbourhoods are padded to rows, which may be planned."""
        return type(self).on_edges is Normalizer.on_edges

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def as_normalizer(normalizer: Normalizer) -> Normalizer:
    """Check that `normalizer` is one."""
    if not isinstance(normalizer, Normalizer):
        raise ContractError(
            f"normalizer must be a Normalizer such as Softmax() or Entmax15(), not {normalizer!r}."
        )
    return normalizer


def filled(number: float | Tensor, like: Tensor) -> Tensor:
    """Give a number the dtype and the device of a tensor, without the host waiting for it."""
    if isinstance(number, Tensor):
        return number.to(like)
    return like.new_full((), number)


def widened(scores: Tensor) -> Tensor:
    """Bring half precision to float32, in which sums are accumulated."""
    return scores.float() if scores.dtype in HALF else scores


def neighbourhood_sums(values: Tensor, query: Tensor, num_queries: int) -> Tensor:
    """Sum the edges of each query: (..., E) -> (..., queries)."""
    zeros = values.new_zeros(*values.shape[:-1], num_queries)
    return zeros.index_add(-1, query, values)


def neighbourhood_maxima(values: Tensor, query: Tensor, num_queries: int) -> Tensor:
    """Find the largest edge of each query: (..., E) -> (..., queries), -inf without edges."""
    least = values.new_full((*values.shape[:-1], num_queries), -torch.inf)
    return least.scatter_reduce(-1, query.expand_as(values), values, reduce="amax")


def on_each_edge(values: Tensor, query: Tensor) -> Tensor:
    """Give each edge its query's value: (..., queries) -> (..., E)."""
    index = query.expand(*values.shape[:-1], len(query))
    return values.gather(-1, index)
