"""Puts edited attention back among the edges of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.applying import parts
from gattn.models.edit.graphs import Use
from gattn.models.edit.part import EdgePart
from gattn.models.edit.swap import Swap
from gattn.models.edit.tensors.patched import Patched
from gattn.models.read.on_graphs.seen_edges import SeenEdges, places_in
from gattn.models.read.reading import Reading


def put_back(call: SeenEdges, readings: Sequence[Reading]) -> None:
    """Replace the attention of the edges into all queries that edits change."""
    attention = call.attention
    for reading in readings:
        _check_parallel_edges(call, reading)
        for part in parts(reading) if reading.edits else ():
            changed = part.changed
            if not part.is_edited or not bool(changed.any()):
                continue
            _check_aggregation(call, cast("EdgePart", part))
            edited = call.spread(_on_all_edges(cast("EdgePart", part)), part.heads)
            edited = edited.to(attention.device, attention.dtype)
            rows = changed[call.ends.query.cpu()].to(attention.device)
            columns = torch.zeros(attention.shape[1], dtype=torch.bool, device=attention.device)
            columns[part.heads] = True
            whole = attention.new_zeros(attention.shape)
            whole = whole.index_copy(1, columns.nonzero()[:, 0], edited)
            attention = torch.where(rows[:, None] & columns, whole, attention)
    call.attention = attention


def _on_all_edges(part: EdgePart) -> Tensor:
    """Compute a part's attention on all edges of the model's graph, 0 on those that were cut."""
    key, query = part.graph.edge_index
    places = places_in(part.reading.graph, query, key)
    found = [block.attention[0] for block in part.edge_blocks()]
    values = torch.cat([part.attention.query.new_zeros(len(part.heads), 0), *found], dim=1)
    whole = values.new_zeros(part.reading.graph.num_edges, len(part.heads))
    return whole.index_copy(0, places, values.T)


def _check_parallel_edges(call: SeenEdges, reading: Reading) -> None:
    """Refuse edits that would have to tell parallel edges apart."""
    wrong = [edit for edit in reading.edits if isinstance(edit, (Swap, Use, Patched))]
    if wrong and call.has_parallel_edges:
        raise EditError(
            f"{wrong[0]} cannot be applied in {call.where}: several edges run from one node to "
            "another, and gattn shows each such group as one edge. Coalesce the edge_index, or "
            "use Cut, Scale or Restrict, which treat all edges of a group alike."
        )


def _check_aggregation(call: SeenEdges, part: EdgePart) -> None:
    """Refuse to remove edges where one without attention still counts: in a mean, a maximum."""
    aggregation, reading = call.ends.aggregation, part.reading
    if aggregation and part.graph.num_edges != reading.graph.num_edges:
        raise EditError(
            f"{reading.edits[0]} cannot be applied in {call.where}, whose messages are made one by "
            f"{aggregation}: an edge without attention still counts there, so that the layer "
            "would not be what it is without the edge; expected messages that are added up "
            "(aggr='add'). Cut(..., renormalize=False) and Scale change the attention alone."
        )
