"""Records of the edits of a run, for traces, files and surveys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Numbers: TypeAlias = int | str | slice | tuple[Any, ...] | None

_SHOWN = 2
_FIELDS = ("text", "kind", "stack", "layer", "head", "query", "key", "others", "digest")


class Described:
    """Anything with a record, equal if the records are."""

    @property
    def record(self) -> EditRecord:
        """Its record."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        """Compare the records."""
        if not isinstance(other, Described):
            return NotImplemented
        return self is other or self.record.identity == other.record.identity

    def __hash__(self) -> int:
        return hash(self.record.identity)


@dataclass(frozen=True, eq=False, repr=False)
class EditRecord(Described):
    """What a file keeps of an edit: enough to show and compare it, not to run it.

    Parameters
    ----------
    text : str
        The edit in Python, such as ``"Cut(layer=5, head=1)"``.
    kind : str
        Its class, such as "Cut".
    stack, layer, head, query, key : optional
        Where, as in the edit; None for all, or if it is not a number, text or span.
    others : dict
        Its other fields that are not as by default, such as the factor of a `Scale`: numbers,
        texts, lists of these, or else the text of what they hold.
    digest : str
        Tells a graph, or a function's parameters, from others with the same text.
    """

    text: str
    kind: str
    stack: str | None = None
    layer: Numbers = None
    head: Numbers = None
    query: Numbers = None
    key: Numbers = None
    others: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def record(self) -> EditRecord:
        """Itself."""
        return self

    @property
    def identity(self) -> str:
        """The text, and the digest if there is one."""
        return f"{self.text} #{self.digest}" if self.digest else self.text

    def __repr__(self) -> str:
        """Show the edit in Python."""
        return self.text


Edits: TypeAlias = tuple[Described, ...]
"""The edits of a run: each a `gattn.models.edit.base.Edit`, or an `EditRecord` from a file."""


def in_words(edits: Iterable[object]) -> str:
    """Write "edited by Cut(layer=5), Cut(layer=6) and 7 more edits", or "" without edits."""
    texts = [str(edit) for edit in edits]
    more = len(texts) - _SHOWN
    if more > 0:
        texts = [*texts[:_SHOWN], f"{more} more edit{'s' * (more > 1)}"]
    *first, last = texts or [""]
    return f"edited by {', '.join(first)}{' and ' * bool(first)}{last}" if last else ""


def between(before: Sequence[object], after: Sequence[object]) -> str:
    """Describe the edits of two runs, before and after; "" if neither had any."""
    one, other = in_words(before), in_words(after)
    if not one:
        return other and f"after: {other}"
    if list(before) == list(after):
        return f"both {one}"
    return f"before: {one}; after: {other or 'without edits'}"


def identities(edits: Iterable[Described]) -> list[str]:
    """Return texts that are equal if the edits are."""
    return [edit.record.identity for edit in edits]


def from_identity(identity: str) -> EditRecord:
    """Make a record from a text of `identities`; it equals the edit."""
    text, _, digest = identity.rpartition(" #")
    text, digest = (text, digest) if text and digest else (identity, "")
    return EditRecord(text, kind=text.partition("(")[0], digest=digest)


def union(several: Iterable[Edits]) -> Edits:
    """Combine the edits of several heads, which mostly share one tuple.

    Only different objects are compared, because a digest of parameters takes long.
    """
    different = list({id(some): some for some in several}.values())
    edits = {id(edit): edit for some in different for edit in some}
    for some in different:
        if list(map(id, some)) == list(edits):
            return some
    return tuple(dict.fromkeys(edits.values()))


def checked(edits: Iterable[Any]) -> Edits:
    """Refuse what is not an edit."""
    found = tuple(edits)
    if wrong := [edit for edit in found if not isinstance(edit, Described)]:
        raise TypeError(f"edits holds edits, such as gattn.Cut(layer=0), not {wrong[0]!r:.60}")
    return found


def to_text(edits: Iterable[Described]) -> str:
    """Write edits as a JSON list."""
    return json.dumps([written(edit) for edit in edits])


def from_text(text: str) -> tuple[EditRecord, ...]:
    """Read what `to_text` wrote; anything else is a ValueError."""
    listed = json.loads(text)
    if not isinstance(listed, list):
        raise ValueError(f"edits must be a JSON list, not {text!r:.60}")
    return tuple(map(read, listed))


def written(edit: Described) -> dict[str, Any]:
    """Write an edit as JSON, without empty fields."""
    values = {name: getattr(edit.record, name) for name in _FIELDS}
    return {
        name: {"slice": _bounds(value)} if isinstance(value, slice) else value
        for name, value in values.items()
        if value not in (None, "", {})
    }


def _bounds(span: slice) -> list[int | None]:
    return [span.start, span.stop] + ([] if span.step is None else [span.step])


def read(found: Any) -> EditRecord:
    """Read what `written` wrote; anything else is a ValueError."""
    if not isinstance(found, dict) or not set(found) <= set(_FIELDS):
        raise ValueError(f"an edit has the fields {', '.join(_FIELDS)}, not {found!r:.200}")
    others = found.get("others", {})
    values = {name: _value(value) for name, value in found.items() if name != "others"}
    texts = [values.get(name, "") for name in ("text", "kind", "stack", "digest")]
    if not {"text", "kind"} <= set(values) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"an edit has a text and a kind, not {found!r:.200}")
    if not isinstance(others, dict):
        raise ValueError(f"an edit's other fields are named, not {others!r:.60}")
    return EditRecord(**values, others=others)


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        start, stop, *step = value["slice"]
        return slice(start, stop, *step)
    return tuple(map(_value, value)) if isinstance(value, list) else value
