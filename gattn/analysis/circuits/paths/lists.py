"""All paths of a model from part to head, as arrays: the units of a circuit of paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.heads.trace import AttentionTrace
from gattn.models.edit.hear.paths import Weighed
from gattn.models.edit.heard import SIDES
from gattn.models.run.edit_context import Editing

if TYPE_CHECKING:
    from gattn.models.watch.contexts import Context

Ints: TypeAlias = NDArray[np.int64]

AMONG: Mapping[str, Sequence[str]] = {
    "paths": ("head",),
    "all paths": ("embedding", "head", "mlp"),
}
"""From which kinds of parts paths lead."""
_LARGEST = 1 << 18
"""How many paths of all copies run at once, at most."""


@dataclass(frozen=True, eq=False)
class PathList:
    """All paths from a part of the stream to the queries, keys or values of a later head.

    Each is a unit by itself.

    Parameters
    ----------
    kind : "paths" or "all paths"
        Whether paths lead from heads alone, or from embeddings and MLPs too.
    trace : AttentionTrace
        The plain run.
    stacks : sequence of str
        The names of the stacks of self-attention.
    names : mapping of str to sequence of str
        The parts of each stack.
    rows : array of int (paths, 5)
        The number of the stack, the layer and head that hear, the side, and the part that is heard.
    """

    kind: str
    trace: AttentionTrace
    stacks: Sequence[str]
    names: Mapping[str, Sequence[str]]
    rows: Ints

    fields = ("stack", "layer", "head", "side", "part")
    said = "paths"
    lost = "parts"
    is_causal = False

    @classmethod
    def of(cls, trace: AttentionTrace, kind: str) -> PathList:
        """List the paths of a model, of which a trace has all heads."""
        stacks = [
            name
            for name, stack in trace.stacks.items()
            if not next(iter(stack.values())).graph.is_bipartite
        ]
        names: dict[str, list[str]] = {}
        rows: list[tuple[int, ...]] = []
        for number, name in enumerate(stacks):
            known = names[name] = ["embedding"] if kind == "all paths" else []
            for layer, heads in heads_of(trace, name).items():
                rows += [
                    (number, layer, head, side, part)
                    for head in range(heads)
                    for side in range(len(SIDES))
                    for part in range(len(known))
                ]
                known += [f"{layer}.{head}" for head in range(heads)]
                known += [f"mlp {layer}"] if kind == "all paths" else []
        array = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return cls(kind, trace, stacks, names, array)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def edges(self) -> PathList:
        """What units are made of: itself."""
        return self

    @property
    def of_edge(self) -> Ints:
        """The unit of each path: itself."""
        return np.arange(len(self))

    @property
    def sizes(self) -> Ints:
        """How many paths each unit has: one."""
        return np.ones(len(self), dtype=np.int64)

    @cached_property
    def profile(self) -> Ints:
        """The group of each path among which random ones are drawn: where it ends."""
        return np.unique(self.rows[:, :2], axis=0, return_inverse=True)[1].reshape(-1)

    def spread(self, weights: Tensor) -> Tensor:
        """Give each path its weight."""
        return weights

    def with_path(self, kept: NDArray[np.bool_], positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return which paths lead on: all, since the stream carries what a head writes."""
        return kept

    def most_copies(self, size: int | None, most: int) -> int:
        """Return how many candidates run at once: `size` if memory of a text allows so many."""
        free = max(_LARGEST // max(len(self), 1), 1)
        return min(free if size is None else min(size, free), most)

    def context(self, weights: Tensor, instead: Any) -> Context:
        """Return the context that multiplies what heads hear by weights (copies, paths)."""
        weights = weights if weights.is_floating_point() else weights.float()
        by = "zero" if instead is None else instead
        return Editing([[Weighed(self._at, self.names, weights, AMONG[self.kind], by)]])

    @cached_property
    def _at(self) -> dict[tuple[str, int], Tensor]:
        """The paths that end in each layer."""
        found = {}
        for stack, layer in np.unique(self.rows[:, :2], axis=0).tolist():
            at = np.flatnonzero((self.rows[:, :2] == (stack, layer)).all(1))
            numbered = np.column_stack([at, self.rows[at, 2:]])
            found[self.stacks[stack], layer] = torch.from_numpy(numbered)
        return found

    def described(self, rows: Ints) -> list[list[Any]]:
        """Name the stacks, sides and parts of some rows."""
        return [
            [self.stacks[stack], layer, head, SIDES[side], self.names[self.stacks[stack]][part]]
            for stack, layer, head, side, part in rows.tolist()
        ]


def heads_of(trace: AttentionTrace, stack: str) -> dict[int, int]:
    """Count the heads of each layer of a stack."""
    counts: dict[int, int] = {}
    for layer, head in sorted(trace.stacks[stack]):
        counts[layer] = max(counts.get(layer, 0), head + 1)
    return counts
