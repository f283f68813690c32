"""An attention call as a door to torch's functions sees it, before its dimensions are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.multihead import Running
from gattn.models.read.layouts import Layout
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import present
from gattn.normalizers.base import HALF

if TYPE_CHECKING:
    from gattn.models.doors.functions.softmaxes.follow.source import Ranking
    from gattn.models.watch.taking_part import Begun


class Early(NamedTuple):
    """How many softmaxes came before one in a run of its module, and the name of its form."""

    number: int
    form: str


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
    early : Early, optional
        Which softmax of the module's run it is, if that may be edited before it meets the values.
    is_read : bool
        Whether other functions read its softmax before, or copies of it were made.
    first : RawCall, optional
        The call as it began, before its values were known.
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
    early: Early | None = None
    is_read: bool = False
    first: RawCall | None = None

    def __post_init__(self) -> None:
        first = self.first
        self.ordinal: int = runs.next(self.module) if first is None else first.ordinal
        """How many calls came before it, within one run of the module."""
        self.lead = tuple(self.output.shape[:-2])
        """The sizes of the leading dimensions."""
        self.layout: Layout | None = None if first is None else first.layout
        self.begun: Begun | None = None if first is None else first.begun
        """What is known of it since contexts took part, before its values were known."""

    @property
    def is_edited_early(self) -> bool:
        """Whether its attention was edited before its values were known."""
        return self.begun is not None and self.begun.is_edited

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


def observer() -> Observer | None:
    """Return the function that calls that doors see are shown to."""
    return _observer.get()


def is_observed() -> bool:
    """Return whether calls that doors see are shown to such a function."""
    return _observer.get() is not None


def named(module: nn.Module) -> str:
    """Name a module of a watched model by its path and class."""
    kind = type(module).__name__
    paths = (calls.tracker.modules.name(module) for calls, _ in present() if calls.owns(module))
    path = next(paths, "")
    return f"{path} ({kind})" if path else kind
