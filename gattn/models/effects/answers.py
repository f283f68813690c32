"""The answer of a function that runs a model: a number, logits, or whatever a metric reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.errors import ContractError, ModelError, SelectionError
from gattn.models.edit.base import Edit
from gattn.models.effects.metrics import Measure, Metric, Named, Position
from gattn.models.effects.runner import Runner
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.functions import RunFunction
from gattn.models.run.prompt import Prompt
from gattn.models.watch.contexts import Context
from gattn.models.watch.reading_ahead import AheadOfAnswer

_STEADY = 1e-4
"""By how much two runs may differ, relative to the largest number: sums in parallel do."""
_SUM = 1e-3
"""How near to 1 the sum of probabilities is."""


class FunctionRunner(Runner):
    """Runs a function of the user's as often as needed, and reads what it returns.

    It runs once to see what it returns, and once more to see whether it returns the same.
    """

    prompt: RunFunction

    def __init__(self, prompt: RunFunction) -> None:
        super().__init__(prompt, None)
        self._seen = _Seen(self.tokenizer is not None)
        with torch.no_grad():
            self._first = prompt.run(self._seen)
        self._seen_texts = self._seen.texts(prompt)
        self._reads_all = True
        self._plain: Any = None

    def metric(self, given: Metric | None, default: Named | None) -> Metric | None:
        """Return the metric: by default the number that is returned, otherwise the default."""
        result, _ = self._first
        is_number = _is_number(result)
        if is_number and given is None:
            return _itself(self.prompt)
        if is_number and not callable(given):
            raise SelectionError(
                f"metric={given!r} reads logits, but {self.prompt.within} returns one number, "
                "which is the metric itself: leave out metric=, or return logits."
            )
        return default if given is None else given

    def read(self, measure: Measure, position: Position) -> None:
        """Choose what is read of each answer, and check that the function returns it again."""
        if measure.is_loss:
            raise SelectionError(
                "metric='loss' takes a text, whose next tokens are known, but "
                f"{self.prompt.within} runs on inputs of its own: let it return the loss, which "
                "then is the metric."
            )
        self._positions = self._found(measure.positions(position))
        self._are_given = position is not None
        self._reads_all = measure.reads_all
        result, tracker = self._first
        self._first = None, tracker
        self._plain = self._answer(result, tracker)
        with torch.no_grad():
            again = self._run_for_names()
            self._check_steady(measure, again)

    def plain(self) -> Any:
        """Return what the first run gave."""
        return self._plain

    def run(self, context: Context, count: int = 1) -> list[Any]:
        """Run the function once, and read its answer."""
        assert count == 1
        return [self._answer(*self.prompt.run(context))]

    @property
    def _texts(self) -> Sequence[str]:
        return self._seen_texts

    @property
    def read_at(self) -> None:
        """The position of the token whose logits are wanted: a row need not be a token."""

    @property
    def batch_size(self) -> int:
        """How many copies run at once: one."""
        return 1

    def _answer(self, result: Any, tracker: Tracker) -> Any:
        if self._reads_all:
            # What the function writes into again would change later.
            return result.clone() if isinstance(result, Tensor) else result
        logits = self._logits(result, tracker)
        assert self._positions is not None
        if logits.dim() == 1:
            rows = logits[None]
        else:
            if logits is not result:
                self._check_named(logits)
            if not self._are_given and len(logits) > 1:
                self._seen.check_last(len(logits), str(self.prompt))
            rows = self._picked(logits)
        for row in rows:
            _check_logits(row, str(self.prompt))
        return rows.clone()

    def _logits(self, result: Any, tracker: Tracker) -> Tensor:
        """Read logits as (classes,) or (tokens, classes)."""
        logits: Any = getattr(result, "logits", result)
        what = _described(result)
        if not isinstance(logits, Tensor):
            raise ContractError(
                f"{self.prompt} returned {what}: expected a number, logits (classes,) or (tokens, "
                f"classes), or an output with logits{_part(result)}; or pass metric=, a function "
                "of what it returns."
            )
        sequences = self._seen.sequences
        if logits is not result and logits.dim() in (2, 3) and len(logits) == 1:
            rows = logits[0]
            is_one = self._seen.calls == sequences == 1
            return tracker.tokens.real_rows(rows, 0) if is_one else rows
        if logits.dim() == 3 and len(logits) == 1:
            return logits[0]
        is_batch = logits.dim() == 2 and len(logits) == sequences > 1
        if logits.dim() not in (1, 2) or is_batch or (logits is not result and logits.dim() > 1):
            raise ContractError(
                f"{self.prompt} returned {what}"
                + (f", and the model ran {sequences} sequences" if is_batch else "")
                + ": expected the logits of one of them, (classes,) or (tokens, classes), as in "
                "lambda: model(x)[0]; or pass metric=, a function of all."
            )
        return logits

    def _check_steady(self, measure: Measure, again: Any) -> None:
        """Refuse a function that returns something else when it runs again."""
        pair = [self._plain, again]
        if measure.reads_all:
            pair = [measure(x, x) for x in pair]
        one, other = (x.detach().double().cpu() for x in pair)
        dtype = again.dtype if isinstance(again, Tensor) else torch.float32
        eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        is_alike = one.shape == other.shape and torch.allclose(
            one, other, rtol=0, atol=max(_STEADY, 8 * eps) * _largest(one), equal_nan=True
        )
        if not is_alike:
            shown = "" if one.dim() else f" ({float(one):.6g}, then {float(other):.6g})"
            raise ModelError(
                f"{self.prompt} returns something else when it runs again, without any "
                f"edit{shown}: an effect would be mixed with that. Draw random numbers and make "
                "caches outside of it, and turn dropout off with model.eval()."
            )


class _Seen(AheadOfAnswer):
    """Notes how many sequences run, and of the only one a call, its token ids and their number."""

    def __init__(self, has_tokenizer: bool) -> None:
        super().__init__()
        self._has_tokenizer = has_tokenizer
        self.calls = self.sequences = 0
        self._reads_nodes = False
        self._ids: list[int] | None = None
        self._stacks: dict[str, tuple[SeenCall, Place]] = {}

    def begin(self, tracker: Tracker) -> None:
        """Count the calls: several may be of several texts."""
        super().begin(tracker)
        self.calls += 1

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Note a call, and edit nothing."""
        self.sequences = max(self.sequences, len(set(place.sequences)))
        self._reads_nodes |= isinstance(call, SeenEdges)
        self._stacks[place.stack] = call, place
        return super().edits(call, place, tracker)

    def check_last(self, rows: int, name: str) -> None:
        """Refuse the last of several rows of logits, whose token does not come after all others.

        So it is in a graph, and where other tokens read the last one in the stack that ran last, as
        a decoder runs after its encoder.
        """
        if self._reads_nodes or self.reads_last:
            why = "the nodes of a graph have no last one"
            if not self._reads_nodes:
                why = "tokens read later ones, so that none of them is the last"
            raise SelectionError(
                f"{name} returned {rows} rows of logits, and {why}: pass position=, the row that "
                "is measured, or return one row, as in lambda: model(x)[0]."
            )

    @property
    def _is_one(self) -> bool:
        return self.calls == self.sequences == len(self._stacks) == 1

    def end(self, tracker: Tracker, result: Any) -> None:
        """Note the ids of the only sequence."""
        is_named = self._is_one and (self._has_tokenizer or not tracker.needs_tokenizer)
        self._ids = tracker.tokens.ids(min(self._stacks), 0) if is_named else None

    def texts(self, prompt: Prompt) -> tuple[str, ...]:
        """Name the tokens of the only sequence, and forget its call; () if there are several."""
        is_one, stacks, self._stacks = self._is_one, self._stacks, {}
        if not is_one:
            return ()
        ((call, place),) = stacks.values()
        longest = max((key.first + len(key) for key in place.keys), default=0)
        return prompt.texts(call, place, self._ids, longest - len(call.extra_keys))


