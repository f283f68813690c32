"""Operations that have run on tensors, prepared to run on others in memory that is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Outputs = tuple[Tensor | None, ...]


class UnrecordableError(Exception):
    """What a function does depends on more than the shapes of its tensors."""


class Step(NamedTuple):
    """An operation that has run, what it was given, and what it gave."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    given: Any

    @property
    def reads(self) -> list[Tensor]:
        """The tensors that it was given."""
        return list(_tensors((self.arguments, self.options)))

    @property
    def gives(self) -> list[Tensor]:
        """The tensors that it gave."""
        return list(_tensors(self.given))

    @property
    def writes_to_arguments(self) -> bool:
        """Whether it changes a tensor that it was given."""
        return bool(self.operation._schema.is_mutable)

    @property
    def writes(self) -> list[Tensor]:
        """The tensors that it made or changed."""
        if not self.writes_to_arguments:
            return self.gives
        schema = self.operation._schema
        values = dict(zip((each.name for each in schema.arguments), self.arguments, strict=False))
        values |= self.options
        changed = [each.name for each in schema.arguments if each.is_write]
        return [*self.gives, *_tensors([values.get(name) for name in changed])]

    @property
    def is_view(self) -> bool:
        """Whether it only looks at its tensor in another shape."""
        read = {_memory(x) for x in self.reads}
        return not self.writes_to_arguments and {_memory(x) for x in self.gives} <= read


class Program:
    """The steps of a recorded function, ready to run again on what is in its inputs' memory.

    Views need no step. An elementwise operation writes over an argument that nothing reads
    afterwards; what does not depend on the inputs is not computed again.

    Parameters
    ----------
    steps : sequence of Step
        What was recorded. They keep all their tensors, so that each has memory of its own.
    inputs : sequence of Tensor
        What the function was given. Write other numbers into the program's `inputs` and call it;
        those that nothing reads are None.
    outputs : tuple
        What the function gave; None stays None.
    """

    def __init__(self, steps: Sequence[Step], inputs: Sequence[Tensor], outputs: Outputs) -> None:
        steps = [step for step in steps if not step.is_view]
        _check_writes(steps)
        steps = _varying(_wanted(steps, outputs), inputs)
        read = {
            _memory(x) for x in (*_tensors(outputs), *(x for step in steps for x in step.reads))
        }
        self.inputs = [x if _memory(x) in read else None for x in inputs]
        memory = _Memory(steps, [*inputs, *_tensors(outputs)])
        self._runs = [memory.prepared(place, step) for place, step in enumerate(steps)]
        self.outputs = tuple(None if x is None else memory.of(x) for x in outputs)

    def __call__(self) -> Outputs:
        """Compute the outputs; they stay valid until the next call."""
        for run in self._runs:
            run()
        return self.outputs


