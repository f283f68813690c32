"""Reads arguments: numbers, layers, heads and tokens."""

from __future__ import annotations

import argparse
import re
from math import isfinite, nan
from typing import NoReturn

from gattn.errors import SelectionError
from gattn.names.places import DIGITS, read_choice, read_numbers

REDUCTIONS = ("mean", "max", "min")
"""The names in `gattn.names.choices`, which is not loaded for --help."""
_LARGEST = 100
"""The largest width or height of a picture, in inches."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that they are printed as one line like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise a SelectionError that says what is wrong and where to find help."""
        if "expected one argument" in message:
            message += "; write one that begins with - after =, as in --query=-x"
        if re.search("required: .*TEXT", message):
            message += "; write a text that begins with - after --, as in -- -x"
        raise SelectionError(f"{message}. See {self.prog} --help.")


def whole(text: str, least: int | None = None) -> int:
    """Read a whole number."""
    is_number = re.fullmatch(r"[-+]?\d{1,12}", text.strip())
    if not is_number or (least is not None and int(text) < least):
        range_ = f"of at least {least}" if least is not None else "of at most 12 digits"
        raise argparse.ArgumentTypeError(
            f"expected a whole number {range_}, such as {max(2, least or 0)}, not {text!r}"
        )
    return int(text)


def place_number(text: str) -> int:
    """Read the number of a layer or head."""
    if place := re.fullmatch(r"(\d+)\.(\d+)", text.strip()):
        raise argparse.ArgumentTypeError(
            f"expected one number, not {text!r}: head {place[2]} of layer {place[1]} is --layer "
            f"{place[1]} --head {place[2]}"
        )
    return whole(text)


def real(text: str) -> float:
    """Read a number."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, not {text!r}")
    return number


def size(text: str) -> tuple[float, float]:
    """Read a width and a height in inches."""
    try:
        width, height = (real(part) for part in re.split("[x×,]", text.strip()))
    except (ValueError, argparse.ArgumentTypeError):
        width = height = 0.0
    if not (0 < width <= _LARGEST and 0 < height <= _LARGEST):
        raise argparse.ArgumentTypeError(
            f"expected a width and a height in inches, each at most {_LARGEST}, such as 3.3x2.4, "
            f"not {text!r}"
        )
    return width, height


def layer_choice(written: str | None) -> list[int] | None:
    """Read --layers: numbers and ranges, as in 0,2-4; None for all."""
    if written is None:
        return None
    try:
        return read_numbers(written)
    except ValueError as error:
        raise SelectionError(
            f"--layers takes numbers and ranges, as in 0,2-4, not {written!r:.80}."
        ) from error


def head_choice(written: str | None) -> tuple[str | None, list[int] | list[tuple[int, int]] | None]:
    """Read --heads: numbers, as in 0,2, or LAYER.HEAD, as in 1.1,2.0; None for all.

    The stack, where one is named, comes first.
    """
    if written is None:
        return None, None
    try:
        return read_choice(written)
    except ValueError as error:
        instead = "; --reduce says how heads are combined" if written in REDUCTIONS else ""
        raise SelectionError(
            "--heads takes head numbers, as in 0,2, or LAYER.HEAD, as in 1.1,2.0, not "
            f"{written!r:.80}{instead}."
        ) from error


def written_token(written: str) -> int | str:
    """Read a token: a position, negative from the end, or its text, with or without quotes."""
    if not written.removeprefix("-").isdecimal():
        return written.strip("'\"").strip()
    if len(written) > DIGITS:
        raise SelectionError(f"No position {written}: positions have at most {DIGITS} digits.")
    return int(written)
