"""The door to torch's `flex_attention`, whose scores and mask are functions of positions.

Both are computed for all pairs, as its own fallback without a compiler does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.handing import handed
from gattn.models.doors.functions.calling.raw_call import RawCall

_AXES = tuple(tuple(0 if n in (0, place) else None for n in range(5)) for place in (4, 3, 2, 1))


def see(module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Show a call of the operator to the open contexts."""
    result = func(*args, **kwargs)
    call = _call(module, result[0], *args[:6])
    if handed(call) is None or call.output is result[0]:
        return result
    return (call.output, *result[1:])


def _call(
    module: Any,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
) -> RawCall:
    groups = query.shape[1] // key.shape[1]
    shape = (*query.shape[:3], key.shape[2])
    at = [torch.arange(size, device=query.device) for size in shape]
    allowed = _for_all(lambda _, *place: block_mask[-1](*place), query.new_zeros(shape), at)
    if getattr(score_mod, "__name__", "") == "_identity":
        return RawCall(module, "flex", value, output, query, key, mask=allowed, scale=scale)
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    plain = (query.to(kind) @ key.to(kind).mT) * scale
    scores = _for_all(score_mod, plain, at).masked_fill(~allowed, -torch.inf)
    return RawCall(module, "flex", value, output, scores=scores)


def _for_all(function: Callable[..., Tensor], scores: Tensor, at: list[Tensor]) -> Tensor:
    """Apply a function of one score and its batch, head, query and key to all of them."""
    for axes in _AXES:
        function = torch.vmap(function, in_dims=axes)
    found: Tensor = function(scores, *at)
    return found.expand(scores.shape)
