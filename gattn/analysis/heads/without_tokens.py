"""Attention without some of the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, Union, overload

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.heads.summed.nodes import special_tokens
from gattn.analysis.reading.arguments import several_tokens
from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import by_place
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.merging import selected, with_all_rows
from gattn.heads.stack import Stack
from gattn.heads.steps import Without
from gattn.heads.trace import AttentionTrace
from gattn.names.tokens import find_tokens

Arrays: TypeAlias = Union[  # noqa: UP007 - names of classes alone
    Stack, xr.DataArray, Tensor, NDArray[Any], Sequence[Tensor], Sequence[AttentionGraph]
]


@overload
def without_tokens(
    attention: AttentionTrace, which: str | int | Iterable[int | str]
) -> AttentionTrace: ...
@overload
def without_tokens(
    attention: AttentionGraph, which: str | int | Iterable[int | str]
) -> AttentionGraph: ...
@overload
def without_tokens(
    attention: Arrays, which: str | int | Iterable[int | str], *, tokens: Sequence[str] = ()
) -> Stack: ...
def without_tokens(
    attention: Heads, which: str | int | Iterable[int | str], *, tokens: Sequence[str] = ()
) -> AttentionTrace | Stack | AttentionGraph:
    """Leave tokens out, and renormalize: what the other tokens give each other sums to 1.

    Use it to compare scores with and without the sink and the special tokens. A sink outside the
    text is left out as well. A query that attended only to tokens left out has no attention left.
    Edges that were not kept count as if they had gone to the tokens that stay, so attention is at
    least what is returned.

    Parameters
    ----------
    attention : Heads
        A trace, a stack, a head, or arrays.
    which : "special", "first", int, or sequence of positions and texts
        The tokenizer's special tokens; position 0; or some tokens, such as padding, by position or
        text, as in 6, [0, 7] or [","]. In cross-attention keys are left out, and all queries stay.
    tokens : sequence of str
        The texts of an array's tokens.

    Returns
    -------
    AttentionTrace, Stack or AttentionGraph
        Of the kind of `attention`; a stack for arrays. Tokens keep their positions.

    Raises
    ------
    SelectionError
        If there is no such token, or it is not known which are special.
    """
    attention = named(attention, tokens)
    if not isinstance(attention, (AttentionTrace, Stack, AttentionGraph)):
        heads = {(layer, head): one for (_, layer, head), one in by_place(attention).items()}
        attention = Stack("", heads)
    some = [attention] if isinstance(attention, AttentionGraph) else by_place(attention).values()
    places = [head.geometry for head in some]
    chosen = which if isinstance(which, str) else several_tokens("which", which, *places)
    if isinstance(attention, AttentionGraph):
        return _without(attention, chosen)
    if isinstance(attention, AttentionTrace):
        if len(attention.stacks) > 1 and not isinstance(chosen, str):
            attention.only_stack  # noqa: B018 - says which stacks there are
        stacks = {name: _stack_without(one, chosen) for name, one in attention.stacks.items()}
        generated = _generated(attention, stacks)
        return replace(attention, stacks=stacks, generated=generated, logits=None)
    return _stack_without(attention, chosen)


def _stack_without(stack: Stack, which: str | list[int | str]) -> Stack:
    return Stack(stack.name, {place: _without(head, which) for place, head in stack.items()})


def _generated(trace: AttentionTrace, stacks: dict[str, Stack]) -> int:
    """Count the generated tokens that stayed."""
    if not trace.generated:
        return 0
    name = "decoder" if "decoder" in stacks else next(iter(stacks))
    before, after = (next(iter(some[name].values())) for some in (trace.stacks, stacks))
    last = set(before.node_positions[-trace.generated :].tolist())
    return len(last & set(after.node_positions.tolist()))


def _without(head: AttentionGraph, which: str | list[int | str]) -> AttentionGraph:
    head = with_all_rows(head)
    stays = np.flatnonzero(~marked_tokens(head, which))
    if not len(stays):
        raise SelectionError(f"Without these tokens none of {head.graph.num_keys} are left.")
    is_square = not head.graph.is_bipartite
    rows = stays if is_square else np.arange(head.graph.num_queries)
    part = selected(head, rows, stays)
    is_cut = ~np.isin(head.key, stays)
    cut_edges = np.bincount(head.query[is_cut], minlength=head.graph.num_queries)[rows]
    dropped = np.where(head.dropped_edges > 0, head.total_mass - head.kept_mass, 0)
    kept = np.bincount(part.query, np.abs(part.attention), len(rows))
    whole = kept + np.maximum(dropped[rows], 0)
    factor = np.divide(1.0, whole, out=np.zeros(len(rows)), where=whole > 0)
    scaled: dict[str, Any] = {
        name: (values * factor[part.query]).astype(values.dtype)
        for name, values in part.edge_values.items()
        if name != "score"
    }
    edges = head.total_edges[rows] - cut_edges
    mass = np.where(whole > 0, 1.0, 0.0).astype(head.attention.dtype)
    kept_by = (*head.kept_by, Without(_named(which)))
    return replace(part, total_mass=mass, total_edges=edges, sink=None, kept_by=kept_by, **scaled)


def _named(which: str | list[int | str]) -> Literal["special", "first"] | int:
    if isinstance(which, str):
        return "first" if which == "first" else "special"
    return len(set(which))


def marked_tokens(head: AttentionGraph, which: str | list[int | str]) -> NDArray[np.bool_]:
    """Mark the nodes to leave out."""
    if which == "first":
        return np.asarray(head.node_positions == 0)
    if which == "special":
        if not head.words:
            raise SelectionError(
                "It is not known which tokens are special: capture a text with a fast tokenizer, "
                "or give positions, as in [0]."
            )
        return special_tokens(head.words)
    if isinstance(which, str):
        raise SelectionError(
            f"which is 'special', 'first', or positions and texts, as in [0, ','], not {which!r}."
        )
    labels, positions = head.labels(), head.node_positions.tolist()
    marked = np.zeros(len(labels), dtype=bool)
    for token in which:
        marked[find_tokens(token, positions, labels)] = True
    return marked
