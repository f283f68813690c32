"""Reads what a caller gives as names and grids of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from numbers import Integral

from torch import Tensor

from gattn.errors import CaptureError


def check_texts(tokens: object) -> None:
    """Refuse what is neither texts nor lists or mappings of them."""
    if isinstance(tokens, Mapping):
        for stack, texts in tokens.items():
            _check_list(texts, f" for the stack {stack!r}")
    elif tokens is not None:
        _check_list(tokens, "")


def _check_list(given: object, where: str) -> None:
    is_list = isinstance(given, Sized) and isinstance(given, Iterable)
    if isinstance(given, str) or not is_list:
        raise CaptureError(
            f"tokens= takes one text per token, such as a list of words, not {given!r:.60}{where}."
        )


def is_grid(given: object) -> bool:
    """Return whether two numbers are given, of rows and of columns."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return False
    return all(isinstance(one, Integral) and int(one) > 0 for one in given)


def text_of(one: object) -> str:
    """Write a token's text; ids may come as tensors."""
    return str(one.item() if isinstance(one, Tensor) and one.numel() == 1 else one)


def is_nested(given: Sequence[object]) -> bool:
    """Return whether texts are listed for each sequence; one token may be any object."""
    return isinstance(next(iter(given), ""), (list, tuple, Mapping))
