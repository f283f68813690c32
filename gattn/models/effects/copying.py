"""Runs edited copies of a sequence side by side; each layer starts from the unedited copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.heads.geometry import Grid
from gattn.models.edit.base import Edit
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.edit_context import Editing
from gattn.models.run.functions import Runnable, prepared
from gattn.models.run.names.naming import Naming
from gattn.models.stream.after_attention import AfterAttention, NotingLayers
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import hooks_on

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MEMORY = 1 << 30


class _Places(Context):
    """Notes where a call of the model attends to itself."""

    reads_one_call = True

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.calls: dict[str, tuple[SeenCall, Place]] = {}
        self.ids: dict[str, list[int] | None] = {}

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        if not place.is_bipartite:
            self.names.setdefault(place.stack, []).append(call.name)
            self.calls.setdefault(place.stack, (call, place))
        return []

    def end(self, tracker: Tracker, result: Any) -> None:
        self.ids = {stack: tracker.tokens.ids(stack, 0) for stack in self.names}


class LayerCopies:
    """One sequence, of which copies run side by side through every layer of a stack.

    Each layer starts from the hidden states of the first copy, which is not edited, whatever
    earlier layers made of the others. So copies differ after a layer by the edits of that layer
    alone, and one run covers all layers. A function's runs come one after another instead: each
    layer starts from what it was given in a first run without edits.

    Parameters
    ----------
    inputs, model, tokenizer
        As in `gattn.capture`.
    stack : str, optional
        Which stack of self-attention; needed where the model has several.
    naming : Naming, optional
        The tokens' texts.
    """

    def __init__(
        self,
        inputs: Runnable,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        stack: str | None = None,
        naming: Naming | None = None,
    ) -> None:
        self.model, self._tokenizer = model, tokenizer
        self._prompt = prepared(inputs, model, tokenizer, naming)
        self._settings = self._prompt.few_logits
        found = _Places()
        with torch.no_grad():
            self._prompt.run(found, **self._settings)
        self.stack = _stack(list(found.names), stack)
        call, place = found.calls[self.stack]
        if len(place.queries) != 1:
            raise CaptureError(f"Expected one sequence, got a batch of {len(place.queries)}.")
        self._slots = place.queries[0].slots
        self.tokens = self._prompt.texts(call, place, found.ids[self.stack], len(self))
        sizes = {"key": len(self)}
        grids = self._prompt.naming.grids(call.tokens, sizes, self.stack, is_bipartite=False)
        self.geometry: Grid | None = grids.get("key")
        names = found.names[self.stack]
        self._modules = [_layer(model, name, names) for name in names]
        # Where copies do not run side by side: what each layer is given and gives without edits.
        self._plain: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_layers(self) -> int:
        """How many layers the stack has."""
        return len(self._modules)

    @property
    def repeats(self) -> bool:
        """Whether copies run side by side, rather than one after another."""
        return self._prompt.repeats

    @property
    def batch_size(self) -> int:
        """Estimate how many copies run at once, beside the plain one."""
        logits = 1 if self._settings else len(self)
        return max(self._prompt.most_copies(len(self), logits, _MEMORY) - 1, 1)

    def after_attention(self) -> list[AfterAttention]:
        """Return each layer from its attention on; a `CaptureError` says where one has no such."""
        noting = NotingLayers(self.stack, self._modules)
        with torch.no_grad():
            self._prompt.run(noting, **self._settings)
        return noting.after_attention()

    def run(self, edits: Sequence[Sequence[Edit]], see: Callable[[int, Tensor], None]) -> None:
        """Run the plain copy, and another copy for each list of edits.

        `see` is given each layer's number and output, (1 + copies, tokens, features).
        """
        if self.repeats:
            copies = 1 + len(edits)
            self._run([[], *edits], lambda _, given: _first_of(given, copies), see, copies)
            return
        if not self._plain:
            self._run([], self._keep, lambda _, output: self._outputs.append(output))
        for some in edits:
            self._run(
                [some],
                lambda layer, _: self._plain[layer],
                lambda layer, output: see(layer, torch.cat([self._outputs[layer], output])),
            )

    def _keep(self, layer: int, given: Tensor) -> Tensor:
        self._plain.append(given.clone())
        return given

    def _run(
        self,
        edits: Sequence[Sequence[Edit]],
        start: Callable[[int, Tensor], Tensor],
        see: Callable[[int, Tensor], None],
        copies: int = 1,
    ) -> None:
        """Run copies with edits; each layer starts from what `start` makes of what it is given."""
        editing = Editing(edits, self._tokenizer) if edits else _Plain()
        with torch.no_grad(), self._aligned(start, copies, see, editing):
            self._prompt.run(editing, copies, **self._settings)
        if isinstance(editing, Editing):
            editing.check()

    @contextmanager
    def _aligned(
        self,
        start: Callable[[int, Tensor], Tensor],
        count: int,
        see: Callable[[int, Tensor], None],
        context: Context,
    ) -> Iterator[None]:
        """Start each layer from what `start` makes of its input, in the context's thread."""
        layer = 0

        def begin(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            if not takes_part(context):
                return None
            if layer >= self.num_layers or module is not self._modules[layer]:
                raise _unknown(self.model)
            given = args[0] if args else kwargs.get("hidden_states")
            self._hidden(given, count)
            first = start(layer, cast("Tensor", given))
            return ((first, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": first})

        def end(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            nonlocal layer
            if not takes_part(context):
                return
            output = self._hidden(result[0] if isinstance(result, tuple) else result, count)
            see(layer, output[:, self._slots.to(output.device)])
            layer += 1

        with hooks_on(dict.fromkeys(self._modules), begin, end):
            yield
        if layer != self.num_layers:
            raise _unknown(self.model)

    def _hidden(self, found: Any, count: int) -> Tensor:
        """Read hidden states as (copies, tokens, features)."""
        if isinstance(found, Tensor) and count == 1:
            found = _as_one(found)
        if not isinstance(found, Tensor) or found.dim() != 3 or len(found) != count:
            raise _unknown(self.model)
        if found.shape[1] <= int(self._slots[-1]):
            raise _unknown(self.model)
        return found


class _Plain(Context):
    """Takes part in a run without edits."""

    reads_one_call = True


def _first_of(given: Tensor, copies: int) -> Tensor:
    return given[:1].expand(copies, -1, -1)


def _as_one(hidden: Tensor) -> Tensor:
    """Read the hidden states of one sequence as (1, tokens, features)."""
    if hidden.dim() == 2:
        return hidden[None]
    is_second = hidden.dim() == 3 and len(hidden) > 1 and hidden.shape[1] == 1
    return hidden.transpose(0, 1) if is_second else hidden


def _stack(known: Sequence[str], wanted: str | None) -> str:
    if not known:
        raise CaptureError("The model has no self-attention that gattn sees.")
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted is None or wanted not in known:
        which = "Several stacks attend to themselves" if wanted is None else f"No stack {wanted!r}"
        raise SelectionError(f"{which}; name one of {list(known)}, as in stack={known[0]!r}.")
    return wanted


def _layer(model: nn.Module, name: str, names: Sequence[str]) -> nn.Module:
    """Find the layer that an attention module is in.

    That is the outermost member of a list in the model that holds no other of these modules.
    """
    parts = name.split(".")
    for number, part in enumerate(parts):
        path = ".".join(parts[: number + 1])
        others = [one for one in names if one != name and f"{one}.".startswith(f"{path}.")]
        if part.isdigit() and not others:
            return model.get_submodule(path)
    raise _unknown(model)


def _unknown(model: nn.Module) -> ModelError:
    return ModelError(
        f"The layers of {type(model).__name__} were not found: expected a list of modules that "
        "run one after another, each with one self-attention, and that take and return hidden "
        "states (batch, tokens, features)."
    )