def _is_number(result: Any) -> bool:
    """Return whether a result is one number; logits of a single class are one, too."""
    if isinstance(result, Tensor):
        return result.numel() == 1 and result.dtype != torch.bool and not result.is_complex()
    is_array = isinstance(result, np.ndarray) and not result.ndim and result.dtype.kind in "iuf"
    return is_array or (isinstance(result, Real) and not isinstance(result, bool))


def _itself(prompt: RunFunction) -> Metric:
    """Make the metric that is the number itself."""

    def number(result: Any) -> Any:
        return result

    number.__name__ = prompt.name or "the number returned"
    return number


def _check_logits(row: Tensor, name: str) -> None:
    """Refuse what is no logits; their softmax would mean nothing."""
    if not row.is_floating_point():
        raise ContractError(
            f"{name} returned {_described(row)}: expected logits, which are floating-point numbers."
        )
    total = float(row.detach().double().sum())
    if len(row) > 1 and bool((row >= 0).all()) and abs(total - 1) < _SUM:
        raise ContractError(
            f"{name} returned numbers ≥ 0 that sum to {total:.4f}, which looks like probabilities, "
            "but metrics take logits: return what the softmax is taken of, or the logarithm, as "
            "in .log(); or pass metric=, a function of what it returns."
        )


def _described(result: Any) -> str:
    kind = type(result).__name__
    if isinstance(result, Tensor):
        return f"{kind} {tuple(result.shape)} of {result.dtype}"
    if isinstance(result, (tuple, list)):
        return f"{kind} of {', '.join(type(x).__name__ for x in result[:5])}"
    return kind


def _part(result: Any) -> str:
    """Say how to return the first part of a result that may be logits; "" if none may."""
    if not isinstance(result, (tuple, list, Mapping)):
        return ""
    some = result.items() if isinstance(result, Mapping) else enumerate(result)
    keys = [n for n, x in some if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
    if not keys:
        return ""
    key = "logits" if "logits" in keys else keys[0]
    return f". Return the part that is measured, as in lambda: model(x)[{key!r}]"


def _largest(values: Tensor) -> float:
    some = values[values.isfinite()]
    return float(some.abs().max()) if some.numel() else 0.0
