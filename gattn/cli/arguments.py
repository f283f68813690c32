"""How arguments are read: numbers, and what is said of what is none of them."""

from __future__ import annotations

import argparse
import re
from math import isfinite, nan
from typing import NoReturn

from gattn.errors import SelectionError
from gattn.names.places import DIGITS, list_places, read_numbers

_REDUCTIONS = ("mean", "max", "min")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the other commands: one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is.

        Raises
        ------
        SelectionError
            Always.
        """
        if "expected one argument" in message:
            message += ", and one that begins with - is written after =, as in --query=-x"
        if re.search("required: .*TEXT", message):
            message += ", and a text that begins with - is written after --, as in -- -x"
        raise SelectionError(f"{message}. See {self.prog} --help.")


def whole(text: str, least: int | None = None) -> int:
    """Read a whole number.

    Raises
    ------
    argparse.ArgumentTypeError
        Where the text is not one, or it is too small or too large to count anything.
    """
    is_number = re.fullmatch(r"[-+]?\d{1,12}", text.strip())
    if not is_number or (least is not None and int(text) < least):
        range_ = f"of at least {least}" if least is not None else "of at most 12 digits"
        raise argparse.ArgumentTypeError(
            f"expected a whole number {range_}, such as {max(2, least or 0)}, not {text!r}"
        )
    return int(text)


def real(text: str) -> float:
    """Read a number.

    Raises
    ------
    argparse.ArgumentTypeError
        Where the text is not one, or not finite.
    """
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, not {text!r}")
    return number


def head_places(written: str) -> tuple[str | None, list[tuple[int, int]]]:
    """Read a stack, where it is named, and heads as LAYER.HEAD."""
    try:
        return list_places(written)
    except ValueError as error:
        raise SelectionError(f"--heads takes {error}; not {written!r:.80}.") from error


def head_choice(written: str | None) -> tuple[str | None, list[int] | list[tuple[int, int]] | None]:
    """Read which heads: numbers, as in 0,2, or places, as in 1.1,2.0; None for all.

    First comes the stack, where it is named.

    Raises
    ------
    SelectionError
        Where they are none.
    """
    if written is None:
        return None, None
    if "." in written:
        return head_places(written)
    try:
        return None, read_numbers(written)
    except ValueError as error:
        instead = "; how they become one is --reduce mean, max or min"
        raise SelectionError(
            f"--heads says which heads: numbers, as in 0,2, or LAYER.HEAD, as in 1.1,2.0, not "
            f"{written!r:.80}{instead if written in _REDUCTIONS else ''}."
        ) from error


def written_token(written: str) -> int | str:
    """Read a token: its position, from the end where negative, or its text, quoted or not.

    Raises
    ------
    SelectionError
        Where it is a number larger than any position.
    """
    if not written.removeprefix("-").isdecimal():
        return written.strip("'\"").strip()
    if len(written) > DIGITS:
        raise SelectionError(f"No position {written}: positions have at most {DIGITS} digits.")
    return int(written)
