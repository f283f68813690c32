"""Where the nodes of a circuit lie: a stack's tokens side by side, layers upwards as they ran."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gattn.analysis.circuits.found import Circuit, Node, key_side
from gattn.analysis.circuits.measuring.measured import layers_run
from gattn.names.shortening import short_names
from gattn.names.text import numbered

MOST_TOKENS = 40
"""The most columns of tokens if those that are not in the circuit are shown."""
_SMALL_GAP = 0.5
"""How far stacks of the same tokens lie above each other, in layers."""

STACK_NAME = 10.5
"""The width of a stack's name in font sizes, at most."""


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
        Where the first token lies, and where the texts are written.
    has_names : bool
        Whether the texts are written below it; not if the stack below has the same tokens.
    first : int
        The number of its lowest layer.
    rises : sequence of float
        How far above the base each depth lies; by default one layer more than the depth before. In
        stacks whose layers ran in turn with those of others, there is room for these in between.
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
    rises: Sequence[float] = ()

    def place(self, position: int, depth: int) -> tuple[float, float]:
        """Return where a token's stream lies at a depth."""
        return self.left + list(self.tokens).index(position), self.height(depth)

    def height(self, depth: int) -> float:
        """Return how high a depth lies."""
        return self.base + (self.rises[depth] if self.rises else depth)

    @property
    def top(self) -> float:
        """How high its last layer ends."""
        return self.height(self.layers)


def bands_of(circuit: Circuit, whole: bool, gap: float = 1.0) -> dict[str, Band]:
    """Lay out the layers of a circuit upwards in the order in which they ran.

    Stacks that ran one after another lie one above another. Those whose layers took turns, such as
    a decoder's attention to itself and to an encoder, lie in one *tier*, layer by layer. Where
    queries and keys of a stack are different tokens, the keys are on the left. Stacks that none of
    its nodes is in are left out.

    Parameters
    ----------
    circuit : Circuit
        The circuit.
    whole : bool
        Whether to show all tokens of a text, or only those of the circuit. Of the nodes of a graph,
        which have no order, only those of the circuit are shown.
    gap : float
        How far tiers of other tokens lie above each other, in layers.

    Returns
    -------
    dict of str to Band
        By the name that nodes have for their stack, "" if they have none.
    """
    names = json.loads(circuit.graph["names"])
    used = _used(circuit)
    short = dict(zip(circuit.stacks, short_names(circuit.stacks, STACK_NAME), strict=True))
    found: dict[str, Band] = {}
    base, below = 0.0, None
    for tier in _tiers(circuit, used):
        left = 0
        lefts: dict[tuple[bool, tuple[str, ...]], int] = {}
        shown: list[dict[int, str]] = []
        bands = {}
        for name, stack, is_key_side, rises in tier:
            texts = names[stack][is_key_side]
            side = is_key_side, tuple(texts)
            is_first = side not in lefts
            alike = (used[n] for n, s, k in _sides(circuit, used) if names[s][k] == texts)
            tokens = _shown(texts, set().union(*alike), whole and _is_text(circuit, texts))
            if is_first:
                lefts[side] = left
                left += len(tokens) + 1
                shown.append(tokens)
            bands[name] = Band(
                stack, short[stack], is_key_side, tokens, len(rises) - 1, lefts[side],
                has_names=is_first, rises=rises,
            )  # fmt: skip
        has_names = shown != below
        if found:
            base += gap if has_names else _SMALL_GAP
        found |= {
            name: replace(band, base=base, has_names=band.has_names and has_names)
            for name, band in bands.items()
        }
        base, below = max(band.top for band in found.values()), shown
    return found


def columns(bands: Mapping[str, Band]) -> int:
    """Count the columns of tokens."""
    return max(band.left + len(band.tokens) for band in bands.values())


def top(bands: Mapping[str, Band]) -> float:
    """Return how high the highest layer ends."""
    return max(band.top for band in bands.values())


def name_of(node: Node) -> str:
    """Return the name that a node has for its stack; "" if there is only one."""
    return str(node[0]) if len(node) == 3 else ""


def place_of(bands: Mapping[str, Band], node: Node) -> tuple[float, float]:
    """Return where a node lies."""
    *_, depth, position = node
    return bands[name_of(node)].place(int(position), int(depth))


def _used(circuit: Circuit) -> dict[str, set[int]]:
    """List the positions of the nodes of each stack."""
    used: dict[str, set[int]] = {}
    for node in circuit:
        used.setdefault(name_of(node), set()).add(node[-1])
    return used or {"": set()}


def _tiers(
    circuit: Circuit, used: Mapping[str, Any]
) -> list[list[tuple[str, str, bool, list[float]]]]:
    """List what lies in one tier, from below: as `_sides` does, keys first, and how it rises."""
    sides = _sides(circuit, used)
    shown = {stack for _, stack, _ in sides}
    layers = json.loads(circuit.graph["layers"])
    ran = layers_run(circuit, {stack: layers[stack] for stack in circuit.stacks if stack in shown})
    tiers = []
    for together in _in_turn(ran):
        rows = {place: float(row) for row, place in enumerate(p for p in ran if p[0] in together)}
        tier = [(*side, _rises(rows, *side[1:])) for side in sides if side[1] in together]
        tiers.append(sorted(tier, key=lambda one: not one[2]))
    return tiers


def _sides(circuit: Circuit, used: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """List the sides of stacks that nodes are on: their name in nodes, stack, and whether keys."""
    stacks = circuit.stacks
    if "" in used:
        return [("", stacks[0], False)] if stacks else []
    every = [(key_side(stack), stack, True) for stack in stacks]
    every += [(stack, stack, False) for stack in stacks]
    return [one for one in every if one[0] in used]


def _in_turn(ran: Sequence[tuple[str, int]]) -> list[set[str]]:
    """Group the stacks whose layers ran in turn, in the order in which the groups ran."""
    last = {stack: at for at, (stack, _) in enumerate(ran)}
    groups: list[set[str]] = []
    end = -1
    for at, (stack, _) in enumerate(ran):
        if at > end:
            groups.append(set())
        groups[-1].add(stack)
        end = max(end, last[stack])
    return groups


def _rises(rows: Mapping[tuple[str, int], float], stack: str, is_key_side: bool) -> list[float]:
    """Say how high each depth lies: keys where their layer begins, others where one ended."""
    own = [row for (name, _), row in rows.items() if name == stack]
    return [*own, own[-1] + 1] if is_key_side else [own[0], *(row + 1 for row in own)]


def _is_text(circuit: Circuit, texts: Sequence[str]) -> bool:
    """Whether tokens have an order and texts; the nodes of a graph are named by their numbers."""
    is_named = any(text != str(at) for at, text in enumerate(texts))
    return bool(circuit.graph["has_stream"]) and is_named


def _shown(texts: Sequence[str], used: set[int], whole: bool) -> dict[int, str]:
    """Choose the tokens, by position; if some are left out, their texts say it."""
    if whole or len(used) == len(texts):
        return dict(enumerate(texts))
    return {at: numbered(at, texts[at]) for at in sorted(used)}
