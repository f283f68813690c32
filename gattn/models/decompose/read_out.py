"""Finds the token in whose last stream a model reads its answer, by runs with NaN in others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gattn.models.doors.proof.probing.codes import decoded, words
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.prompt import Prompt
from gattn.models.stream.layers import first_of, layers_of
from gattn.models.stream.rows import Rows
from gattn.models.stream.sublayers import Sublayer
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import hooks_on
from gattn.models.watch.reading_ahead import ReadingAhead


def read_out(prompt: Prompt, sublayers: Sequence[Sublayer]) -> int | None:
    """Find the token that an answer is read from: the position, or None if it is not one alone.

    The answer must stay as it is with NaN in the streams of all other tokens after the last layer,
    and not with NaN in this one's. What else it may be read from, such as an earlier layer's
    streams, does not count. Where each token has an answer of its own, it is the last token, if all
    others come before it: none of them reads it.

    Parameters
    ----------
    prompt : Prompt
        What the model is run on.
    sublayers : sequence of Sublayer
        The layers of one stack, as `gattn.models.decompose.decomposing` gives them.
    """
    last = sublayers[-1]
    size = len(last)
    is_last = comes_last(sublayers)

    def answer(hidden: Tensor) -> Tensor:
        hiding = _Hiding(last.stack, last.layer, hidden)
        with torch.no_grad():
            returned, _ = prompt.run(hiding)
        numbers = list(_numbers(returned)) or list(_numbers(hiding.result))
        none = torch.zeros(0, device="cpu")
        return torch.cat([none, *(one.reshape(-1).double().cpu() for one in numbers)])

    plain = answer(torch.zeros(size, dtype=torch.bool, device="cpu"))

    def changes(hidden: Tensor) -> tuple[bool, bool]:
        found = answer(hidden)
        if found.shape != plain.shape or not len(plain):
            return True, True
        lost = found != plain  # NaN is no number, not even itself.
        return bool(lost.any()), bool(lost.all())

    every = torch.arange(size, device="cpu")
    for one in (size - 1, 0):
        is_some, is_all = changes(every != one)
        has_own = is_last and one == size - 1 and not is_all
        if (has_own or not is_some) and changes(every == one)[0]:
            return one
    code = words(size)
    marked = torch.tensor([changes(hidden)[0] for hidden in code], device="cpu")[:, None]
    found = int(decoded(marked, torch.ones_like(marked), code))
    return found if found >= 0 else None


def comes_last(sublayers: Sequence[Sublayer]) -> bool:
    """Return whether the last token comes after all others: none of them reads it."""
    ahead = ReadingAhead()
    for sublayer in sublayers:
        ahead.note_reading(sublayer.reading)
    return not ahead.reads_last


class _Hiding(Context):
    """Puts NaN in place of what some tokens' streams hold after a layer."""

    reads_one_call = True

    def __init__(self, stack: str, layer: int, hidden: Tensor) -> None:
        self._where, self._hidden = (stack, layer), hidden
        self._running: list[nn.Module] = []
        self._ends: tuple[nn.Module, Rows] | None = None
        self.result: Any = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model's layers."""
        layers = layers_of(model)
        some = [module for module in model.modules() if id(module) in layers]
        with hooks_on(some, enter=self._enter, leave=self._leave):
            yield

    def wants(self, place: Place) -> bool:
        """Return whether a call is that of the layer."""
        return not place.is_bipartite and (place.stack, place.layer) == self._where

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note which module is the layer, and where its tokens are."""
        rows = Rows(place, call.query.shape[2], call.query.device)
        self._ends = self._running[-1], rows

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if takes_part(self):
            self._running.append(module)

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        if not self._running or module is not self._running[-1] or not takes_part(self):
            return None
        self._running.pop()
        stream = first_of(result)
        if stream is None or self._ends is None or self._ends[0] is not module:
            return None
        at = self._ends[1].at
        which = torch.zeros(stream.shape[:-1].numel(), dtype=torch.bool, device=at.device)
        which[at] = self._hidden.to(at.device)
        where = which.to(stream.device).reshape(*stream.shape[:-1], 1)
        self._ends, hidden = None, stream.masked_fill(where, torch.nan)
        return tree_map(lambda one: hidden if one is stream else one, result)

    def end(self, tracker: Tracker, result: Any) -> None:
        """Note what the model returned."""
        self.result = result


def _numbers(answer: Any) -> Iterator[Tensor]:
    """List the numbers of an answer: its logits, if it has some, or else all."""
    logits = getattr(answer, "logits", None)
    if isinstance(logits, Tensor):
        yield logits
    elif isinstance(answer, Tensor):
        yield from [answer] * answer.is_floating_point()
    elif isinstance(answer, float | np.ndarray | np.floating):
        yield torch.as_tensor(answer, dtype=torch.float64, device="cpu")
    elif isinstance(answer, Mapping):
        for one in answer.values():
            yield from _numbers(one)
    elif isinstance(answer, list | tuple):
        for one in answer:
            yield from _numbers(one)
