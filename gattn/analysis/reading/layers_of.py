"""Reads layers of attention from whatever holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.reading.arrays import dense
from gattn.analysis.reading.attention import Attention, Named, named
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.sources import Source, is_square, size_of
from gattn.edit_records import from_identity
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Geometry
from gattn.heads.given.labelled import is_labelled, read_labelled
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import counted, noun_of
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.text import worded


def layers_of(
    attention: Attention,
    tokens: Sequence[str] = (),
    *,
    signed: bool = False,
    differing: bool = False,
) -> Layers:
    """Read attention as dense layers, whatever holds it.

    Parameters
    ----------
    attention : Attention
        Whatever holds it.
    tokens : sequence of str
        The texts of an array's tokens.
    signed : bool
        Whether negative attention can be read, too.
    differing : bool
        Whether layers may have different heads; see `Layers.present`.

    Raises
    ------
    ShapeError
        If it does not have the shape of attention, is not finite, or is negative.
    SelectionError
        If a trace has several stacks; if layers have different heads, unless they may.
    """
    found = _read(named(attention, tokens))
    if found.present and not differing:
        raise _different(found)
    if not signed and found.is_signed:
        raise ShapeError(
            "This analysis needs attention >= 0, but there is negative: it comes from a signed "
            "normalizer, or the array holds scores."
        )
    return found


def _read(attention: Attention) -> Layers:
    if isinstance(attention, AttentionTrace):
        attention = attention.only_stack
    if isinstance(attention, AttentionGraph):
        place = (attention.layer or 0, attention.head or 0)
        return _of_stack(Stack("", {place: attention}))
    if isinstance(attention, Stack):
        return _of_stack(attention)
    if isinstance(attention, Named):
        return _with_texts(_read(attention.arrays), attention.tokens)
    return _of_labelled(attention) if is_labelled(attention) else _of_dense(dense(attention))


def _of_stack(stack: Stack) -> Layers:
    layers, heads = tuple(stack.layers), tuple(stack.head_numbers)
    if not layers:
        raise SelectionError("There is no attention to read: capture at least one layer.")
    _check_tokens(stack)
    present = tuple(tuple(h for h in heads if (layer, h) in stack.heads) for layer in layers)
    graphs = tuple(
        tuple(stack[layer, head] for head in some)
        for layer, some in zip(layers, present, strict=True)
    )
    first = graphs[0][0]
    keys, queries = first.node_ids()

    def of_heads(n: int, values: list[NDArray[Any]]) -> NDArray[np.float64]:
        """Put what each head of a layer has in its place among all heads."""
        found = np.zeros((len(heads), *np.shape(values[0])))
        found[[heads.index(head) for head in present[n]]] = values
        return found

    def read(n: int) -> Tensor:
        return torch.from_numpy(of_heads(n, [head.to_dense() for head in graphs[n]]))

    masses = np.array(
        [of_heads(n, [np.array(_masses(one)) for one in some]) for n, some in enumerate(graphs)]
    )
    is_whole = all(some == heads for some in present)
    total, held = torch.from_numpy(masses).unbind(2)
    is_self = is_square(first.graph)
    key_places, query_places = _places(first)
    noun = noun_of(key_places, stack.name or first.stack)
    size = size_of(len(queries), len(keys), is_square=is_self, noun=noun)
    return Layers(
        read,
        layers,
        heads,
        total,
        held,
        tuple(keys),
        tuple(queries),
        Source(
            first.model,
            stack.name,
            layers,
            heads if is_whole else (),
            size,
            first.kept_by,
            stack.edits,
        ),
        first.tokens[: len(keys)],
        tuple(first.query_labels()) if first.tokens or first.query_tokens else (),
        graphs,
        () if is_whole else present,
        is_square=is_self,
        is_signed=any(bool((head.attention < 0).any()) for some in graphs for head in some),
        geometry=key_places,
        query_geometry=query_places,
    )


def _places(head: AttentionGraph) -> tuple[Geometry | None, Geometry | None]:
    """Return where the keys and the queries of a head lie."""
    if head.geometry is None or head.graph.is_bipartite:
        return head.geometry, head.query_geometry
    first, rows = head.graph.query_offset, head.graph.num_queries
    return head.geometry[slice(head.graph.num_keys)], head.geometry[slice(first, first + rows)]


def _different(found: Layers) -> SelectionError:
    """Say that layers have different heads."""
    layer, some = next(
        pair for pair in zip(found.layers, found.present, strict=True) if pair[1] != found.heads
    )
    missing = min(set(found.heads) - set(some))
    return SelectionError(
        f"Layer {layer} has no head {missing}, which other layers have: this analysis needs the "
        "same heads of every layer. Capture those that all layers have, as with heads=0."
    )


def _check_tokens(stack: Stack) -> None:
    """Refuse heads of different tokens."""
    first = stack[min(stack)]
    for head in stack.values():
        if head.node_ids() != first.node_ids() or head.labels() != first.labels():
            raise SelectionError(
                f"Layer {head.layer}, head {head.head} is of other tokens than {first.layer}, "
                f"{first.head}: analyse them one by one."
            )


def _masses(head: AttentionGraph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mass of each query, and a lower bound of the part that is kept."""
    total = head.total_mass.astype(np.float64)
    kept = np.bincount(head.query, np.abs(head.attention), head.graph.num_queries)
    # The total was summed up and stored in the attention's precision: it may be a little more.
    rounding = 4 * float(np.finfo(head.attention.dtype).eps) * total
    return total, np.where(head.dropped_edges > 0, np.maximum(kept - rounding, 0), total)


