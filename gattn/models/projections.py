"""Finds the output projection of attention modules while they run, and what it makes of values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.reading import Reading
    from gattn.models.routing import Context, RoutedCall
    from gattn.models.tracking import Tracker


class Layer(Protocol):
    """What takes the norms of a sequence's keys."""

    def add_norms(self, norms: Tensor, first: int) -> None:
        """Take (heads, keys), from the position `first` on."""


_Waiting: TypeAlias = "list[tuple[RoutedCall, Reading, Sequence[Layer]]]"


class Projections:
    r"""The output projections of a model's attention, verified each time they run.

    The projection W_O is the linear module that takes a call's output, heads side by side, as it
    is. Then :math:`\|W_O^h v_j\| = \sqrt{v_j^\top (W_O^{h\top} W_O^h) v_j}`, and nothing of the
    size of the model is stored for a head.

    References
    ----------
    Kobayashi et al. (2020), Attention is not only a weight.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = owner
        # Of each thread, and of calls within calls.
        self._of_call: WeakKeyDictionary[Tracker, _Waiting] = WeakKeyDictionary()
        self._products: dict[int, Tensor] = {}

    @contextmanager
    def open(self, model: nn.Module, is_wanted: bool) -> Iterator[None]:
        """Watch a model's linear modules."""
        if not is_wanted:
            yield
            return
        from transformers.pytorch_utils import Conv1D

        linear = [m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D))]
        handles = [module.register_forward_pre_hook(self._see) for module in linear]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._of_call.clear()
            self._products.clear()

    def forget(self, tracker: Tracker) -> None:
        """Expect nothing more in a call."""
        self._of_call.pop(tracker, None)

    def expect(
        self, tracker: Tracker, call: RoutedCall, reading: Reading, layers: Sequence[Layer]
    ) -> None:
        """Expect the output of a call's attention to be projected next."""
        self._of_call.setdefault(tracker, []).append((call, reading, layers))

    def _see(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        from gattn.models.routing import takes_part, tracker_of

        if not self._of_call or not takes_part(self._owner) or not inputs:
            return
        tracker = tracker_of(self._owner)
        waiting = self._of_call.pop(tracker, [])
        if not waiting:
            return
        calls = {id(call): call for call, _, _ in waiting}.values()
        output = torch.cat([call.output for call in calls], dim=1)
        given = inputs[0]
        width = output.shape[2] * output.shape[3]
        if not takes(given, output.reshape(-1, width)):
            self._refuse(waiting, f"{type(module).__name__} with other input")
        with torch.no_grad():
            for call, reading, layers in waiting:
                product = self._product(module, call.output.shape[2])
                value = reading.attention.value
                assert value is not None
                squares = ((value @ product.to(value.dtype)) * value).sum(-1)
                for layer, norms in zip(layers, squares.clamp_min(0).sqrt(), strict=True):
                    layer.add_norms(norms, reading.keys.first)

    def _product(self, module: nn.Module, heads: int) -> Tensor:
        """Give W_O^T W_O of each head: (heads, value dim, value dim)."""
        if id(module) not in self._products:
            parts = head_weights(module, heads)
            self._products[id(module)] = parts.transpose(1, 2) @ parts
        return self._products[id(module)]

    def check(self, tracker: Tracker, attention: nn.Module | None = None) -> None:
        """Refuse calls whose output was not projected, but by the module of further attention.

        Raises
        ------
        CaptureError
            Where there are any.
        """
        waiting = self._of_call.get(tracker)
        if waiting and waiting[0][0].module is not attention:
            self.forget(tracker)
            self._refuse(waiting, "no linear module")

    def _refuse(self, waiting: _Waiting, what: str) -> NoReturn:
        raise CaptureError(
            f"The output of {waiting[0][0].name} is not projected as it is: behind it comes "
            f"{what}, such as a gate or norm stands between, so the contributions are not known. "
            'Pass contributions="value" for the lengths ||A_ij v_j|| before any projection.'
        )


def takes(given: Tensor, rows: Tensor) -> bool:
    """Say whether a module was given these rows (tokens, width), in whatever shape."""
    if given.shape[-1] != rows.shape[-1] or given.numel() != rows.numel():
        return False
    return torch.equal(given.reshape(rows.shape), rows)


def head_weights(module: nn.Module, heads: int) -> Tensor:
    """Give the part of a projection that takes each head: (heads, dim of the model, value dim)."""
    weight = widened(module.get_parameter("weight").detach())
    if weight.is_meta:
        raise CaptureError(
            "The weights of the output projection are offloaded: they are in memory only while it "
            'runs, and contributions=True reads them. Pass contributions="value", or load the '
            "model without offloading."
        )
    weight = weight if isinstance(module, nn.Linear) else weight.T
    parts: Tensor = weight.unflatten(1, (heads, -1)).transpose(0, 1)
    return parts


def value_norms(reading: Reading) -> Tensor:
    """Give the lengths of the values: (elements, heads, keys)."""
    assert reading.attention.value is not None
    norms: Tensor = torch.linalg.vector_norm(reading.attention.value, dim=-1)
    return norms
