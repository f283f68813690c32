"""Which of a model's softmaxes a captured layer is, and where its edges are in that tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.coverage.libraries.softmaxes import Change, Softmax

Heads = NDArray[np.floating]
"""A sequence's attention, (heads, queries, keys)."""
Slots = NDArray[np.int64]
"""The token of each slot of each window, (windows, slots); -1 for none."""
Dims = tuple[int, int, int, int, int]
"""Sequences, windows, heads, queries and keys of a window."""


@dataclass(frozen=True)
class Layout:
    """How a tensor of attention holds sequences, windows, heads, queries and keys.

    `order` is how it holds the first three of them: sequences (0), windows (1), heads (2).
    """

    dims: Dims
    order: tuple[int, int, int]
    error: float
    queries: list[Slots]
    keys: list[Slots]

    def without_head(self, head: int) -> Change:
        """Zero a head's attention, but not that of padding."""

        def change(attention: Tensor) -> Tensor:
            attention = attention.clone()
            view = split(attention, self.dims, self.order)
            for sequence, queries in zip(view, self.queries, strict=True):
                sequence[:, head][torch.from_numpy(queries >= 0)] = 0
            return attention

        return change

    def without_edge(self, head: int, query: int, key: int) -> Change:
        """Leave out one edge in every sequence that has it: the rest of its row shares."""

        def change(attention: Tensor) -> Tensor:
            attention = attention.clone()
            view = split(attention, self.dims, self.order)
            for sequence, (queries, keys) in enumerate(zip(self.queries, self.keys, strict=True)):
                for window, slot in np.argwhere(queries == query):
                    row = view[sequence, window, head, slot]
                    row[torch.from_numpy(keys[window] == key)] = 0
                    row /= row.sum()
            return attention

        return change


def split(attention: Tensor, dims: Dims, order: tuple[int, int, int]) -> Tensor:
    """Return a view of attention, (sequences, windows, heads, queries, keys)."""
    parts = attention.view(*(dims[one] for one in order), *dims[3:])
    return parts.permute(*(order.index(one) for one in range(3)), 3, 4)


def layout(softmax: Softmax, captured: Sequence[Heads]) -> Layout | None:
    """Find how a softmax holds what was captured of each sequence, if their sizes agree."""
    if softmax.attention.dim() < 2 or not captured:
        return None
    found = [
        one
        for own in _without_sinks(softmax)
        for shaped in (own, own.unsqueeze(-2))  # One query may have no dimension.
        if (one := _layout(shaped, captured))
    ]
    return min(found, key=lambda one: one.error, default=None)


def _without_sinks(softmax: Softmax) -> list[Tensor]:
    """Return a softmax without the columns, its first or its last, that no product takes."""
    own = softmax.attention.double().nan_to_num()
    if not softmax.width:
        return [own]
    first, last = own.clone(), own.clone()
    first[..., : -softmax.width], last[..., softmax.width :] = 0, 0
    return [first, last]


def _layout(own: Tensor, captured: Sequence[Heads]) -> Layout | None:
    groups, (queries, keys) = own[..., 0, 0].numel(), own.shape[-2:]
    heads = captured[0].shape[0]
    windows, rest = divmod(groups, len(captured) * heads)
    if rest or not windows or any(one.shape[0] != heads for one in captured):
        return None
    dims = len(captured), windows, heads, queries, keys
    places = (_plain, _windowed) if windows == 1 else (_windowed,)
    # Sequences that are as many as the heads may be mistaken for them: try all orders.
    orders = [(0, 1, 2), (2, 1, 0)] if windows == 1 else list(permutations(range(3)))
    found = [
        one
        for place in places
        for order in orders
        if (one := _placed(place, own, captured, dims, order))
    ]
    return min(found, key=lambda one: one.error, default=None)


