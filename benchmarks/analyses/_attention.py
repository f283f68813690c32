"""Attention drawn at random, for several of the rows."""

import torch
from torch import Tensor


def causal_attention(layers: int, heads: int, size: int) -> Tensor:
    """Draw causal attention, (layers, heads, tokens, tokens)."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(layers, heads, size, size, generator=generator, dtype=torch.float64)
    is_later = torch.ones(size, size, dtype=torch.bool).triu(1)
    return (2 * scores).masked_fill(is_later, -torch.inf).softmax(-1)
