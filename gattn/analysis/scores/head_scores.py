"""The scores of one head as the model computed them, with queries and keys by what wrote them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.models.decompose.sides import sum_of_parts
from gattn.models.stream.writers.parts import Writer

_EXACT = 1e-5
"""How far the sum may be from a score, relative to the product of the vectors' lengths."""


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The scores of one head, and the queries and keys that they are products of, in parts.

    Parameters
    ----------
    stack, layer, head
        The head.
    tokens : tuple of str
        The tokens' texts.
    writers : tuple of Writer
        What wrote the parts.
    queries, keys : Tensor (writers, tokens, dim)
        What each part gives of the queries, times the scale, and of the keys; sparse in the first
        two dimensions where most parts are zero.
    scores, attention : Tensor (queries, keys)
        What the model computed; scores are -inf where there is no edge.
    bias : Tensor (queries, keys), optional
        What the model adds to scores.
    softcap : float, optional
        What caps scores before that.
    sink : float, optional
        The logit of the softmax's sink.
    computed_from : str
        What it was computed from, in words.
    error : float
        The largest difference between the sum of the parts and a score, relative to the product of
        the lengths of query and key.
    """

    stack: str
    layer: int
    head: int
    tokens: tuple[str, ...]
    writers: tuple[Writer, ...]
    queries: Tensor
    keys: Tensor
    scores: Tensor
    attention: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    sink: float | None = None
    computed_from: str = ""
    error: float = 0.0

    def graph(self) -> AttentionGraph:
        """Return the head as a graph of all its edges, with their scores."""
        graph = TokenGraph.from_mask(self.scores > -torch.inf)
        key, query = graph.edge_index
        attention = self.attention.numpy()
        sink = None if self.sink is None else 1 - attention.sum(-1)
        return AttentionGraph.from_dense(
            attention, graph, tokens=self.tokens, score=self.scores[query, key].numpy(), sink=sink,
            layer=self.layer, head=self.head,
        )  # fmt: skip

    def totals(self) -> tuple[Tensor, Tensor]:
        """Return the queries, times the scale, and the keys: the sums over all parts."""
        return sum_of_parts(self.queries), sum_of_parts(self.keys)

    def capped(self, raw: Tensor) -> Tensor:
        """Return scores after the soft cap."""
        return raw if self.softcap is None else self.softcap * (raw / self.softcap).tanh()

    def slope(self, raw: Tensor) -> Tensor:
        """Return the derivative of capped scores."""
        if self.softcap is None:
            return torch.ones_like(raw)
        return 1 - (raw / self.softcap).tanh().square()

    def attention_of(self, at: list[int], raw: Tensor) -> Tensor:
        """Return the attention of some queries, if q·k were other numbers."""
        scores = self.capped(raw) + (0.0 if self.bias is None else self.bias[at])
        scores = scores.masked_fill(self.scores[at] == -torch.inf, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        if self.sink is not None:
            total = torch.logaddexp(total, torch.full_like(total, self.sink))
        return (scores - total).exp().nan_to_num()

    def verified(self, name: str) -> Self:
        """Refuse unless the parts sum to the scores that the model computed."""
        query, key = self.totals()
        scores = self.capped(query @ key.T) + (0.0 if self.bias is None else self.bias)
        allowed = self.scores != -torch.inf
        missing = (scores - self.scores).masked_fill(~allowed, 0.0).abs()
        error = float((missing / self._sizes().clamp_min(1e-300)).max())
        if not error <= _EXACT:  # NaN is no error that is small.
            raise CaptureError(
                f"The parts of the scores of {name} do not sum to what the model computed: they "
                f"differ by {error:.1e} of the vectors' lengths. An edit that replaces scores is "
                "open, or the model changes them in another way."
            )
        return replace(self, error=error)

    def check_softmax(self, at: list[int]) -> None:
        """Refuse unless the attention of some queries is the softmax of their scores."""
        query, key = self.totals()
        found = self.attention_of(at, query[at] @ key.T)
        limit = _EXACT + 4 * self.error * float(self._sizes()[at].max())
        error = float((found - self.attention[at]).abs().max())
        if not error <= limit:
            raise CaptureError(
                f"The attention of head {self.layer}.{self.head} is not the softmax of its scores: "
                f"they differ by {error:.1e}, so what it would be without a part is unknown. An "
                "edit that changes attention after the softmax, or another normalizer, is open."
            )

    def _sizes(self) -> Tensor:
        """Return the products of the lengths of queries and keys."""
        query, key = (torch.linalg.vector_norm(x, dim=-1) for x in self.totals())
        return torch.outer(query, key)
