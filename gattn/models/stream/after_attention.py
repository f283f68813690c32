"""What layers make of each token after their attention, run by itself for tokens that were changed.

Most layers mix tokens only by attention. Then what follows it, MLP and norms included, can run on
any tokens in any order, and no other part of the layer has to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.stream.layers import first_of, with_first
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.rows import Rows
from gattn.models.stream.sublayers import attention_of
from gattn.models.watch.contexts import Context, takes_part, without_contexts
from gattn.models.watch.hooks import hooks_on
from gattn.normalizers.base import widened

_ROUNDING = 1024
"""How many times the rounding of one number a row may be off, relative to its largest number."""
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What modules raise that cannot take other tokens than they were given."""


class _Projected(NamedTuple):
    """A module that took all heads' output, with the shape it took and what it gave."""

    module: nn.Module
    shape: torch.Size
    output: Tensor


@dataclass(eq=False)
class _Noted:
    """One run of a layer."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Tensor
    heads: Tensor | None = None
    seen: tuple[SeenCall, Place, Reading] | None = None
    projections: list[_Projected] = field(default_factory=list)
    answer: Any = None
    output: Tensor | None = None


class NotingLayers(Context):
    """Notes what a stack's layers, their attention and their output projections take and give.

    The model runs on one sequence. What cannot be run by itself raises a `CaptureError`.
    """

    reads_one_call = True

    def __init__(self, stack: str, layers: Sequence[nn.Module]) -> None:
        self._stack, self._layers = stack, dict.fromkeys(layers)
        self._running: _Noted | None = None
        self._count = len(layers)
        self._found: list[_Noted] = []

    def after_attention(self) -> list[AfterAttention]:
        """Return the layers from their attention on."""
        if len(self._found) != self._count:
            raise CaptureError("Layers of the stack were not run one after another.")
        return [AfterAttention(found) for found in self._found]

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the layers and all within."""
        within = dict.fromkeys(x for layer in self._layers for x in layer.modules())
        with hooks_on(self._layers, enter=self._enter), hooks_on(within, leave=self._leave):
            yield

    def wants(self, place: Place) -> bool:
        """Return whether it is self-attention of the stack."""
        return place.stack == self._stack and not place.is_bipartite

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note a call, until its layer ends."""
        running = self._running
        if running is None or running.seen is not None or len(readings) != 1:
            raise CaptureError(f"{call.where} is not the only attention of one layer.")
        if not readings[0].has_values or readings[0].is_by_weights:
            raise CaptureError(f"What {call.where} makes of its attention is not known.")
        running.seen, running.heads = (call, place, readings[0]), call.output.clone()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if takes_part(self):
            given = args[0] if args else kwargs.get("hidden_states")
            if not isinstance(given, Tensor) or given.dim() != 3 or len(given) != 1:
                raise CaptureError(f"{type(module).__name__} does not take one sequence.")
            self._running = _Noted(module, args, kwargs, given.clone())

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        running = self._running
        if running is None or running.seen is None or not takes_part(self):
            return
        assert running.heads is not None
        given, output = first_of((*args, *kwargs.values())), first_of(result)
        if module is running.seen[0].module:
            running.answer = with_first(result, output.clone()) if output is not None else None
        elif (
            running.answer is None
            and given is not None
            and output is not None
            and takes(given, running.heads.flatten(0, 1).flatten(1))
        ):
            running.projections.append(_Projected(module, given.shape, output.clone()))
        if module is running.layer:
            running.output = None if output is None else output.clone()
            self._found.append(running)
            self._running = None


class AfterAttention:
    """One layer from its attention on, for one sequence.

    A copy of the layer, which shares its parameters, runs on any of the tokens, in any order: its
    attention module gives what its output projection makes of heads' outputs that were changed.

    Parameters
    ----------
    noted
        The run of the layer.
    """

    def __init__(self, noted: _Noted) -> None:
        if noted.seen is None or noted.output is None or noted.heads is None:
            raise CaptureError(f"{type(noted.layer).__name__} shows no attention.")
        call, place, self._reading = noted.seen
        rows = Rows(place, noted.heads.shape[1], noted.given.device)
        width = noted.given.shape[:2]
        if not rows.are_whole or noted.output.shape[:2] != width or noted.heads.shape[:2] != width:
            raise CaptureError(f"{call.where} attends to other tokens than its layer is given.")
        self._given = noted.given[0, rows.at]
        self._heads = noted.heads[0, rows.at]
        self.output = noted.output[0, rows.at]
        self._args, self._kwargs, self._answer = noted.args, noted.kwargs, noted.answer
        names = {id(module): name for name, module in noted.layer.named_modules()}
        answer = first_of(noted.answer)
        if answer is None or not names.get(id(call.module)):
            raise CaptureError(f"{call.where} is not a module within its layer.")
        self._twin = copied(noted.layer)
        self._attending = self._twin.get_submodule(names[id(call.module)])
        self._projection, self._shape = _projection(noted, answer)
        if self._projection is not None:
            self._projection = self._twin.get_submodule(names[id(self._projection)])

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def attention(self) -> Tensor:
        """The attention of all heads, (heads, queries, keys)."""
        return attention_of(self._reading)

    def without(self, query: Tensor, key: Tensor) -> Tensor:
        r"""Return the layer's output at each query if the value of a key of its own were zero.

        The heads give :math:`o_i - A_{ij} v_j` there. All tokens as they are run along, in another
        order; if they do not come out as in the model, tokens depend on each other, or on their
        places, and a `CaptureError` says so.

        Parameters
        ----------
        query, key : Tensor (pairs,)
            Positions.

        Returns
        -------
        Tensor (pairs, features)
        """
        value = self._reading.attention.value
        assert value is not None
        lost = self.attention[:, query, key, None] * widened(value[0, :, key])
        heads = widened(self._heads)
        order = torch.arange(len(self), device=query.device).flip(0)
        changed = torch.cat([heads[order], heads[query] - lost.transpose(0, 1)])
        try:
            with torch.no_grad(), without_contexts():
                found = self._run(self._given[torch.cat([order, query])], changed)
        except _FAILURES as error:
            raise self._depends() from error
        plain, own = self.output[order], found[: len(order)]
        eps = torch.finfo(plain.dtype).eps
        limit = min(_ROUNDING * eps, tolerance(plain)) * plain.abs().amax(-1, keepdim=True)
        if not bool(((own - plain).abs() <= limit).all()):
            raise self._depends()
        return found[len(order) :]

    def _run(self, given: Tensor, heads: Tensor) -> Tensor:
        rows = heads.flatten(1).to(self._heads.dtype)[None]
        if self._projection is not None:
            projected = first_of(self._projection(rows[0] if len(self._shape) == 2 else rows))
            assert projected is not None
            rows = projected.reshape(1, len(given), -1)
        answer = with_first(self._answer, rows)
        self._attending.forward = lambda *args, **kwargs: answer
        if self._args:
            result = self._twin(given[None], *self._args[1:], **self._kwargs)
        else:
            result = self._twin(**self._kwargs | {"hidden_states": given[None]})
        output = first_of(result)
        if output is None or output.shape[:2] != (1, len(given)):
            raise self._depends()
        return output[0]

    def _depends(self) -> CaptureError:
        name = type(self._twin).__name__
        return CaptureError(f"{name} does not make its output of each token by itself.")


def _projection(noted: _Noted, answer: Tensor) -> tuple[nn.Module | None, torch.Size]:
    """Find the module that makes the attention module's answer of the heads' output, if any."""
    assert noted.heads is not None
    rows = noted.heads.flatten(2)
    if answer.shape == rows.shape and torch.equal(answer, rows):
        return None, rows.shape
    for module, shape, output in reversed(noted.projections):
        if output.numel() == answer.numel() and torch.equal(output.reshape(answer.shape), answer):
            return module, shape
    raise CaptureError("What the attention module makes of its heads' output is not known.")
