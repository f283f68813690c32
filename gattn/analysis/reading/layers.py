"""Reads attention from whatever holds it: traces, stacks, single heads, arrays, model outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, Union, overload

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gattn.analysis.reading.reductions import (
    Reduction,
    rows_of,
    shares_of,
    wrong_reduction,
)
from gattn.analysis.reading.sources import Source, counted, size_of
from gattn.checks import refuse_hidden
from gattn.edit_records import Edits, from_identity
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.edge_lists import texts
from gattn.heads.head import AttentionGraph
from gattn.heads.labelled import is_labelled, read_labelled
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.choices import REDUCTIONS, HeadChoice
from gattn.names.tokens import find_token


@dataclass(frozen=True, eq=False)
class Named:
    """Arrays of attention, and the texts of their tokens."""

    arrays: Any
    tokens: tuple[str, ...]


Attention: TypeAlias = Union[  # noqa: UP007 - names of classes alone
    AttentionTrace,
    Stack,
    AttentionGraph,
    Named,
    xr.DataArray,
    Tensor,
    NDArray[Any],
    Sequence[Tensor],
]
"""What analyses take.

A trace with one stack, a stack, one head, an array with axes (layer, head, query, key) of which the
first ones may be missing, or a model's ``attentions``: one (1, heads, queries, keys) a layer."""

Held = TypeVar("Held")

_KNOWING = (AttentionTrace, Stack, AttentionGraph, TokenGraph, xr.DataArray, Named)
"""What names its tokens itself; arrays with axes where they do."""

