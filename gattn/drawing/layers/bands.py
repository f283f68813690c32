"""Where the nodes of a circuit lie: a stack's tokens side by side, its layers upwards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gattn.analysis.circuits.found import Circuit, Node, key_side
from gattn.names.shortening import shortened
from gattn.names.text import numbered, visible

MOST_TOKENS = 40
"""The most columns of tokens if those that are not in the circuit are shown."""
_SMALL_GAP = 0.5
"""How far stacks of the same tokens lie above each other, in layers."""

_NAME, _WHOLE = 10.5, 200
"""The width of a stack's name in font sizes, at most; the most letters of one that are read."""


@dataclass(frozen=True)
class Band:
    """The tokens of a stack side by side, once per depth.

    Parameters
    ----------
    stack : str
        The stack.
    name : str
        Its name, shortened so that it is told from all stacks of the model.
    is_key_side : bool
        Whether these are the keys of a stack whose keys are other tokens than its queries.
    tokens : mapping of int to str
        The texts of the tokens that are shown, by position.
    layers : int
        How many layers the stack has.
    left, base : float
        Where the first token lies, and depth 0.
    has_names : bool
        Whether the texts are written below it; not if the stack below has the same tokens.
    first : int
        The number of its lowest layer.
    """

    stack: str
    name: str
    is_key_side: bool
    tokens: Mapping[int, str]
    layers: int
    left: int = 0
    base: float = 0.0
    has_names: bool = True
    first: int = 0

    def place(self, position: int, depth: int) -> tuple[float, float]:
        """Return where a token's stream lies at a depth."""
        return self.left + list(self.tokens).index(position), self.base + depth


def bands_of(circuit: Circuit, whole: bool, gap: float = 1.0) -> dict[str, Band]:
    """Lay out the stacks of a circuit one above another, in the order in which they ran.

    Where queries and keys of a stack are different tokens, the keys are on the left. Stacks that
    none of its nodes is in are left out.

    Parameters
    ----------
    circuit : Circuit
        The circuit.
    whole : bool
        Whether to show all tokens of a text, or only those of the circuit. Of the nodes of a graph,
        which have no order, only those of the circuit are shown.
    gap : float
        How far stacks of other tokens lie above each other, in layers.

    Returns
    -------
    dict of str to Band
        By the name that nodes have for their stack, "" if they have none.
    """
    names, layers = (json.loads(circuit.graph[name]) for name in ("names", "layers"))
    used = _used(circuit)
    short = dict(zip(circuit.stacks, _short(circuit.stacks), strict=True))
    found: dict[str, Band] = {}
    base, below = 0.0, None
    for tier in _tiers(circuit.stacks, used):
        left = 0
        bands = {}
        for name, stack, is_key_side in tier:
            texts = names[stack][is_key_side]
            alike = (used[n] for n, s, k in _flat(circuit, used) if names[s][k] == texts)
            tokens = _shown(texts, set().union(*alike), whole and _is_text(circuit, texts))
            bands[name] = Band(stack, short[stack], is_key_side, tokens, layers[stack], left)
            left += len(tokens) + 1
        shown = [band.tokens for band in bands.values()]
        has_names = shown != below
        if found:
            base += gap if has_names else _SMALL_GAP
        found |= {n: replace(band, base=base, has_names=has_names) for n, band in bands.items()}
        base, below = base + max(band.layers for band in bands.values()), shown
    return found


def columns(bands: Mapping[str, Band]) -> int:
    """Count the columns of tokens."""
    return max(band.left + len(band.tokens) for band in bands.values())


def top(bands: Mapping[str, Band]) -> float:
    """Return how high the highest layer ends."""
    return max(band.base + band.layers for band in bands.values())


def name_of(node: Node) -> str:
    """Return the name that a node has for its stack; "" if there is only one."""
    return str(node[0]) if len(node) == 3 else ""


def place_of(bands: Mapping[str, Band], node: Node) -> tuple[float, float]:
    """Return where a node lies."""
    *_, depth, position = node
    return bands[name_of(node)].place(int(position), int(depth))


def _short(stacks: Sequence[str]) -> list[str]:
    return shortened([visible(stack, limit=_WHOLE) for stack in stacks], _NAME)


def _used(circuit: Circuit) -> dict[str, set[int]]:
    """List the positions of the nodes of each stack."""
    used: dict[str, set[int]] = {}
    for node in circuit:
        used.setdefault(name_of(node), set()).add(node[-1])
    return used or {"": set()}


def _tiers(stacks: Sequence[str], used: Mapping[str, Any]) -> list[list[tuple[str, str, bool]]]:
    """List what lies side by side, from below: the name in nodes, the stack, and whether keys."""
    if "" in used:
        return [[("", stacks[0], False)]] if stacks else []
    every = [[(key_side(stack), stack, True), (stack, stack, False)] for stack in stacks]
    tiers = [[one for one in tier if one[0] in used] for tier in every]
    return [tier for tier in tiers if tier]


def _flat(circuit: Circuit, used: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    return [one for tier in _tiers(circuit.stacks, used) for one in tier]


def _is_text(circuit: Circuit, texts: Sequence[str]) -> bool:
    """Whether tokens have an order and texts; the nodes of a graph are named by their numbers."""
    is_named = any(text != str(at) for at, text in enumerate(texts))
    return bool(circuit.graph["has_stream"]) and is_named


def _shown(texts: Sequence[str], used: set[int], whole: bool) -> dict[int, str]:
    """Choose the tokens, by position; if some are left out, their texts say it."""
    if whole or len(used) == len(texts):
        return dict(enumerate(texts))
    return {at: numbered(at, texts[at]) for at in sorted(used)}
