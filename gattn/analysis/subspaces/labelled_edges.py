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


class EdgeLabels:
    """The labelled edges of texts.

    Parameters
    ----------
    texts : sequence or mapping
        The texts; those that have no edges in a table are left out of `texts`, which names each.
    edges : callable or DataFrame
        Their edges, as in `gattn.analysis.shared_subspace`.
    """

    def __init__(self, texts: Any, edges: Labels) -> None:
        is_one = isinstance(texts, (str, bytes))
        is_one |= isinstance(texts, Mapping) and "input_ids" in texts
        if is_one or not isinstance(texts, (Sequence, Mapping)):
            raise SelectionError(
                f"texts must be several texts, in a list or by their text_id, not {texts!r:.60}."
            )
        self.texts: list[tuple[Hashable, Any]]
        self.texts = list(texts.items() if isinstance(texts, Mapping) else enumerate(texts))
        self._rows: Callable[[Hashable, Sequence[str]], pd.DataFrame]
        if not isinstance(edges, pd.DataFrame):
            if not callable(edges):
                raise SelectionError(
                    "edges is a function that takes a text's tokens, or a table (a DataFrame) with "
                    f"the columns text_id, query, key and label, not {edges!r:.60}."
                )
            self._rows = lambda name, tokens: _table(edges(tokens))
            return
        if missing := [name for name in ("text_id", *_COLUMNS) if name not in edges]:
            raise SelectionError(
                "A table of edges has the columns text_id, query, key and label, but this has no "
                f"{missing[0]!r}."
            )
        places, known = edges.groupby("text_id").indices, {name for name, _ in self.texts}
        if unknown := [name for name in places if name not in known]:
            raise SelectionError(f"There are edges of the text_id {unknown[0]}, but no such text.")
        self.texts = [one for one in self.texts if one[0] in places]
        self._rows = lambda name, tokens: edges.iloc[places[name]]

    def of(self, name: Hashable, tokens: Sequence[str]) -> LabelledEdges:
        """Return the labelled edges of one text."""
        return _checked(self._rows(name, tokens), name, tokens)


def _checked(rows: pd.DataFrame, name: Hashable, tokens: Sequence[str]) -> LabelledEdges:
    """Take labelled edges; refuse what is none."""
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


def _table(given: Any) -> pd.DataFrame:
    """Make a table of rows of three, or of columns by name."""
    if isinstance(given, (pd.DataFrame, Mapping)):
        return pd.DataFrame(given)
    if isinstance(given, Tensor):
        given = given.cpu().numpy()
    rows = list(given) if isinstance(given, (Sequence, np.ndarray, Iterator)) else None
    if rows is None or any(np.shape(row) != (3,) for row in rows):
        raise SelectionError(
            f"edges must give rows (query, key, label), or a table of these, not {given!r:.60}."
        )
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _whole(column: str, values: np.ndarray[Any, Any], name: Hashable) -> np.ndarray[Any, Any]:
    """Return a column as whole numbers; refuse all else."""
    try:
        found = values.astype(np.int64)
        is_whole = bool((found == values).all())
    except (TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise SelectionError(
            f"In text {name!r}, the {column} of an edge is no whole number, True or False: "
            "expected positions of tokens, and True where they share the feature."
        )
    return found
