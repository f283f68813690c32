"""Knows the tensors that hold the numbers of a softmax, from it to its product with values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.memory import memory_of, version_of
from gattn.models.doors.functions.softmaxes.follow.known import Following
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.follow.source import Ranking, Source

if TYPE_CHECKING:
    from gattn.models.doors.functions.softmaxes.products import Product


@dataclass(frozen=True, eq=False)
class Followed:
    """A tensor with the numbers of a softmax.

    `scores` have its shape; `key` is the dimension of the keys, over which it sums to one. Where it
    was `altered`, by the function of that name, it may be made of `others`, too; then `scores` have
    sizes alone. It is a `mixture` of heads and softmaxes if each key's numbers were only
    added up with weights that do not depend on the key; it `is_scaled` if there was one softmax. It
    is `spread` if each number was multiplied with values, and these were not summed up yet. Where
    it is a slice of the keys, it has these `columns` of the softmax, and `dropped` are the scores
    of the others. It is `unnormalized` by a function, "exp" or a mask, until its rows are divided
    by their sums; where it met values before, `late` tells how. The scores of what a
    mask `took` are `dropped` where rows are not divided. Numbers that were `picked` by their
    values, as the largest ones are, may be those of experts; `whole` is what they were picked from.
    Where the keys' dimension holds queries, too, `folded` is the number of keys, which come last in
    it. The dimensions of queries and of texts are `placed` elsewhere than at the softmax once it
    was turned round. A mixture `is_across` a leading dimension if it adds up its places: heads,
    where that is none of texts.
    Divided by sums over another dimension than its own, it is `otherwise` a softmax that was
    changed: a product tells which, by what it sums over. Where each number was `repeated` along
    other dimensions, as often as there are channels, that is what it was before. Where a function
    kept its largest numbers, that is its own `ranking`. A view that the function `viewed` made is
    read once another function takes it that does not only put zeros there.
    """

    source: Source
    scores: Tensor
    key: int
    dropout: float = 0.0
    altered: str = ""
    others: tuple[Source, ...] = ()
    is_mixture: bool = True
    is_scaled: bool = True
    spread: Spread | None = None
    columns: range | None = None
    dropped: Tensor | None = None
    unnormalized: str = ""
    took: Tensor | None = None
    late: Late | None = None
    is_picked: bool = False
    folded: int = 0
    placed: tuple[int | None, int | None] | None = None
    is_across: bool = False
    whole: Followed | None = None
    otherwise: Followed | None = None
    repeated: Repeated | None = None
    ranking: Ranking | None = None
    viewed: str = ""

    @property
    def ranked(self) -> Ranking | None:
        """How its numbers were ranked, or the scores of its softmax."""
        return self.ranking or self.source.ranking

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """The dimensions of queries and of texts: None if it is not known, or there is none.

        At a softmax, queries come before the keys if these are last, and texts before heads.
        """
        if self.placed is not None:
            return self.placed
        dims = self.scores.dim()
        return self.key - 1 if 0 < self.key == dims - 1 else None, 0 if dims > 3 else None

    def without(self, is_lost: Tensor, by: str) -> Followed:
        """Follow what is left of it where a mask took some numbers."""
        took = None
        if self.columns is None and self.dropped is None:
            took = self.scores.masked_fill(~is_lost, -torch.inf)
            took = took if self.took is None else torch.maximum(took, self.took)
        left = self.scores.masked_fill(is_lost, -torch.inf)
        return replace(self, scores=left, took=took, unnormalized=by)

    def with_others(self, found: Iterable[Followed]) -> Followed:
        """Note that other softmaxes went into it."""
        sources = (one for other in found for one in (other.source, *other.others))
        others = dict.fromkeys(one for one in sources if one is not self.source)
        return replace(self, others=tuple(dict.fromkeys((*self.others, *others))))

    def altered_by(
        self,
        what: str,
        result: Tensor,
        key: int | None = None,
        placed: tuple[int | None, int | None] = (None, None),
    ) -> Followed:
        """Note that its numbers were changed; in a mixture, `key` is where the keys are now."""
        is_mixture = self.is_mixture and key is not None and self.dropped is None
        altered = self.altered if self.altered and not (self.is_mixture > is_mixture) else what
        where = self.key if key is None else key
        self.source.root.is_read = True
        if result.is_floating_point():
            self.source.read(what)
        sizes = torch.empty(result.shape, device="meta")
        now = replace(self, altered=altered, scores=sizes, key=where, is_mixture=is_mixture)
        return replace(now, placed=placed, repeated=None)

    def read_view(self) -> None:
        """Note that a function reads it, if it is a view that none has read before."""
        if self.viewed:
            self.source.read(self.viewed)

    def write(self, found: Product, weights: Tensor) -> list[Tensor]:
        """Put edited attention into the tensors that hold it, which the model may read or return.

        Where gradients are taken of them, they are a slice of the softmax, or heads that share them
        are edited apart, only functions that read them later get it.
        Returns those that hold it then.
        """
        weights = found.as_operand(weights)
        self.source.operand = ref(found.operand)
        has_gradient = found.operand.requires_grad or weights.requires_grad
        has_gradient = has_gradient and torch.is_grad_enabled()
        is_repeated = are_equal(_once(weights, found.operand).expand_as(weights), weights)
        if has_gradient or self.columns is not None or not is_repeated:
            self.source.edited = weights
            return []
        written = [x for x in self._copies() if are_equal(x, found.operand)]
        with torch.no_grad():
            for x in (*written, found.operand):
                _once(x, x).data.copy_(_once(weights, x))
        return [*written, found.operand]

    def _copies(self) -> list[Tensor]:
        """List the tensors that may hold the numbers of the same softmax."""
        root, known = self.source.root, softmaxes.known.copy().values()
        some = [x() for x, one, _ in known if one.source.root is root and not one.altered]
        return [x for x in some if x is not None and x.is_floating_point()]


def _once(numbers: Tensor, like: Tensor) -> Tensor:
    """Take those of some numbers once that another tensor, as heads do, repeats in its memory."""
    for dim, stride in enumerate(like.stride()):
        if stride == 0 and like.shape[dim] > 1:
            numbers = numbers.narrow(dim, 0, 1)
    return numbers


@dataclass(frozen=True, eq=False)
class Spread:
    """Attention, each number of it multiplied with values.

    `operand` and `other` are the attention and the values as the function at `place` took them,
    `key` the dimension of the keys in what it gave, and `read_by` is that of the source before.
    """

    operand: Tensor
    other: Tensor
    place: int
    key: int
    followed: Followed
    read_by: str


@dataclass(frozen=True, eq=False)
class Repeated:
    """Attention before its numbers were repeated, and the `read_by` of its source then."""

    operand: Tensor
    followed: Followed
    read_by: str


@dataclass(frozen=True, eq=False)
class Late:
    """A product of numbers that are not divided by their sums yet, and of values."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: int
    followed: Followed


