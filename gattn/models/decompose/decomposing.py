"""Takes the attention sublayers of a live model apart, into vectors that sum to their outputs.

`decompose` runs a model on one text and shows each `Sublayer`
(`gattn.models.stream.sublayers`) to a function while the model runs, so that only one layer needs
to be in memory::

    found = decompose(text, model, read=lambda sublayer: sublayer.own())
    found.results  # what was read, one per layer, of found.layers
    decompose(text, model, read=lambda sublayer: sublayer).results  # the sublayers themselves

How the parts are found, in any model that routes its attention: the layer is the module, in a list
of modules, that contains the attention, and its input is the residual stream. The output
projection is the outermost module that takes the call's output, adapters included; it must be a
linear map. Between it and the sum there may be norms or scales, which are read by probing them.
The sum is what a later module of the layer reads or returns, and whether a norm of it is the stream
is told by what is added to which. Where no module gives what is added, a copy of the layer runs
again with other numbers (`gattn.models.stream.adding.ways`). All of this is verified numerically in
every run: if residual, vectors and bias do not sum to what the model has, it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor, nn

from gattn.edit_records import in_words
from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.decomposition import Decomposition, R
from gattn.models.load.limits import text_config
from gattn.models.load.loading import model_name
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable, prepared
from gattn.models.run.names.naming import Naming
from gattn.models.run.prompt import Prompt
from gattn.models.stream.adding.streams import RunningLayer
from gattn.models.stream.layers import first_of, layers_of, several_groups
from gattn.models.stream.sublayers import Sublayer
from gattn.models.stream.writers.between import Between
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import hooks_on
from gattn.names.choices import LayerChoice, no_such, numbers_of
from gattn.progress import announce, bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def decompose(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    read: Callable[[Sublayer], R],
    layers: LayerChoice = None,
    stack: str | None = None,
    progress: bool = True,
    naming: Naming | None = None,
) -> Decomposition[R]:
    """Run a model on one text and read each of its attention sublayers as a sum of vectors.

    Edits of open contexts take part, as in `capture`.

    Parameters
    ----------
    text : str, sequence of int, Tensor, mapping, or callable
        One text, or whatever else `capture` takes.
    model, tokenizer
        As in `capture`.
    read : callable
        Takes a `Sublayer` and returns what should be kept of it.
    layers, stack : optional
        Which layers, and which stack of self-attention; needed where the model has several.
    progress : bool
        Whether to show a progress bar on stderr, after the first second.
    naming : Naming, optional
        The tokens' texts.

    Raises
    ------
    CaptureError
        As `capture` does; also where the parts of a sublayer cannot be found, or do not sum to
        its output.
    SelectionError
        If there is no such layer or stack, or none is named of several.
    ModelError
        As `capture` does.
    """
    numbers = numbers_of("layers", layers)
    prompt = prepared(text, model, tokenizer, naming)
    context: Decomposing[R] = Decomposing(prompt.model, read, numbers, stack, progress)
    with torch.no_grad():
        prompt.run(context)
    context.check()
    return context.decomposition(prompt)


class Decomposing(Context, Generic[R]):
    """Reads the layers of a model as they end."""

    reads_one_call = True

    def __init__(
        self,
        model: PreTrainedModel,
        read: Callable[[Sublayer], R],
        layers: Sequence[int] | None,
        stack: str | None,
        progress: bool,
    ) -> None:
        config: Any = getattr(model, "config", None)
        text = text_config(config) if hasattr(config, "get_text_config") else None
        count = getattr(text, "num_hidden_layers", None) if layers is None else len(layers)
        self._bar = bar(total=count, desc="decomposing", unit="layer", progress=progress)
        self._name = model_name(model)
        self._read, self._layers, self._asked = read, layers, stack
        self._running: list[RunningLayer] = []
        self.between = Between()
        self._found: dict[int, R] = {}
        self._stacks: dict[str, int] = {}
        self._others: dict[str, bool] = {}
        self._size, self._error = 0, 0.0
        self.stack = stack or ""
        self._edits = open_edits(model)
        self.ids: list[int] | None = None
        self._call: tuple[SeenCall, Place] | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model's modules."""
        layers = layers_of(model)
        try:
            with (
                hooks_on((x for x in model.modules() if id(x) in layers), enter=self._enter),
                hooks_on(model.modules(), leave=self._leave),
                self._bar,
            ):
                yield
        finally:
            self._running = []

    # What happens while the model runs

    def wants(self, place: Place) -> bool:
        """Return whether a call is self-attention that was chosen."""
        for layer in self._running:
            layer.attending[place.stack] = place.is_bipartite
        if place.is_bipartite:
            return False
        self._stacks[place.stack] = max(self._stacks.get(place.stack, 0), place.layer + 1)
        if self._asked is not None and place.stack != self._asked:
            return False
        if len(self._stacks) > 1 and self._asked is None:
            raise SelectionError(
                f"The model has several stacks of self-attention, such as {_listed(self._stacks)}: "
                f"choose one, as in stack={place.stack!r}."
            )
        return self._layers is None or place.layer in self._layers

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note a call, until its layer ends."""
        if len(readings) != 1 or len(readings[0].elements) != 1:
            raise several_groups(call.name, len(call.query))
        if not readings[0].has_values:
            raise CaptureError(
                f"The layer {call.name!r} shows only its softmax, not its values, so what its "
                "edges add is unknown. effect, estimate and circuit need no values."
            )
        layer = self._running[-1] if self._running else None
        if layer is None or layer.given is None:
            raise CaptureError(
                f"The layer {call.name!r} is not in a list of layers that take the residual "
                "stream. effect, estimate and circuit need none."
            )
        if layer.seen is not None:
            raise CaptureError(
                f"{call.where} attends in the same layer as {layer.seen[0].where}: only layers "
                "with one self-attention are supported."
            )
        layer.seen = call, place, readings[0]

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if takes_part(self):
            self._running.append(RunningLayer(module, args, kwargs))

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if not takes_part(self):
            return
        if not self._running:
            self.between.note(module, args, kwargs, result)
            return
        for layer in self._running:
            layer.note(module, args, kwargs, result)
        if module is self._running[-1].module:
            layer = self._running.pop()
            if layer.seen is not None:
                device = layer.seen[0].query.device.type
                with torch.no_grad(), torch.autocast(device, enabled=False):
                    self._end(layer, first_of(result))
            if not self._running:
                self.between.forget()

    def _end(self, layer: RunningLayer, output: Tensor | None) -> None:
        sublayer = layer.taken_apart(output)
        assert isinstance(sublayer, Sublayer)
        assert layer.seen is not None
        self._call = layer.seen[:2]
        self.stack, self._size = sublayer.stack, len(sublayer)
        self._others |= {n: x for n, x in layer.attending.items() if n != self.stack}
        self._error = max(self._error, sublayer.error)
        begun = time.perf_counter()
        self._found[sublayer.layer] = self._read(sublayer)
        if len(self._found) == 1 and self._bar.total and not self._bar.disable:
            seconds = time.perf_counter() - begun
            layers = int(self._bar.total)
            announce("decomposing", "layer", layers, seconds, "choose some with layers=")
        self._bar.update()

    def end(self, tracker: Tracker, result: Any) -> None:
        """Note the tokens."""
        self.ids = tracker.tokens.ids(self.stack, 0)

    # What was found

    def check(self) -> None:
        """Refuse if nothing was found, or not all that was asked for."""
        if not self._stacks:
            raise CaptureError(
                f"{self._name} shows no self-attention: there is nothing to take apart."
            )
        if self._asked is not None and self._asked not in self._stacks:
            raise SelectionError(
                f"No stack {self._asked!r} of self-attention; there is {_listed(self._stacks)}."
            )
        known = self._stacks[self._asked or next(iter(self._stacks))]
        if missing := [n for n in self._layers or () if not 0 <= n < known]:
            raise no_such("layer", missing[0], known, "the model")

    def decomposition(self, prompt: Prompt) -> Decomposition[R]:
        """Return what was found."""
        layers = tuple(sorted(self._found))
        numbers = ", ".join(map(str, layers))
        if len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1)):
            numbers = f"{layers[0]}-{layers[-1]}"
        added = [
            "the cross-attention" if is_cross else f"the attention of {name!r} in these layers"
            for name, is_cross in self._others.items()
        ]
        notes = [f"what {one} adds is not included" for one in dict.fromkeys(added)]
        source = [
            f"{self._name}, {self.stack} stack, layer{'s' * (len(layers) > 1)} {numbers}",
            f"{self._size} tokens",
            in_words(self._edits),
        ]
        return Decomposition(
            [self._found[layer] for layer in layers],
            layers,
            self.stack,
            () if self._call is None else prompt.texts(*self._call, self.ids, self._size),
            ", ".join(filter(None, source)),
            notes,
            self._error,
            self._edits,
        )


def _listed(names: Sequence[str] | dict[str, int]) -> str:
    return " and ".join(repr(name) for name in names)
