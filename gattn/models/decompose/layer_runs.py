"""Runs of a model in which one layer is a linear function of the residual stream before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.fixed_norms import Norms, first_tensor, made_linear
from gattn.models.decompose.norms_in_code import NormsInCode
from gattn.models.decompose.sides import Columns
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.stream.layers import first_of, layers_of, other_tokens, several_groups
from gattn.models.stream.linear_maps import linear_modules, runs_its_weight
from gattn.models.stream.probing import forward_of
from gattn.models.stream.rounding import is_half
from gattn.models.stream.writers.between import Between
from gattn.models.stream.writers.embeddings import Embedded
from gattn.models.stream.writers.parts import Stream
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import Hook, hooks_on
from gattn.names.choices import no_such


@dataclass(eq=False)
class _Running:
    """A layer that runs, by its module and how often that ran before; what it is given; its norms.

    What it is given is a leaf, of which everything in the layer is made.
    """

    at: tuple[nn.Module, int]
    norms: Norms
    given: Tensor | None = None


class LayerRun(Context):
    """Watches how the stream before a layer comes to its attention.

    What is seen has a gradient to the stream, for which norms are linear: with their statistics as
    they are, which changes no number.

    Parameters
    ----------
    layer, stack
        Where.
    plain : LayerRun, optional
        What ran before: zeros stand in place of the stream, and norms are held as they were.
    """

    reads_one_call = True

    def __init__(self, layer: int, stack: str | None, plain: LayerRun | None = None) -> None:
        self._layer, self._asked, self._plain = layer, stack, plain
        self._running: list[_Running] = []
        self._runs: Counter[nn.Module] = Counter()
        self._had_gradient = False
        self._stacks: dict[str, int] = {}
        self._crossing: set[str] = set()
        self._embedded, self.between = Embedded(), Between()
        self._start: Tensor | None = None
        self._layer_run: _Running | None = None
        self.seen: tuple[SeenCall, Place, Reading] | None = None
        self._code = NormsInCode(self._norms, is_held=plain is not None)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model's layers and the modules within them."""
        layers = layers_of(model)
        linear = [x for x in model.modules() if isinstance(x, linear_modules())]
        self._names = {module: name for name, module in model.named_modules()}
        if any(x.is_inference() for x in model.parameters()):
            raise CaptureError(_INFERENCE)
        try:
            with (
                hooks_on((x for x in model.modules() if id(x) in layers), self._enter, self._left),
                hooks_on(Norms.candidates(model), leave=self._leave),
                hooks_on(filter(runs_its_weight, linear), leave=self._leave_linear),
                self._code,
            ):
                yield
        finally:
            self._running = []
            self._track(False)

    # What happens while the model runs

    def _track(self, is_on: bool) -> None:
        """Record gradients, or stop if this recorded them."""
        if is_on or self._had_gradient:
            torch.set_grad_enabled(is_on)
        self._had_gradient = is_on

    @property
    def _linear(self) -> list[_Running]:
        """The running layers that are linear: those in which the attention will be the layer's."""
        if self.seen is not None:
            return []
        if self._plain is None:
            asked = self._asked or next(iter(self._stacks), "")
            return self._running if self._stacks.get(asked, 0) == self._layer else []
        layer = self._plain._layer_run
        return [one for one in self._running if layer is not None and one.at == layer.at]

    def _norms(self) -> list[Norms]:
        """List the norms of the layers that are linear."""
        return [one.norms for one in self._linear] if takes_part(self) else []

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not takes_part(self):
            return None
        asked = None if self._plain is None else self._plain._layer_run
        norms = Norms(has_factors=True) if asked is None else asked.norms
        running = _Running((module, self._runs[module]), norms)
        self._runs[module] += 1
        self._running.append(running)
        given = first_of((*args, *kwargs.values()))
        if given is None or self.seen is not None:
            return None
        if running not in self._linear:
            running.given = given.detach().clone()
            return None
        if given.is_inference():
            raise CaptureError(_INFERENCE)
        norms.begin()
        self._track(True)
        if not given.requires_grad:  # A list of modules within a layer keeps the layer's gradient.
            given_again = given.detach().clone() if asked is None else torch.zeros_like(given)
            running.given = given_again.requires_grad_()
        else:
            running.given = given.clone()
        put = {id(given): running.given.clone()}  # Which may be changed in place.
        return (
            tuple(put.get(id(x), x) for x in args),
            {name: put.get(id(x), x) for name, x in kwargs.items()},
        )

    def _left(self, *_: Any) -> None:
        if takes_part(self) and self._running:
            self._running.pop()
            if not self._running:
                self._track(False)
        if not self._running and self._start is None:  # An encoder's are not the decoder's.
            self._embedded = Embedded()
        if not self._running and self.seen is None:
            self.between.forget()

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Tensor | None:
        if not takes_part(self) or self.seen is not None:
            return None
        given = first_tensor((*args, *kwargs.values()))
        if not isinstance(result, Tensor):
            return None
        if not self._running:
            if self._start is None and self._plain is None:
                known = given if len(args) + len(kwargs) == 1 else None
                self._embedded.note(self._names.get(module, ""), module, known, result)
            self.between.note(module, args, kwargs, result)
            return None
        if given is None or not self._linear:
            return None
        with self._code.off():
            return made_linear(
                self._norms(),
                module,
                given,
                result,
                forward_of(module),
                is_held=self._plain is not None,
            )

    def _leave_linear(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Tensor | None:
        if not takes_part(self) or not self._linear or not isinstance(result, Tensor):
            return None
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        is_alone = len(args) == 1 and not kwargs and all(isinstance(x, Hook) for x in hooks)
        if not is_alone or not result.requires_grad or result.dtype != module.weight.dtype:
            return None
        weight: Any = module.weight
        weight = weight if isinstance(module, nn.Linear) else weight.T
        made: Tensor = Columns.apply(  # type: ignore[no-untyped-call]
            args[0], weight.detach(), result.detach()
        )
        return made

    def wants(self, place: Place) -> bool:
        """Return whether a call is the layer's self-attention."""
        if place.is_bipartite:
            self._crossing.add(place.stack)
            return False
        self._stacks[place.stack] = max(self._stacks.get(place.stack, 0), place.layer + 1)
        if self._asked is None and len(self._stacks) > 1:
            raise SelectionError(
                f"The model has several stacks of self-attention, {' and '.join(self._stacks)}: "
                f"choose one, as in stack={place.stack!r}."
            )
        if self._asked not in (None, place.stack):
            return False
        if place.layer == 0 and self._running and self._start is None:
            start = self._running[-1].given
            self._start = None if start is None else start.detach()
        return place.layer == self._layer

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note the layer's queries and keys."""
        self._track(False)
        if self.seen is not None:
            raise CaptureError(
                f"{call.where} attends more than once: expected one run on one whole text."
            )
        if len(readings) != 1 or len(readings[0].elements) != 1:
            raise several_groups(call.name, len(call.query))
        if len(readings[0].queries) != len(readings[0].keys):
            raise CaptureError(
                f"{call.where} continues a cache, so who wrote its earlier keys is not seen: run "
                "the whole text at once."
            )
        layer = self._running[-1] if self._running else None
        given = None if layer is None else layer.given
        if layer is None or given is None:
            raise CaptureError(
                f"The layer {call.name!r} is not in a list of layers that take the residual stream."
            )
        if is_half(call.query) or is_half(given):
            raise CaptureError(
                f"{call.where} computes in {given.dtype}, whose rounding hides what scores are "
                "made of: try model.float()."
            )
        if given.numel() != call.query.shape[2] * given.shape[-1]:
            raise other_tokens(call.name, given, call.query.shape[2])
        self._layer_run = layer
        self.seen = call, place, readings[0]

    # What was found

    @property
    def given(self) -> Tensor:
        """The stream before the layer, (..., dim), of which what is seen has a gradient."""
        assert self._layer_run is not None
        assert self._layer_run.given is not None
        return self._layer_run.given

    @property
    def reading(self) -> Reading:
        """The call that was seen."""
        assert self.seen is not None
        return self.seen[2]

    @property
    def rows(self) -> Tensor:
        """The stream before the layer, as rows (slots, dim)."""
        return self.given.detach().reshape(-1, self.given.shape[-1])

    @property
    def embeddings(self) -> Stream:
        """The stream before the first layer, (slots, dim), as a sum of embeddings."""
        assert self._start is not None
        return self._embedded.stream(self._start)

    def check(self) -> None:
        """Refuse if the layer was not found."""
        known = self._stacks.get(self._asked or next(iter(self._stacks), ""), 0)
        if self.seen is None and not known:
            named = f" in {self._asked!r}" if self._asked else ""
            there = " and ".join(map(repr, self._stacks))
            there = f"; there is {there}" if there else ""
            if self._asked in self._crossing:
                raise SelectionError(
                    f"{self._asked!r} is cross-attention, whose queries and keys come from two "
                    f"streams: only scores of self-attention are taken apart{there}."
                )
            raise SelectionError(f"The model shows no self-attention{named}{there}.")
        if self.seen is None:
            raise no_such("layer", self._layer, known, "the model")


_INFERENCE = (
    "The model runs under torch.inference_mode, or was loaded under it, which keeps it from "
    "recording what its queries and keys are made of: use torch.no_grad() instead."
)
