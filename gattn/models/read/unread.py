"""Finds what may be padding that reads itself, or other tokens, so that it reads something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_OF_PADDING = re.compile(r"pad|^mask$")
_OF_TOKENS = re.compile(r"^(\w+_)?(attention|attn)_mask$")
_OF_POSITIONS = re.compile(r"^(\w+_)?pos(itions?)?(_ids)?$")


def may_be_unread(readable: Tensor, offset: int, length: int) -> bool:
    """Return whether the first or the last query may be padding; it looks at these alone.

    `readable` (elements, heads, queries, keys) says what they read; `offset` is the slot of the
    first query among the keys.
    """
    if readable.shape[2] != length or not 0 <= offset <= readable.shape[3] - length:
        return False
    (first, of_first), (last, of_last) = (  # Views: a proof takes indices for those of the model.
        (readable[:, :, n].any(1), readable[..., offset + n].any(1).sum(1)) for n in (0, length - 1)
    )
    is_last = (last.sum(1) == 1) & (of_last == 1)
    reads_ahead = first[:, offset + 1 : offset + length].any(1)
    is_first = ((first.sum(1) == 1) | reads_ahead) & (of_first < max(length, 2))
    return bool((is_first | is_last).any())


def unread(reads: Tensor, offset: int) -> Tensor:
    """Find the first and last queries that may be padding, booleans (elements, queries).

    No other query reads them, and they read nothing but themselves, or, if they are the first, keys
    after themselves. `reads` (elements, queries, keys) is as in `may_be_unread`.
    """
    own = _own(reads, offset)
    is_alone = (reads.sum(2) == 1) & own.diagonal(dim1=1, dim2=2)
    first = _kept_apart(own, _run(is_alone | own.triu(1).any(2)))
    first &= ~first.all(1, keepdim=True) | is_alone.any(1, keepdim=True)
    last = _kept_apart(own.flip(1, 2), _run(is_alone.flip(1))).flip(1)
    return first | last


def are_texts(reads: Tensor, padding: Tensor, offset: int) -> Tensor:
    """Return in which elements each query that is no padding reads the one before it.

    So it is in texts of two tokens or more; nodes of a graph, or documents of one token, may be
    alone without padding.
    """
    reads_before = _own(reads, offset).diagonal(-1, dim1=1, dim2=2)
    is_between = padding[:, 1:] | padding[:, :-1]
    return (reads_before | is_between).all(1) & ~is_between.all(1)


def _run(some: Tensor) -> Tensor:
    """Return the first of some queries, up to another one."""
    return some.long().cumprod(1).bool()


def _kept_apart(own: Tensor, some: Tensor) -> Tensor:
    """Return those of the first queries that no query after them reads."""
    while True:
        is_read = (own & ~some[:, :, None]).any(1)
        left = _run(some & ~is_read)
        if torch.equal(left, some):
            return some
        some = left


def _own(reads: Tensor, offset: int) -> Tensor:
    return reads[:, :, offset : offset + reads.shape[1]]


def said_padding(
    inputs: Mapping[str, Any], reads: Tensor, found: Tensor, offset: int, *, tokens_first: bool
) -> Tensor:
    """Find which of the queries `found` an input of the model marks as padding.

    Its name says so: one with "pad" and `mask` may mark tokens or padding, `attention_mask` is 0 or
    negative at padding, and so are positions. It has a number for each query, or for each key.
    """
    own, (_, length, size) = _own(reads, offset), reads.shape
    for name, x in _named(inputs):
        x = x.T if tokens_first else x
        if x.shape[1:] not in ((length,), (size,)) or len(x) not in (1, len(found)):
            continue
        if x.shape[1] == size:
            x = x[:, offset : offset + length]
        for marked in _marks(name, x.expand(len(found), -1).to(found.device)):
            is_apart = not bool(((own & ~marked[:, :, None]).any(1) & marked).any())
            if is_apart and bool(marked.any()) and not bool((marked & ~found).any()):
                return marked
    return torch.zeros_like(found)


def _marks(name: str, x: Tensor) -> Iterator[Tensor]:
    if _OF_TOKENS.search(name):
        yield x < 0 if x.is_floating_point() and bool((x < 0).any()) else x == 0
    elif _OF_PADDING.search(name):
        yield from (x != 0, x == 0)
    elif _OF_POSITIONS.search(name) and not x.is_floating_point():
        yield x < 0


def _named(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, x in inputs.items():
        if isinstance(x, Mapping):
            yield from _named(x)
        elif isinstance(x, Tensor) and x.dim() == 2:
            yield name, x.detach()
