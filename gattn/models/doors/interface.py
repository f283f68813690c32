"""The door to transformers: its attention interface.

Every attention module of a routed model asks ``AttentionInterface.get_interface`` which function
to call. While a context is open, the answer is wrapped: the function that the user's model chose
still computes the output, with its own arguments and its own mask; if edits apply, the rows that
they change are then replaced; finally the open contexts are shown the call. In models whose
attention is proved, the doors to torch's functions show what that function computes instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.read.seen_call import LEAST, SeenCall
from gattn.models.watch.contexts import present
from gattn.models.watch.inside import inside
from gattn.models.watch.listening import is_listening, tell
from gattn.models.watch.taking_part import take_part

_READABLE = ("eager", "sdpa")
_UNREAD = ("indices", "block_indices", "cache")
_LEAST_OF_WINDOWS = -50.0
"""Between their windows Swin models mask by -100."""

_OTHER_STATES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""What attention modules of transformers call the states of other tokens, which they read."""

_originals: list[tuple[Any, Callable[..., Any]]] = []


def watch() -> None:
    """Wrap the interface, if it is loaded: without it there is no model that asks it."""
    if _originals or "transformers.modeling_utils" not in sys.modules:
        return
    from transformers import AttentionInterface

    _originals.append((AttentionInterface, AttentionInterface.get_interface))
    AttentionInterface.get_interface = _routed(  # type: ignore[method-assign]
        AttentionInterface.get_interface
    )


def leave() -> None:
    """Put it back."""
    while _originals:
        interface, answer = _originals.pop()
        interface.get_interface = answer


def _routed(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_interface)
    def answer(interface: Any, implementation: str, default: Callable[..., Any]) -> Any:
        function = get_interface(interface, implementation, default)
        return _wrapped(function, implementation) if present() or is_listening() else function

    return answer


def _wrapped(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    is_own = not (getattr(function, "__module__", None) or "").startswith("transformers.")

    @wraps(function)
    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        if is_listening():
            tell(query, key, value)
        if any(calls.tracker.proves for calls, _ in present() if calls.owns(module)):
            return function(module, query, key, value, attention_mask, **options)
        is_cross = _reads_others(module, sys._getframe(1))
        with inside():
            result = function(module, query, key, value, attention_mask, **options)
        routed = RoutedCall(
            module, implementation, query, key, value, attention_mask, options, *result[:2]
        )
        routed.is_own = is_own
        routed.is_cross = is_cross
        seen = take_part(module, query, routed.seen)
        return result if seen is None else (seen.output, seen.weights, *result[2:])

    return call


def _reads_others(module: nn.Module, frame: FrameType) -> bool | None:
    """Return True if a module that runs in a frame was given other states, as of other tokens."""
    known = frame.f_locals
    if known.get("self") is not module:
        return None
    others = (known.get(name) for name in _OTHER_STATES)
    own = known.get("hidden_states")
    return True if any(isinstance(x, Tensor) and x is not own for x in others) else None


@dataclass
class RoutedCall:
    """One call of an attention function of transformers, with its arguments."""

    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    output: Tensor
    weights: Tensor | None = None
    is_own: bool = False
    is_cross: bool | None = None

    def seen(self, name: str) -> SeenCall:
        """Translate it into what a call is for any library."""
        if self.is_own and self.options.get("dropout"):
            raise CaptureError(
                f"{name} runs your own attention function {self.implementation!r}, which cannot "
                "be verified under dropout: call model.eval() or set attention_dropout=0."
            )
        if self.mask is not None and not (isinstance(self.mask, Tensor) and self.mask.dim() == 4):
            raise CaptureError(
                f"{name} runs the attention implementation {self.implementation!r} with a "
                "mask that gattn does not read: expected a tensor that broadcasts to (batch, "
                f"heads, queries, keys). Load the model with attn_implementation one of {_READABLE}"
                ", or register such a mask function for it with AttentionMaskInterface."
            )
        scale, softcap = self.options.get("scaling"), self.options.get("softcap")
        return SeenCall(
            name,
            self.module,
            self.query,
            self.key,
            self.value,
            self.output,
            self.weights,
            self.mask,
            is_causal=self.mask is None and self._is_causal,
            least=_LEAST_OF_WINDOWS if "Swin" in type(self.module).__name__ else LEAST,
            scale=None if scale is None else float(scale),
            softcap=None if softcap is None else float(softcap),
            bias=self.options.get("position_bias"),
            sink=self.options.get("s_aux"),
            dropout=float(self.options.get("dropout") or 0.0),
            is_own=self.is_own,
            is_cross=self.is_cross,
            unread=next((one for one in _UNREAD if self.options.get(one) is not None), ""),
            options=self.options,
        )

    @property
    def _is_causal(self) -> bool:
        """Whether it is causal without a mask: sdpa's own rule."""
        if self.implementation == "eager":
            return False
        if self.is_own:
            return self._reads_itself_first
        told = self.options.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if told is None else told
        return bool(causal) and self.query.shape[2] > 1

    @property
    def _reads_itself_first(self) -> bool:
        """Guess from the first query's output whether a user's function is causal; it is proved."""
        output, value = self.output[:, :1], self.value[:, :, :1].transpose(1, 2)
        if self.query.shape[2] < 2 or not output.shape[2] or output.shape[2] % value.shape[2]:
            return False
        groups = output.shape[2] // value.shape[2]
        alone = value.repeat_interleave(groups, dim=2)
        return output.shape == alone.shape and torch.allclose(output, alone, rtol=1e-2, atol=1e-5)
