"""Edges that kernels emit, stored without a walk over blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence

from gattn.engines.call import AttentionCall
from gattn.engines.choice import emits
from gattn.engines.kernels.emitting import emit
from gattn.heads.store.kept_edges import KeptEdges


def store_emitted(call: AttentionCall, stores: Sequence[KeptEdges], *, scores: bool) -> bool:
    """Store what kernels emit for each element of the batch, and say whether they do.

    They do where `gattn.engines.choice.emits` says so, and without scores alone.
    """
    if scores or not stores or not emits(call, stores[0].keep):
        return False
    for store, edges in zip(stores, emit(call, stores[0].keep).elements(), strict=True):
        store.add_emitted(edges)
    return True
