"""A row of the table: what is measured, on gattn's side and on the peer's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""How far gattn's numbers may be from the peer's, relative to the largest of them."""


@dataclass
class Side:
    """One way to do a row's work: gattn's or the peer's.

    If there is a `cotangent`, `leaves` are differentiated. `common` brings outputs and gradients
    to the layout in which both sides are compared.
    """

    forward: Callable[[], Any]
    leaves: tuple[Tensor, ...] = ()
    cotangent: Tensor | None = None
    common: Callable[[Tensor], Tensor] = lambda x: x

    def run(self) -> Any:
        """Compute the output, and the gradients if the row asks for them."""
        if self.cotangent is None:
            with torch.no_grad():
                return self.forward()
        output = self.forward()
        output.backward(self.cotangent)
        return output

    def forget_gradients(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


def same_numbers(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    """Raise an error if gattn's output or gradients are not the peer's."""
    _close("output", peer.common(theirs), gattn.common(ours))
    for number, (other, leaf) in enumerate(zip(peer.leaves, gattn.leaves, strict=True)):
        if peer.cotangent is not None:
            if other.grad is None or leaf.grad is None:
                raise AssertionError(f"the gradient of input {number} is None")
            _close(f"gradient of input {number}", peer.common(other.grad), gattn.common(leaf.grad))
    return {}


def _close(name: str, theirs: Tensor, ours: Tensor) -> None:
    if theirs.shape != ours.shape:
        raise AssertionError(f"{name}: {tuple(ours.shape)}, but the peer's {tuple(theirs.shape)}")
    error = float((theirs - ours).detach().abs().max() / theirs.detach().abs().max())
    if not error <= TOLERANCE:
        raise AssertionError(f"{name}: gattn differs from the peer by {error:.1e} of its scale")


@dataclass(frozen=True)
class Row:
    """One line of the table. Ratios are gattn's over the peer's; a bar is the largest allowed.

    gattn alone is measured at the sizes in `growth`. `small` is the size of the run that loads the
    code before memory is measured. `peer_bytes` is a guess of the memory that the peer needs, and
    `device` the only one on which the row is measured. If both sides `start_processes` and wait for
    them, only their time is measured: memory and page faults of this process say nothing of them.
    """

    name: str
    work: str
    peer: str
    size: int
    build: Callable[[str, int, str], Side]
    time_bar: float | None = None
    memory_bar: float | None = None
    growth: tuple[int, ...] = ()
    small: int = 64
    peer_bytes: int = 0
    check: Callable[[Side, Any, Side, Any], dict[str, float]] = same_numbers
    device: str | None = None
    start_processes: bool = False
