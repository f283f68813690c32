"""Runs a model on candidates of its circuit, many at once, and measures its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.errors import ModelError
from gattn.models.edit.kept.kept import Messages
from gattn.models.effects.metrics import Measure
from gattn.models.effects.runner import Runner

if TYPE_CHECKING:
    from gattn.models.watch.contexts import Context

Masks = NDArray[np.bool_]
Floats = NDArray[np.float64]

_MOST_COPIES = 32
"""How many candidates run at once, at most: a CPU gains little from more."""
_ROUNDED = {False: 1e-6, True: 1e-12}
"""How far an answer is off at most, relative to its size, by whether it is in float64."""
PATH = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where on the way from nothing to a set gradients are averaged."""
HERE = (1.0,)
"""At the set itself."""


class Groups(Protocol):
    """Units that are kept or left out as a whole, and how a model runs with some of them.

    `kind` names them, and `rows` say which they are; `edges` are what they are made of, `of_edge`
    the unit of each, and `sizes` how many each has. Random units are drawn among those with the
    same `profile`. What is ablated is `said`, and others of what is `lost` take its place.
    """

    said: str
    lost: str

    def __len__(self) -> int: ...

    @property
    def edges(self) -> Any:
        """What units are made of."""

    @property
    def of_edge(self) -> NDArray[np.int64]:
        """The unit of each edge."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many edges each unit has."""

    @property
    def profile(self) -> NDArray[np.int64]:
        """The group of each unit."""

    def most_copies(self, size: int | None, most: int) -> int:
        """Return how many candidates run at once: `size` if memory of a text allows so many."""

    def spread(self, weights: Tensor) -> Tensor:
        """Give each edge the weight of its unit: (copies, units) to (copies, edges)."""

    def context(self, weights: Tensor, messages: Any) -> Context:
        """Return the context that multiplies edges by weights (copies, edges)."""


