"""Reads batches of columns, from any engine, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pandas import isna
from pandas.api.types import is_scalar

from gattn.errors import CaptureError
from gattn.surveys.inputs.rows import RowError, row_of
from gattn.surveys.store.queue import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

Batch: TypeAlias = "Mapping[str, Sequence[Any]] | pd.DataFrame | pa.Table"
Row: TypeAlias = Mapping[str, Any]


def rows_of(batch: Batch) -> Sequence[Row]:
    """Turn columns into rows with all fields that `CaptureGraphs` reads."""
    columns = batch.to_pydict() if isinstance(batch, pa.Table) else dict(batch)
    if not {"text", "input_ids"} & columns.keys():
        raise CaptureError(
            "CaptureGraphs takes columns that include 'text' or 'input_ids', not "
            f"{sorted(columns)}."
        )
    rows = [
        dict(zip(columns, map(_known, values), strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    is_queued = columns.keys() == set(SCHEMA.names)
    return rows if is_queued else [_read(row) for row in rows]


def _known(value: Any) -> Any:
    """Turn the null values of NumPy and pandas into None."""
    return None if is_scalar(value) and isna(value) else value


def _read(row: dict[str, Any]) -> Row:
    """Read a row that did not come from the queue of a survey."""
    text_id = row.pop("text_id", None)
    try:
        return {"text_id": text_id, **row_of(row, "text")._asdict()}
    except RowError as error:
        return {"text_id": text_id, "text": None, "metadata": "{}", "reason": f"A row: {error}"}
