"""The base of all edits: changes to the graph inside a live model, in some layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np
from torch import Tensor

from gattn.checks import check_call
from gattn.edit_records import Described, EditRecord
from gattn.engines.tiles import RowBlock
from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.models.edit.digests import ADDRESS, digest_of
from gattn.models.edit.where.heads import Numbers, named_by, numbers_of, places_of
from gattn.models.edit.where.tokens import KnownTokens
from gattn.models.read.places import Place
from gattn.names.places import Named

if TYPE_CHECKING:
    from gattn.models.edit.part import Part
    from gattn.models.read.reading import Reading


Some = TypeVar("Some")


@dataclass_transform(eq_default=False, frozen_default=True)
def edit_class(kind: type[Some]) -> type[Some]:
    """Make a class of edits a frozen dataclass that says which fields it takes."""
    made: Any = dataclass(frozen=True, eq=False, repr=False)(kind)
    make = made.__init__

    @wraps(make)
    def make_checked(self: Some, *values: Any, **options: Any) -> None:
        try:
            make(self, *values, **options)
        except TypeError:
            check_call(make, values, options, f"{made.__name__}()", {})
            raise

    made.__init__ = make_checked
    return made  # type: ignore[no-any-return]


class Edit(Described):
    """The base of edits, which are frozen dataclasses; `layer`, `head` and `stack` say where."""

    layer: Numbers
    head: Numbers
    stack: str | None

    is_after = False
    """Whether it changes attention after normalizing."""
    gives_values = False
    """Whether it changes values or outputs."""
    changes_attention = True
    """Whether it may change attention."""
    gives_all_attention = False
    """Whether it replaces whole heads' attention."""
    spans_stacks = False
    """Whether one edit may change several stacks."""

    def __post_init__(self) -> None:
        if (named := named_by(self.layer)) is not None:
            self._take(named)
        for name in ("layer", "head"):
            given = getattr(self, name)
            if name == "layer" and places_of(given) is not None:
                continue
            numbers = numbers_of(name, given)
            if isinstance(given, (list, tuple)):
                object.__setattr__(self, name, type(given)(numbers or ()))
            elif numbers is not None and not isinstance(given, range):
                object.__setattr__(self, name, numbers if len(numbers) > 1 else numbers[0])

    def _take(self, named: Named) -> None:
        """Take over the heads, and the stack, that `layer` names."""
        names_heads = bool(named.heads) or named.head is not None
        if names_heads and self.head is not None:
            raise SelectionError(
                f"layer={self.layer!r} already names heads, so leave out head={self.head!r}; for "
                "several layers write a list, as in layer=[2, 1]."
            )
        if named.stack is not None and self.stack not in (None, named.stack):
            raise SelectionError(
                f"layer={self.layer!r} already names a stack, so leave out stack={self.stack!r}."
            )
        values = {"layer": named.heads or named.layer, "stack": named.stack or self.stack}
        if names_heads:
            values["head"] = named.head
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults."""
        shown = [f"{name}={_shown(value)}" for name, value in self._named_fields().items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _named_fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        given: Any = self.as_given()
        values = {one: getattr(given, one.name) for one in fields(given)}
        return {one.name: value for one, value in values.items() if value is not one.default}

    @property
    def record(self) -> EditRecord:
        """What files and graphs keep of it."""
        given: Any = self.as_given()
        values = {one.name: getattr(given, one.name) for one in fields(given)}
        held = [value for value in values.values() if not _is_plain(value)]
        where = ("layer", "head", "query", "key")
        others = self._named_fields().items()
        return EditRecord(
            ADDRESS.sub("", repr(self)),
            type(self).__name__,
            self.stack,
            **{name: _recorded(values.get(name)) for name in where},
            others={x: _as_json(value) for x, value in others if x not in ("stack", *where)},
            digest=digest_of(held) if held else "",
        )

    def as_given(self) -> Edit:
        """Return it without what the model gave on its texts."""
        return self

    def applies(self, place: Place) -> bool:
        """Return whether it edits a stack's layer."""
        if self.stack not in (None, place.stack):
            return False
        layers = self.layers()
        return layers is None or place.layer in layers

    def layers(self) -> list[int] | None:
        """List its layers; None means all."""
        if (places := places_of(self.layer)) is not None:
            return sorted({layer for layer, _ in places})
        return numbers_of("layer", self.layer)

    def named(self) -> dict[str, set[Any]]:
        """Return the layers that it names, and the tokens that it names individually."""
        return {"layer": set(self.layers() or ())}

    def heads(self, count: int) -> list[int]:
        """List its heads, in a layer with `count` heads."""
        heads = numbers_of("head", self.head)
        if heads is None:
            return list(range(count))
        if missing := [head for head in heads if head >= count]:
            raise SelectionError(
                f"{self} names head {missing[0]}, but the heads are 0 .. {count - 1} in a layer "
                "that it edits: give layer= the layers that have this head, or another head."
            )
        return heads

    def by_stack(self) -> dict[str | None, Edit]:
        """Return its part in each stack that it names several of; None is whichever it edits."""
        return {None: self}

    def in_layer(self, layer: int) -> Edit:
        """Return its part in one layer, if it names places (layer, head)."""
        places = places_of(self.layer)
        if places is None:
            return self
        heads = [head for at, head in places if at == layer]
        return replace(self, layer=layer, head=heads)  # type: ignore[type-var]

    def in_call(self, place: Place) -> Edit | None:
        """Return its part in a call of one head of its layer; None if it leaves that alone."""
        if not place.heads:
            return self
        own = place.own(self.heads(place.heads))
        return replace(self, head=own) if own else None  # type: ignore[type-var]

    def among(self, heads: Sequence[int]) -> Edit:
        """Return its part in some heads of a call, which count from 0 in the attention it gets."""
        return self

    @property
    def needs_tokens(self) -> bool:
        """Whether its positions depend on a call's tokens."""
        return False

    def located(self, query: KnownTokens, key: KnownTokens) -> tuple[Edit, set[tuple[str, Any]]]:
        """Replace texts of tokens and negative positions by positions; also give those found."""
        return self, set()

    def changes(self, reading: Reading) -> Tensor | None:
        """Return which queries of a call it changes, as booleans; None means all."""
        return None

    def meets(self, reading: Reading) -> bool:
        """Return whether it has anything to edit in a call."""
        return bool(len(reading.queries) and len(reading.keys))

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Change who may attend to whom; edges are in main memory."""
        return graph

    def values(self, values: Tensor, reading: Reading) -> Tensor:
        """Change the values (elements, heads, keys, dim)."""
        return values

    def outputs(self, output: Tensor, part: Part) -> Tensor:
        """Change the outputs (elements, heads, queries, dim), as earlier edits left them."""
        return output

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Change the attention of some rows, (elements, heads, rows, columns)."""
        return attention

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Change the attention of some listed edges, (elements, heads, edges), given their ends."""
        return attention


_MOST_SHOWN = 20
"""Numbers of a tensor that an edit's text writes out; formatting many takes longer than a run."""