_ROUNDING = 1e-2
"""How far above 1 rounding leaves the sum of a row of half precision, at most."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The attention of some layers as dense matrices, made one layer at a time.

    Parameters
    ----------
    read : callable
        Gives the attention of the n-th layer that is there, (heads, queries, keys). Traces and
        NumPy arrays are read in double precision; tensors keep their device, and their precision
        where it is at least single.
    layers, heads : tuple of int
        Their numbers in the model; a layer is the order of calls, as in a trace, so that layers
        without attention do not count.
    mass : Tensor (layers, heads, queries)
        Each query's attention to all keys, kept or not, a sink outside of the text left out.
    kept_mass : Tensor (layers, heads, queries)
        What of it the kept edges hold: all of it where no edge was dropped, and otherwise at least
        this much, rounding considered.
    tokens, query_tokens : tuple of str
        The texts of keys and queries.
    positions, query_positions : tuple of int
        Their positions.
    read_from : Source
        What it was read from; `source` says it in words.
    is_square : bool
        Whether queries and keys are the same tokens.
    holds_residual : bool
        Whether the residual stream is in the numbers already, as in contributions.
    has_sink : bool
        Whether some attention went to a sink outside of the text.
    is_signed : bool
        Whether some attention is negative.
    edits : tuple of Edit
        The edits that the model ran with.
    """

    read: Callable[[int], Tensor]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    mass: Tensor
    kept_mass: Tensor
    tokens: tuple[str, ...]
    query_tokens: tuple[str, ...]
    positions: tuple[int, ...]
    query_positions: tuple[int, ...]
    read_from: Source
    is_square: bool = True
    holds_residual: bool = False
    has_sink: bool = False
    is_signed: bool = False
    edits: Edits = ()

    @property
    def source(self) -> str:
        """What it was read from, in words."""
        return str(self.read_from)

    @classmethod
    def of(cls, attention: Attention, *, signed: bool = False) -> Layers:
        """Read attention.

        Parameters
        ----------
        attention : Attention
            Whatever holds it.
        signed : bool
            Whether negative attention can be read, too.

        Raises
        ------
        ShapeError
            Where the shape is none of attention, numbers are not finite, or there are negative
            ones, which are refused unless `signed`.
        SelectionError
            Where a trace has several stacks, or layers with other heads than others.
        """
        if isinstance(attention, AttentionTrace):
            attention = attention.only_stack
        if isinstance(attention, AttentionGraph):
            place = (attention.layer or 0, attention.head or 0)
            found = _of_stack(Stack("", {place: attention}))
        elif isinstance(attention, Stack):
            found = _of_stack(attention)
        elif is_labelled(attention):
            found = _of_labelled(attention)
        elif isinstance(attention, Named):
            found = _with_texts(_of_dense(_dense(attention.arrays)), attention.tokens)
        else:
            found = _of_dense(_dense(attention))
        if not found.layers:
            raise SelectionError("There is no attention to read: capture at least one layer.")
        if not signed and found.is_signed:
            raise ShapeError(
                "This analysis needs attention >= 0, but there is negative: it comes from a signed "
                "normalizer, or the array holds scores."
            )
        return found

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def dropped(self) -> Tensor:
        """The attention that went to edges which were not kept, (layers, heads, queries)."""
        return (self.mass - self.kept_mass).clamp_min(0)

    def square(self) -> Layers:
        """Give the layers where queries and keys are the same tokens.

        Raises
        ------
        SelectionError
            Where they are not.
        """
        if not self.is_square:
            raise SelectionError(
                "This analysis needs self-attention, queries and keys being the same tokens, but "
                f"there are {len(self.query_positions)} queries and {len(self.positions)} keys."
            )
        return self

    def consecutive(self) -> Layers:
        """Give the layers where each follows on the one before.

        Raises
        ------
        SelectionError
            Where some are missing in between.
        """
        if list(self.layers) != list(range(self.layers[0], self.layers[0] + len(self))):
            raise SelectionError(
                f"Only consecutive layers compose; these are {list(self.layers)}: capture those in "
                "between, too."
            )
        return self

    def reduced(self, heads: HeadChoice = None, reduce: Reduction = "mean") -> list[Tensor]:
        """Make the heads of each layer one matrix (queries, keys).

        Raises
        ------
        SelectionError
            Where there is no such head or reduction, or the weights do not fit.
        """
        return [matrix for matrix, _ in self.reduced_with_mass(heads, reduce)]

    def reduced_with_mass(
        self, heads: HeadChoice = None, reduce: Reduction = "mean"
    ) -> list[tuple[Tensor, Tensor]]:
        """Make the heads of each layer one matrix, and say what its whole rows sum to.

        Where edges were dropped, the matrix is a lower bound; under "max" and "min" the sum of a
        whole row is not known, and an upper bound is given: all that the heads dropped may count.
        A layer of which no head is read gives zeros.
        """
        rows = rows_of(heads, self.layers, self.heads)
        if isinstance(reduce, str) and reduce not in REDUCTIONS:
            raise SelectionError(wrong_reduction(reduce))
        shares = None if isinstance(reduce, str) else self._shares(reduce, rows)
        found = []
        for n in range(len(self)):
            parts = self.read(n), self.mass[n], self.kept_mass[n]
            if rows is not None:
                parts = parts[0][rows[n]], parts[1][rows[n]], parts[2][rows[n]]
            found.append(_reduced(*parts, reduce if shares is None else shares[n]))
        return found

    def _shares(self, reduce: ArrayLike, rows: list[list[int]] | None) -> Tensor:
        counts = {len(self.heads)} if rows is None else set(map(len, rows))
        if len(counts) > 1:
            raise SelectionError(
                "Weights go with the same number of heads in every layer: name heads by their "
                "numbers, or leave heads= out."
            )
        return shares_of(reduce, len(self), counts.pop())

    def row(self, token: int | str, name: str) -> int:
        """Find the row of a token by its position, from the end, or by its text."""
        return find_token(token, self.positions, self.tokens, name)

    def axes(self, *names: str) -> dict[str, Sequence[Any]]:
        """Give the labels of some of the axes layer, head, query, key and token."""
        known: dict[str, Sequence[Any]] = {
            "layer": self.layers,
            "head": self.heads,
            "query": self.query_positions,
            "key": self.positions,
            "token": self.positions,
        }
        return {name: known[name] for name in names}

    def texts(self, *names: str) -> dict[str, Sequence[str]]:
        """Give the tokens' texts along some of the axes query, key and token."""
        known = {"query": self.query_tokens, "key": self.tokens, "token": self.tokens}
        return {name: known[name] for name in names}

    def mass_notes(self) -> list[str]:
        """Say what of the attention is not there."""
        return notes_of_mass(self.mass, self.kept_mass, has_sink=self.has_sink)


