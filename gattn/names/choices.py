"""Reads ``layers=`` and ``heads=``: which layers and heads are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.names.places import MOST, list_places, read_choice, read_numbers

LayerChoice: TypeAlias = int | str | Sequence[int] | None
"""Which layers: all (None), one number, or several, as numbers or as text such as "0,2-4"."""

HeadChoice: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int] | str] | None
"""Which heads: all (None), one number or several of every layer, or places (layer, head).

Places and numbers may be text, such as "2.1", "1.1,2.0" or "0,2"."""

FROM_THE_START = "count from 0, not from the end"
"""How layers and heads count, which errors say of negative numbers."""

REDUCTIONS = ("mean", "max", "min")
"""How heads can be reduced to one, by name; not names of heads."""


@dataclass(frozen=True)
class Chosen:
    """The chosen heads of a model.

    Parameters
    ----------
    layers : list of int, optional
        The layers; None for all.
    heads : list of int or (layer, head), optional
        The heads of each of these layers, or single heads; None for all.
    """

    layers: list[int] | None = None
    heads: list[int] | list[tuple[int, int]] | None = None

    @classmethod
    def of(cls, layers: LayerChoice, heads: HeadChoice) -> Chosen:
        """Read the arguments ``layers=`` and ``heads=``, or raise SelectionError."""
        numbers, chosen = numbers_of("layers", layers), numbers_or_places(heads)
        if chosen is None or not isinstance(chosen[0], tuple):
            return cls(numbers, chosen)
        if numbers is not None:
            raise SelectionError(
                f"heads={heads!r:.80} names heads with their layers, so leave layers= out."
            )
        return cls(list(dict.fromkeys(place[0] for place in _places(chosen))), chosen)

    def has_layer(self, layer: int) -> bool:
        """Return whether any head of a layer is chosen."""
        return self.layers is None or layer in self.layers

    def in_layer(self, layer: int, count: int) -> list[int]:
        """List the chosen heads of a layer that has `count` heads."""
        if self.heads is None:
            return list(range(count))
        numbers = [
            one[1] if isinstance(one, tuple) else one
            for one in self.heads
            if not isinstance(one, tuple) or one[0] == layer
        ]
        if missing := [number for number in numbers if not 0 <= number < count]:
            raise no_such("head", missing[0], count, f"layer {layer}")
        return numbers

    def count(self, layers: int, heads: int) -> int:
        """Count the chosen heads of a model with so many layers, and so many heads in each."""
        if self.heads is not None and isinstance(self.heads[0], tuple):
            return len(self.heads)
        return (layers if self.layers is None else len(self.layers)) * (
            heads if self.heads is None else len(self.heads)
        )

    def written(self) -> dict[str, list[int] | list[int | str] | None]:
        """Write ``layers`` and ``heads`` as numbers and text that `of` reads back."""
        if self.heads is None:
            return {"layers": self.layers, "heads": None}
        has_places = isinstance(self.heads[0], tuple)
        return {
            "layers": None if has_places else self.layers,
            "heads": [written(one) for one in sorted(self.heads, key=_order)],
        }


def no_such(what: str, number: int, count: int, where: str) -> SelectionError:
    """Say that a layer or head is not there, and which numbers are."""
    if number < 0:
        return SelectionError(
            f"No {what} {number}: {what}s {FROM_THE_START}, and the last of {where} is {count - 1}."
        )
    return SelectionError(f"No {what} {number}; {where} has {what}s 0 .. {count - 1}.")


def no_head(
    given: object, one: int | tuple[int, int], layers: Sequence[int], heads: Sequence[int]
) -> str:
    """Say that a head is not there, of which layers with which heads are."""
    there = f"there are layers {list(layers)} with heads {list(heads)}."
    if min(one if isinstance(one, tuple) else (one,)) < 0:
        return f"heads={given!r:.80}: layers and heads {FROM_THE_START}; {there}"
    return f"No head {written(one)}; {there}"


def number_of(name: str, number: Any) -> int:
    """Check the number of a layer or head before it is known how many there are."""
    if is_number(number) and index(number) < 0:
        raise SelectionError(from_the_end(name, number))
    return whole(name, number, 0, SelectionError)


def from_the_end(name: str, given: object) -> str:
    """Say why a layer or head cannot be counted from the end."""
    return (
        f"{name} counts from 0, not from the end, so it cannot be {given!r:.80}: name the last by "
        "its number; a trace (gattn.capture) shows which there are."
    )


def numbers_of(name: str, chosen: LayerChoice, *, may_repeat: bool = False) -> list[int] | None:
    """Read a choice of numbers, such as ``layers=2``, ``layers=[0, 2]`` or ``layers="0,2-4"``.

    Raises
    ------
    SelectionError
        If it is not such a choice, or repeats a number and not `may_repeat`.
    """
    if chosen is None:
        return None
    if type(chosen) is int:
        return [chosen]
    expected = (
        f"{name} takes a whole number, or several such as [0, 2] or '0,2-4', not {chosen!r:.80}"
    )
    try:
        several: Any = read_numbers(chosen) if isinstance(chosen, str) else chosen
        if isinstance(several, range) and several[MOST:]:
            raise SelectionError(f"{name} names at most {MOST:,} of them, not {chosen!r:.80}.")
        listed = [several] if is_number(several) else list(several)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{expected}.") from error
    if not all(map(is_number, listed)):
        raise SelectionError(f"{expected}.")
    numbers = [index(number) for number in listed]
    if not numbers:
        raise SelectionError(f"{name} is empty: name at least one, or None for all.")
    if not may_repeat and len(set(numbers)) < len(numbers):
        raise SelectionError(f"{name}={numbers} repeats a number: name each once.")
    return numbers


def numbers_or_places(heads: HeadChoice) -> list[int] | list[tuple[int, int]] | None:
    """Read a choice of heads, as numbers or places; raise SelectionError if it names a stack."""
    stack, chosen = stack_and_heads(heads)
    if stack is not None:
        raise SelectionError(
            f"heads={heads!r:.80} names a stack, but here heads are named without one: leave out "
            f"{stack}:, and if there are several stacks, take one from the trace, as in "
            f"trace[{stack!r}]."
        )
    return chosen


def heads_among(
    heads: HeadChoice, layers: Sequence[int]
) -> tuple[str | None, list[tuple[int, int]]]:
    """Read a choice of heads as places; a number stands for that head of each layer.

    Returns
    -------
    tuple
        The stack, if a text names it, and the heads in the given order.
    """
    stack, chosen = stack_and_heads(heads)
    places: list[tuple[int, int]] = []
    for one in chosen or ():
        places += [one] if isinstance(one, tuple) else [(layer, one) for layer in layers]
    return stack, places


def stack_and_heads(
    heads: HeadChoice,
) -> tuple[str | None, list[int] | list[tuple[int, int]] | None]:
    """Read a choice of heads, and the stack that it may name; see `numbers_or_places`."""
    if heads is None:
        return None, None
    if isinstance(heads, str) and heads in REDUCTIONS:
        raise SelectionError(f"{_expected(heads)}; to reduce heads to one, use reduce={heads!r}.")
    try:
        listed: Any
        if isinstance(heads, str):
            stack, listed = read_choice(heads)
            return stack, numbers_of("heads", listed) if is_number(listed[0]) else listed
        if is_number(heads):
            return None, [index(heads)]  # type: ignore[arg-type]
        listed = list(heads)  # type: ignore[arg-type]
        if all(map(is_number, listed)):
            return None, _numbers(heads, listed)
        return list_places(listed)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{_expected(heads)}.") from error


def named_stack(heads: HeadChoice, stack: str | None) -> str | None:
    """Return the stack that heads name, or that was given."""
    named, _ = stack_and_heads(heads)
    if named is not None and stack not in (None, named):
        raise SelectionError(f"heads={heads!r:.80} names a stack, but stack={stack!r} is given.")
    return named or stack


def written(head: int | tuple[int, int]) -> int | str:
    """Write a place as "2.1", and a number as it is."""
    return f"{head[0]}.{head[1]}" if isinstance(head, tuple) else head


def _order(head: int | tuple[int, int]) -> tuple[int, int]:
    return head if isinstance(head, tuple) else (-1, head)


def is_number(value: object) -> bool:
    """Return whether a value is a whole number, also NumPy's or torch's, but not a boolean."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        return False
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _places(chosen: list[int] | list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [one for one in chosen if isinstance(one, tuple)]


def _numbers(heads: object, listed: list[Any]) -> list[int]:
    if isinstance(heads, tuple) and len(listed) == 2:
        one, other = listed
        raise SelectionError(
            f"heads={heads!r} may be a place or two heads: write [({one}, {other})] for head "
            f"{other} of layer {one}, or [{one}, {other}] for these heads of every layer."
        )
    return numbers_of("heads", listed) or []


def _expected(heads: object) -> str:
    weighs = isinstance(heads, Iterable) and any(isinstance(one, float) for one in heads)
    hint = "; weights go into reduce=" if weighs else ""
    return (
        "heads must be a number from 0, several such as [0, 2], or places such as [(2, 0), (2, 1)] "
        f"or '2.0,2.1', not {heads!r:.80}{hint}"
    )
