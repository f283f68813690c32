"""Rules: who may attend to whom, for all pairs of positions.

A rule answers for any block of pairs, so a graph of a million tokens costs no memory until its
edges are asked for. `TokenGraph` gives a rule its size.
"""

from gattn.graph.rules.base import Rule
from gattn.graph.rules.combined import Combined, Disjoint
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import (
    Blocks,
    Causal,
    Complete,
    Crossing,
    Documents,
    Globals,
    Prefix,
    Strided,
    Window,
)

__all__ = [
    "Blocks",
    "Causal",
    "Combined",
    "Complete",
    "Crossing",
    "Disjoint",
    "Documents",
    "Edges",
    "Globals",
    "Prefix",
    "Rule",
    "Strided",
    "Window",
]
