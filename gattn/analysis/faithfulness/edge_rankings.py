"""Reads what a ranking says of the edges of each head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr
from torch import Tensor

from gattn.analysis.faithfulness.same_text import check_texts, other_text, text_order
from gattn.analysis.faithfulness.token_rankings import (
    PLACE,
    Scores,
    check_unique,
)
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.vectors.route_graphs import Routes
from gattn.errors import SelectionError, ShapeError
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

Ranking: TypeAlias = Attention | pd.DataFrame | pd.Series | Routes
"""What ranks edges or tokens, as `deletion_curve` explains: the largest number is the top."""

_SIGN_OF = {"estimate": -1.0, "effect": -1.0, "strength": 1.0}
"""The columns that rank edges: an edge without which the metric falls is important.

A divergence or a loss rises instead: a table of these says that it `is_cost`.
"""

Reader: TypeAlias = Callable[[AttentionGraph], Scores]


def edge_reader(name: str, ranking: Ranking, first: AttentionGraph, stack: str | None) -> Reader:
    """Make a function that reads a ranking's scores of a head's edges.

    `first` is one of the text's heads, which says what its tokens are.
    """
    if isinstance(ranking, Routes):
        if tokens := ranking.tokens:
            _check_size(name, (len(tokens), len(tokens)), first)
            check_texts(name, tokens, first.labels())
        ranking = ranking.attention_edges()
    if isinstance(ranking, pd.DataFrame):
        column = next((c for c in _SIGN_OF if c in ranking.columns), None)
        if column is None or not set(PLACE) <= set(ranking.columns):
            raise SelectionError(
                f"{name!r} must be a table such as gattn.estimate gives, with the columns layer, "
                f"head, query, key and one of {', '.join(_SIGN_OF)}, not {list(ranking.columns)}."
            )
        sign = _SIGN_OF[column] * (-1 if ranking.attrs.get("is_cost") else 1)
        return table_reader(name, ranking, column, sign, first, stack)
    if isinstance(ranking, AttentionTrace):
        ranking = ranking.only_stack if stack is None else ranking[stack]
    if isinstance(ranking, AttentionGraph):
        ranking = Stack("", {(ranking.layer or 0, ranking.head or 0): ranking})
    if isinstance(ranking, Stack):
        return _of_stack(name, ranking)
    return _of_array(name, ranking, first)


def table_reader(
    name: str,
    table: pd.DataFrame,
    column: str,
    sign: float,
    first: AttentionGraph,
    stack: str | None,
) -> Reader:
    """Make a function that reads a column of a table, times `sign`; see `edge_reader`."""
    if stack is not None and "stack" in table.columns:
        table = table[table["stack"] == stack]
    table = table[table[PLACE].notna().all(axis=1)]
    check_unique(name, table)
    _check_tokens(name, table, first)
    groups = dict(iter(table.groupby(["layer", "head"])))

    def scores(head: AttentionGraph) -> Scores:
        some = groups.get((head.layer, head.head))
        if some is None:
            return np.full(head.graph.num_edges, np.nan)
        query, key = (some[axis].to_numpy(dtype=np.int64) for axis in ("query", "key"))
        return _matched(head, query, key, sign * some[column].to_numpy(dtype=np.float64))

    return scores


def _check_tokens(name: str, table: pd.DataFrame, head: AttentionGraph) -> None:
    """Refuse a table of queries or keys that the text does not have."""
    for axis, tokens in _tokens_of(head).items():
        found = table[axis].to_numpy(dtype=np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < len(tokens):
            raise SelectionError(
                f"{name!r} ranks edges of {axis} {found.max() if found.min() >= 0 else found.min()}"
                f", but the text has 0 .. {len(tokens) - 1}: rank the edges of the same text."
            )
        if f"{axis}_token" not in table.columns:
            continue
        given = table[f"{axis}_token"].to_numpy(dtype=object)
        wrong = given != np.array(tokens, dtype=object)[found]
        if wrong.any() and (given != found.astype(str)).any():
            row = np.flatnonzero(wrong)[found[wrong].argmin()]
            raise other_text(name, int(found[row]), given[row], tokens[found[row]])


def _tokens_of(head: AttentionGraph) -> dict[str, list[str]]:
    return {"query": head.query_labels(), "key": head.labels()[: head.graph.num_keys]}


def _of_stack(name: str, ranking: Stack) -> Reader:
    def scores(head: AttentionGraph) -> Scores:
        place = head.layer or 0, head.head or 0
        if place not in ranking.heads:
            return np.full(head.graph.num_edges, np.nan)
        given = ranking[place]
        _check_size(name, (given.graph.num_queries, given.graph.num_keys), head)
        for axis, tokens in _tokens_of(head).items():
            check_texts(name, _tokens_of(given)[axis], tokens)
        return _matched(head, given.query, given.key, given.attention.astype(np.float64))

    return scores


def _of_array(name: str, ranking: Any, first: AttentionGraph) -> Reader:
    axes: tuple[Any, ...] = ("layer", "head")
    selected: dict[str, int] = {}
    if isinstance(ranking, xr.DataArray):
        ranking = _in_order(name, ranking, first)
        scalars = [axis for axis in axes if axis in ranking.coords and not ranking[axis].ndim]
        axes, selected = ranking.dims, {axis: int(ranking[axis]) for axis in scalars}
    elif isinstance(ranking, (np.ndarray, Tensor)) and ranking.ndim != 4:
        raise ShapeError(
            f"{name!r} has the shape {tuple(ranking.shape)}: an array without named axes is "
            "(layers, heads, queries, keys), or one number per token."
        )
    layers = layers_of(ranking, signed=True)
    read = lru_cache(maxsize=1)(lambda n: layers.read(n).double().cpu().numpy())

    def place(axis: str, number: int, known: Sequence[int]) -> int | None:
        """Find a layer or head on its axis; None if the array does not rank it."""
        if axis in axes:
            return known.index(number) if number in known else None
        return 0 if selected.get(axis, number) == number else None

    def scores(head: AttentionGraph) -> Scores:
        _check_size(name, (len(layers.query_positions), len(layers.positions)), head)
        layer = place("layer", head.layer or 0, layers.layers)
        row = place("head", head.head or 0, layers.heads)
        if layer is None or row is None:
            return np.full(head.graph.num_edges, np.nan)
        matrix: Scores = read(layer)[row]
        return matrix[head.query, head.key]

    return scores


def _in_order(name: str, ranking: xr.DataArray, head: AttentionGraph) -> xr.DataArray:
    """Put queries and keys in text order, and compare their tokens."""
    for axis, tokens in _tokens_of(head).items():
        if ranking.sizes.get(axis) != len(tokens):
            continue  # refused later, when the shape is known
        if axis in ranking.coords:
            ranking = ranking.isel(
                {axis: text_order(name, ranking[axis].to_numpy().tolist(), tokens)}
            )
        if f"{axis}_token" in ranking.coords:
            check_texts(name, ranking[f"{axis}_token"].to_numpy().tolist(), tokens)
    return ranking


def _matched(head: AttentionGraph, query: Ints, key: Ints, values: Scores) -> Scores:
    """Look up the values of a head's edges; NaN if a pair has none."""
    keys = head.graph.num_keys
    own, given = head.query * keys + head.key, query * keys + key
    found = np.full(len(own), np.nan)
    if len(own):
        place = np.searchsorted(own, given).clip(max=len(own) - 1)
        is_there = own[place] == given
        found[place[is_there]] = values[is_there]
    return found


def _check_size(name: str, size: tuple[int, int], head: AttentionGraph) -> None:
    expected = head.graph.num_queries, head.graph.num_keys
    if size != expected:
        raise SelectionError(
            f"{name!r} is of {size[0]} queries and {size[1]} keys, but the text has {expected[0]} "
            f"and {expected[1]}: rank the edges of the same text, tokens not merged."
        )
