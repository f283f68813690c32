"""What a page shows of a trace or a head: some of its heads, and of these some edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.names.choices import HeadChoice, heads_among, stack_and_heads


def shown(graphs: Any, heads: HeadChoice = None, keep: Keep | None = None) -> AttentionTrace:
    """Take the chosen heads of a trace or a stack, or a head as a trace, and some of their edges.

    Raises
    ------
    SelectionError
        If it is neither a trace, a stack nor a head, or has no such heads.
    """
    if isinstance(graphs, Stack):
        told = next(((head.model, head.generated) for head in graphs.values()), ("", 0))
        graphs = AttentionTrace({graphs.name: graphs}, *told)
    trace = _as_trace(graphs) if heads is None else _of_heads(graphs, heads)
    return trace if keep is None else _kept(trace, keep)


def _as_trace(graphs: Any) -> AttentionTrace:
    if isinstance(graphs, AttentionTrace):
        return graphs
    if not isinstance(graphs, AttentionGraph):
        named = "None" if graphs is None else type(graphs).__name__
        raise SelectionError(
            f"A page shows a trace or a head, or several in a list or by name, not {named}: pass "
            "what gattn.capture or gattn.attention_graphs returns."
        )
    place = graphs.layer or 0, graphs.head or 0
    name = "cross" if graphs.graph.is_bipartite else "heads"
    return AttentionTrace({name: Stack(name, {place: graphs})}, graphs.model, graphs.generated)


def _of_heads(trace: Any, heads: HeadChoice) -> AttentionTrace:
    """Take heads of one stack, with what the run knows of its tokens."""
    if not isinstance(trace, AttentionTrace):
        raise SelectionError(
            f"heads= chooses among the heads of a trace, not of {type(trace).__name__}: leave it "
            "out, or pass the trace."
        )
    name, _ = stack_and_heads(heads)
    stack = trace.only_stack if name is None else trace[name]
    _, places = heads_among(heads, stack.layers)
    chosen = Stack(stack.name, {place: stack[place] for place in sorted(set(places))})
    return replace(trace, stacks={stack.name: chosen})


def _kept(trace: AttentionTrace, keep: Keep) -> AttentionTrace:
    stacks = {
        name: Stack(name, {place: head.keep(keep) for place, head in stack.items()})
        for name, stack in trace.stacks.items()
    }
    return replace(trace, stacks=stacks)
