"""Reads nested tensors, whose sequences differ in length, as a batch with padding and a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gattn.errors import CaptureError


def padded(x: Tensor) -> Tensor:
    """Pad a nested tensor (batch, heads, tokens, dim) with zeros."""
    parts = x.unbind()
    most = max(part.shape[-2] for part in parts)
    return torch.stack([functional.pad(x, (0, 0, 0, most - x.shape[-2])) for x in parts])


def padded_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """Pad the arguments of `scaled_dot_product_attention`; a mask tells who is real."""
    if attn_mask is not None:
        raise CaptureError(
            "A mask over nested tensors is not read: expected attn_mask=None, or padded tensors."
        )
    rows, columns = (_are_real(x) for x in (query, key))
    allowed = rows[:, None, :, None] & columns[:, None, None, :]
    return {
        "query": padded(query),
        "key": padded(key),
        "value": padded(value),
        "attn_mask": allowed.tril() if is_causal else allowed,
        "dropout_p": dropout_p,
        "scale": scale,
    }


def _are_real(x: Tensor) -> Tensor:
    lengths = torch.tensor([part.shape[-2] for part in x.unbind()], device=x.device)
    return torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]


def filled(like: Tensor, found: Tensor) -> Tensor:
    """Put rows of a padded tensor into a copy of a nested one."""
    if torch.is_grad_enabled() and (like.requires_grad or found.requires_grad):
        raise CaptureError(
            "Edits of attention over nested tensors have no gradients: run the model under "
            "torch.no_grad(), or on padded tensors."
        )
    copied: Tensor = like.detach().clone()
    for part, rows in zip(copied.unbind(), found, strict=True):
        part.copy_(rows[..., : part.shape[-2], :])
    return copied
