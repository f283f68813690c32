"""The door to torch's `scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias

from gattn.models.doors.functions import nested
from gattn.models.doors.functions.calling.arranging import is_turned
from gattn.models.doors.functions.calling.handing import handed
from gattn.models.doors.functions.calling.multihead import running
from gattn.models.doors.functions.calling.passing import passes
from gattn.models.doors.functions.calling.raw_call import RawCall


def see(module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Show a call to the open contexts."""
    output, dim = func(*args, **kwargs), None
    if output.is_nested:
        plain = nested.padded(output)
        call = _call(module, plain, None, **nested.padded_arguments(*args, **kwargs))
    elif not output.numel() or passes(module, output, *args, **kwargs):
        return output
    else:
        dim = _dim_of_queries(module, *args, **kwargs)
        plain = output if dim is None else output.transpose(dim, -2)
        call = _call(module, plain, dim, *args, **kwargs)
    handed(call)
    if call.output is plain:
        return output
    if dim is not None:
        return call.output.transpose(dim, -2)
    return nested.filled(output, call.output) if output.is_nested else call.output


def _call(
    module: Any,
    output: Tensor,
    dim: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> RawCall:
    if dim is not None:
        query, key, value = query.transpose(dim, -2), key.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        attn_mask = None if attn_mask is None else attn_mask.transpose(dim, -2)
    if isinstance(attn_mask, CausalBias):
        attn_mask = attn_mask._materialize(query.device)
    if not query.is_meta and torch.is_autocast_enabled(query.device.type):
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


def _dim_of_queries(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int | None:
    """Return the leading dimension that has the queries, and rows the heads, as was proved.

    No keys and values differ in it. None if rows are queries, as usual.
    """
    *lead, rows, _ = query.shape
    given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if is_causal or enable_gqa or rows == 1 or len({x.dim() for x in given}) > 1:
        return None
    some = [
        n
        for n, size in enumerate(lead)
        if size > 1 and all(x.shape[n] == 1 or not x.stride(n) for x in (key, value))
    ]
    return some[0] if len(some) == 1 and is_turned(module) else None


def _cast(x: Tensor) -> Tensor:
    """Cast a tensor as autocast does before the kernel."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if x.dtype == torch.float32 else x
