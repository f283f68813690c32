"""An attention call as a door to torch's functions sees it, before its dimensions are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.functions.calling.custom_backward import refuse_gradients
from gattn.models.doors.functions.calling.multihead import Running
from gattn.models.doors.functions.calling.owners import innermost
from gattn.models.read.layouts import Layout, usual
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import present
from gattn.models.watch.parts_and_wholes import numbered_twice, trackers_of
from gattn.models.watch.taking_part import take_part
from gattn.normalizers.base import HALF

if TYPE_CHECKING:
    from gattn.models.doors.functions.softmaxes.source import Ranking

_is_batched = torch._C._functorch.is_batchedtensor


@dataclass(eq=False)
class RawCall:
    """One call of attention: tensors with any leading dimensions, the same for all of them or 1.

    Parameters
    ----------
    module : nn.Module
        The innermost module of the model that attends.
    kind : str
        The door: "sdpa", "softmax", "sum" (a softmax whose product with values is written as a sum)
        or "flex".
    value : Tensor (..., keys, value dim)
    output : Tensor (..., queries, value dim)
        The attention times the values.
    query, key : Tensor (..., tokens, dim), optional
        None where only scores are known.
    scores, weights : Tensor (..., queries, keys), optional
        What went into the softmax, and what came out.
    mask : Tensor, optional
        Booleans, or what is added to scores.
    is_causal, scale, dropout
        As in `SeenCall`.
    running : Running, optional
        The call of torch's multi-head attention that it is a part of.
    altered : str
        The function that changed the attention between softmax and values, if one did.
    is_scaled : bool
        Whether it was only multiplied with other numbers.
    is_across : bool
        Whether places of a leading dimension of it were added up, which must be heads.
    number : int, optional
        How many softmaxes came before one that was altered, within one run of the module.
    dropped : Tensor (..., queries, n), optional
        The scores of slots that took part in the softmax, and bring no value.
    over_last : bool
        Whether the softmax was taken over the last dimension.
    is_written : bool
        Whether the softmax is written out, so that it is no kernel of torch.
    ranking : Ranking, optional
        How its scores, or its weights, were ranked.
    """

    module: nn.Module
    kind: str
    value: Tensor
    output: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    scores: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    dropout: float = 0.0
    running: Running | None = None
    altered: str = ""
    is_scaled: bool = False
    is_across: bool = False
    number: int | None = None
    dropped: Tensor | None = None
    over_last: bool = True
    is_written: bool = False
    ranking: Ranking | None = None

    def __post_init__(self) -> None:
        self.ordinal = runs.next(self.module)
        """How many calls came before it, within one run of the module."""
        self.lead = tuple(self.output.shape[:-2])
        """The sizes of the leading dimensions."""

    @property
    def is_ranked(self) -> bool:
        """Whether only the largest scores were kept."""
        return self.ranking is not None and self.ranking.keeps

    def seen(self, name: str, layout: Layout) -> SeenCall:
        """Say it in the words of any library, with the dimensions that it has by a layout."""
        lead, running = self.lead, self.running
        is_cross = None if running is None else running.is_cross
        if layout.tokens is not None:
            is_cross = layout.tokens.is_cross
        projection = None if running is None else running.projection
        extra_keys = () if running is None else running.extra_keys
        reads_itself = running is not None and not running.is_cross
        joined = None if layout.tokens is None else layout.tokens.joined
        part = self.ordinal if joined is None else joined.first

        def folded(x: Tensor) -> Tensor:
            return layout.fold(x, lead)

        value, output = folded(self.value), folded(self.output).transpose(1, 2)
        mask = None if self.mask is None else layout.fold(self.mask, lead, is_mask=True)
        if self.scores is not None:
            wide = torch.promote_types(self.scores.dtype, value.dtype)
            scores = folded(self.scores).to(wide)
            value = value.to(wide) if wide == torch.float64 else value
            weights = None if self.weights is None else folded(self.weights)
            query = scores.new_zeros(*scores.shape[:3], 0)
            key = scores.new_zeros(*value.shape[:3], 0)
            return SeenCall(
                name,
                self.module,
                query,
                key,
                value,
                output,
                weights,
                scores,
                is_scores=True,
                dropout=self.dropout,
                is_cross=is_cross,
                projection=projection,
                extra_keys=extra_keys,
                reads_itself=reads_itself,
                part=part,
                tokens=layout.tokens,
                dropped=None if self.dropped is None else folded(self.dropped).to(wide),
                is_half=self.scores.dtype in HALF,
                is_ranked=self.is_ranked,
            )
        assert self.query is not None
        assert self.key is not None
        return SeenCall(
            name,
            self.module,
            folded(self.query),
            folded(self.key),
            value,
            output,
            mask=mask,
            is_causal=self.is_causal,
            scale=self.scale,
            dropout=self.dropout,
            is_cross=is_cross,
            projection=projection,
            extra_keys=extra_keys,
            reads_itself=reads_itself,
            part=part,
            tokens=layout.tokens,
        )


Observer = Callable[[RawCall], None]
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Show each call that doors see to a function, and to nobody else."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def is_observed() -> bool:
    """Return whether calls that doors see are shown to such a function."""
    return _observer.get() is not None


def handed(call: RawCall) -> SeenCall | None:
    """Let the open contexts take part in a call; None if nothing of it changes."""
    observer = _observer.get()
    if observer is not None:
        _check_dims(call)
        observer(call)
        return None
    calls = next(calls for calls, _ in present() if calls.owns(call.module))
    tracker = calls.tracker
    if call.module is calls.model and not calls.depth and innermost() is not calls.model:
        return None  # Another model runs inside its `generate`, such as an assistant.
    if not tracker.reads(call.module, call.lead, over_last=call.over_last):
        return None
    if tracker.leaves_out(call.module, call.ordinal):
        return None
    if call.altered:
        raise CaptureError(
            f"In {named(call.module)} the attention is changed by {call.altered} between "
            "its softmax and its values, so what a head attends to is not the softmax alone. (If "
            "it is a router's softmax, over experts or heads, its weights are no attention between "
            "tokens.) Nothing was captured or edited."
        )
    if call.output.is_complex():
        raise CaptureError(
            f"{named(call.module)} attends to complex values ({call.output.dtype}); expected real "
            "ones: hold their real and imaginary parts side by side, as torch.view_as_real gives "
            "them. Nothing was captured or edited."
        )
    _check_dims(call)
    if tracker.proves and not tracker.is_calling:
        tracker.layers.again(tracker.modules.name(call.module))  # Only a part that runs again may.
    proved = tracker.layout(call.module, call.ordinal, call.lead)
    _check_parts(call, proved, tracker)
    layout = proved or usual(call.lead, None if call.running is None else call.running.heads)
    before: list[SeenCall] = []

    def seen(name: str) -> SeenCall:
        before.append(call.seen(name, layout))
        return before[0]

    plain = call.output
    try:
        found = take_part(call.module, call.value, seen)
    except CaptureError:
        if tracker.proves:
            raise
        return None  # Beside transformers' interface; when the context closes, a warning names it.
    if found is None:
        return None
    if _is_changed(found.output, plain):
        with_gradients = any(calls.takes_gradients for calls, _ in present())
        refuse_gradients(named(call.module), with_gradients)
        call.output = layout.unfold(found.output.transpose(1, 2), call.lead)
    weights = found.weights
    if weights is not None and call.weights is not None:
        weights = layout.unfold(weights, call.weights.shape[:-2])
    call.weights = weights
    return found


def _check_dims(call: RawCall) -> None:
    """Refuse tensors some of whose dimensions are hidden."""
    if _is_batched(call.value) or _is_batched(call.output):
        raise CaptureError(
            f"{named(call.module)} attends inside torch.vmap, which hides dimensions of its "
            "tensors: run it on a batch instead; products of matrices, einsum and "
            "scaled_dot_product_attention take leading dimensions."
        )


def _check_parts(call: RawCall, layout: Layout | None, first: Tracker) -> None:
    """Refuse contexts on a model and a part of it to which a call's slots are other tokens."""
    known = None if layout is None else layout.tokens
    is_alone = len({id(calls) for calls, _ in present()}) == 1
    for tracker in trackers_of(call.module) if known and not is_alone else ():
        found = None
        if tracker is not first:
            with suppress(CaptureError):  # What is not proved has no numbers of its own.
                found = tracker.layout(call.module, call.ordinal, call.lead)
        if known and found and found.tokens and not known.are_those_of(found.tokens):
            raise numbered_twice(named(call.module), "tokens")


def named(module: nn.Module) -> str:
    """Name a module of a watched model by its path and class."""
    kind = type(module).__name__
    paths = (calls.tracker.modules.name(module) for calls, _ in present() if calls.owns(module))
    path = next(paths, "")
    return f"{path} ({kind})" if path else kind


def _is_changed(now: Tensor, before: Tensor) -> bool:
    return now.untyped_storage().data_ptr() != before.untyped_storage().data_ptr()


def alteration(module: nn.Module, number: int) -> str:
    """Return how a softmax is altered before it meets the values: "scaled", "mixed" or not ("").

    `number` counts the softmaxes of one run of the module.
    """
    if _observer.get() is not None:
        return ""
    found = (calls.tracker for calls, _ in present() if calls.owns(module))
    return next((how for tracker in found if (how := tracker.alteration(module, number))), "")
