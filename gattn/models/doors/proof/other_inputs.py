"""Compares the queries and keys that no single input tells by the other inputs of a run."""

from __future__ import annotations

from torch import Tensor

from gattn.models.doors.proof.candidates import Inputs
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.dependence import Side
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.outlining import outlined
from gattn.models.doors.proof.probing.taints import may_be_mask
from gattn.models.read.layouts import Layout

_ORDERS = (
    "its queries and keys are tokens of several inputs, which the model joins in one order for the "
    "queries and in another for the keys, or moves on one side alone: join them in the same order"
)


def check_orders(layout: Layout, inputs: Inputs, site: Site) -> None:
    """Refuse self-attention whose slots are numbered alike, but are tokens of different inputs.

    Slots that the input which tells tokens does not reach are numbered in order on both sides.
    """
    tokens = layout.tokens
    if tokens is None or tokens.is_cross or tokens.queries is None or tokens.keys is None:
        return
    count = tokens.num_given or 0
    pairs = tokens.queries[:, :, None] == tokens.keys[:, None]  # (elements, queries, keys)
    pairs &= (tokens.queries >= count)[:, :, None]
    if not bool(pairs.any()):
        return
    own = {reader.source for reader in inputs.readers}
    for number, (x, probe) in enumerate(inputs.probes):
        if number in own or may_be_mask(x):
            continue
        found = outlined(tuple(x.shape), probe)
        if not all(bool(side.depends.any()) for side in found.sides):
            continue
        found.complete(probe)
        if bool((_are_apart(found.queries, found.keys, layout, site) & pairs).any()):
            raise UnprovedError(_ORDERS)


def _are_apart(queries: Side, keys: Side, layout: Layout, site: Site) -> Tensor:
    """Return which queries and keys (elements, queries, keys) depend on other parts of an input."""

    def folded(x: Tensor) -> Tensor:
        return layout.fold(x.reshape(*site.lead, -1, 1), site.lead)[:, 0, :, 0]

    one, other = folded(queries.depends)[:, :, None], folded(keys.depends)[:, None]
    apart = one != other
    for dim in queries.index.keys() & keys.index.keys():
        its, own = folded(queries.index[dim])[:, :, None], folded(keys.index[dim])[:, None]
        apart |= (its >= 0) & (own >= 0) & (its != own)
    return apart