def notes_of_mass(mass: Tensor, kept: Tensor, *, has_sink: bool) -> list[str]:
    """Say what is not there of attention with a mass, of which some is kept."""
    notes = []
    whole = float(mass.sum())
    if whole and (share := float((mass - kept).clamp_min(0).sum()) / whole) > 1e-6:
        notes.append(f"{share:.2%} of the attention was not kept")
    if mass.numel() and (most := float(mass.max())) > 1 + _ROUNDING:
        notes.append(f"no distributions: rows sum to up to {most:.3g}")
    if has_sink:
        notes.append("some attention went to a sink outside of the text")
    return notes


def named(attention: Held, tokens: Sequence[str]) -> Held | Named:
    """Give arrays of attention the texts of their tokens, which arrays do not know.

    Raises
    ------
    SelectionError
        Where the attention knows its tokens, as a trace does.
    ShapeError
        Where there is not one text for each token.
    """
    words = texts(tokens, "tokens")
    if not words:
        return attention
    if isinstance(attention, xr.DataArray) and not {"key_token", "query_token"} & {
        *attention.coords
    }:
        _with_texts(_of_labelled(attention), words)
        sides = {f"{side}_token": (side, [*words]) for side in ("query", "key")}
        return attention.assign_coords(sides)
    if isinstance(attention, _KNOWING) or (
        isinstance(attention, (list, tuple)) and any(isinstance(x, _KNOWING) for x in attention)
    ):
        raise SelectionError(
            "tokens= names the tokens of plain arrays of attention; leave it out with "
            f"{type(attention).__name__}, which has its own or none."
        )
    return Named(attention, words)


def _with_texts(layers: Layers, words: tuple[str, ...]) -> Layers:
    if not layers.is_square:
        raise ShapeError(
            "tokens= names tokens that are queries and keys alike; for others there is "
            "AttentionTrace.from_arrays(attention, tokens, query_tokens=...)."
        )
    if len(words) != len(layers.positions):
        raise ShapeError(
            f"tokens has {counted(len(words), 'text')}, but there are {len(layers.positions)} "
            "tokens."
        )
    return replace(layers, tokens=words, query_tokens=words)


def heads_of(attention: Attention) -> Sequence[AttentionGraph]:
    """List the heads of attention as graphs, in order of layer and head.

    Those of arrays are made as they are asked for, one at a time.

    Raises
    ------
    ShapeError, SelectionError
        As `Layers.of` does.
    """
    if isinstance(attention, AttentionGraph):
        return [attention]
    if isinstance(attention, (AttentionTrace, Stack)):
        stack = attention.only_stack if isinstance(attention, AttentionTrace) else attention
        return [stack[place] for place in sorted(stack)]
    layers = Layers.of(attention, signed=True)
    names: dict[str, Any] = {"positions": np.array(layers.positions)}
    if layers.tokens != tuple(map(str, layers.positions)):
        names["tokens"] = layers.tokens
    if not layers.is_square:
        names["query_positions"] = np.array(layers.query_positions)
        if layers.query_tokens != tuple(map(str, layers.query_positions)):
            names["query_tokens"] = layers.query_tokens
    return _DenseHeads(layers, names)