class Runs:
    """Measures a metric with only some units kept, all other edges ablated.

    `count` is how many runs there were, and `ran` is told as they end; each set of units runs once.
    `seconds_of_run` is how long one took of those that ran together with the most others so far; 0
    until it is known: the first run is slower, and so are few at once.
    `has_stream` says whether tokens keep a residual stream, as they do not in graph networks,
    `order` in which order layers ran, as (stack, layer), where that is known, and `has_gradient`
    whether all slopes that were asked for could be taken.
    """

    def __init__(
        self, runner: Runner, measure: Measure, groups: Groups, messages: Any = None
    ) -> None:
        self.runner, self.measure, self.groups = runner, measure, groups
        self._messages = messages
        self.count = 0
        self.seconds_of_run = 0.0
        self._most_at_once = 0
        self.ran: Callable[[int], None] = _ignore
        self.has_stream = self.has_gradient = True
        self.order: list[tuple[str, int]] = []
        self.begun = time.perf_counter()
        self.batch_size = self._copies() if runner.prompt.repeats else 1
        self._known: dict[bytes, float] = {}
        with torch.no_grad():
            self._plain = runner.plain()
        self.full = float(measure(self._plain, self._plain))
        self.empty: float
        masked: float
        units = len(groups)
        self.empty, masked = self.values(
            np.array([np.zeros(units, bool), np.ones(units, bool)])
        ).tolist()
        self.rounding: float = abs(masked - self.full)
        if not all(map(isfinite, (self.full, self.empty, masked))):
            raise ModelError(
                f"Without edits, {measure} is {self.full}, with all {groups.said} ablated "
                f"{self.empty}, and with all edges multiplied by 1 {masked}. Expected finite "
                "numbers, of which a circuit keeps a share."
            )

    def _copies(self) -> int:
        """Find how many candidates run at once."""
        size = None if self.runner.encoding is None else self.runner.batch_size
        return self.groups.most_copies(size, _MOST_COPIES)

    @property
    def is_patched(self) -> bool:
        """Whether others take the place of messages that are left out."""
        return self._messages is not None

    @property
    def shows_what_follows(self) -> bool:
        """Whether other messages tell a causal model the tokens whose loss is measured."""
        is_mean = isinstance(self._messages, Messages) and self._messages.is_of_run
        return is_mean and self.measure.is_loss and self.groups.edges.is_causal

    @property
    def range(self) -> float:
        """How much of the metric there is to keep."""
        return self.full - self.empty

    @property
    def slack(self) -> float:
        """How far shares may be from each other because numbers are rounded."""
        return 2 * self.rounding / abs(self.range)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.perf_counter() - self.begun

    @property
    def is_constant(self) -> bool:
        """Whether the metric is the same without any attention, within rounding."""
        return abs(self.range) <= 10 * self.rounding + self._blur()

    def _blur(self) -> float:
        """Find how far the metric moves if all numbers of an answer are off by their rounding.

        A large number that a metric adds to what it reads of the answer does not move.
        """
        plain, least = self._plain, _ROUNDED[True] * abs(self.full)
        if not isinstance(plain, Tensor) or not plain.is_floating_point():
            return _ROUNDED[False] * max(abs(self.full), abs(self.empty))
        size = _ROUNDED[plain.dtype == torch.float64]
        draw = torch.Generator(plain.device).manual_seed(0)
        noise = torch.randn(4, *plain.shape, generator=draw, device=plain.device, dtype=plain.dtype)
        off = [float(self.measure(plain * (1 + size * x.sign()), plain)) for x in noise]
        return max(least, *(abs(metric - self.full) for metric in off))

    def faithfulness(self, masks: Masks) -> Floats:
        """Return the share of the metric that each set of units (sets, units) keeps."""
        shares: Floats = (self.values(masks) - self.empty) / self.range
        return shares

    def knows(self, masks: Masks) -> bool:
        """Return whether all of these sets have run."""
        return all(name in self._known for name in _names(masks))

    def values(self, masks: Masks) -> Floats:
        """Measure the metric with only some units kept, one row each."""
        names = _names(masks)
        new = {name: n for n, name in enumerate(names) if name not in self._known}
        waiting = list(new.values())
        for start in range(0, len(waiting), self.batch_size):
            some = waiting[start : start + self.batch_size]
            found = self._run(self.groups.spread(torch.from_numpy(masks[some])))
            self._known.update(zip([names[n] for n in some], found, strict=True))
        return np.array([self._known[name] for name in names])

    def _run(self, weights: Tensor) -> list[float]:
        begun, is_first = self.seconds, self.count == 0
        with torch.no_grad():
            answers = self._answers(weights)
            found = [float(self.measure(answer, self._plain)) for answer in answers]
        if len(found) >= self._most_at_once and not is_first:
            self.seconds_of_run = (self.seconds - begun) / len(found)
            self._most_at_once = len(found)
        return found

    def _answers(self, weights: Tensor) -> list[Any]:
        context, count = self.groups.context(weights, self._messages), len(weights)
        answers = self.runner.run(context, count)
        self.has_stream &= getattr(context, "has_stream", True)
        self.order = self.order or getattr(context, "order", [])
        self.count += count
        self.ran(count)
        return answers

    def slopes(self, mask: Masks, where: Sequence[float] = PATH) -> Floats | None:
        r"""Estimate what each unit of a set adds, by gradients; None if the answer has none.

        With weights m on all units' attention, it is the mean of :math:`\partial F / \partial m_u`
        where m is α for the set and 0 for the others: along `PATH` integrated gradients, by
        midpoints; `HERE` what the set loses without a unit, to first order. Units outside of the
        set have their slope there, too.
        """
        total, shares = np.zeros(len(mask)), torch.tensor(where, device="cpu")
        for some in shares.split(self.batch_size):
            slopes = self._slopes(some[:, None] * torch.from_numpy(mask), self.groups.spread)
            if slopes is None:
                self.has_gradient = False
                return None
            total += slopes
        shares_of_units: Floats = total / (len(where) * self.range)
        return shares_of_units

    def of_edges(self, kept: NDArray[np.bool_]) -> Floats:
        """Return the share of the metric that sets of edges (sets, edges) keep."""
        shares: Floats = (np.array(self._run(torch.from_numpy(kept))) - self.empty) / self.range
        return shares

    def used(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which edges of a set (edges,) the answer depends on, as their slopes say."""
        slopes = self.slopes_at(torch.from_numpy(kept)[None].float())
        return kept if slopes is None else kept & (slopes != 0)

    def slopes_at(self, weights: Tensor) -> Floats | None:
        """Return the metric's slopes in weights (1, edges) on the attention of edges."""
        return self._slopes(weights, _itself)

    def _slopes(self, weights: Tensor, spread: Callable[[Tensor], Tensor]) -> Floats | None:
        with torch.inference_mode(False), torch.enable_grad():
            weights = weights.clone().requires_grad_()
            answers = self._answers(spread(weights))
            numbers = [self.measure(answer, self._plain) for answer in answers]
            if not all(number.requires_grad for number in numbers):
                return None
            (found,) = torch.autograd.grad(torch.stack(numbers).sum(), weights)
        slopes: Floats = found.double().sum(0).numpy()
        return slopes if np.isfinite(slopes).all() else None


def _ignore(count: int) -> None:
    """Tell nobody how many runs there were."""


def _itself(weights: Tensor) -> Tensor:
    return weights


def _names(masks: Masks) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(masks, axis=1)]
