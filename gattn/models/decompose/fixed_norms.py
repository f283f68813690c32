"""Makes a model's layers linear: with the statistics of their norms fixed, and inputs replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from gattn.models.stream.linear_maps import linear_modules
from gattn.models.stream.sublayers import FixedNorm
from gattn.models.watch.hooks import hooks_on, in_this_thread
from gattn.normalizers.base import widened


class Norms:
    r"""The norms of a model, found while it runs, and made linear on request.

    A norm is :math:`x \to f(x) \cdot g \odot (x - \bar x) + s`. What depends on the token, the
    factor f, is left out; gain, mean and shift stay.
    """

    def __init__(self) -> None:
        self._found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def noted(self, model: nn.Module) -> Iterator[None]:
        """Note what modules without parts are given, and give, on the first run."""
        linear = linear_modules()
        leaves = [
            module
            for module in model.modules()
            if not any(True for _ in module.children()) and not isinstance(module, linear)
        ]
        with hooks_on(leaves, leave=in_this_thread(self._note)):
            yield

    def _note(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        given = first_tensor((*args, *kwargs.values()))
        is_alike = isinstance(result, Tensor) and given is not None and result.shape == given.shape
        if is_alike and given is not None and module not in self._found:
            self._found[module] = rows_of(given).detach().clone(), rows_of(result).detach().clone()

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Let each norm that was noted give its linear part."""
        norms = {module: FixedNorm.of(module, *known) for module, known in self._found.items()}
        norms = {module: norm for module, norm in norms.items() if norm is not None}

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor:
            given, norm = first_tensor((*args, *kwargs.values())), norms[module]
            assert given is not None
            assert norm is not None
            return (norm.turned(widened(given)) + norm.shift).to(result.dtype)

        with hooks_on(norms, leave=in_this_thread(leave)):
            yield


@contextmanager
def inputs_replaced(
    modules: Iterable[nn.Module], put_in: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """Replace the first tensor that modules are given by what a function makes of it."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = first_tensor((*args, *kwargs.values()))
        if given is None:
            return None
        new = put_in(module, given)
        kept = {name: new if x is given else x for name, x in kwargs.items()}
        return tuple(new if x is given else x for x in args), kept

    with hooks_on(modules, enter=in_this_thread(enter)):
        yield


@contextmanager
def outputs_replaced(
    modules: Iterable[nn.Module], put_in: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Replace the first tensor that modules return by what a function makes of it."""

    def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        if isinstance(result, Tensor):
            return put_in(result)
        return (put_in(result[0]), *result[1:])

    with hooks_on(modules, leave=in_this_thread(leave)):
        yield


def first_tensor(values: Iterable[Any]) -> Tensor | None:
    """Find the first floating-point tensor."""
    return next((x for x in values if isinstance(x, Tensor) and x.is_floating_point()), None)


def rows_of(numbers: Tensor) -> Tensor:
    """Return vectors in any shape as rows (vectors, dim)."""
    return numbers.reshape(-1, numbers.shape[-1])
