"""What the scores of heads are computed from: sums over their edges."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.summed.nodes import Nodes
from gattn.graph.token_graph import TokenGraph

Numbers: TypeAlias = NDArray[np.float64]

SHARE, ROUNDING = 0.9, 1e-9
"""The share of a query's attention that its strongest edges have to hold, and what counts as it."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the edges of heads that have the same nodes and edges.

    Parameters
    ----------
    nodes : Nodes
        Their queries and keys.
    graph : TokenGraph or None
        Who may attend to whom; None if that is all keys, or if it `is_causal`, all up to the query.
    is_causal : bool
        Whether no edge leads ahead.
    mass : array (heads, queries)
        The attention of each query on these edges.
    attends : array of bool (heads, queries)
        Whether a query has attention, on these edges or on others.
    total_edges : array of int (queries,)
        How many edges a query has, these and others.
    kept : array (heads,)
        The share of the attention that is on these edges.
    sink : array (heads, queries), optional
        The attention of each query to a sink outside the sequence.
    over_rows : mapping of str to array (heads,)
        By score, sums over queries: of entropy, of the largest attention, of how many edges hold
        90 %, of attention times distance, and of the attention on the edges of each pattern.
    """

    nodes: Nodes
    graph: TokenGraph | None
    is_causal: bool
    mass: Numbers
    attends: NDArray[np.bool_]
    total_edges: NDArray[np.int64]
    kept: Numbers
    sink: Numbers | None
    over_rows: Mapping[str, Numbers]

    @property
    def kind(self) -> Hashable:
        """What heads have in common that can be joined."""
        return self.nodes, self.graph, self.is_causal, self.sink is None


def joined(parts: Sequence[Sums]) -> Sums:
    """Join the sums of heads of one kind, one after another."""
    if len(parts) == 1:
        return parts[0]
    first, sinks = parts[0], [part.sink for part in parts if part.sink is not None]
    return replace(
        first,
        mass=np.concatenate([part.mass for part in parts]),
        attends=np.concatenate([part.attends for part in parts]),
        kept=np.concatenate([part.kept for part in parts]),
        sink=np.concatenate(sinks) if sinks else None,
        over_rows={
            name: np.concatenate([part.over_rows[name] for part in parts])
            for name in first.over_rows
        },
    )


def ratio(sums: Numbers, counts: Numbers | NDArray[np.int64]) -> Numbers:
    """Divide, NaN where there is nothing."""
    whole = np.where(counts > 0, counts, np.nan)
    return np.asarray(sums / whole, dtype=np.float64)
