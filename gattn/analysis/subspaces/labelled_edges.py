"""Edges with labels, as users give them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gattn.errors import SelectionError

Labels: TypeAlias = "Callable[[Sequence[str]], Any] | pd.DataFrame"
"""A function from a text's tokens to rows (query, key, label), or a table of all texts."""

_COLUMNS = ("query", "key", "label")


class LabelledEdges(NamedTuple):
    """The labelled edges of one text: (edges,) each."""

    query: Tensor
    key: Tensor
    label: Tensor


def texts_with_edges(texts: Any, edges: Labels) -> list[tuple[Hashable, Any]]:
    """List the texts that may have labelled edges, by their numbers or names."""
    is_many = isinstance(texts, (Sequence, Mapping)) and not isinstance(texts, (str, bytes))
    if not is_many:
        raise SelectionError(
            f"texts must be several texts, in a list or by their text_id, not {texts!r:.60}."
        )
    listed = list(texts.items() if isinstance(texts, Mapping) else enumerate(texts))
    if isinstance(edges, pd.DataFrame):
        if missing := [name for name in ("text_id", *_COLUMNS) if name not in edges]:
            raise SelectionError(
                f"A table of edges has the columns text_id, query, key and label, but this has no "
                f"{missing[0]!r}."
            )
        named = set(edges["text_id"])
        if unknown := named - {name for name, _ in listed}:
            raise SelectionError(f"There are edges of the text {min(unknown)!r}, but no such text.")
        return [one for one in listed if one[0] in named]
    if not callable(edges):
        raise SelectionError(
            "edges is a function that takes a text's tokens, or a table (a DataFrame) with the "
            f"columns text_id, query, key and label, not {edges!r:.60}."
        )
    return listed


def edges_of(edges: Labels, name: Hashable, tokens: Sequence[str]) -> LabelledEdges:
    """Take the labelled edges of one text."""
    if isinstance(edges, pd.DataFrame):
        rows: Any = edges.loc[edges["text_id"] == name, list(_COLUMNS)]
    else:
        given = edges(tokens)
        if isinstance(given, (pd.DataFrame, Mapping)):
            rows = pd.DataFrame(given)
        else:
            rows = pd.DataFrame(_listed(given), columns=list(_COLUMNS))
    if missing := [name for name in _COLUMNS if name not in rows]:
        raise SelectionError(f"Labelled edges have query, key and label, but no {missing[0]!r}.")
    columns = [_whole(column, rows[column].to_numpy(), name) for column in _COLUMNS]
    query, key, label = columns
    for column, values in (("query", query), ("key", key)):
        if len(values) and not 0 <= values.min() <= values.max() < len(tokens):
            wrong = values[(values < 0) | (values >= len(tokens))][0]
            raise SelectionError(
                f"Text {name!r} has the tokens 0 .. {len(tokens) - 1}, but an edge has the "
                f"{column} {wrong}."
            )
    if len(label) and not set(label.tolist()) <= {0, 1}:
        raise SelectionError("A label is True where query and key share the feature, or False.")
    if len(np.unique(query * len(tokens) + key)) < len(query):
        raise SelectionError(f"An edge of text {name!r} has two labels: label each edge once.")
    return LabelledEdges(*(torch.from_numpy(x) for x in (query, key, label.astype(bool))))


def _listed(given: Any) -> list[Any]:
    """Return rows of three."""
    if isinstance(given, Tensor):
        given = given.cpu().numpy()
    rows = list(given) if isinstance(given, (Sequence, np.ndarray, Iterator)) else None
    if rows is None or any(np.shape(row) != (3,) for row in rows):
        raise SelectionError(
            f"edges must give rows (query, key, label), or a table of these, not {given!r:.60}."
        )
    return rows


def _whole(column: str, values: np.ndarray[Any, Any], name: Hashable) -> np.ndarray[Any, Any]:
    """Return a column as whole numbers; refuse all else."""
    try:
        found = values.astype(np.int64)
        is_whole = bool((found == values).all())
    except (TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise SelectionError(
            f"The {column} of a labelled edge is a whole number, or True or False, in text {name!r}."
        )
    return found
