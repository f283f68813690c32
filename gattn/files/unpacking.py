"""Unpacks heads and traces from JSON and arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from gattn import edit_records
from gattn.files.checking import check_graph
from gattn.files.packing import CLASSES
from gattn.files.plain import from_json
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


class Unpacker:
    """Undoes `Packer`. It builds only the classes of a fixed table, and checks them.

    Parameters
    ----------
    array : callable
        Reads an array by its name and type.
    size : int
        The size of the file in bytes, which limits the number of shared parts, nested ones too.
    """

    def __init__(self, array: Callable[[str, str], NDArray[Any]], size: int) -> None:
        self._array, self._size = array, size
        self._shared: list[Any] = []
        self._parts: list[int] = []
        self._count = 0

    def unpack_shared(self, shared: list[Any]) -> None:
        """Read the shared parts, which later parts refer to."""
        for value in shared:
            self._count = 0
            made = self.unpack(value)
            if self._count > self._size:
                raise ValueError("its shared parts are nested, and need more than the file holds")
            self._shared.append(made)
            self._parts.append(self._count)

    def unpack_trace(self, content: dict[str, Any]) -> AttentionTrace:
        """Read a trace."""
        stacks = {
            self._text(name): Stack(
                self._text(own_name),
                {_place(layer, head): self.unpack_head(graph) for layer, head, graph in heads},
            )
            for name, own_name, heads in content["stacks"]
        }
        # The first version stored neither the number of generated tokens nor the text.
        generated, text = content.get("generated", 0), self._text(content.get("text", ""))
        return AttentionTrace(stacks, self._text(content["model"]), generated, text=text)

    def unpack_head(self, content: Any) -> AttentionGraph:
        """Read a head."""
        head = self.unpack(content)
        if not isinstance(head, AttentionGraph):
            raise TypeError(f"expected an AttentionGraph, not a {type(head).__name__}")
        return head

    def _text(self, value: Any) -> str:
        text = self.unpack(value)
        if not isinstance(text, str):
            raise TypeError(f"expected a text, not a {type(text).__name__}")
        return text

    def unpack(self, value: Any) -> Any:
        """Read a head, or anything that a head holds."""
        self._count += 1
        if not isinstance(value, dict):
            return value
        ((mark, content),) = value.items()
        if mark == "$shared":
            return self._find(content)
        if mark == "$array":
            return self._array(*content)
        if mark == "$tensor":
            return torch.from_numpy(self._array(*content))
        if mark == "$edit":
            return edit_records.read(content)
        if mark == "$tuple":
            return tuple(self.unpack(part) for part in content)
        if mark in CLASSES:
            return self._build(CLASSES[mark], content)
        return from_json(value)

    def _find(self, place: Any) -> Any:
        if type(place) is not int or not 0 <= place < len(self._shared):
            raise LookupError(f"nothing is shared at {place!r:.80}")
        self._count += self._parts[place]
        return self._shared[place]

    def _build(self, kind: type[Any], content: dict[str, Any]) -> Any:
        parts = {name: self.unpack(part) for name, part in content.items()}
        if kind is AttentionGraph and isinstance(parts.get("kept_by"), str):
            parts["kept_by"] = steps.from_text(parts["kept_by"])
        made = kind(**parts)
        if kind is TokenGraph:
            check_graph(made, self._size)
        return made


def _place(layer: Any, head: Any) -> tuple[int, int]:
    if any(type(number) is not int or number < 0 for number in (layer, head)):
        raise ValueError(f"expected a layer and a head, not {layer!r:.80} and {head!r:.80}")
    return layer, head
