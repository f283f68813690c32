"""The door to torch's `scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias

from gattn.models.doors.functions import nested
from gattn.models.doors.functions.calling.multihead import running
from gattn.models.doors.functions.calling.passing import passes
from gattn.models.doors.functions.calling.raw_call import RawCall, handed


def see(module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Show a call to the open contexts."""
    output = func(*args, **kwargs)
    if output.is_nested:
        plain = nested.padded(output)
        call = _call(module, plain, **nested.padded_arguments(*args, **kwargs))
    elif not output.numel() or passes(module, output, *args, **kwargs):
        return output
    else:
        plain = output
        call = _call(module, output, *args, **kwargs)
    handed(call)
    if call.output is plain:
        return output
    return nested.filled(output, call.output) if output.is_nested else call.output


def _call(
    module: Any,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> RawCall:
    if isinstance(attn_mask, CausalBias):
        attn_mask = attn_mask._materialize(query.device)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (_cast(x) for x in (query, key, value))
    return RawCall(
        module,
        "sdpa",
        value,
        output,
        query,
        key,
        mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        dropout=dropout_p,
        running=running(),
    )


def _cast(x: Tensor) -> Tensor:
    """Cast a tensor as autocast does before the kernel."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if x.dtype == torch.float32 else x
