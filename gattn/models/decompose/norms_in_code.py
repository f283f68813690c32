"""Norms that a layer's own code computes, held like those that are modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.models.decompose.fixed_norms import Norms, first_tensor, made_linear

_NORMS = {"layer_norm", "rms_norm", "normalize"}
_STATISTICS = {"var", "std", "norm", "vector_norm"}
"""What a norm divides by, in one number of each token."""
_ROOTS = {"sqrt", "rsqrt"}
_POWERS = {"pow", "__pow__", "float_power"}
"""What it makes of a mean of squares: powers of a half, or of minus a half."""


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
        name, result = getattr(func, "__name__", ""), func(*args, **kwargs)
        exponent = args[1] if name in _POWERS and len(args) == 2 else None
        is_root = name in _ROOTS or (isinstance(exponent, float) and abs(exponent) == 0.5)
        is_statistic = name in _STATISTICS or is_root
        if self._is_off or not (is_statistic or name in _NORMS) or not isinstance(result, Tensor):
            return result
        given, norms = first_tensor((*args, *kwargs.values())), self._norms()
        if given is None or not norms or not result.is_floating_point():
            return result
        if is_statistic:
            is_one = result.shape[-1:] == (1,) or (
                name in _STATISTICS and result.shape == given.shape[:-1]
            )
            return self._number(name, result, norms) if is_one else result
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

    def _number(self, name: str, result: Tensor, norms: Sequence[Norms]) -> Tensor:
        if self._is_held:
            return norms[-1].held_number(name, result)
        for one in norms:
            one.note_number(name, result)
        return result.detach()
