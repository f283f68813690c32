"""Engines: ways to compute the same attention, and the one place that chooses.

Each engine is a module with `can_run(call)` (None, or why not), `run(call)`, and `memory(call)`,
an estimate of the memory it needs besides inputs and output, in bytes.
"""

from gattn.engines.choice import NAMES, choose, choose_for_graphs, explain, named

__all__ = ["NAMES", "choose", "choose_for_graphs", "explain", "named"]
