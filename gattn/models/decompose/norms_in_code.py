"""Norms that a layer's own code computes, held like those that are modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.decompose.fixed_norms import Norms, first_tensor, made_linear

_NORMS = {"layer_norm", "rms_norm", "normalize"}
_COPIES = {"to", "float", "double", "half", "bfloat16", "type", "contiguous", "clone", "detach"}
_LENGTHS = {"std", "norm", "vector_norm", "linalg_vector_norm"}
_POWERS = {"pow", "__pow__", "float_power", "square"}
_ROOTS = {"mean": {"sqrt", "rsqrt"}, "size": {"reciprocal", "__rtruediv__", "__rdiv__"}}
_SCALES = {"add", "__add__", "__radd__", "sub", "__sub__", "mul", "__mul__", "__rmul__", "div"}
_SCALES |= {
    "__truediv__",
    "true_divide",
    "clamp",
    "clamp_min",
    "maximum",
    "unsqueeze",
    "__getitem__",
}
_DIVIDES = {"mul", "multiply", "__mul__", "__rmul__", "div", "divide", "__truediv__", "true_divide"}


class NormsInCode(TorchFunctionMode):
    """Holds norms that are functions, and what hand-written ones divide by, while it is open.

    Parameters
    ----------
    norms : callable
        Lists the norms that are read now, or held.
    is_held : bool
        Whether they are held as they were read.
    """

    def __init__(self, norms: Callable[[], Sequence[Norms]], *, is_held: bool) -> None:
        super().__init__()
        self._norms, self._is_held = norms, is_held
        self._is_off = False
        self._sizes = Sizes()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let functions run as they are, as where a module is tried out."""
        before, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Read or hold what a function gives."""
        kwargs = kwargs or {}
        name, norms = getattr(func, "__name__", ""), () if self._is_off else self._norms()
        if norms and name in _DIVIDES and len(args) == 2:
            at = self._sizes.divisor(args)
            if at is not None:
                args = tuple(self._number(x, norms) if n == at else x for n, x in enumerate(args))
        result = func(*args, **kwargs)
        if not norms or not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        self._sizes.note(name, args, kwargs, result)
        given = first_tensor((*args, *kwargs.values()))
        if name not in _NORMS or given is None:
            return result
        with self.off():
            instead = made_linear(
                norms,
                name,
                given,
                result,
                lambda x: func(x, *args[1:], **kwargs),
                is_held=self._is_held,
            )
        return result if instead is None else instead

    def _number(self, number: Tensor, norms: Sequence[Norms]) -> Tensor:
        if self._is_held:
            return norms[-1].held_number("size", number)
        for one in norms:
            one.note_number("size", number)
        return number.detach()


class Sizes:
    """Follows how large tokens are, as roots of means of squares, to what is divided by these.

    No other number of a token is one, such as a gate.
    """

    def __init__(self) -> None:
        self._of: Any = WeakTensorKeyDictionary()

    def divisor(self, args: tuple[Any, ...]) -> int | None:
        """Say which of two factors is the size of the other, or its inverse."""
        for at, other in ((1, 0), (0, 1)):
            kind, of = self._known(args[at])
            if kind == "size" and self._known(args[other]) == ("token", of):
                return at
        return None

    def note(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        """Note what a function made of tokens, or of numbers that were made of them."""
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not tensors or any(isinstance(x, Tensor) for x in kwargs.values()):
            return
        kind, of = self._known(tensors[0])
        others = {self._known(x) for x in tensors[1:] if x.dim()}
        is_one = result.shape == (*tensors[0].shape[:-1], 1) or result.dim() < tensors[0].dim()
        made = ""
        if name in _COPIES and not others:
            made = kind
        elif kind == "token" and others <= {("average", of)} and name in ("sub", "__sub__"):
            made = "token"
        elif kind == "token" and is_one:
            made = "size" if name in _LENGTHS else {"var": "mean", "mean": "average"}.get(name, "")
        elif kind == "token":
            is_product = name in _DIVIDES and len(tensors) == 2 and tensors[0] is tensors[1]
            is_square = name in _POWERS and (name == "square" or args[1:] == (2,))
            made = "squares" if is_product or is_square else ""
        elif kind == "squares" and is_one:
            made = "mean" if name in ("mean", "sum") else ""
        elif kind in ("mean", "size") and not others and name in _SCALES:
            made = kind if result.numel() == tensors[0].numel() else ""
        elif name in _ROOTS.get(kind, ()) or (kind == "mean" and _is_half(name, args)):
            made = "size"
        if made:
            self._of[result] = made, of

    def _known(self, x: Any) -> tuple[str, object]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
            return "", None
        if x not in self._of:
            self._of[x] = "token", object()
        found: tuple[str, object] = self._of[x]
        return found


def _is_half(name: str, args: tuple[Any, ...]) -> bool:
    return name in _POWERS and args[1:] in ((0.5,), (-0.5,))
