"""Standard streams that take any character and are never missing."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TextIO

_READABLE = {
    "→": "->",
    "←": "<-",
    "↺": "(self)",
    "↵": "\\n",
    "␣": "_",
    "…": "...",
    "−": "-",
    "–": "-",
    "—": "-",
    "·": "|",
    "×": "x",
    "≥": ">=",
    "≤": "<=",
    "◌": "",
}
"""What a console shows that lacks a character; others are escaped, as in ``\\u72ac``."""


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding lacks: an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(_replaced, characters)), error.end


def _replaced(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file's name
        return f"\\x{ord(character) - 0xDC00:02x}"
    escaped = character.encode("ascii", "backslashreplace").decode()
    return _READABLE.get(character, escaped)


codecs.register_error("gattn", _readable)


@contextmanager
def any_console() -> Iterator[None]:
    """Print any character within, and take streams that are closed for /dev/null."""
    with ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                stack.enter_context(_instead(name))
            else:
                stack.enter_context(_any_character(getattr(sys, name)))
        yield


@contextmanager
def _instead(name: str) -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        setattr(sys, name, nowhere)
        try:
            yield
        finally:
            setattr(sys, name, None)


@contextmanager
def _any_character(stream: TextIO) -> Iterator[None]:
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    errors = stream.errors
    with suppress(OSError):
        stream.reconfigure(errors="gattn")
    try:
        yield
    finally:
        with suppress(OSError):  # It flushes, and what was printed may have no reader.
            stream.reconfigure(errors=errors)


def drop_output() -> None:
    """Send what is left of the output nowhere, so that nothing fails again at the end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
