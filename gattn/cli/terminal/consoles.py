"""Makes standard streams take any character, and replaces missing ones."""

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
"""What to print when an encoding lacks a character; others are escaped, as in ``\\u72ac``."""


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks: an error handler for `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(_replaced, characters)), error.end


def _replaced(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not valid text
        return f"\\x{ord(character) - 0xDC00:02x}"
    escaped = character.encode("ascii", "backslashreplace").decode()
    return _READABLE.get(character, escaped)


codecs.register_error("gattn", _readable)


@contextmanager
def any_console() -> Iterator[None]:
    """Let any character be printed within, and send output nowhere if a stream is closed."""
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
        with suppress(OSError):  # It flushes, and the reader may be gone.
            stream.reconfigure(errors=errors)


def drop_output() -> None:
    """Discard the rest of the output, so that closing the stream does not fail again."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
