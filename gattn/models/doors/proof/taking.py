"""Follows each softmax to what multiplies it with values, to name those that no door sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.proof.probing.one_run.parameters import Parameters
from gattn.models.doors.proof.probing.one_run.picking import is_sampling, tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.silent import holds

_SOFTMAXES = frozenset(("_softmax", "_safe_softmax"))
_MATRIX = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"))
_MATRIX |= {f"{name}_" for name in ("addmm", "baddbmm", "addbmm", "addmv")}
_SPARSE = frozenset(("_sparse_mm", "_sparse_addmm", "sparse_sampled_addmm"))
_WEIGHING = frozenset(("convolution", "_embedding_bag", "_embedding_bag_forward_only"))
PRODUCTS = _MATRIX | _SPARSE | _WEIGHING
_SPREADS = frozenset(("mul", "mul_", "addcmul", "addcmul_"))
_BARE = frozenset(("mm", "bmm"))
_PARTS = frozenset(("slice", "select", "split", "split_with_sizes", "unbind", "narrow"))
_COPIES = frozenset(("expand", "repeat", "cat", "stack"))
_NORMS = ("native_layer_norm", "native_batch_norm", "native_group_norm")


class Takings:
    """The kernels that multiply a softmax's numbers with others that are no parameters.

    A softmax whose columns are made by a parameter, one number each, weighs experts or classes. If
    it is multiplied with a parameter again, neither with a bias, these are keys and values: the
    modules that do so are `looking_up` what they have learned.

    Parameters
    ----------
    parameters : Parameters
        The memory of the model's parameters.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._softmaxes: list[_Softmax] = []
        self._parts: Any = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[_Part, Tensor]] = {}  # Kept, so that its memory stays.
        self._columns: Any = WeakTensorKeyDictionary()
        self._sampled: Any = WeakTensorKeyDictionary()
        self._last: _Taking | None = None
        self.looking_up: set[str] = set()
        self._whole: set[str] = set()

    def note(
        self, where: str, kernel: str, given: Sequence[Any], result: Any, *, is_own: bool = False
    ) -> None:
        """Look at a kernel that ran in a module; one of its own is none of torch's."""
        tensors = [x for x in tensors_in(given) if x.is_floating_point()]
        if any(x.is_nested for x in tensors):
            return
        if kernel in _SOFTMAXES:
            self._begin(given, result)
        elif found := next((part for x in tensors if (part := self._part(x))), None):
            self._follow(where, kernel, tensors, result, found, is_own=is_own)
        elif is_own and isinstance(result, Tensor) and self._attends(tensors, result):
            self._whole.add(where)
        if isinstance(result, Tensor):
            self._note_columns(kernel, tensors, result)
        self._note_sampled(kernel, tensors, tensors_in((result,)))

    def claim(self) -> None:
        """Note that a door saw the product that ran last."""
        if self._last is not None:
            self._last.is_seen = True
        self._last = None

    def forget(self) -> None:
        """Note that attention ran as one kernel, which takes no softmax."""
        self._last = None

    @property
    def missed(self) -> set[str]:
        """The modules that multiply a softmax of which no door saw a product with tokens."""
        found = set(self._whole)
        for one in self._softmaxes:
            is_missed = not (one.is_made or one.is_seen)
            found |= {x.where for x in one.takings if is_missed or (one.is_made and x.is_sampled)}
        return found

    @property
    def again(self) -> set[str]:
        """The modules that multiply a softmax which a door saw to meet values in another one."""
        found: set[str] = set()
        for one in self._softmaxes:
            seen = [x.where for x in one.takings if x.is_seen]
            others = {x.where for x in one.takings if not x.is_seen}
            found |= {x for x in others if seen and not any(holds(name, x) for name in seen)}
        return found

    def _begin(self, given: Sequence[Any], result: Tensor) -> None:
        scores, dim = given[0], given[1]
        if scores.dim() < 2 or self._parameters.holds(scores):
            return
        columns = self._columns.get(scores)
        count = scores.shape[dim]
        is_made = columns is not None and columns.holds(count, scores.stride(dim))
        softmax = _Softmax(count, is_made, is_made and columns.is_bare)
        self._softmaxes.append(softmax)
        self._parts[result] = _Part(softmax, result.numel())

    def _follow(
        self,
        where: str,
        kernel: str,
        tensors: Sequence[Tensor],
        result: Any,
        part: _Part,
        *,
        is_own: bool,
    ) -> None:
        results = tensors_in((result,))
        others = [x for x in tensors if self._part(x) is None and x.dim()]
        others = [x for x in others if not self._parameters.holds(x)]
        is_product = kernel in PRODUCTS or is_own
        self._last = None if is_product else self._last
        is_spread = kernel in _SPREADS and any(x.numel() > part.size for x in results)
        if others and (is_product or is_spread):
            self._last = _Taking(where, any(x in self._sampled for x in others))
            part.softmax.takings.append(self._last)
        elif kernel in _BARE and part.softmax.is_bare and not part.is_gating:
            first = tensors[0]
            summed = first.shape[-1] if self._part(first) else tensors[1].shape[-2]
            self.looking_up |= {where} if summed == part.softmax.count else set()
        elif kernel in _COPIES and not others:
            self._parts[result] = part
        elif kernel == "copy_":
            self._written[place_of(result)] = part, result
        elif not is_product and not kernel.startswith(_NORMS):
            for x in results:
                size = x.numel() if x.is_floating_point() else 0
                if size == part.size or (kernel in _PARTS and 0 < size < part.size):
                    self._parts[x] = _Part(part.softmax, size, part.is_gating or bool(others))

    def _part(self, x: Tensor) -> _Part | None:
        part: _Part | None = self._parts.get(x)
        if part is None and self._written:
            part = self._written.get(place_of(x), (None,))[0]
        return part

    def _attends(self, tensors: Sequence[Tensor], result: Tensor) -> bool:
        """Return whether a kernel takes queries, keys and values, as far as sizes tell."""
        tensors = [x for x in tensors if not self._parameters.holds(x)]
        if len(tensors) < 3:
            return False
        query, key, value = tensors[:3]
        is_alike = (
            query.dim() == key.dim() == value.dim() > 2 and key.shape[:-1] == value.shape[:-1]
        )
        made = (*query.shape[:-1], value.shape[-1])
        return is_alike and query.shape[-1] == key.shape[-1] and tuple(result.shape) == made

    def _note_sampled(
        self, kernel: str, tensors: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Follow values that are read between tokens, which deformable attention weighs."""
        sizes = [x.numel() for x in tensors if x in self._sampled]
        if is_sampling(kernel):
            sizes = [0]
        elif not sizes or kernel in PRODUCTS or kernel.startswith(_NORMS):
            return
        for x in results:
            if kernel in _PARTS or x.numel() >= max(sizes):
                self._sampled[x] = True

    def _note_columns(self, kernel: str, tensors: Sequence[Tensor], result: Tensor) -> None:
        """Follow numbers of which a parameter made some dimension."""
        if kernel in _MATRIX or kernel == "convolution":
            if found := _columns_of(kernel, tensors, result, self._parameters):
                self._columns[result] = found
            return
        made = next((x for x in tensors if x in self._columns), None)
        if made is not None and result.numel() == made.numel():
            has_bias = kernel.startswith("add") and any(map(self._parameters.holds, tensors))
            found = self._columns[made]
            self._columns[result] = found._replace(is_bare=found.is_bare and not has_bias)


class _Columns(NamedTuple):
    """How many columns a parameter made, and how many numbers lie between two of these.

    They are `bare` if nothing was added to them, such as a bias.
    """

    total: int
    stride: int
    is_bare: bool = False

    def holds(self, size: int, stride: int) -> bool:
        """Return whether a dimension of a tensor consists of such columns."""
        is_within = size > 0 and self.stride <= stride and stride * size <= self.total * self.stride
        return is_within and self.total % size == 0


def _columns_of(
    kernel: str, tensors: Sequence[Tensor], result: Tensor, parameters: Parameters
) -> _Columns | None:
    if kernel == "convolution":
        return _Columns(result.shape[1], result.shape[2:].numel())
    if len(tensors) < 2 or result.dim() < 2:
        return None
    if parameters.holds(tensors[-1]):
        return _Columns(result.shape[-1], 1, kernel in _BARE)
    if parameters.holds(tensors[-2]):
        return _Columns(result.shape[-2], result.shape[-1], kernel in _BARE)
    return None


@dataclass(eq=False)
class _Softmax:
    """A softmax over `count` columns, which a parameter may have made, perhaps without a bias."""

    count: int
    is_made: bool = False
    is_bare: bool = False
    takings: list[_Taking] = field(default_factory=list)

    @property
    def is_seen(self) -> bool:
        """Whether a door saw a product of it."""
        return any(one.is_seen for one in self.takings)


@dataclass(eq=False)
class _Taking:
    """A kernel that multiplies a softmax with others, which may be `sampled`, in a module."""

    where: str
    is_sampled: bool = False
    is_seen: bool = False


@dataclass(frozen=True, eq=False)
class _Part:
    """A tensor that holds a softmax's numbers, or some of these, or what it gates."""

    softmax: _Softmax
    size: int
    is_gating: bool = False


def not_in(names: Iterable[str], shown: Iterable[str]) -> list[str]:
    """List the modules that are in none of others."""
    shown = list(shown)
    return sorted(name for name in names if not any(holds(one, name) for one in shown))
