"""Finds what a model makes of the scores of its attention beside it, where no edit reaches.

A model may take a second softmax of the same scores, perhaps with a temperature, or logarithms, and
return or log these, while another softmax meets the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.memory import memory_of, version_of
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.functions.softmaxes.follow.known import Observers, OfTensors
from gattn.models.doors.functions.softmaxes.follow.operands import asks_of_form, operands
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.read.track.early_calls import SOFTMAX

_PRODUCTS = frozenset(
    (
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv", "dot", "einsum", "linear"),
        *("bilinear", "baddbmm", "addmm", "baddbmm_", "addmm_", "tensordot"),
        *("conv1d", "conv2d", "conv3d"),
    )
)
_DIFFERENCES = frozenset(("sub", "__sub__", "sub_", "__isub__", "subtract"))
_LOGARITHMS = frozenset(("log_softmax", "logsumexp"))
_LOSS = "cross_entropy"

Family = frozenset[int]


class Uses:
    """Follows scores through one run of a model, and notes all softmaxes that were taken of them.

    Tensors that were made of the same others, but by products, have numbers in their `families` in
    common. What is made of constants alone has none.
    """

    def __init__(self) -> None:
        self._families: OfTensors[Family] = OfTensors()
        self._factors: dict[int, list[Family]] = {}
        self._logarithms: OfTensors[_Use] = OfTensors()
        self._found: list[_Use] = []
        self._met: list[_Met] = []
        self._written: set[Source] = set()
        self._pairs: list[Source] = []
        self._count = 0

    def __enter__(self) -> Uses:
        observers.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        observers.remove(self)

    def begin(self, given: Iterable[Tensor]) -> None:
        """Note what the model is given."""
        for x in given:
            if _is_numbers(x):
                self._number(x)

    def follow(self, func: Any, given: list[Any], result: Any) -> None:
        """Look at a function that ran."""
        name, some = getattr(func, "__name__", ""), [x for x in given if _is_numbers(x)]
        made = [x for x in _all(result) if _is_numbers(x)]
        if self._logarithms.known and not asks_of_form(func):
            self._read(name, some, made)
        families = list(map(self._of, some))
        family: Family = frozenset().union(*families)
        if name == "embedding" or (name in _PRODUCTS and family):
            for x in made:
                self._factors[self._number(x)] = families
        elif family:
            for x in made:
                self._families.note(x, family | self._of(x))
        module = owner() if family and (name in _LOGARITHMS or name == _LOSS) else None
        if module is not None and name == _LOSS:
            self._found.append(_Use(module, name, family, -1, is_read=True))
        elif module is not None:
            for x in made:
                use = _Use(module, name, family, -1)
                self._found.append(use)
                self._logarithms.note(x, use)

    def _read(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        """Follow logarithms until their exponentials are taken, and note who else reads them."""
        for x in given if name not in ("exp", "exp_") else ():
            if (use := self._logarithms.of(x)) is not None:
                some = [] if name in _PRODUCTS else [y for y in made if y.numel() >= x.numel()]
                use.is_read |= not some
                use.what = "log_softmax" if name in _DIFFERENCES else use.what
                for y in some:
                    self._logarithms.note(y, use)

    def note(self, source: Source, scores: Tensor, result: Tensor, same: Same | None) -> None:
        """Note a softmax, or exponentials that may become one, by themselves."""
        number = self._number(result)
        self._found.append(_Use(source.module, SOFTMAX, self._of(scores), number, source, same))

    def weigh_pairs(self, source: Source, other: Tensor) -> None:
        """Note a softmax that weighs one number of each pair, perhaps one made of its scores."""
        scores = next((use.family for use in self._found if use.source is source), None)
        if not scores or not scores <= self._of(other):
            self._pairs.append(source)

    def divided(self, source: Source) -> None:
        """Note that exponentials became a softmax."""
        self._written.add(source)

    def meet(self, call: RawCall, sources: Iterable[Source] = ()) -> None:
        """Note a call of attention, and the softmaxes that met the values in it."""
        known = set(sources)
        uses = [use for use in self._found if use.source is not None and use.source in known]
        family: Family = frozenset().union(*(use.family for use in uses))
        made = (x for source in known if (x := source.attention()) is not None)
        way = family.union(*map(self._of, made))
        self._met.append(_Met(call.module, call.ordinal, family, uses, way))

    def attend(self, call: RawCall) -> None:
        """Note a call of attention whose scores no code sees."""
        if call.query is not None and call.key is not None:
            sides = self._of(call.query), self._of(call.key)
            none: Family = frozenset()
            self._met.append(_Met(call.module, call.ordinal, none, [], none, sides))

    def unread(self) -> set[nn.Module]:
        """Return the modules that weigh numbers of pairs with a softmax that does nothing else.

        It may be divided by these sums, and meet values then.
        """
        some = (one for one in self._pairs if not one.has_met and one.again is None)
        return {one.module for one in some}

    def beside(self) -> list[Beside]:
        """Return which softmaxes of scores met no values, while others of these did."""
        held = {use for _, use in self._logarithms.known.values()}
        found = []
        for use in self._found:
            source = use.source
            if source is None and not (use.is_read or use in held):
                continue
            if source is not None and (
                source.has_met or (source.is_written and source not in self._written)
            ):
                continue
            shared = [(self._shared(use, one), one) for one in self._met]
            own = [(n, one) for n, one in shared if n and one.module is use.module]
            own = own or [(n, one) for n, one in shared if n]
            if own:
                _, met = max(own, key=lambda one: one[0])
                found.append(Beside(use.what, met.module, met.ordinal, use.again(met)))
        return found

    def _shared(self, use: _Use, met: _Met) -> int:
        """Count what a softmax and an attention were both made of."""
        if use.number in met.way:
            return 0
        pairs = self._sides(met.family) if met.sides is None else [met.sides]
        same = [
            (one & queries, two & keys)
            for one, two in self._sides(use.family)
            for queries, keys in pairs
        ]
        most = max((len(one) + len(two) for one, two in same if one and two), default=0)
        return max(most, len(use.family & met.family))

    def _sides(self, family: Family) -> list[tuple[Family, Family]]:
        """List what products of two tensors that scores were made of were made of themselves."""
        found = (self._factors.get(number, ()) for number in family)
        return [(both[0], both[1]) for both in found if len(both) == 2]

    def _of(self, x: Tensor) -> Family:
        return self._families.of(x) or frozenset()

    def _number(self, x: Tensor) -> int:
        """Give a tensor a number of its own."""
        self._count += 1
        self._families.note(x, frozenset((self._count,)))
        return self._count


class Beside(NamedTuple):
    """What a model makes of the scores of an attention, by the call of a module's run.

    If it is the same softmax once more, it comes `again`: its number in the run, and that of the
    one which meets the values.
    """

    what: str
    module: nn.Module
    ordinal: int
    again: tuple[int, int] | None


class Same(NamedTuple):
    """What tells a softmax by its scores, dimension and type."""

    memory: Any
    version: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    key: int
    dtype: torch.dtype

    @classmethod
    def of(cls, scores: Tensor, attention: Tensor, key: int) -> Same:
        """Tell a softmax from others."""
        with torch._C.DisableTorchFunction():
            place = int(scores.storage_offset()), scores.shape, scores.stride()
        return cls(memory_of(scores), version_of(scores), *place, key, attention.dtype)

    def is_of(self, other: Same | None) -> bool:
        """Return whether it is the same softmax as another one."""
        return self.memory is not None and self == other


@dataclass(eq=False)
class _Use:
    """A softmax of scores, or its logarithm, which has no `source`."""

    module: nn.Module
    what: str
    family: Family
    number: int
    source: Source | None = None
    same: Same | None = None
    is_read: bool = False

    def again(self, met: _Met) -> tuple[int, int] | None:
        """Return its number, and that of the very same softmax that met the values."""
        if self.source is None or self.same is None or len(met.uses) != 1:
            return None
        (use,) = met.uses
        is_same = self.module is met.module and self.same.is_of(use.same)
        if not is_same or use.source is None:
            return None
        return self.source.number, use.source.number


class _Met(NamedTuple):
    """A call of attention, its scores, and all that its softmax was made of.

    Where no code sees the scores, it has two `sides`, queries and keys.
    """

    module: nn.Module
    ordinal: int
    family: Family
    uses: list[_Use]
    way: Family
    sides: tuple[Family, Family] | None = None


observers: Observers[Uses] = Observers()
"""What is shown the functions of a run."""


def see(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Show a function that ran to those that follow a run."""
    for uses in observers:
        uses.follow(func, operands(args, kwargs), result)
    return result


def note_softmax(source: Source, scores: Tensor, result: Tensor, same: Same | None = None) -> None:
    """Show them a softmax, or exponentials that may become one."""
    for uses in observers:
        uses.note(source, scores, result, same)


def note_pairs(source: Source, other: Tensor) -> None:
    """Show them a softmax that weighs one number of each pair."""
    for uses in observers:
        uses.weigh_pairs(source, other)


def note_divided(source: Source) -> None:
    """Show them exponentials that became a softmax."""
    for uses in observers:
        uses.divided(source)


def note_met(call: RawCall, sources: Iterable[Source]) -> None:
    """Show them a call in which softmaxes met values."""
    for uses in observers:
        uses.meet(call, sources)


def _is_numbers(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 0


def _all(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]