class _DenseHeads(Sequence[AttentionGraph]):
    """The heads of arrays: as graphs they take many times the memory, so none is kept."""

    def __init__(self, layers: Layers, names: dict[str, Any]) -> None:
        self._layers, self._names = layers, names

    def __len__(self) -> int:
        return len(self._layers) * len(self._layers.heads)

    @overload
    def __getitem__(self, place: int) -> AttentionGraph: ...
    @overload
    def __getitem__(self, place: slice) -> list[AttentionGraph]: ...
    def __getitem__(self, place: int | slice) -> AttentionGraph | list[AttentionGraph]:
        chosen = range(len(self))[place]
        if isinstance(chosen, range):
            return [self[n] for n in chosen]
        layers = self._layers
        n, head = divmod(chosen, len(layers.heads))
        matrix = layers.read(n)[head]
        graph = TokenGraph.from_mask(matrix != 0, is_bipartite=not layers.is_square)
        place_of: dict[str, Any] = {"layer": layers.layers[n], "head": layers.heads[head]}
        return AttentionGraph.from_dense(matrix, graph, **self._names, **place_of)


def _reduced(
    matrix: Tensor, mass: Tensor, kept: Tensor, reduce: Reduction
) -> tuple[Tensor, Tensor]:
    """Make the heads of a layer one; see `Layers.reduced_with_mass`."""
    if not len(matrix):
        return matrix.sum(0), mass.sum(0)
    if isinstance(reduce, Tensor):
        share = reduce.to(matrix)
        return torch.einsum("h,hqk->qk", share, matrix), share.to(mass) @ mass
    if reduce == "mean":
        return matrix.mean(0), mass.mean(0)
    one: Tensor = getattr(matrix, f"a{reduce}")(0)
    if len(matrix) == 1:
        return one, mass[0]
    return one, one.sum(-1) + (mass - kept).clamp_min(0).sum(0)


def _of_stack(stack: Stack) -> Layers:
    heads = stack.head_numbers
    for layer in stack.layers:
        if missing := [head for head in heads if (layer, head) not in stack.heads]:
            raise SelectionError(
                f"Layer {layer} has no head {missing[0]}, which other layers have: capture the "
                "same heads of every layer."
            )
    graphs = [[stack[layer, head] for head in heads] for layer in stack.layers]
    if not graphs:
        empty = torch.zeros(0)
        return Layers(lambda n: empty, (), (), empty, empty, (), (), (), (), Source())
    first = graphs[0][0]
    keys, queries = first.node_ids()
    for head in (head for some in graphs for head in some):
        if head.node_ids() != (keys, queries) or head.labels() != first.labels():
            raise SelectionError(
                f"Layer {head.layer}, head {head.head} is of other tokens than {first.layer}, "
                f"{first.head}: analyse them one by one."
            )
    names = first.labels()
    is_square = not first.graph.is_bipartite and first.graph.num_queries == first.graph.num_keys

    def read(n: int) -> Tensor:
        return torch.from_numpy(np.stack([g.to_dense() for g in graphs[n]]).astype(np.float64))

    total, held = torch.from_numpy(
        np.array([[_masses(g) for g in some] for some in graphs])
    ).unbind(2)
    read_from = Source(
        first.model,
        stack.name,
        tuple(stack.layers),
        tuple(heads),
        size_of(len(queries), len(keys), is_square=is_square),
        first.kept_by,
        stack.edits,
    )
    return Layers(
        read,
        tuple(stack.layers),
        tuple(heads),
        total,
        held,
        tuple(names[: len(keys)]),
        tuple(first.query_labels()),
        tuple(keys),
        tuple(queries),
        read_from,
        is_square=is_square,
        has_sink=any(g.sink is not None for some in graphs for g in some),
        is_signed=any(bool((g.attention < 0).any()) for some in graphs for g in some),
        edits=stack.edits,
    )


