"""Proves on a few rows that a reading gives what the model computed."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.linalg import vector_norm

from gattn.engines import tiles
from gattn.engines.call import AttentionCall
from gattn.engines.tensors.moving import moved
from gattn.errors import CaptureError
from gattn.graph.token_graph import TokenGraph
from gattn.models.read.masks import taken
from gattn.models.read.places import ordered
from gattn.normalizers.base import HALF, widened

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall

_NOTHING = 1e-6


def verify_empty(call: SeenCall, reading: Reading) -> None:
    """Prove that queries without keys give zero, in every head.

    If a query's keys are all masked by large negative numbers, its attention is uniform instead.
    """
    degree, features = reading.graph.in_degree, reading.attention.edge_features
    if features is None and bool(degree.all()):
        return
    empty = (degree == 0)[:, None].expand(-1, reading.heads)
    if features is not None and features.shape[-1] > 1 and bool((features == -torch.inf).any()):
        empty = empty.cpu() | (features == -torch.inf).all(1).cpu()
    rows, heads = empty.nonzero(as_tuple=True)
    if not len(rows):
        return
    elements = slice(reading.elements[0], reading.elements[-1] + 1)
    slots = reading.queries.slots[rows.cpu()].to(call.query.device)
    heads = heads.to(slots.device)
    is_output = reading.has_vectors or call.weights is None
    given = call.output.transpose(1, 2) if is_output else call.weights
    assert given is not None
    wrong = widened(given[elements]).abs().amax(-1)[:, heads, slots] > _NOTHING
    if bool(wrong.any()):
        _, one = wrong.nonzero()[0].tolist()
        name, query = call.name or type(call.module).__name__, int(rows[one])
        raise CaptureError(
            f"{name} attends at query {reading.queries.first + query}, head "
            f"{int(heads[one])}, though its mask excludes all keys: when every key is masked by a "
            "large negative number, softmax still spreads attention over them, which no graph of "
            "the mask shows. Let each query attend to itself, or mask with booleans."
        )


def verify(call: SeenCall, reading: Reading) -> None:
    """Prove that this attention, times the values, is what the model computed.

    A few rows are compared, or all of them if the user wrote the function.
    """
    count, device = len(reading.queries), call.query.device
    rows = ordered(count) if call.is_own else _few(count)
    elements, attention = slice(reading.elements[0], reading.elements[-1] + 1), reading.attention
    slots = moved(reading.queries.slots.index_select(0, rows), device)
    is_output = attention.value is not None and attention.value.shape[-1] > 0
    if is_output:
        expected = widened(call.output[elements].index_select(1, slots)).transpose(1, 2)
    else:
        assert call.weights is not None
        given = widened(call.weights[elements].index_select(2, slots))
        expected = taken(given, 3, reading.keys)
    found = _computed(attention, moved(rows, device), is_output)
    sizes = [vector_norm(x, torch.inf) for x in (expected, found - expected)]
    largest, error = torch.stack(sizes).tolist()
    if not math.isfinite(largest + error):
        _refuse_infinite(call, rows.tolist(), ~torch.isfinite(expected) | ~torch.isfinite(found))
    kinds = {x.dtype for x in (call.query, call.key, call.value, call.output)}
    half = call.is_half or not kinds.isdisjoint(HALF)
    error /= max(largest, 1e-6)
    if not error < (3e-2 if half else 1e-4):
        raise CaptureError(
            f"{call.where} ({type(call.module).__name__}) does not compute softmax attention as "
            f"gattn reads it: the relative error of its output is {error:.1e}.{_options(call)} "
            "Nothing was captured or edited."
        )


def _options(call: SeenCall) -> str:
    """List the further arguments of a call, one of which may be why."""
    names = [
        f"{name} (a tensor)" if isinstance(x, Tensor) else name for name, x in call.options.items()
    ]
    if not names:
        return (
            " Its code may change attention before it meets the values where no function shows it, "
            "as by rounding."
        )
    return f" Its options are {', '.join(sorted(names))}."


@lru_cache(maxsize=16)
def _few(count: int) -> Tensor:
    """Return the first and the last of so many rows, and two between them."""
    with torch.inference_mode(False):
        return torch.tensor(sorted({0, count // 3, 2 * count // 3, count - 1}), device="cpu")


def _refuse_infinite(call: SeenCall, rows: list[int], broken: Tensor) -> None:
    if bool(broken.any()):
        _, head, row, _ = broken.nonzero()[0].tolist()
        raise CaptureError(
            f"The attention in {call.where} or its output is NaN or infinite at head {head}, "
            f"query {rows[row]}; expected numbers. Look for NaN or infinity in the weights and "
            "inputs."
        )


def _computed(call: AttentionCall, rows: Tensor, is_output: bool) -> Tensor:
    """Compute the attention of some rows, or their output, a few rows at a time."""
    assert isinstance(call.graph, TokenGraph)
    assert call.value is not None
    num_keys = call.graph.num_keys
    most = max(1, tiles.BLOCK_BYTES // (8 * call.batch_heads * max(1, num_keys)))
    found = []
    for some in rows.split(most) if len(rows) > most else (rows,):
        attention = tiles.some_rows(call, some)
        found.append(attention @ call.value if is_output else attention)
    return torch.cat(found, 2) if len(found) > 1 else found[0]
