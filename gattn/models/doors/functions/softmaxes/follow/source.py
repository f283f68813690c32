"""A softmax on its way to the values that it meets, or a slice of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.functions.calling.multihead import Running

if TYPE_CHECKING:
    from gattn.models.doors.functions.calling.raw_call import RawCall


_ARRAYS = frozenset((Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage))
"""What gives Python the memory of a tensor."""
_GIVE_OUT = _ARRAYS | {
    *(Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__int__, Tensor.__index__),
    *(Tensor.__bool__, Tensor.is_nonzero, Tensor.__complex__, Tensor.__contains__),
    *(Tensor.__reduce_ex__, Tensor.__format__, Tensor.__repr__),
    *(torch.equal, torch.allclose, torch.is_nonzero, Tensor.equal, Tensor.allclose),
}


class Ranking(NamedTuple):
    """Scores that were ranked, in a proof as they were `before`.

    Where it `keeps` the largest alone, the others are -inf, and those that were masked before are
    finite. What was put back among others is in some `memory`.
    """

    before: Tensor | None
    keeps: bool = False
    memory: Memory | None = None


@dataclass(eq=False)
class Source:
    """A softmax: its scores, the dimension of their keys, and the module that computed it.

    `number` counts the softmaxes of one run of the module. `read_by` names a function that read its
    numbers before they met the values; where these were edited, `edited` holds them as the
    `operand` of that product, or None if they were written into it. `met` are the columns that met
    values, None if these were all. It `is_written` out, as exponentials divided by their sum. Its
    `ranking` is that of its scores, or its attention. A slice of another one has this as its
    `parent`, and a `region` of its memory. Divided by its sums, it goes on as a softmax `again`.
    It `is_read` once any function reads its numbers, and these were `given_out` if Python got them,
    from some memory. All that was made of it is in `memories`. Where it is read early, its call has
    `begun`.
    """

    module: nn.Module
    number: int
    attention: ref[Tensor]
    scores: Tensor
    key: int
    running: Running | None = None
    is_consumed: bool = False
    is_edited: bool = False
    read_by: str = ""
    operand: ref[Tensor] | None = None
    edited: Tensor | None = None
    met: set[range | None] = field(default_factory=set)
    is_written: bool = False
    ranking: Ranking | None = None
    parent: Source | None = None
    region: Region | None = None
    again: Source | None = None
    is_again: bool = False
    is_read: bool = False
    given_out: list[Memory | None] = field(default_factory=list)
    memories: set[Memory | None] = field(default_factory=set)
    begun: RawCall | None = None
    _taken: dict[Memory | None, Tensor] = field(default_factory=dict)

    def part(self, piece: Tensor, scores: Tensor, key: int) -> Source:
        """Return a slice of it as a softmax of its own."""
        own = ref(piece)
        made = Source(self.module, self.number, own, scores, key, self.running)
        made.is_written, made.ranking, made.parent = self.is_written, self.ranking, self
        made.region = Region(
            memory_of(piece),
            piece.untyped_storage().nbytes() // piece.element_size(),
            int(piece.storage_offset()),
            tuple(piece.shape),
            piece.stride(),
        )
        return made

    @property
    def is_plain(self) -> bool:
        """Whether it is the whole of what torch's softmax gave."""
        return not self.is_written and self.parent is None

    @property
    def is_whole(self) -> bool:
        """Whether nothing of a plain softmax over the last dimension met values yet."""
        is_last = self.key == self.scores.dim() - 1
        return self.is_plain and is_last and not self.was_consumed and not self.is_torn

    @property
    def has_met(self) -> bool:
        """Whether it, some of it, or what it became met values."""
        became = self.again is not None and self.again.has_met
        return self.is_consumed or bool(self.met) or self.is_torn or became

    @property
    def was_consumed(self) -> bool:
        """Whether it met its values, itself or as a part of a larger one."""
        return self.is_consumed or (self.parent is not None and self.parent.was_consumed)

    @property
    def is_torn(self) -> bool:
        """Whether some of it met values before, as a slice."""
        if self.parent is None or self.region is None:
            return any(bool(x.any()) for x in self._taken.values())
        return bool(self.region.of(self.root._taken).any())

    def take(self) -> None:
        """Note that it meets values."""
        self.is_consumed = True
        if self.region is not None:
            self.region.of(self.root._taken).fill_(True)

    @property
    def root(self) -> Source:
        """The softmax that it is a slice of, or itself."""
        return self if self.parent is None else self.parent.root

    @property
    def is_edited_early(self) -> bool:
        """Whether edited attention is in its place."""
        return self.begun is not None and self.begun.is_edited_early

    @property
    def is_edited_for_good(self) -> bool:
        """Whether nothing but such attention is edited."""
        return self.begun is not None and self.begun.begun is not None and self.begun.begun.is_all

    def give_out(self, func: Any, args: Sequence[Any]) -> None:
        """Note a function that gives Python something else than tensors."""
        self.is_read = True
        if func in _GIVE_OUT:
            is_shared = func in _ARRAYS and isinstance(args[0], Tensor)
            self.given_out.append(memory_of(args[0]) if is_shared else None)

    def read(self, by: str) -> None:
        """Note a function that reads its numbers before they meet values."""
        self.is_read = True
        if not self.is_consumed:
            self.read_by = self.read_by or by
        if self.parent is not None:
            self.parent.read(by)


@contextmanager
def not_reading(source: Source, *, if_so: bool) -> Iterator[None]:
    """Let nothing that is done count as reading its numbers, if so."""
    chain = [source]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    before = [one.read_by for one in chain]
    yield
    if if_so:
        for one, by in zip(chain, before, strict=True):
            one.read_by = by


class Region(NamedTuple):
    """The numbers of a slice in the memory that it shares with others."""

    memory: Memory | None
    size: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, taken: dict[Memory | None, Tensor]) -> Tensor:
        """Return booleans of these numbers, of all in their memory."""
        whole = taken.setdefault(
            self.memory, torch.zeros(self.size, dtype=torch.bool, device="cpu")
        )
        return whole.as_strided(self.shape, self.strides, self.offset)
