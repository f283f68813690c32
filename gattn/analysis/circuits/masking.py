"""Runs a model with the attention of its edges multiplied by weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.edit.kept.kept import Kept, Messages, kept_in_call
from gattn.models.edit.unmet import nodes_not_known
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from gattn.analysis.circuits.edge_lists import EdgeList
    from gattn.models.edit.base import Edit
    from gattn.models.read.places import Place
    from gattn.models.read.seen_call import SeenCall
    from gattn.models.read.track.tracking import Tracker


class Masking(Context):
    """Multiplies the attention of all edges by weights (copies, edges), one row per copy."""

    reads_one_call = True

    def __init__(self, edges: EdgeList, weights: Tensor, messages: Messages | None = None) -> None:
        self._edges, self._weights, self._messages = edges, weights, messages
        self._made: dict[tuple[str, int, int], Kept | None] = {}
        self.has_stream = True

    @property
    def order(self) -> list[tuple[str, int]]:
        """The stacks and layers in the order in which they ran."""
        return list(dict.fromkeys((stack, layer) for stack, layer, _ in self._made))

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Return one edit for all copies."""
        self.has_stream &= not isinstance(call, SeenEdges)
        where = place.stack, place.layer, place.head
        if where not in self._made:
            self._made[where] = self._kept(call, place)
        edit = self._made[where]
        return [[] if edit is None else [edit] for _ in place.sequences]

    def _kept(self, call: SeenCall, place: Place) -> Kept | None:
        some = self._edges.slices.get((place.stack, place.layer))
        if some is None:
            is_adrift = call.is_foreign and not call.is_named
            why = f"; {nodes_not_known(place.stack)}" if is_adrift else ""
            raise CaptureError(
                f"{call.where} attends in layer {place.layer} of {place.stack!r}, where the first "
                f"run had no edges: a circuit is found of runs that are alike{why}."
            )
        weights = self._weights[:, some]
        head, query, key = self._edges.tensors[some, 2:].T
        if not weights.requires_grad:
            kept = weights.any(0)
            weights, head, query, key = weights[:, kept], head[kept], query[kept], key[kept]
        return kept_in_call(place, head, query, key, weights, self._messages)