class _Memory:
    """Gives recorded tensors a place, the same one to those that are not needed at once."""

    def __init__(self, steps: Sequence[Step], kept: Sequence[Tensor]) -> None:
        self._made = {_memory(x) for step in steps for x in step.gives}
        self._made -= {_memory(x) for x in kept}
        self._last = {_memory(x): place for place, step in enumerate(steps) for x in step.reads}
        self._moved: dict[int, torch.UntypedStorage] = {}
        self._spare: list[torch.UntypedStorage] = []

    def of(self, x: Tensor) -> Tensor:
        """Find a recorded tensor in its place."""
        empty = torch.empty(0, dtype=x.dtype, device=x.device)
        storage = self._storage(x)
        return empty.set_(storage, x.storage_offset(), x.shape, x.stride())

    def prepared(self, place: int, step: Step) -> Callable[[], object]:
        """Give the results of the next step a place, and return what computes them."""
        dying = {_memory(x): x for x in step.reads if self._dies(x, place)}
        for x in [] if step.writes_to_arguments else step.gives:
            taken = (
                _overwritten(step, x, list(dying.values())) if _memory(x) in self._made else None
            )
            if taken is not None:
                self._moved[_memory(x)] = self._storage(dying.pop(_memory(taken)))
            elif _memory(x) in self._made:
                self._moved[_memory(x)] = self._taken(x.untyped_storage())
        self._spare += [self._storage(x) for x in dying.values()]
        arguments, options = tree_map_only(Tensor, self.of, (step.arguments, step.options))
        if step.writes_to_arguments:
            return partial(step.operation, *arguments, **options)
        targets, into = [self.of(x) for x in step.gives], _into(step.operation)
        if into is not None:
            return partial(into[0], *arguments, **options, **{into[1]: targets[0]})
        return partial(_copy_to, targets, partial(step.operation, *arguments, **options))

    def _dies(self, x: Tensor, place: int) -> bool:
        return _memory(x) in self._made and self._last[_memory(x)] == place

    def _storage(self, x: Tensor) -> torch.UntypedStorage:
        return self._moved.get(_memory(x), x.untyped_storage())

    def _taken(self, own: torch.UntypedStorage) -> torch.UntypedStorage:
        for place, spare in enumerate(self._spare):
            if spare.nbytes() == own.nbytes():
                return self._spare.pop(place)
        return own


def _copy_to(targets: Sequence[Tensor], compute: Callable[[], Any]) -> None:
    for target, x in zip(targets, _tensors(compute()), strict=True):
        target.copy_(x)


def _wanted(steps: Sequence[Step], outputs: Outputs) -> list[Step]:
    """Leave out steps that the outputs do not need."""
    needed = {_memory(x) for x in _tensors(outputs)}
    kept = []
    for step in reversed(steps):
        if any(_memory(x) in needed for x in step.writes):
            needed |= {_memory(x) for x in step.reads}
            kept.append(step)
    return kept[::-1]


def _varying(steps: Sequence[Step], inputs: Sequence[Tensor]) -> list[Step]:
    """Leave out steps that read nothing of the inputs; what they gave stays as it is."""
    varies = {_memory(x) for x in inputs}
    varies |= {_memory(x) for step in steps if step.writes_to_arguments for x in step.writes}
    kept = []
    for step in steps:
        if any(_memory(x) in varies for x in (*step.reads, *step.gives)):
            varies |= {_memory(x) for x in step.gives}
            kept.append(step)
    return kept


def _check_writes(steps: Sequence[Step]) -> None:
    """Refuse a function that changes a tensor that it did not make."""
    made: set[int] = set()
    for step in steps:
        if step.writes_to_arguments and not {_memory(x) for x in step.writes} <= made:
            raise UnrecordableError(f"{step.operation} changes a tensor from elsewhere")
        made |= {_memory(x) for x in step.gives}


def _overwritten(step: Step, x: Tensor, dying: Sequence[Tensor]) -> Tensor | None:
    """Find an argument in whose place an elementwise operation may put its result."""
    if torch.Tag.pointwise not in step.operation.tags or _into(step.operation) is None:
        return None
    for other in dying:
        alike = [_form(y) == _form(x) for y in step.reads if _memory(y) == _memory(other)]
        if all(alike) and other.untyped_storage().nbytes() == x.untyped_storage().nbytes():
            return other
    return None


def _form(x: Tensor) -> tuple[Any, ...]:
    return x.dtype, x.storage_offset(), x.shape, x.stride()


@cache
def _into(operation: Any) -> tuple[Any, str] | None:
    """Find the form of an operation that writes into a given tensor, and what it calls that."""
    wanted = [(each.name, str(each.type)) for each in operation._schema.arguments]
    if len(operation._schema.returns) != 1:
        return None
    packet = operation.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        known = other._schema.arguments
        into = [each.name for each in known if each.is_out]
        rest = [(each.name, str(each.type)) for each in known if not each.is_out]
        if len(into) == 1 and rest == wanted:
            return other, into[0]
    return None


def _memory(x: Tensor) -> int:
    return cast("int", x.untyped_storage()._cdata)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor))