def _placed(place, own, captured, dims, order) -> Layout | None:  # type: ignore[no-untyped-def]
    view = split(own.contiguous(), dims, order).numpy()
    error, queries, keys = 0.0, [], []
    for windows, seen in zip(view, captured, strict=True):
        slots = place(windows, seen)
        if slots is None:
            return None
        queries.append(slots[0])
        keys.append(slots[1])
        error = max(error, _error(windows, seen, *slots))
    return Layout(dims, order, error, queries, keys)


def _error(windows: NDArray, seen: Heads, queries: Slots, keys: Slots) -> float:
    """Compare the windows (windows, heads, queries, keys) with the tokens' whole attention."""
    whole, lost = np.zeros(seen.shape), 0.0
    for window, rows, columns in zip(windows, queries, keys, strict=True):
        real, read = rows >= 0, columns >= 0
        whole[:, rows[real][:, None], columns[read]] = window[:, real][:, :, read]
        lost = max(lost, window[:, real][:, :, ~read].max(initial=0.0))
    return float(max(np.abs(whole - seen).max(initial=0.0), lost))


def _plain(windows: NDArray, seen: Heads) -> tuple[Slots, Slots] | None:
    """Number slots by tokens: those that nothing reads are padding, if there are fewer tokens."""
    (own,) = windows
    (rows, columns), (queries, keys) = own.shape[1:], seen.shape[1:]
    read = own.any((0, 1))
    if keys not in (columns, read.sum()) or queries > rows:
        return None
    real = np.ones(columns, bool) if keys == columns else read
    key_of = np.where(real, np.cumsum(real) - 1, -1)
    if queries == rows:
        query_of = np.arange(rows)
    elif rows <= columns and queries == real[:rows].sum():  # A bias or a zero is the last of keys.
        query_of = key_of[:rows]
    else:
        return None
    return query_of[None], key_of[None]


def _windowed(windows: NDArray, seen: Heads) -> tuple[Slots, Slots] | None:
    """Find the token of each slot: its row, and its column, hold the same numbers."""
    count, _, rows, columns = windows.shape
    queries, keys = seen.shape[1:]
    if columns > keys:
        return None
    own = np.sort(windows, -1)[..., ::-1].transpose(0, 2, 1, 3).reshape(count * rows, -1)
    whole = np.sort(seen, -1)[..., ::-1][..., :columns].transpose(1, 0, 2).reshape(queries, -1)
    nearest, distance = _nearest(own, whole)
    query_of = _each_once(np.where(distance < 1e-3, nearest, -1), whole).reshape(count, rows)
    taken = query_of[query_of >= 0]
    if len(np.unique(taken)) != len(taken):
        return None
    key_of = np.full((count, columns), -1)
    for window, tokens, found in zip(windows, query_of, key_of, strict=True):
        real = tokens >= 0
        mine = window[:, real].reshape(-1, columns).T
        theirs = seen[:, tokens[real]].reshape(-1, keys).T
        nearest, distance = _nearest(mine, theirs)
        found[:] = _each_once(np.where(mine.any(1) & (distance < 1e-3), nearest, -1), theirs)
    return query_of, key_of


def _each_once(tokens: Slots, whole: NDArray) -> Slots:
    """Share out tokens that have the same numbers, such as padding, among slots that have them."""
    found = tokens.copy()
    for token in np.unique(tokens[tokens >= 0]):
        (slots,) = np.nonzero(tokens == token)
        if len(slots) > 1:
            (alike,) = np.nonzero(np.abs(whole - whole[token]).max(1) < 1e-6)
            found[slots[: len(alike)]] = alike[: len(slots)]
    return found


def _nearest(some: NDArray, others: NDArray) -> tuple[Slots, NDArray]:
    some, others = (torch.from_numpy(np.ascontiguousarray(x)).double() for x in (some, others))
    # Tokens may be almost alike, and products would round what tells them apart.
    distances = torch.cdist(some, others, compute_mode="donot_use_mm_for_euclid_dist")
    found = distances.min(1)
    return found.indices.numpy(), found.values.numpy()