def _masses(head: AttentionGraph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give the mass of each query, and what of it is kept at least."""
    total = head.total_mass.astype(np.float64)
    kept = np.bincount(head.query, np.abs(head.attention), head.graph.num_queries)
    # The total was summed up and stored in the attention's precision: it may be a little more.
    rounding = 4 * float(np.finfo(head.attention.dtype).eps) * total
    return total, np.where(head.dropped_edges > 0, np.maximum(kept - rounding, 0), total)


def _of_labelled(values: Any) -> Layers:
    read = read_labelled(values)
    found = _of_dense(_dense(read.numbers))
    return replace(
        found,
        layers=read.layers,
        heads=read.heads,
        tokens=read.key_tokens or tuple(map(str, read.keys)),
        query_tokens=read.query_tokens or tuple(map(str, read.queries)),
        positions=read.keys,
        query_positions=read.queries,
        read_from=replace(found.read_from, text=read.source),
        is_square=read.is_square,
        holds_residual=read.holds_residual,
        edits=tuple(map(from_identity, read.edits)),
    )


def _dense(attention: Any) -> Tensor:
    """Make one tensor (layers, heads, queries, keys) of arrays."""
    if isinstance(attention, (list, tuple)):
        if any(isinstance(part, (AttentionTrace, Stack)) for part in attention):
            raise ShapeError(
                f"An analysis takes one trace, not {len(attention)} at once: choose one, or join "
                "the results of each with gattn.analysis.over_texts."
            )
        if lacking := [n for n, part in enumerate(attention) if part is None]:
            raise ShapeError(f"Layer {lacking[0]} has no attention: leave such layers out.")
        parts = [_tensor(part) for part in attention]
        shapes = {tuple(part.shape) for part in parts}
        if not parts or len(shapes) > 1:
            raise ShapeError(f"The layers have the shapes {sorted(shapes)}: they must be alike.")
        if parts[0].dim() == 4:
            if len(parts[0]) != 1:
                raise ShapeError(
                    f"The layers hold a batch of {len(parts[0])} texts: take one, as in "
                    "[layer[n] for layer in attentions]."
                )
            parts = [part[0] for part in parts]
        return _dense(torch.stack(parts))
    values = _tensor(attention)
    if not 2 <= values.dim() <= 4 or 0 in values.shape:
        raise ShapeError(
            "Attention is an array (layers, heads, queries, keys), of which the first axes may be "
            f"missing, not {tuple(values.shape)}."
        )
    while values.dim() < 4:
        values = values.unsqueeze(0)
    return values


def _tensor(values: Any) -> Tensor:
    refuse_hidden("attention", values, ShapeError)
    if isinstance(values, Tensor):
        found: Tensor = values.detach()
        return found if found.dtype == torch.float64 else found.float()
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"Attention is a trace, a stack, a head or an array, not {type(values).__name__}"
            f"{_hint(values)}."
        ) from error


def _hint(values: Any) -> str:
    """Say where the attention may be."""
    if isinstance(values, str):
        return ": capture it, as in gattn.capture(text)"
    for name in ("attentions", "trace"):
        if hasattr(type(values), name) or hasattr(values, name):
            return f": pass its .{name}"
    return ""


def _of_dense(values: Tensor) -> Layers:
    layers, heads, queries, keys = values.shape
    mass = torch.stack([layer.abs().sum(-1) for layer in values])  # no copy of them all
    if not bool(torch.isfinite(mass).all()):
        raise ShapeError("The attention holds NaN or infinity: cut padding and empty rows first.")
    positions = tuple(range(keys))
    rows = tuple(range(queries))
    return Layers(
        lambda n: values[n],
        tuple(range(layers)),
        tuple(range(heads)),
        mass,
        mass,
        tuple(map(str, positions)),
        tuple(map(str, rows)),
        positions,
        rows,
        Source(
            layers=tuple(range(layers)),
            heads=tuple(range(heads)),
            size=size_of(queries, keys, is_square=queries == keys),
            is_array=True,
        ),
        is_square=queries == keys,
        is_signed=bool(values.amin() < 0),
    )
