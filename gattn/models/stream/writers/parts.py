"""The residual stream as a sum of what wrote it: embeddings, heads, MLPs and biases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from gattn.errors import CaptureError, SelectionError
from gattn.models.stream.adding.ways import is_same
from gattn.models.stream.norms import StreamNorm
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.writers.dictionaries import Dictionary

if TYPE_CHECKING:
    from gattn.models.stream.sublayers import Branch, Sublayer
    from gattn.models.stream.writers.between import Between

Kind = Literal["embedding", "head", "mlp", "bias", "given", "error"]


@dataclass(frozen=True)
class Writer:
    """What wrote a part of the residual stream.

    Parameters
    ----------
    kind : {"embedding", "head", "mlp", "bias", "given", "error"}
        What it is. An "mlp" is all that a layer adds besides its self-attention, a decoder's
        cross-attention included. The "bias" of a layer is what its attention adds besides its
        heads, and the shifts of norms that give the stream; without a layer it is what the head
        that reads the stream adds itself. A part may be "given", and the "error" is what those
        leave over.
    layer, head : int, optional
        Where it is.
    name : str
        The name of an embedding, or of a given part; or the token that a head read, if its part is
        split by these.
    source : int, optional
        That token's position.
    """

    kind: Kind
    layer: int | None = None
    head: int | None = None
    name: str = ""
    source: int | None = None

    def __str__(self) -> str:
        if self.kind == "head":
            read = "" if self.source is None else f" from {self.name!r} ({self.source})"
            return f"{self.layer}.{self.head}{read}"
        if self.layer is not None:
            return f"{self.kind} {self.layer}"
        return self.name or self.kind


@dataclass(frozen=True, eq=False)
class Stream:
    """The residual stream before a layer, as a sum.

    Parameters
    ----------
    writers : list of Writer
        What wrote its parts.
    parts : Tensor (writers, tokens, dim)
        The parts.
    dictionaries : list of Dictionary
        Further parts, with writers of their own.
    """

    writers: list[Writer]
    parts: Tensor
    dictionaries: list[Dictionary] = field(default_factory=list)

    @property
    def all_writers(self) -> list[Writer]:
        """What wrote the parts, those of dictionaries last."""
        return [*self.writers, *(one for some in self.dictionaries for one in some.writers)]

    def part(self, number: int) -> Tensor:
        """Return the part of one of all writers: (tokens, dim)."""
        if number < len(self.writers):
            return self.parts[number]
        number -= len(self.writers)
        for some in self.dictionaries:
            if number < len(some.writers):
                return some.part(number, self.parts.shape[1])
            number -= len(some.writers)
        raise IndexError(number)

    def total(self) -> Tensor:
        """Return the sum of all parts: (tokens, dim)."""
        found: Tensor = self.parts.sum(0)
        return sum((some.total(len(found)) for some in self.dictionaries), found)

    def check(self, total: Tensor, what: str, written: Tensor | None = None) -> None:
        """Refuse unless the parts sum to the stream that the model has, (tokens, dim).

        Under autocast, what is `written` to a stream has less precision than the stream.
        """
        total = total.detach()
        limit = max(tolerance(one) for one in (total, written) if one is not None)
        missing = (self.total().detach() - total).abs()
        if not bool((missing <= limit * total.abs().amax(-1, keepdim=True)).all()):
            error = float(missing.max() / total.abs().max())
            raise CaptureError(
                f"What embeddings, heads and MLPs write does not sum to the residual stream before "
                f"{what}: the relative error is {error:.1e}. The model adds something else to it."
            )


class Growing:
    """A stream to which layer after layer is added.

    Parameters
    ----------
    embeddings : Stream
        The stream before the first layer.
    split : collection of (layer, head)
        Heads whose parts are split by the token that they read.

    Attributes
    ----------
    depth : int
        How many layers were added.
    adds_first : bool
        Whether one of them adds something else to the stream before its attention.
    """

    def __init__(self, embeddings: Stream, split: Collection[tuple[int, int]] = ()) -> None:
        self.writers, self.parts = list(embeddings.writers), [embeddings.parts]
        self.dictionaries: list[Dictionary] = []
        self.depth = 0
        self.adds_first = False
        self._split, self._end = split, embeddings.parts[0]

    def stream(self) -> Stream:
        """Return the stream before the next layer."""
        return Stream(list(self.writers), torch.cat(self.parts), list(self.dictionaries))

    def pass_on(self, start: Tensor, slots: Tensor, between: Between) -> None:
        """Take the stream to the start of the next layer, through a norm between the two.

        Whatever else may lie between them shows where the stream is checked.
        """
        if not self.depth or is_same(self._end, start):
            return
        norm = between.norm(self._end, start, slots.to(start.device))
        if norm is not None:
            self._follow(self._end, [StreamNorm(norm, self._end)], start)

    def add(self, sublayer: Branch) -> None:
        """Add a layer's heads, its biases and its MLP."""
        layer, heads = sublayer.layer, sublayer.by_head()
        if sublayer.is_changed_last:
            raise CaptureError(
                f"The layer of {sublayer.name} ends in a module of the residual stream that is not "
                "found to be a norm or a scale of each token: what becomes of the parts is "
                "unknown. Use effect, estimate or circuit, which need no residual stream."
            )
        self.depth = layer + 1
        split = sorted(head for place, head in self._split if place == layer)
        if split and split[-1] >= sublayer.heads:
            raise SelectionError(
                f"No head {layer}.{split[-1]}; layer {layer} has heads 0 .. {sublayer.heads - 1}."
            )
        whole = [n for n in range(sublayer.heads) if n not in split]
        for kind in ("bias", "mlp"):
            self.writers.append(Writer(kind, layer))
            self.parts.append(torch.zeros_like(sublayer.bias)[None])
        self.adds_first |= sublayer.adds_first
        self._follow(sublayer.start, sublayer.earlier, sublayer.residual)
        self.writers[-2:-2] = [Writer("head", layer, n) for n in whole]
        self.parts[-2:-2] = [heads[whole]]
        self.dictionaries += [_by_source(cast("Sublayer", sublayer), n) for n in split]
        self.parts[-2] = self.parts[-2] + sublayer.bias
        later = list(sublayer.later)
        if sublayer.is_post_norm:
            later.insert(0, StreamNorm(sublayer.known_norm, sublayer.after))
        self._follow(sublayer.after, later, sublayer.end)

    def _follow(self, total: Tensor, norms: Sequence[StreamNorm], end: Tensor) -> None:
        """Follow the stream through norms; what else is added, the layer's MLP wrote.

        That is the last part, and what norms add themselves is the layer's bias, before it.
        """
        for one in norms:
            self.parts[-1] = self.parts[-1] + (one.given - total)
            self.parts = [one.norm(part) for part in self.parts]
            self.dictionaries = [some.normed(one.norm) for some in self.dictionaries]
            self.parts[-2] = self.parts[-2] + one.norm.shift
            total = one.output
        self.parts[-1] = self.parts[-1] + (end - total)
        self._end = end


def _by_source(sublayer: Sublayer, head: int) -> Dictionary:
    """Return what a head adds to each token, by the token that it read."""
    size = len(sublayer)
    amounts = sublayer.residual.new_empty(size, size)
    for rows, attention in sublayer.rows():
        amounts[rows] = attention[head]
    amounts *= sublayer.factor[:, None]
    writers = [Writer("head", sublayer.layer, head, source=n) for n in range(size)]
    return Dictionary.of(writers, amounts, sublayer.values[head] @ sublayer.weights[head])
