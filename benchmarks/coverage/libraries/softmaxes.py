"""A model's own attention: what PyTorch's softmax kernels compute, seen below all its functions.

With the plain kernel chosen for `scaled_dot_product_attention` and without the fast path of
`nn.MultiheadAttention`, each attention of an eager model passes through a softmax kernel, whose
input and output are whole. What is computed there can also be changed, as an edit would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention, math_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_SOFTMAXES = {aten._softmax.default, aten._safe_softmax.default}
_PRODUCTS = {aten.bmm.default, aten.mm.default, aten.baddbmm.default, aten.mv.default}
_COPIES = {
    aten.clone.default,
    aten._to_copy.default,
    aten.native_dropout.default,
    aten.copy_.default,
    aten._unsafe_view.default,
    aten.constant_pad_nd.default,
}
_COMPOSED = {
    aten.matmul.default,
    aten.to.dtype,
    aten.softmax.int,
    aten._scaled_dot_product_attention_math.default,
}
"""What is not yet written out where a kernel's own code is replaced."""

Change = Callable[[Tensor], Tensor]
"""From attention to the attention that is used instead."""


@dataclass
class Softmax:
    """One softmax of a run, with the dimension that sums to one as its last.

    `kind` is the class of its module, and `role` that of the module around it and the name of the
    inner one there, such as `Block.attn`.
    """

    number: int
    path: str
    kind: str
    attention: Tensor
    weighs: bool = False
    """Whether a product of two matrices that both depend on the input takes it."""
    is_mixed: bool = False
    """Whether its heads are mixed before that."""
    width: int = 0
    """How many of its columns a product takes, where that leaves some out: sinks."""
    role: str = ""
    slices: int = 1
    """How many kernels in turn computed it, each a slice of its first dimension."""

    def changes(self, change: Change) -> dict[int, Change]:
        """Return a change of the whole attention as one of each slice, by its number."""

        def of_slice(place: int) -> Change:
            def changed(attention: Tensor) -> Tensor:
                parts = [torch.zeros_like(attention)] * self.slices
                parts[place] = attention
                return change(torch.cat(parts)).chunk(self.slices)[place]

            return changed

        return {self.number + n: of_slice(n) for n in range(self.slices)}


def joined(slices: list[Softmax]) -> list[Softmax]:
    """Join the softmaxes that one module computes in turn, of the same shape."""
    found: list[Softmax] = []
    for one in slices:
        last = found[-1] if found else None
        if (
            last is None
            or last.path != one.path
            or last.attention.shape[1:] != one.attention.shape[1:]
        ):
            found.append(one)
            continue
        found[-1] = replace(
            last, attention=torch.cat([last.attention, one.attention]), slices=last.slices + 1
        )
    return found


class SoftmaxKernels(TorchDispatchMode):
    """Records each softmax kernel of a run, and changes those in `changes`, by their number."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, changes: Mapping[int, Change] | None = None) -> None:
        super().__init__()
        self.softmaxes: list[Softmax] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self._changes = dict(changes or {})
        self._names = {module: name for name, module in model.named_modules()}
        self._parameters = {_storage(p) for p in model.parameters()}
        self._followed: dict[int, tuple[Softmax, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is flex_attention:
            with self:
                return math_attention(*args, **(kwargs or {}))
        if func is aten._scaled_dot_product_flash_attention_for_cpu.default:
            with self:
                return _written_out(*args, **(kwargs or {}))
        if func in _COMPOSED and not args[0].is_nested:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAXES:
            return self._seen(args, result)
        if func in _PRODUCTS:
            self._multiplied([x for x in args if isinstance(x, Tensor)][-2:], result)
        elif func in _COPIES:
            first = result[0] if isinstance(result, tuple) else result
            for tensor in args:
                if isinstance(tensor, Tensor) and (known := self._known(tensor)):
                    self._follow(known, first)
        return result

    def _seen(self, args: Any, result: Tensor) -> Tensor:
        axis = args[1] % max(1, result.dim())
        number = len(self.softmaxes)
        attention = result.to_padded_tensor(0.0) if result.is_nested else result
        attention = attention.movedim(axis, -1).contiguous() if attention.dim() else attention
        if number in self._changes:
            attention = self._changes[number](attention)
            result = _like(result, attention.movedim(-1, axis))
        open_ones = [(n, m) for n, m in self.modules if not isinstance(m, nn.Softmax)]
        path, module = open_ones[-1] if open_ones else ("", None)
        found = Softmax(number, path, type(module).__name__, attention.detach().clone())
        around, _, last = path.rpartition(".")
        outer = [type(one).__name__ for name, one in open_ones if name == around]
        found.role = f"{outer[-1]}.{last}" if outer else last
        found.weighs = result.is_nested
        self.softmaxes.append(found)
        self._follow(found, result)
        return result

    def _multiplied(self, operands: list[Tensor], result: Tensor) -> None:
        for one, other in (operands, operands[::-1]):
            if known := self._known(one):
                if _storage(other) not in self._parameters:
                    known.weighs = True
                    known.width = max(known.width, _width(one, known.attention))
                elif known.attention.numel() == result.numel():  # Heads were mixed.
                    known.is_mixed = True
                    self._follow(known, result)

    def _follow(self, softmax: Softmax, tensor: Tensor) -> None:
        self._followed[_storage(tensor)] = softmax, tensor

    def _known(self, tensor: Tensor) -> Softmax | None:
        return self._followed.get(_storage(tensor), (None, None))[0]

    def enter(self, module: nn.Module, *_: Any) -> None:
        self.modules.append((self._names.get(module, "?"), module))

    def leave(self, *_: Any) -> None:
        self.modules.pop()


def _storage(tensor: Tensor) -> int:
    return 0 if tensor.is_nested or not tensor.numel() else tensor.untyped_storage().data_ptr()


def _width(taken: Tensor, attention: Tensor) -> int:
    """Return how many columns of attention a product takes, if that is all but a few of them."""
    rows, columns = attention.shape[-2:] if attention.dim() > 1 else (0, 0)
    sizes = [n for m, n in (taken.shape[-2:], taken.shape[:-3:-1]) if m == rows and n < columns]
    return max(sizes, default=0)


def _like(result: Tensor, attention: Tensor) -> Tensor:
    """Give changed attention the nested shape that it had."""
    if not result.is_nested:
        return attention
    parts = zip(result.unbind(), attention, strict=True)
    return torch.nested.as_nested_tensor(
        [new[tuple(slice(size) for size in old.shape)] for old, new in parts]
    )


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what a model computes with a kernel that it asks for, by products and a softmax."""
    output, _ = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )
    return output, query[..., 0]


@contextmanager
def softmaxes(
    model: nn.Module, changes: Mapping[int, Change] | None = None
) -> Iterator[SoftmaxKernels]:
    """Record all softmaxes of the model's calls within the context, and change some."""
    mode = SoftmaxKernels(model, changes)
    hooks = torch.nn.modules.module
    with plain_kernels(), ExitStack() as stack:
        for handle in (
            hooks.register_module_forward_pre_hook(mode.enter),
            hooks.register_module_forward_hook(mode.leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(mode)
        yield mode


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Let attention be computed as it is written, by products and a softmax."""
    stance = torch.compiler.set_stance("force_eager")
    with slow_path(), sdpa_kernel(SDPBackend.MATH), stance:
        yield


@contextmanager
def slow_path() -> Iterator[None]:
    """Turn off the fast path of `nn.MultiheadAttention` and `nn.TransformerEncoder`."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
