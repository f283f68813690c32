"""The softmax, its temperature and its sink."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.errors import ContractError
from gattn.normalizers.base import (
    Normalizer,
    filled,
    neighbourhood_maxima,
    neighbourhood_sums,
    on_each_edge,
    widened,
)


class Softmax(Normalizer):
    r"""The softmax :math:`A_{ij} = e^{w_{ij}/T} / (\sum_{k \in N(i)} e^{w_{ik}/T} + e^{s/T})`.

    Without a sink the term :math:`e^{s/T}` is absent. Half precision is summed in float32.

    Parameters
    ----------
    temperature : float
        T, above 0.
    sink : float or Tensor, optional
        The sink's logit s, or one per head, shape (heads,); a `nn.Parameter` is learned. Attention
        to the sink is lost, as its value is zero. ``sink=0.0`` is known as softmax1.

    References
    ----------
    Miller (2023), Attention is off by one. OpenAI (2025), gpt-oss: a learned sink logit per head.
    """

    is_distribution = True
    sink: float | Tensor | None

    def __init__(self, temperature: float = 1.0, sink: float | Tensor | None = None) -> None:
        super().__init__()
        if not finite_number("temperature", temperature) > 0:
            raise ContractError(f"temperature must be above 0, not {temperature!r}.")
        self.temperature = temperature
        if type(sink) is Tensor:
            self.register_buffer("sink", sink)  # Unlike nn.Buffer it lets gradients through.
        else:
            is_number = not (sink is None or isinstance(sink, Tensor))
            self.sink = finite_number("sink", sink) if is_number else sink  # type: ignore[arg-type]
        self.has_sink = sink is not None

    def forward(self, scores: Tensor) -> Tensor:
        """Normalize rows."""
        wide = self._tempered(scores)
        if self.sink is not None:
            logit = self.logit(wide)[..., None].expand(*wide.shape[:-1], 1)
            attention = torch.softmax(torch.cat([wide, logit], dim=-1), dim=-1)[..., :-1]
            return attention.to(scores.dtype)
        if not wide.shape[-1]:
            return scores
        if wide.device.type == "cpu":
            attention = torch.softmax(wide, dim=-1)
            if not bool(attention.detach()[..., 0].isnan().any()):
                return attention.to(scores.dtype)
        empty = wide.detach().amax(-1, keepdim=True) == -torch.inf
        attention = torch.softmax(wide.masked_fill(empty, 0.0), dim=-1)
        return attention.masked_fill(empty, 0.0).to(scores.dtype)

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Normalize by segment sums."""
        wide = self._tempered(scores)
        top = neighbourhood_maxima(wide.detach(), query, num_queries)
        if self.sink is not None:
            top = torch.maximum(top, self.logit(wide).detach())
        top = top.masked_fill(top == -torch.inf, 0.0)
        powers = torch.exp(wide - on_each_edge(top, query))
        total = neighbourhood_sums(powers, query, num_queries)
        if self.sink is not None:
            total = total + torch.exp(self.logit(wide) - top)
        total = total.masked_fill(total == 0, 1.0)
        return (powers / on_each_edge(total, query)).to(scores.dtype)

    def _tempered(self, scores: Tensor) -> Tensor:
        wide = widened(scores)
        return wide if self.temperature == 1 else wide / self.temperature

    def logit(self, wide: Tensor) -> Tensor:
        """Scale the sink's logit to broadcast against (..., heads, queries)."""
        assert self.sink is not None
        logit = filled(self.sink, wide)
        # A sink of -inf takes nothing; with a row without edges it would give NaN.
        return (logit.reshape(-1, 1) / self.temperature).clamp_min(torch.finfo(wide.dtype).min)

    def extra_repr(self) -> str:
        """Show what differs from the plain softmax."""
        shown = [] if self.temperature == 1 else [f"temperature={self.temperature}"]
        if isinstance(self.sink, Tensor):
            shown.append(f"sink={'learned' if self.sink.requires_grad else 'fixed'} per head")
        elif self.sink is not None:
            shown.append(f"sink={self.sink}")
        return ", ".join(shown)