def _shown(value: object) -> str:
    if isinstance(value, slice) and value.step is None:
        return f"slice({value.start}, {value.stop})"
    if isinstance(value, Tensor) and value.numel() > _MOST_SHOWN:
        return f"<tensor of {tuple(value.shape)}>"
    if type(value) is dict:
        return f"{{{', '.join(f'{name!r}: {_shown(one)}' for name, one in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _as_json(value: Any) -> Any:
    """Return numbers, texts, and lists of them; spans are "2:5", and all else is its text."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 1 and len(value) <= _MOST_SHOWN:
        return value.tolist()
    if isinstance(value, (list, tuple, range)):
        return list(map(_as_json, value))
    if isinstance(value, slice):
        return ":".join("" if one is None else str(one) for one in (value.start, value.stop))
    return _shown(value)


def _is_plain(value: object) -> bool:
    """Return whether an edit's text fully describes a value."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, slice, range))


def _recorded(where: Any) -> Any:
    """Return layers, heads or tokens as a record holds them."""
    if where is None or isinstance(where, (int, str, slice)):
        return where
    if isinstance(where, range):
        return slice(where.start, where.stop, None if where.step == 1 else where.step)
    if isinstance(where, (Tensor, np.ndarray)):
        where = where.tolist()
    return tuple(where) if isinstance(where, Sequence) else None
