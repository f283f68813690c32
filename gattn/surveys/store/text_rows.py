"""Writes a text as one row with lists of structs, and takes rows apart into tables.

Any engine can pass such rows on; on disk, the lists are tables of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gattn.edit_records import to_text
from gattn.errors import CaptureError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.surveys.store.columns import (
    Columns,
    edge_columns,
    head_columns,
    query_columns,
    token_columns,
)
from gattn.surveys.store.schemas import FAILURES, LISTS, TEXTS
from gattn.surveys.store.scores import Place, encodable, of_one_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


def text_row(
    text_id: int,
    trace: AttentionTrace,
    scores: Mapping[Place, Mapping[str, Any]],
    metadata: str = "{}",
) -> pa.Table:
    """Write a trace as one row.

    Parameters
    ----------
    text_id : int
        The text's number.
    trace : AttentionTrace
        Its trace.
    scores : mapping of (stack, layer, head) to scores
        The scores of each head.
    metadata : str
        A JSON object.
    """
    heads = _ordered(trace)
    columns = {
        "edges": edge_columns(heads),
        "queries": query_columns(heads),
        "heads": head_columns(heads, scores),
        "tokens": token_columns(heads, list(trace.stacks)),
    }
    first = heads[0][1].graph
    return _row(
        text_id,
        trace.text or None,  # token ids have none
        metadata,
        num_tokens=first.num_keys,
        num_edges=len(columns["edges"]["key"]),
        edits=to_text(trace.edits) if trace.edits else None,
        lists=columns,
    )


def failed_row(
    text_id: int | None,
    text: str | None,
    metadata: str,
    reason: str,
    num_tokens: int | None = None,
) -> pa.Table:
    """Write a text that could not be captured as one row; invalid Unicode is escaped."""
    text = None if text is None else encodable(text)
    return _row(text_id, text, metadata, num_tokens=num_tokens, reason=encodable(reason))


def _row(
    text_id: int | None,
    text: str | None,
    metadata: str,
    *,
    num_tokens: int | None = None,
    num_edges: int | None = None,
    edits: str | None = None,
    reason: str | None = None,
    lists: Mapping[str, Columns] | None = None,
) -> pa.Table:
    row = {
        "text_id": pa.array([text_id], pa.int64()),
        "text": pa.array([text], pa.string()),
        "metadata": pa.array([metadata], pa.string()),
        "reason": pa.array([reason], pa.string()),
        "num_tokens": pa.array([num_tokens], pa.int32()),
        "num_edges": pa.array([num_edges], pa.int64()),
        "edits": pa.array([edits], pa.string()),
    }
    for name, columns in (lists or {}).items():
        struct = pa.StructArray.from_arrays(list(columns.values()), list(columns))
        row[name] = pa.LargeListArray.from_arrays(pa.array([0, len(struct)], pa.int64()), struct)
    return pa.table(row)


def joined(rows: Sequence[pa.Table]) -> pa.Table:
    """Stack rows without copying; the lists of a failure are null."""
    none = failed_row(None, None, "{}", "").slice(0, 0)
    return pa.concat_tables([none, *of_one_kind(rows)], promote_options="permissive")


def tables_of(rows: pa.Table) -> dict[str, pa.Table]:
    """Split rows into the tables of a survey, leaving out empty ones."""
    failed = pc.is_valid(rows["reason"]).to_numpy()
    captured, failures = _chosen(rows, ~failed), _chosen(rows, failed)
    tables = {"texts": captured.select(TEXTS.names).cast(TEXTS)}
    if len(failures):
        tables["failures"] = failures.select(FAILURES.names).cast(FAILURES)
    if len(captured):
        tables |= {name: _flat(captured, name) for name in LISTS}
    return tables


def _chosen(rows: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
    """Select rows by slicing; filtering would copy all edges."""
    return pa.concat_tables([rows.slice(0, 0), *(rows.slice(n, 1) for n in np.flatnonzero(chosen))])


def _flat(rows: pa.Table, name: str) -> pa.Table:
    """Write the structs of each list as rows that begin with their text's number."""
    chunks = []
    for batch in rows.select(["text_id", name]).to_batches():
        lists = batch.column(1)
        structs = lists.flatten()
        text_id = np.repeat(batch.column(0).to_numpy(), np.diff(lists.offsets.to_numpy()))
        columns = dict(zip((one.name for one in structs.type), structs.flatten(), strict=True))
        # A column that is null in the whole part is left out: in other parts it may hold text.
        known = {name: one for name, one in columns.items() if not pa.types.is_null(one.type)}
        chunks.append(pa.table({"text_id": text_id, **known}))
    return pa.concat_tables(chunks, promote_options="permissive")


def _ordered(trace: AttentionTrace) -> list[tuple[Place, AttentionGraph]]:
    found = [
        ((name, *place), stack[place])
        for name, stack in trace.stacks.items()
        for place in sorted(stack)
    ]
    if not found:
        raise CaptureError("The trace has no heads: there is nothing to store.")
    for place, head in found:
        if head.positions is not None or head.query_positions is not None or head.generated:
            raise CaptureError(
                f"The head {place} has chosen or generated tokens; a survey stores whole texts."
            )
    return found
