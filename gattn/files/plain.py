"""Converts values and text into forms that standard JSON and XML can hold, and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gattn.errors import FileError

_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"
_UNSAFE = re.compile(rf"[\\{_CONTROL}]")
_UNPRINTABLE = re.compile(f"[{_CONTROL}]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NO_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[^"\[\]{}]+', re.DOTALL)
_OPENING, _CLOSING = list(b"[{"), list(b"]}")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


def escape(text: str) -> str:
    r"""Write control characters, lone surrogates and the backslash as \\u and four digits."""
    return _UNSAFE.sub(_code, text)


def unescape(text: str) -> str:
    """Undo `escape`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def printable(text: str) -> str:
    """Escape control characters and lone surrogates, so that other tools can show the text."""
    return _UNPRINTABLE.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def scalar(value: Any) -> Any:
    """Turn a NumPy scalar into a Python one."""
    return value.item() if isinstance(value, np.generic) else value


DEEPEST_ID = 20
"""How deeply the tuples of a node's id may be nested."""


def node_id(node: Any, depth: int = DEEPEST_ID) -> Any:
    """Check that a node's id is one that files can hold: an int, a str, or a tuple of these."""
    node = scalar(node)
    if isinstance(node, list | tuple) and not depth:
        raise FileError(f"The id of a node is nested more than {DEEPEST_ID} levels deep.")
    if isinstance(node, tuple):
        return tuple(node_id(part, depth - 1) for part in node)
    if not isinstance(node, int | str):
        raise FileError(
            f"The id of a node must be an int, a str or a tuple of these, not {node!r}."
        )
    return node


def attribute_name(name: Any) -> str:
    """Check that the name of an attribute is a str without control characters."""
    if not isinstance(name, str) or _UNPRINTABLE.search(name):
        raise FileError(f"The name of an attribute must be a printable str, not {name!r}.")
    return name


def to_json(value: Any) -> Any:
    """Turn a value into standard JSON; `from_json` undoes it.

    Infinities, NaN, tuples and text with lone surrogates, which JSON lacks, become objects with one
    marked key.
    """
    value = scalar(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, str) and _SURROGATE.search(value):
        return {"$text": escape(value)}
    if isinstance(value, tuple):
        return {"$tuple": [to_json(part) for part in value]}
    if isinstance(value, list):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FileError(f"A file can hold numbers, text, lists and tuples, not {value!r}.")


def parsed(text: str, deepest: int = 100, hook: Callable[[Any], Any] | None = None) -> Any:
    """Parse JSON, but refuse nesting deeper than `deepest`, which is slow to parse."""
    brackets = np.frombuffer(_NO_BRACKET.sub("", text).encode(), np.uint8)
    opens = np.isin(brackets, _OPENING).cumsum() - np.isin(brackets, _CLOSING).cumsum()
    if len(opens) and int(opens.max()) > deepest:
        raise ValueError(
            f"it is nested {int(opens.max())} levels deep, but at most {deepest} are allowed"
        )
    return json.loads(text, object_hook=hook)


_MARKS: dict[str, Callable[[Any], Any]] = {"$float": float, "$text": unescape, "$tuple": tuple}


def from_json(content: dict[str, Any]) -> Any:
    """Undo `to_json` in one object, as the ``object_hook`` of `json.load`."""
    mark = next(iter(content), "")
    return _MARKS[mark](content[mark]) if len(content) == 1 and mark in _MARKS else content
