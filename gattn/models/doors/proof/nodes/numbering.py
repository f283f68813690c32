"""Proves which node of the data each node is that a graph layer is given.

Where only kernels ran that keep rows, that is known. Otherwise the model runs with NaN in coded
nodes of what it is given, and the rows that each layer is given tell which nodes they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.graphs.observing import observed_edges
from gattn.models.doors.proof.nodes.keeping import KeptRows
from gattn.models.doors.proof.nodes.passing import Marked, Passing
from gattn.models.doors.proof.nodes.telling import distinct, is_told, numbers_of, of_tokens
from gattn.models.doors.proof.probing.codes import decoded, words
from gattn.models.doors.proof.probing.failing import failing
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import By, Pick
from gattn.models.doors.proof.probing.one_run.reading import Reads
from gattn.models.doors.proof.probing.one_run.walking import Given, Run, Walk
from gattn.models.doors.proof.probing.taints import Pointwise, replaced, sources, with_nan
from gattn.models.read.on_graphs.numbers import UNKNOWN, NodeNumbers

Place = tuple[str, int]
_NOT_FOLLOWED = frozenset(("tolist", "numpy", "__array__"))
"""What gives code numbers by which it may move nodes itself."""


@dataclass(eq=False)
class Found:
    """What was proved of the nodes of a model's graph layers.

    Parameters
    ----------
    numbers : dict
        Which nodes of the data those of a call are, where they are others than they come, or where
        it is not known.
    orders : list of bytes
        What values decided, where those that the model is given did, else nothing.
    by_values : bool
        Whether it holds only as long as values decide the same.
    """

    numbers: dict[Place, NodeNumbers] = field(default_factory=dict)
    orders: list[bytes] = field(default_factory=list)
    by_values: bool = False


@dataclass(frozen=True)
class _Rows:
    """What the nodes of the data may be: the first dimensions of tensors, of some size or any.

    Rows of several sizes, as of several types of nodes, have the marks of their numbers.
    """

    dims: int
    size: int
    are_several: bool = False

    def marked(self, x: Tensor, row: Tensor) -> Tensor:
        """Put NaN into marked rows of a tensor that has such rows."""
        if self.are_several and x.dim():
            row = row[: len(x)]
        elif x.dim() < self.dims or prod(x.shape[: self.dims]) != self.size:
            return x
        return with_nan(x, row.reshape(*x.shape[: self.dims], *(1,) * (x.dim() - self.dims)))


class Numbering:
    """Proves the numbers of nodes.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model, attached to the doors.
    walk : Walk
        Its runs.
    reads : Reads
        What its code reads of numbers.
    call : callable
        Runs it on what it is given.
    """

    def __init__(
        self, model: nn.Module, walk: Walk, reads: Reads, call: Callable[[], Any], name: str
    ) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._walk, self._reads, self._call, self._root = walk, reads, call, (name, 0)
        self._count = 0

    def found(self, given: Given, kept: KeptRows, picks: Sequence[Pick]) -> Found:
        """Prove which nodes the graph layers are given."""
        self._count = kept.count
        is_random = any(one.by is By.CHANCE or one.kernel in _NOT_FOLLOWED for one in picks)
        plain = None if is_random else self._run(None, None)
        found = Found({kept.places[n]: UNKNOWN for n in kept.unknown})
        if plain is None:
            return found
        calls = plain.calls
        sides: dict[Place, dict[int, tuple[Tensor, int]]] = {call.place: {} for call in calls}
        embedded: list[Tensor] = []

        def hidden(run: Run, some: Sequence[Tensor]) -> Sequence[Tensor]:
            embedded.extend(some if run.place in kept.lookups else ())
            return [torch.full_like(x, torch.nan) for x in some]

        all_hidden = self._run(plain.decided, hidden, kept.lookups)
        found.orders = plain.by_values_in(all_hidden)
        found.by_values = any(found.orders)
        for rows in self._candidates([*sources(given), *embedded]):
            if any(len(sides[call.place]) < 2 for call in calls):
                self._decode(rows, plain, all_hidden, sides, kept.lookups)
        unknown = kept.unknown
        for number, call in enumerate(calls):
            is_kept = number not in unknown
            numbers = None if is_kept else numbers_of(call, sides[call.place])
            if numbers is None:
                found.numbers.pop(call.place, None)
            else:
                found.numbers[call.place] = replace(numbers, orders=call.orders)
        return found

    @staticmethod
    def _candidates(given: Sequence[Tensor]) -> list[_Rows]:
        found = [_Rows(1, len(x)) for x in given if x.dim() and len(x) > 1]
        if len(sizes := {one.size for one in found}) > 1:
            found.append(_Rows(1, max(sizes), are_several=True))
        found += [_Rows(2, prod(x.shape[:2])) for x in given if x.dim() > 2]
        found += [_Rows(1, 1) for x in given if x.dim() > 1 and len(x) == 1]
        return list(dict.fromkeys(found))

    def _decode(
        self,
        rows: _Rows,
        plain: Passing,
        all_hidden: Passing | None,
        sides: dict[Place, dict[int, tuple[Tensor, int]]],
        lookups: set[Place],
    ) -> None:
        """Run the model with marks in some rows, and note the numbers of nodes that they tell."""
        code = words(rows.size)
        runs: list[Passing] = []
        for row in code:

            def marked(run: Run, some: Sequence[Tensor], row: Tensor = row) -> list[Tensor]:
                return [rows.marked(x, row) for x in some]

            one = self._run(plain.decided, marked, lookups)
            if one is None or not _are_alike(one.calls, plain.calls):
                return
            runs.append(one)
        for number, call in enumerate(plain.calls):
            for side in (0, 1):
                marks = [(run.calls[number].keys, run.calls[number].queries)[side] for run in runs]
                is_other = rows.are_several != bool(call.ends.names)
                if is_other or side in sides[call.place] or any(x is None for x in marks):
                    continue
                seen = torch.stack([x.cpu() for x in marks if x is not None])
                if call.has_tokens:
                    if (tokens := of_tokens(seen, code)) is not None:
                        sides[call.place][side] = tokens, rows.size
                    continue
                numbers = decoded(seen, torch.ones_like(seen), code)
                whole = None if all_hidden is None else all_hidden.calls[number]
                given = None if whole is None else (whole.keys, whole.queries)[side]
                are_apart = bool(call.ends.names) or distinct(numbers, rows.size) is not None
                if are_apart and is_told(numbers, given):
                    sides[call.place][side] = numbers, rows.size

    # Running the model

    def _run(
        self,
        decided: list[Any] | None,
        marked: Callable[[Run, Sequence[Tensor]], Sequence[Tensor] | None] | None,
        lookups: Collection[Place] = (),
    ) -> Passing | None:
        """Run the model, with other numbers in what it is given; None if it failed."""
        passing = Passing(self._names, self._count, decided)

        def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
            if marked is None or (run.place != self._root and run.place not in lookups):
                return None
            some = sources(given)
            for x, y in zip(some, marked(run, some) or some, strict=True):
                given = given if x is y else replaced(given, x, y)
            return given

        def see(call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                if decided is not None:
                    call.output.zero_()

        running, again = self._walk.following(entered), self._reads.repeated({})
        modes = FunctionMode(), Pointwise(), running, again
        shown = observed(see), observed_edges(passing), passing.hooked(), passing
        with failing(), ExitStack() as stack:
            for one in (*modes, *shown):
                stack.enter_context(one)
            self._call()
        return passing if len(passing.calls) == self._count else None


def _are_alike(some: Sequence[Marked], others: Sequence[Marked]) -> bool:
    """Return whether two runs attend over the same edges."""
    return len(some) == len(others) and all(
        one.place == other.place
        and one.ends.key.shape == other.ends.key.shape
        and torch.equal(one.ends.key, other.ends.key)
        and torch.equal(one.ends.query, other.ends.query)
        for one, other in zip(some, others, strict=True)
    )


def integers_of(given: Any) -> bytes:
    """Describe the integers and masks that a model is given."""
    found = blake2b(digest_size=16)
    for x in leaves(given):
        if isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex():
            found.update(x.detach().contiguous().cpu().numpy().tobytes())
    return found.digest()
