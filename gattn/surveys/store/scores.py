"""Writes the scores of each head as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pandas.api.types import is_numeric_dtype

from gattn.errors import SelectionError
from gattn.heads.trace import AttentionTrace

if TYPE_CHECKING:
    import pandas as pd

Place: TypeAlias = tuple[str, int, int]
"""A stack, layer and head."""

Scores: TypeAlias = dict[Place, dict[str, Any]]
"""The scores of each head; missing numbers are NaN, and missing text is None."""

_OWN = {
    *("text_id", "stack", "layer", "head", "num_edges"),
    *("weight_function", "normalizer", "kept_by", "graph"),
}
"""The columns of the table heads that analyses may not use."""


def scores_of(
    tables: Sequence[pd.DataFrame | Scores], trace: AttentionTrace
) -> dict[Place, dict[str, Any]]:
    """Join the rows that the tables of analyses, or scores by place, have for each head."""
    columns_of = [
        next(iter(table.values()), ()) if isinstance(table, dict) else table.columns
        for table in tables
    ]
    count = Counter(str(name).lower() for names in columns_of for name in names)
    if taken := [name for name in count if count[name] > 1 or name in _OWN]:
        raise SelectionError(
            f"The analyses of a survey must return columns with different names, but {taken[0]!r} "
            "is taken: rename it."
        )
    scores: dict[Place, dict[str, Any]] = {}
    for table in tables:
        if isinstance(table, dict):
            for place, scored in table.items():
                scores.setdefault(place, {}).update(scored)
            continue
        names = list(table.index.names)
        if names not in (["stack", "layer", "head"], ["layer", "head"]):
            raise SelectionError(
                "An analysis of a survey must return one row per head, indexed by 'layer' and "
                f"'head' or by 'stack', 'layer' and 'head', not by {names}."
            )
        places = list(table.index)
        if len(names) == 2:
            places = [(trace.only_stack.name, *place) for place in places]
        # Missing numbers are NaN and missing text is None, so that the type of a column is known.
        missing: list[Any] = [np.nan if is_numeric_dtype(kind) else None for kind in table.dtypes]
        columns = [
            one.astype(object).to_numpy(copy=True, na_value=none).tolist()
            for none, (_, one) in zip(missing, table.items(), strict=True)
        ]
        rows = list(zip(*columns, strict=True)) or [()] * len(places)
        for place, row in zip(places, rows, strict=True):
            scores.setdefault(place, {}).update(zip(table.columns, row, strict=True))
    return scores


def score_column(values: Sequence[Any]) -> pa.Array:
    """Write a column of scores: numbers as float64, anything else as text, NaN as null.

    SQL ignores null in means. A column that is null in a whole text gets its type from other texts.
    """
    if all(type(value) is float for value in values):  # as almost always
        return pa.array(values, pa.float64(), from_pandas=True)
    known = [None if value is None or value != value else value for value in values]
    if all(value is None for value in known):
        is_number = any(value is not None for value in values)
        return pa.nulls(len(known), pa.float64() if is_number else pa.null())
    if all(value is None or isinstance(value, (Real, np.bool_)) for value in known):
        return pa.array([None if value is None else float(value) for value in known], pa.float64())
    texts = [None if value is None else encodable(str(value)) for value in known]
    return pa.array(texts, pa.string())


def of_one_kind(rows: Sequence[pa.Table]) -> list[pa.Table]:
    """Write scores that are numbers in one text and words in another as words in both."""
    kinds = {(one.name, one.type) for row in rows for one in _scored(row)}
    words = {name for name, kind in kinds if kind == pa.string()}
    mixed = words & {name for name, kind in kinds if kind == pa.float64()}
    return [_worded(row, mixed) if mixed and _scored(row) else row for row in rows]


def _scored(row: pa.Table) -> list[pa.Field]:
    """List the columns of a text's heads; a failure has none."""
    return list(row.schema.field("heads").type.value_type) if "heads" in row.column_names else []


def _worded(row: pa.Table, names: Set[str]) -> pa.Table:
    kinds = [one.with_type(pa.string()) if one.name in names else one for one in _scored(row)]
    heads = row["heads"].cast(pa.large_list(pa.struct(kinds)))
    return row.set_column(row.column_names.index("heads"), "heads", heads)


def encodable(text: str) -> str:
    """Escape what UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()
