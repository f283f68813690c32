"""Applies edits: sorts heads by their edits, and puts edited rows into the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.errors import EditError
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.base import Edit
from gattn.models.edit.graphs import Use
from gattn.models.edit.heard import Heard
from gattn.models.edit.part import EdgePart, Part
from gattn.models.edit.swap import Swap
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.normalizers import Normalizer, Softmax


def parts(reading: Reading, heads: Sequence[int] | None = None) -> list[Part]:
    """Group heads, by default all, by their edits."""
    of_head: dict[tuple[int, ...], list[int]] = {}
    named = [set(edit.heads(reading.heads)) for edit in reading.edits]
    for head in range(reading.heads) if heads is None else heads:
        edits = tuple(n for n, some in enumerate(named) if head in some)
        of_head.setdefault(edits, []).append(head)
    return [
        _part(reading, some, tuple(reading.edits[n] for n in edits))
        for edits, some in of_head.items()
    ]


def _part(reading: Reading, heads: list[int], edits: tuple[Edit, ...]) -> Part:
    swaps = [edit for edit in edits if isinstance(edit, Swap)]
    after = tuple(edit.among(heads) for edit in edits if edit.is_after)
    _check_uses(edits)
    graph = own_graph = reading.graph.on_host
    for edit in edits:
        graph = edit.allowed(graph, reading)
    call, own = reading.attention, heads
    if reading.splits_heads and not swaps and heads != list(range(reading.heads)):
        call, own = _of_heads(call, heads), list(range(len(heads)))
    weight, normalizer = call.weight, call.normalizer
    for swap in swaps:
        weight = swap.scored_by(weight, reading.has_vectors)
        normalizer = swap.normalizer or normalizer
    if graph is not own_graph or swaps:
        graph = reading.graph if graph is own_graph else graph.to(call.query.device)
        features = reading.features_on(call.edge_features, graph)
        call = replace(
            call, graph=graph, weight=weight, normalizer=normalizer, edge_features=features
        )
    heard = [edit for edit in edits if isinstance(edit, Heard)]
    _check_heard(heard, heads, after)
    for edit in heard:
        call = edit.instead(call, heads, own, reading)
    if any(edit.gives_values for edit in after):
        call = replace(call, value=_values(call, own, after, reading))
    kind = EdgePart if reading.lists_edges else Part
    return kind(reading, heads, call, own, after, bool(edits))


def _values(call: AttentionCall, own: list[int], edits: Sequence[Edit], reading: Reading) -> Tensor:
    """Edit the values of some heads."""
    assert call.value is not None
    value, some = call.value.clone(), call.value[:, own]
    for edit in edits:
        some = edit.values(some, reading)
    value[:, own] = some
    return value


def _check_heard(heard: Sequence[Heard], heads: Sequence[int], after: Sequence[Edit]) -> None:
    """Refuse two edits of one side of a head, and attention that is put in all the same."""
    known: dict[str, Heard] = {}
    for edit in heard:
        for side in sorted(edit.sides(heads)):
            if side in known:
                raise EditError(
                    f"{known[side]} and {edit} each say what the {side} of the same head reads: "
                    "open one of them, or name all parts in one, as in part=['0.1', 'mlp 0']."
                )
            known[side] = edit
    scoring = [edit for side, edit in known.items() if side != "value"]
    if scoring and (whole := [edit for edit in after if edit.gives_all_attention]):
        raise EditError(f"{whole[0]} puts in the attention that {scoring[0]} would change.")


def _check_uses(edits: Sequence[Edit]) -> None:
    """Refuse edits of a head that a later `Use` would override."""
    uses = [number for number, edit in enumerate(edits) if isinstance(edit, Use)]
    if not uses:
        return
    lost = [*edits[: uses[-1]], *(edit for edit in edits if not edit.is_after)]
    if lost:
        raise EditError(
            f"{edits[uses[-1]]} sets a head's attention, which overrides {lost[0]}: edit the graph "
            "itself, leave out the other edit, or put it last if it changes attention after "
            "normalizing."
        )


def _of_heads(call: AttentionCall, heads: list[int]) -> AttentionCall:
    """Take some heads of a model's own call."""
    assert call.value is not None
    features, normalizer = call.edge_features, call.normalizer
    is_run = heads == [*range(heads[0], heads[-1] + 1)]
    some = slice(heads[0], heads[-1] + 1) if is_run else heads  # A slice copies nothing.
    return replace(
        call,
        query=call.query[:, some],
        key=call.key[:, some],
        value=call.value[:, some],
        edge_features=None if features is None else features[..., some],
        normalizer=_normalizer_of(normalizer, heads),
    )


def _normalizer_of(normalizer: Normalizer, heads: list[int]) -> Normalizer:
    sink = getattr(normalizer, "sink", None)
    return Softmax(sink=sink[heads]) if isinstance(sink, Tensor) else normalizer


def apply(call: SeenCall, readings: Sequence[Reading]) -> None:
    """Put the edited rows into a call's output, and into the attention that it returns."""
    output, weights = call.output, call.weights
    for reading in readings:
        edited = {head for edit in reading.edits for head in edit.heads(reading.heads)}
        for part in parts(reading, sorted(edited)) if edited else ():
            rows = part.changed.nonzero()[:, 0]
            if not len(rows):
                continue
            if output is call.output:
                output = call.output.clone()
            if weights is not None and weights is call.weights:
                weights = weights.clone()
            if weights is None:
                found = part.output(rows)
            else:
                found = _attention_too(part, weights)[:, :, rows.to(output.device)]
            where = _places(part, reading.queries.slots[rows], output.device)
            found = _outputs(part, found, rows, call)
            output[where] = found.transpose(1, 2).to(output.dtype)
    call.output, call.weights = output, weights


def _outputs(part: Part, found: Tensor, rows: Tensor, call: SeenCall) -> Tensor:
    """Edit the outputs (elements, heads, rows, dim) of some heads."""
    if not any(edit.gives_values for edit in part.after):
        return found
    slots = part.reading.queries.slots.to(call.output.device)
    plain = call.output[part.reading.elements][:, slots][:, :, part.heads].transpose(1, 2)
    whole = plain.to(found.dtype).index_copy(2, rows.to(found.device), found)
    for edit in part.after:
        whole = edit.outputs(whole, part)
    return whole[:, :, rows.to(found.device)]


def _places(part: Part, slots: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    elements = torch.tensor(part.reading.elements, device=device)
    heads = torch.tensor(part.heads, device=device)
    return elements[:, None, None], slots.to(device)[:, None], heads


def _attention_too(part: Part, weights: Tensor) -> Tensor:
    """Compute the output, and put the attention of the changed rows into `weights`."""
    reading, outputs = part.reading, []
    changed = part.changed
    elements = torch.tensor(reading.elements, device="cpu")[:, None, None, None]
    heads = torch.tensor(part.heads, device="cpu")[:, None, None]
    for block in part.blocks():
        outputs.append(part.times_values(block))
        rows = changed[block.rows].nonzero()[:, 0]
        slots = reading.queries.slots[block.rows][rows]
        keys = reading.keys.slots[list_keys(block.columns).cpu()]
        weights[elements, heads, slots[:, None]] = 0
        some = block.attention[:, :, rows.to(block.attention.device)]
        weights[elements, heads, slots[:, None], keys] = some.to(weights.dtype)
    return torch.cat(outputs, dim=2)
