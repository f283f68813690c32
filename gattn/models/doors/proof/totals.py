"""Follows the sums by which softmaxes divide, to tell those that are merged from those logged."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.proof.probing.one_run.picking import tensors_in

_LOGARITHMS = frozenset(("log", "log2", "log10", "log_", "log1p"))
_DIVISIONS = frozenset(("div", "div_", "mul", "mul_"))
_DIFFERENCES = frozenset(("sub", "sub_"))
_SIDE_BY_SIDE = frozenset(("add", "add_", "sub", "sub_", "cat", "stack"))
"""Kernels by which no number weighs another one."""
_NUMBER = "_local_scalar_dense"

Softmax = tuple[str, tuple[int, ...]]
"""The module that took a softmax, and of how many queries and keys."""


class Totals:
    """The modules that use a softmax's sums by themselves, and of how many queries and keys.

    Those in `merging` weigh with them what attention gave, or make Python numbers of them, as where
    softmaxes of chunks are merged; those `aside` make something else of them, such as a loss.
    """

    def __init__(self) -> None:
        self.merging: set[Softmax] = set()
        self._used: set[Softmax] = set()
        self._totals: Any = WeakTensorKeyDictionary()
        self._made: dict[Memory, set[Softmax]] = {}
        self._attended: set[Memory] = set()

    @property
    def aside(self) -> set[Softmax]:
        """The softmaxes whose sums are used, but weigh nothing that attention gave."""
        return self._used - self.merging

    def total(self, sums: Tensor, where: str, scores: Tensor, *, is_logarithm: bool) -> None:
        """Note the sums of exponentials, or their logarithms."""
        self._totals[sums] = _Total(where, tuple(scores.shape[-2:]), is_logarithm)

    def attend(self, output: Tensor) -> None:
        """Note what a product with exponentials gave."""
        if (memory := memory_of(output)) is not None:
            self._attended.add(memory)

    def give_out(self, tensors: Sequence[Tensor]) -> None:
        """Note what code makes lists or arrays of."""
        for one in filter(None, map(memory_of, tensors)):
            self.merging |= self._made.get(one, set())

    def note(
        self, kernel: str, given: Sequence[Any], result: Any, exponentials: Container[Tensor]
    ) -> None:
        """Look at a kernel that ran."""
        tensors = tensors_in((given,))
        self._follow(kernel, tensors, tensors_in((result,)))
        if isinstance(result, Tensor):
            self._use(kernel, tensors, result, exponentials)

    def _follow(self, kernel: str, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Follow what is made of sums, and of attention, to where one weighs the other."""
        if not (self._made or self._attended):
            return
        memories = [memory_of(x) for x in tensors]
        made = [self._made.get(one, set()) if one else set() for one in memories]
        attended = [one in self._attended for one in memories]
        if kernel == _NUMBER:
            self.merging.update(*made)
        elif kernel not in _SIDE_BY_SIDE:
            for x, some in zip(tensors, made, strict=True):
                others = (y is not x and is_of for y, is_of in zip(tensors, attended, strict=True))
                if some and any(others):
                    self.merging |= some
        for memory in {one for one in map(memory_of, results) if one is not None}:
            if all_made := set[Softmax]().union(*made):
                self._made.setdefault(memory, set()).update(all_made)
            if any(attended):
                self._attended.add(memory)

    def _use(
        self,
        kernel: str,
        tensors: Sequence[Tensor],
        result: Tensor,
        exponentials: Container[Tensor],
    ) -> None:
        """Follow the sums of exponentials to what is divided by them; note any other use.

        Logarithms of such sums may be taken away from scores.
        """
        tensors = [x for x in tensors if x.is_floating_point()]
        totals = [x for x in tensors if x in self._totals]
        if not totals:
            return
        total = self._totals[totals[0]]
        if kernel == "add" and len(totals) == 1 and result.numel() == totals[0].numel():
            self._totals[result] = total  # A sink takes its share, too.
            return
        is_alone = len([x for x in tensors if x.dim()]) == 1 and kernel not in _LOGARITHMS
        if is_alone and not result.numel() % max(tensors[0].numel(), 1):
            self._totals[result] = total
            return
        normalizes = kernel in (_DIFFERENCES if total.is_logarithm else _DIVISIONS)
        of_one_key = tensors[0] in exponentials and tensors[0] not in self._totals
        if not normalizes or (result.numel() <= _stored(tensors[-1]) and not of_one_key):
            softmax = {(total.where, total.sizes), (total.where, total.sizes[::-1])}
            self._used |= softmax
            others = {memory_of(x) for x in tensors if x not in self._totals}
            if kernel not in _SIDE_BY_SIDE and others & self._attended:
                self.merging |= softmax
            if (memory := memory_of(result)) is not None:
                self._made.setdefault(memory, set()).update(softmax)


class _Total(NamedTuple):
    """Sums of exponentials, or their logarithms: where they were taken, of which sizes."""

    where: str
    sizes: tuple[int, ...]
    is_logarithm: bool


def _stored(tensor: Tensor) -> int:
    """Count the numbers of a tensor that is perhaps expanded."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count