def _of_labelled(values: Any) -> Layers:
    read = read_labelled(values)
    found = _of_dense(dense(read.numbers))
    edits = tuple(map(from_identity, read.edits))
    parts = values if isinstance(values, (list, tuple)) else [values]
    named = dict.fromkeys(str(part.name or "") for part in parts)
    what = worded(next(iter(named))) if len(named) == 1 else ""
    text = f"{what} of {read.source}" if what and read.source else read.source
    return replace(
        found,
        layers=read.layers,
        heads=read.heads,
        positions=read.keys,
        query_positions=read.queries,
        read_from=replace(found.read_from, text=text, edits=edits),
        key_texts=read.key_tokens,
        query_texts=read.query_tokens,
        is_square=read.is_square,
        holds_residual=read.holds_residual,
        is_length=any(part.attrs.get("is_length") for part in parts),
        is_rolled_out=any(part.attrs.get("is_rolled_out") for part in parts),
        geometry=read.geometry,
        query_geometry=read.query_geometry,
    )


def _of_dense(values: Tensor) -> Layers:
    layers, heads, queries, keys = values.shape
    mass = torch.stack([layer.abs().sum(-1) for layer in values])  # no copy of them all
    if not bool(torch.isfinite(mass).all()):
        raise ShapeError("The attention holds NaN or infinity: cut padding and empty rows first.")
    numbers = tuple(range(layers)), tuple(range(heads))
    size = size_of(queries, keys, is_square=queries == keys)
    return Layers(
        lambda n: values[n],
        *numbers,
        mass,
        mass,
        tuple(range(keys)),
        tuple(range(queries)),
        Source("", "", *numbers, size, is_array=True),
        is_square=queries == keys,
        is_signed=bool(values.amin() < 0),
    )


def _with_texts(layers: Layers, texts: tuple[str, ...]) -> Layers:
    if not layers.is_square:
        raise ShapeError(
            "tokens= names tokens that are queries and keys alike; for others there is "
            "AttentionTrace.from_arrays(attention, tokens, query_tokens=...)."
        )
    count = len(layers.positions)
    if len(texts) != count:
        raise ShapeError(f"tokens has {counted(len(texts), 'text')}, but there are {count} tokens.")
    return replace(layers, key_texts=texts, query_texts=texts)
