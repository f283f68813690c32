"""A model of a library, with inputs, and what its library says about its attention."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Case:
    """A model and inputs for it.

    Parameters
    ----------
    own : function, optional
        Gives the attention that the library itself shows, if it does: tensors
        (..., queries, keys), each of which must have been captured.
    not_tokens : mapping
        Which modules take a softmax over something else, by the name of their class, or by their
        name in a class (`Block.attn`), and over what.
    in_slices : bool
        Whether a module takes one softmax after the other, each of a few heads or sequences.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    own: Callable[[Case], list[Tensor]] | None = None
    not_tokens: Mapping[str, str] = field(default_factory=dict)
    in_slices: bool = False

    def run(self) -> Any:
        torch.manual_seed(0)
        with torch.no_grad():
            return (self.call or _called)(self.model, *self.args, **self.kwargs)

    def double(self) -> Case:
        """Return a copy in double precision."""
        model = copy.deepcopy(self.model).double()
        args, kwargs = _double((self.args, self.kwargs), {})
        return replace(self, model=model, args=args, kwargs=kwargs)


class LeftOutError(Exception):
    """A model that is not tried here, and why."""


def _called(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _double(value: Any, known: dict[int, Tensor]) -> Any:
    """Return tensors in double precision, the same one wherever it is given twice."""
    if isinstance(value, Tensor):
        wanted = value.double() if value.is_floating_point() else value
        return known.setdefault(id(value), wanted)
    if isinstance(value, (list, tuple)):
        return type(value)(_double(one, known) for one in value)
    if isinstance(value, dict):
        return {name: _double(one, known) for name, one in value.items()}
    return value


def tensors(output: Any) -> Iterator[Tensor]:
    """Yield all tensors of numbers in an output, whatever holds them."""
    if isinstance(output, Tensor):
        if output.is_floating_point() or output.is_complex():
            yield output.values() if output.is_nested else output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for one in fields(output):
            yield from tensors(getattr(output, one.name))
