"""Measures exact effects beside estimates: of a sample of edges, and of many cut together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.models.edit.base import Edit
from gattn.models.edit.edges import Cut
from gattn.models.edit.tensors.pairs import CutPairs
from gattn.models.effects.effect import measured
from gattn.models.effects.metrics import Measure
from gattn.models.effects.runner import Runner

if TYPE_CHECKING:
    import pandas as pd

ONLY = "is_only"
"""The column of a table that says whether an edge is its query's only one."""
_PLACE = ["stack", "layer", "head", "query", "key"]
_SHARES = (0.01, 0.05, 0.2)
"""How many of the largest estimates are cut together."""
_TOLERANCE = 0.2
"""How far the sum of estimates may be from the effect, relative to that, without a note."""


@dataclass(frozen=True)
class Sample:
    """How exact effects of cuts are measured."""

    runner: Runner
    measure: Measure
    renormalize: bool
    batch_size: int | None
    progress: bool

    def add_effects(
        self, table: pd.DataFrame, changes: NDArray[np.float64], sample: int, seed: int
    ) -> None:
        """Measure some edges' exact effects, and those of many cut together, and compare.

        `changes` are those of the metric's slopes, (slopes, edges).
        """
        estimates = table["estimate"].to_numpy()
        drawn = _drawn(estimates, sample, seed)
        chosen = drawn | (table.pop(ONLY).to_numpy() & self.renormalize & (sample > 0))
        table["sampled"] = drawn
        order = np.argsort(-np.abs(estimates), kind="stable")
        counts = [max(round(share * len(table)), 1) for share in _SHARES if drawn.any()]
        cuts = [self._cuts(table.iloc[order[:count]]) for count in counts]
        cuts += [[self._cut(*place)] for place in table.loc[chosen, _PLACE].itertuples(index=False)]
        together, table.loc[chosen, "effect"] = np.split(self._effects(cuts), [len(counts)])
        table.attrs |= _correlations(*table.loc[drawn, ["estimate", "effect"]].to_numpy().T)
        table.attrs["sets"] = [
            {
                "share": share,
                "edges": count,
                "estimate": float(self.measure.combined(changes[:, order[:count]].sum(-1))),
                "effect": float(effect),
            }
            for share, count, effect in zip(_SHARES, counts, together, strict=False)
        ]
        table.attrs["notes"] = _notes(table.attrs["sets"], len(table))

    def _effects(self, edits: Sequence[Sequence[Edit]]) -> NDArray[np.float64]:
        if not edits:
            return np.zeros(0)
        plain, edited = measured(self.runner, self.measure, edits, self.batch_size, self.progress)
        return edited - plain

    def _cut(self, stack: str, layer: int, head: int, query: int, key: int) -> Cut:
        return Cut(layer, head, query, key, renormalize=self.renormalize, stack=stack)

    def _cuts(self, edges: pd.DataFrame) -> list[Edit]:
        """Cut edges together, head by head."""
        heads = edges.groupby(["stack", "layer", "head"], sort=False)
        return [
            CutPairs(
                _column(some, "query"),
                _column(some, "key"),
                int(some["layer"].iloc[0]),
                int(some["head"].iloc[0]),
                self.renormalize,
                some["stack"].iloc[0],
            )
            for _, some in heads
        ]


def _column(table: pd.DataFrame, name: str) -> Tensor:
    return torch.from_numpy(table[name].to_numpy(dtype=np.int64, copy=True))


def _notes(sets: Sequence[Mapping[str, float]], edges: int) -> list[str]:
    """Say of the largest set whose estimates do not add up what cutting it does.

    The words name all edges, since rows that a user selects keep the note.
    """
    if not sets:
        return ["no effect was measured; that of many edges together is not the sum of estimates"]
    found = [
        one
        for one in sets
        if not abs(one["estimate"] - one["effect"]) <= _TOLERANCE * abs(one["effect"])
    ]
    if not found:
        return []
    most = found[-1]
    said = (
        f"estimates do not add up: cutting the largest {100 * most['share']:.0f} % of all "
        f"{edges:,} edges changes the metric by {most['effect']:.3g}, not {most['estimate']:.3g}"
    )
    return [said.replace("-", "−")]


def _drawn(estimates: NDArray[np.float64], sample: int, seed: int) -> NDArray[np.bool_]:
    drawn = np.zeros(len(estimates), dtype=bool)
    if not sample or not len(estimates):
        return drawn
    even = np.full(len(estimates), 1 / len(estimates))
    sizes = np.abs(estimates)
    chance = (even + sizes / sizes.sum()) / 2 if sizes.any() else even
    count = min(sample, len(estimates))
    drawn[np.random.default_rng(seed).choice(len(drawn), count, replace=False, p=chance)] = True
    return drawn


def _correlations(estimates: NDArray[np.float64], effects: NDArray[np.float64]) -> dict[str, float]:
    from scipy import stats

    signed, sizes = (estimates, effects), (np.abs(estimates), np.abs(effects))
    measures: dict[str, tuple[Any, Any]] = {
        "correlation": (stats.pearsonr, signed),
        "rank_correlation": (stats.spearmanr, signed),
        "size_correlation": (stats.spearmanr, sizes),
    }
    return {
        name: float(measure(*pair).statistic)
        if len(estimates) > 1 and all(map(np.ptp, pair))
        else np.nan
        for name, (measure, pair) in measures.items()
    }
