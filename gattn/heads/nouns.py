"""What the points of a head are called: tokens of a text, patches of an image, nodes of data."""

from __future__ import annotations

from gattn.heads.geometry import Geometry

GRAPH = "graph"
"""The stack of attention along the edges of one graph of data."""


def noun_of(geometry: Geometry | None, stack: str = "") -> str:
    """Return "token", "patch" or "node", by where they lie, or else by the name of their stack.

    A layer over the edges of data is in the stack "graph", or in one named after a type of edges,
    such as "paper cites paper".
    """
    if geometry is not None:
        return geometry.noun
    words = stack.partition(",")[0].split(" ")
    is_of_data = words == [GRAPH] or (len(words) == 3 and words[0] == words[2])
    return "node" if is_of_data else "token"


def several(noun: str) -> str:
    """Write "tokens", "patches", "queries"."""
    return {"patch": "patches", "query": "queries"}.get(noun, f"{noun}s")


def counted(number: int, noun: str) -> str:
    """Write "1 token", "2 tokens", "3 patches"."""
    return f"{number} {noun if number == 1 else several(noun)}"
