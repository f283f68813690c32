"""Scores of heads, each a number."""

from __future__ import annotations

import numpy as np

from gattn.analysis.heads.summed.patterns import MEANS, queries_with
from gattn.analysis.heads.summed.sums import Numbers, Sums, ratio

DEFINITIONS = 2
"""The version of the scores' definitions, which a survey notes."""

REDEFINED = {2: ("induction", "duplicate_token", "previous_token", "next_token")}
"""The scores whose definition changed with a version."""

SCORES = (
    "entropy",
    "mean_distance",
    "previous_token",
    "next_token",
    "first_token",
    "same_token",
    "duplicate_token",
    "induction",
    "sink_mass",
    "outside_sink",
    "confidence",
    "edges",
    "edges_for_90",
    "locality",
    "punctuation",
    "special_tokens",
    "kept",
)

_OVER_QUERIES = ("entropy", "confidence", "edges_for_90", "first_token")
"""Means over queries; other sums are shares of the attention, or means over some queries."""


def scores(sums: Sums) -> dict[str, Numbers]:
    """Describe heads in numbers, (heads,) each; see `gattn.analysis.head_table`."""
    filled, total = sums.mass > 0, sums.mass.sum(1)
    rows = filled.sum(1)
    found = {name: np.full(len(rows), np.nan) for name in SCORES} | {"kept": sums.kept}
    found["edges"] = ratio((filled * sums.total_edges).sum(1), rows)
    having = queries_with(sums.nodes)
    for name in found.keys() & sums.over_rows.keys():
        counts = total
        if name in _OVER_QUERIES:
            counts = rows
        elif name in MEANS:
            counts = (sums.attends & having[name]).sum(1) * (rows > 0)
        found[name] = ratio(sums.over_rows[name], counts) + 0.0  # never -0.0
    if sums.nodes.is_bipartite:
        return found
    found["sink_mass"] = found["first_token"]
    if sums.sink is not None:
        found["outside_sink"] = ratio((filled * sums.sink).sum(1), rows)
        found["sink_mass"] = found["first_token"] + found["outside_sink"]
    return found