softmaxes: Following[tuple[ref[Tensor], Followed, int]] = Following()
"""The tensors that hold the numbers of a softmax."""


def note(tensor: Tensor, followed: Followed) -> None:
    """Follow a tensor."""
    name, where = id(tensor), softmaxes.known

    def forget(gone: ref[Tensor]) -> None:
        if name in where and where[name][0] is gone:
            del where[name]

    where[name] = ref(tensor, forget), followed, version_of(tensor)
    followed.source.root.memories.add(memory_of(tensor))


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same numbers, or none in the same places."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    with _disable_current_modes():  # It is no part of the model.
        return bool(((one == other) | (one.isnan() & other.isnan())).all())


def is_followed(one: Tensor) -> bool:
    """Return whether a tensor is followed, whatever was done to it in place."""
    entry = softmaxes.known.get(id(one))
    return entry is not None and entry[0]() is one


def seen_before(one: Any) -> Followed | None:
    """Return what is known of a tensor, with what was done to it in place."""
    entry = softmaxes.known.get(id(one))
    tensor = None if entry is None else entry[0]()
    if entry is None or tensor is None or tensor is not one:
        return None
    _, followed, version = entry
    if version_of(tensor) != version:
        return followed.altered_by("an operation in place", tensor)
    return followed


def forget_scores(source: Source) -> None:
    """Let go of the scores of a softmax that has met its values."""
    for name, (tensor, followed, version) in softmaxes.known.copy().items():
        if followed.source is source:
            empty = torch.empty(followed.scores.shape, device="meta")
            softmaxes.known[name] = tensor, replace(followed, scores=empty, dropped=None), version
    source.scores = torch.empty(source.scores.shape, device="meta")


def found_in(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, Followed] | tuple[int, None]:
    """Find the first followed tensor among a function's operands, and its place among them.

    Masks that were made of it come after its numbers.
    """
    found: tuple[int, Followed] | tuple[int, None] = 0, None
    for place, one in enumerate(operands(args, kwargs)):
        followed = seen_before(one)
        if followed is not None and one.is_floating_point():
            return place, followed
        if followed is not None and found[1] is None:
            found = place, followed
    return found


def all_found_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Followed]:
    """List what is followed among a function's operands."""
    found = (seen_before(one) for one in operands(args, kwargs))
    return [one for one in found if one is not None]


def note_reading(func: Any, result: Any, others: Sequence[Followed]) -> Any:
    """Note that a function read several softmaxes, of which some may meet their values later."""
    sources = {id(one.source): one.source for one in others}
    if len(sources) > 1 and isinstance(result, Tensor) and result.is_floating_point():
        for source in sources.values():
            source.read(getattr(func, "__name__", str(func)))
    return result
