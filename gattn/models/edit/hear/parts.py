"""Parts of the residual stream on other texts, and what takes the place of those here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gattn.errors import EditError

if TYPE_CHECKING:
    from gattn.models.stream.rows import Rows
    from gattn.models.stream.writers.parts import Stream

By: TypeAlias = Any
"""What takes the place of parts: "zero", "mean", a text, a list of texts, `Parts`, or a tensor."""


@dataclass(frozen=True, eq=False)
class Parts:
    """What wrote to the residual stream of a model on other texts.

    Parameters
    ----------
    said : str
        What they were recorded from, in words.
    given : object
        What they were recorded from: a text or texts.
    found : mapping of (stack, layer) to Stream
        The stream before a layer, with a row for each position.
    is_mean : bool
        Whether they are means over all positions, of which there is one row.
    """

    said: str
    given: Any
    found: Mapping[tuple[str, int], Stream]
    is_mean: bool = False

    def __repr__(self) -> str:
        return self.said

    def before(self, stack: str, layer: int) -> Stream:
        """Return the stream before a layer."""
        if (stack, layer) not in self.found:
            raise EditError(
                f"What wrote the stream before layer {layer} of {stack!r} on {self.said} is not "
                "known."
            )
        return self.found[stack, layer]


def is_vectors(by: By) -> bool:
    """Return whether it is a vector per token, rather than the ids of a text."""
    return isinstance(by, Tensor) and by.is_floating_point()


def replaced(
    vectors: Tensor, by: By, pick: Callable[[Stream], Tensor], rows: Rows, edit: object
) -> Tensor:
    """Return parts (parts, rows, dim) less what takes their place.

    `pick` takes these parts from a stream of another text.
    """
    if isinstance(by, str) and by == "zero":
        return vectors
    if isinstance(by, str) and by == "mean":
        if not rows.are_whole:
            raise EditError(
                f"{edit} takes the mean over all tokens, and a call that continues a cache has "
                "only some: run the whole text with use_cache=False."
            )
        return torch.stack([one - rows.mean(one) for one in vectors])
    if isinstance(by, Parts):
        other = pick(by.before(rows.place.stack, rows.place.layer))
        if by.is_mean:
            return vectors - other.to(vectors)
        return vectors - placed(other, rows, vectors, f"{edit}: the other text")
    if is_vectors(by):
        return vectors - placed(by[None], rows, vectors, f"{edit}: by")
    raise EditError(f"{edit} was not run: use it in gattn.edited or gattn.effect.")


def placed(given: Tensor, rows: Rows, like: Tensor, what: str) -> Tensor:
    """Take what is given for each position, (parts, tokens, dim), at the rows of a call."""
    if given.shape[-1] != like.shape[-1]:
        raise EditError(
            f"{what} has vectors of {given.shape[-1]} numbers, but the stream has {like.shape[-1]}."
        )
    count, ends = given.shape[1], [side.end for side in rows.place.queries]
    if wrong := [end for end in ends if end > count or (rows.are_whole and end != count)]:
        text = "a text" if len(ends) > 1 else "the text"
        raise EditError(
            f"{what} has {count} tokens, but {text} has {wrong[0]}: expected as many, "
            "since positions correspond one by one."
        )
    return given.to(like)[:, rows.position.to(given.device)]


def check_by(by: By) -> None:
    """Refuse what can take the place of nothing."""
    if by is None or isinstance(by, (bool, int, float)):
        raise EditError(
            "by is 'zero', 'mean', a list of texts, over which the mean is taken, one text, whose "
            f"parts take the place of others, or a tensor (tokens, dim), not {by!r:.60}."
        )
    if isinstance(by, (list, tuple)) and not by:
        raise EditError(
            f"by={by!r} has no text: expected at least one, over which the mean is taken."
        )
    if is_vectors(by) and by.dim() != 2:
        raise EditError(f"by is vectors (tokens, dim), not a tensor {tuple(by.shape)}.")
    if is_vectors(by):
        check_finite("by", by)


def check_finite(what: str, given: Tensor) -> None:
    """Refuse vectors with which a stream would be NaN."""
    if not bool(given.isfinite().all()):
        raise EditError(f"{what} must be finite, but NaN or infinity is among the numbers.")
