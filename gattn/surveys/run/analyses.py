"""The analyses that have a name on the command line: each returns one row per head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from gattn.analysis.chains.mixing import mixing
from gattn.analysis.heads.head_table import head_table
from gattn.analysis.shape.ranks import effective_rank
from gattn.analysis.shape.spectral import spectral_table
from gattn.analysis.shape.template_distances import template_distances
from gattn.analysis.shape.topology import topology_table
from gattn.errors import SelectionError
from gattn.heads.stack import Stack

if TYPE_CHECKING:
    from gattn.heads.trace import AttentionTrace

    Analysis: TypeAlias = Callable[[AttentionTrace], pd.DataFrame]

_PLACE = ["stack", "layer", "head"]


def mixing_table(trace: AttentionTrace) -> pd.DataFrame:
    """Return how fast each head mixes: see `gattn.analysis.mixing`."""
    return _of_stacks(trace, mixing)


def rank_table(trace: AttentionTrace) -> pd.DataFrame:
    """Return each head's effective rank: see `gattn.analysis.effective_rank`."""
    return _of_stacks(trace, lambda stack: effective_rank(stack).to_series().to_frame())


def spectra_table(trace: AttentionTrace) -> pd.DataFrame:
    """Return the ends of each head's spectrum: see `gattn.analysis.spectral_table`."""
    return _of_stacks(trace, spectral_table)


def template_table(trace: AttentionTrace) -> pd.DataFrame:
    """Return how far each head is from templates: see `gattn.analysis.template_distances`."""
    return _of_stacks(trace, template_distances).add_prefix("template_")


def betti_table(trace: AttentionTrace) -> pd.DataFrame:
    """Return each head's topology, a column per threshold: see `gattn.analysis.topology_table`."""
    return _of_stacks(trace, _over_thresholds)


def _over_thresholds(stack: Stack) -> pd.DataFrame:
    table = pd.DataFrame(topology_table(stack))
    columns = {
        f"{name}_{threshold:g}": table[name].xs(threshold, level="threshold")
        for name in table
        for threshold in table.index.unique("threshold")
    }
    return pd.DataFrame(columns)


def _of_stacks(trace: AttentionTrace, analysis: Callable[[Stack], pd.DataFrame]) -> pd.DataFrame:
    """Stack the tables of all stacks of self-attention; other stacks have no rows."""
    tables = {
        name: pd.DataFrame(analysis(stack))
        for name, stack in trace.stacks.items()
        if not any(head.graph.is_bipartite for head in stack.values())
    }
    if not tables:
        raise SelectionError("There is no self-attention, only cross-attention.")
    return pd.concat(tables, names=_PLACE[:1])


ANALYSES: Mapping[str, Callable[[Any], pd.DataFrame]] = {
    "heads": head_table,
    "mixing": mixing_table,
    "ranks": rank_table,
    "spectral": spectra_table,
    "templates": template_table,
    "topology": betti_table,
}
