"""The mode that shows torch's functions to the doors, while a model with such attention runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode

from gattn.models.doors.functions import flex, multihead, reopened, scaled_dot_product, softmax
from gattn.models.watch.inside import is_inside

Door = Callable[[TorchFunctionMode, Any, tuple[Any, ...], Mapping[str, Any]], Any]

_F = nn.functional
_DOORS: dict[Any, Door] = {
    _F.scaled_dot_product_attention: scaled_dot_product.see,
    _F.multi_head_attention_forward: multihead.see,
    flex_attention: flex.see,
    torch.softmax: softmax.see,
    _F.softmax: softmax.see,
    Tensor.softmax: softmax.see,
    torch.special.softmax: softmax.see,
    _F.gumbel_softmax: reopened.see,
    Tensor.backward: reopened.backward,
    torch.autograd.backward: reopened.see,
    torch.autograd.grad: reopened.see,
}


class FunctionMode(TorchFunctionMode):
    """Shows the functions of a thread to the doors.

    A mode belongs to no model: there is one per open context, and whichever comes first handles a
    call, so that contexts may close in any order.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let a door see a function, if there is one for it."""
        given = kwargs or {}
        door = _DOORS.get(func)
        if (door is None and not softmax.awaits_product()) or is_inside():
            return func(*args, **given)
        if door is not None:
            return door(self, func, args, given)
        return softmax.follow(func, args, given)
