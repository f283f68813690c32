"""Makes a model's layers linear: with the statistics of their norms fixed, and inputs replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gattn.models.stream.linear_maps import linear_modules
from gattn.models.stream.norms import FixedNorm
from gattn.models.stream.probing import forward_of
from gattn.models.watch.hooks import hooks_on, in_this_thread
from gattn.normalizers.base import widened

Run: TypeAlias = tuple[nn.Module | str, int]
"""A module or function, and how often it ran."""


class Norms:
    r"""The norms of a model, read while it runs, and held as they were in later runs.

    A norm is :math:`x_i \to f_i \cdot g \odot (x_i - \bar x_i) + s`. Gain, mean and shift are held,
    and so are the factors f, unless later runs are on other tokens.

    Parameters
    ----------
    has_factors : bool
        Whether factors are held; otherwise they are left out.
    """

    def __init__(self, *, has_factors: bool) -> None:
        self._has_factors = has_factors
        self._found: dict[Run, FixedNorm] = {}
        self._numbers: dict[Run, Tensor] = {}
        self._runs: Counter[nn.Module | str] = Counter()

    @staticmethod
    def candidates(model: nn.Module) -> list[nn.Module]:
        """List the modules without parts that are not linear."""
        kinds = linear_modules()
        leaves = (x for x in model.modules() if not any(True for _ in x.children()))
        return [x for x in leaves if not isinstance(x, kinds)]

    def begin(self) -> None:
        """Begin another run: of the model, or of the layer whose norms are read."""
        self._runs.clear()

    def forget(self) -> None:
        """Begin a run whose norms are others."""
        self._found.clear()
        self._numbers.clear()
        self.begin()

    def read(
        self,
        what: nn.Module | str,
        given: Tensor,
        result: Any,
        apply: Callable[[Tensor], Any],
    ) -> FixedNorm | None:
        """Read a module, or a function, as a norm from what it is given, and gives."""
        run = self._next(what)
        if not isinstance(result, Tensor) or result.shape != given.shape:
            return None
        if torch.equal(given, result):
            return None
        before, after = rows_of(given).detach(), rows_of(result).detach()
        norm = FixedNorm.of(apply, before, after)
        if norm is not None:
            self._found[run] = norm
        return norm

    def held(self, what: nn.Module | str, given: Tensor) -> Tensor | None:
        """Return what a norm that was read gives with its statistics held; None if it is none."""
        norm = self._found.get(self._next(what))
        return None if norm is None else self.applied(norm, given) + norm.shift

    def note_number(self, what: str, result: Tensor) -> None:
        """Note what a function gave, on which a norm written out depends."""
        self._numbers[self._next(what)] = result.detach().clone()

    def held_number(self, what: str, result: Tensor) -> Tensor:
        """Return what a function gave in the run that was read."""
        return self._numbers.get(self._next(what), result)

    def applied(self, norm: FixedNorm, given: Tensor) -> Tensor:
        """Apply a norm's linear part to tokens in any shape."""
        turned = norm.turned(widened(given))
        return turned * norm.factor.reshape(*given.shape[:-1], 1) if self._has_factors else turned

    def _next(self, what: nn.Module | str) -> Run:
        self._runs[what] += 1
        return what, self._runs[what]

    @contextmanager
    def noted(self, model: nn.Module) -> Iterator[None]:
        """Read the norms of a run."""

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            if (given := first_tensor((*args, *kwargs.values()))) is not None:
                self.read(module, given, result, forward_of(module))

        with hooks_on(self.candidates(model), leave=in_this_thread(leave)):
            yield

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Let each norm give its linear part in a run."""

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor | None:
            given = first_tensor((*args, *kwargs.values()))
            instead = None if given is None else self.held(module, given)
            return None if instead is None else instead.to(result.dtype)

        self.begin()
        modules = {module for module, _ in self._found if isinstance(module, nn.Module)}
        with hooks_on(modules, leave=in_this_thread(leave)):
            yield


def made_linear(
    norms: Sequence[Norms],
    what: nn.Module | str,
    given: Tensor,
    result: Tensor,
    apply: Callable[[Tensor], Any],
    *,
    is_held: bool,
) -> Tensor | None:
    """Return what a norm gives, with its statistics held, or read now; None if it is none.

    Layers within layers have `norms` of their own, the last ones those of the innermost.
    """
    if is_held:
        held = norms[-1].held(what, given)
        return None if held is None else held.to(result.dtype)
    norm = [one.read(what, given, result, apply) for one in norms][-1]
    if norm is None:
        return None
    turned = norms[-1].applied(norm, given).to(result.dtype)
    return result.detach() + (turned - turned.detach())


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
