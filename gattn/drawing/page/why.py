"""Packs what an edge needs to be asked why: the parts of a head's queries and keys.

The header's ``why`` lists heads: where each is; ``parts``, the names of its parts; ``queries`` and
``keys``, the tokens that can be asked about; ``dim``; ``added``, whether the model adds something
to scores; ``softcap``, the cap of scores or null; ``notes``; and the ``block`` of its numbers,
packed as in `packing`. These are

- for queries, then for keys: the step of each vector, f32, parts × tokens; and each of its numbers,
  u16: u means ``(u - 32767) * step``;
- what the model adds to each score, f32, queries × keys, if it adds something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.scores.taken_apart import Why
from gattn.drawing.page.circuits import ROUGH
from gattn.drawing.page.packing import block, planes, rounded_up
from gattn.errors import FileError, SelectionError
from gattn.heads.trace import AttentionTrace

_MIDDLE = 32767
_MOST_BYTES = 60_000_000


def page_bytes(found: Why) -> int:
    r"""Say how many bytes a page needs so that the edges of a head can be asked why.

    Parameters
    ----------
    found : Why
        A head, from `gattn.why`; all its edges, or those that it was asked about.

    Returns
    -------
    int
        At most so many: :math:`\frac{4}{3} \cdot 2 P (Q + K) d` for the numbers of P parts, not all
        of them zero, of Q queries and K keys of dimension d, with :math:`\frac{4}{3} \cdot 4 P (Q +
        K)` for their steps; and :math:`\frac{4}{3} \cdot 4 Q K` if the model adds something to
        scores.
    """
    if not isinstance(found, Why):
        raise _no_why("page_bytes()", found)
    queries, keys = len(found.query), len(_keys(found))
    used, _ = _held(found)
    size = len(used) * (queries + keys) * (2 * found.queries.shape[-1] + 4)
    return (size + (0 if found.bias is None else 4 * queries * keys)) * 4 // 3


def _no_why(name: str, given: object) -> SelectionError:
    return SelectionError(
        f"{name} takes what gattn.why returns, such as gattn.why(text, layer=2, head=1), or a list "
        f"of these, not {given!r:.80}."
    )


def why_entries(
    found: Why | Sequence[Why] | None, trace: AttentionTrace
) -> list[tuple[dict[str, Any], str]]:
    """Describe heads of a trace that can be asked why, each with its block.

    Raises
    ------
    SelectionError
        If one is no result of `gattn.why`, of another run, or named twice.
    FileError
        If they are too large for a page.
    """
    several = [] if found is None else [found] if isinstance(found, Why) else found
    if not isinstance(several, Sequence) or isinstance(several, str):
        raise _no_why("why=", several)
    for one in several:
        if not isinstance(one, Why):
            raise _no_why("why=", one)
    if len(trace.stacks) == len(list(trace.heads())) == 1:  # One head, whose stack has no name.
        several = [replace(one, stack=next(iter(trace.stacks))) for one in several]
    for one in several:
        _check(one, trace)
    places = [(one.stack, one.layer, one.head) for one in several]
    if twice := {place for place in places if places.count(place) > 1}:
        _, layer, head = min(twice)
        raise SelectionError(
            f"why= has head {layer}.{head} twice: ask gattn.why once for all its edges."
        )
    if (size := sum(map(page_bytes, several))) > _MOST_BYTES:
        raise FileError(
            f"What {len(several)} heads need to be asked why takes {size / 1e6:,.0f} MB, and a "
            f"page has room for {_MOST_BYTES / 1e6:.0f} MB: pass fewer heads, or ask about fewer "
            "queries, as in gattn.why(..., query=-1). gattn.drawing.page_bytes says how large one "
            "is."
        )
    return [_packed(one) for one in several]


def _check(found: Why, trace: AttentionTrace) -> None:
    """Refuse what is not of a trace's run."""
    name = f"{found.layer}.{found.head}"
    stack = trace.stacks.get(found.stack)
    head = None if stack is None else stack.get((found.layer, found.head))
    if head is None:
        raise SelectionError(
            f"why= is of head {name} of the {found.stack} stack, which the trace does not have: "
            "capture this head, too."
        )
    if tuple(head.labels()) != tuple(found.tokens):
        raise SelectionError(
            f"why= is of other tokens than head {name} of the trace: pass the same text to both."
        )
    known = found.attention.numpy()[head.query + head.graph.query_offset, head.key]
    if len(known) and not abs(known - head.attention).max() <= ROUGH:
        raise SelectionError(
            f"why= is of another run: the attention of head {name} differs by "
            f"{abs(known - head.attention).max():.3g} from the trace's. Use the same model and the "
            "same edits for both."
        )


def _keys(found: Why) -> list[int]:
    return list(range(len(found.tokens)) if found.key is None else found.key)


def _held(found: Why) -> tuple[Tensor, list[Tensor]]:
    """Return which parts are not zero for what was asked about, and their vectors."""
    asked = (
        torch.tensor(sorted(found.query), device="cpu"),
        torch.tensor(sorted(_keys(found)), device="cpu"),
    )
    ends = zip((found.queries, found.keys), asked, strict=True)
    sides = [side.index_select(1, tokens) for side, tokens in ends]
    return torch.cat([_nonzero(side) for side in sides]).unique(), sides


def _nonzero(side: Tensor) -> Tensor:
    places = side.coalesce().indices()[0] if side.is_sparse else side.any(-1).any(-1).nonzero()
    found: Tensor = places.flatten().unique(sorted=True)
    return found


def _packed(found: Why) -> tuple[dict[str, Any], str]:
    queries, keys = sorted(found.query), sorted(_keys(found))
    used, vectors = _held(found)
    sides = [side.index_select(0, used).to_dense().numpy() for side in vectors]
    coded = [_coded(side) for side in sides]
    data = b"".join(planes(steps) + planes(codes) for steps, codes in coded)
    if found.bias is not None:
        added = found.bias.numpy()[np.ix_(queries, keys)]
        data += planes(np.where(np.isfinite(added), added, 0.0).astype("<f4"))
    entry = {
        "stack": found.stack,
        "layer": found.layer,
        "head": found.head,
        "parts": [str(found.writers[n]) for n in used.tolist()],
        "queries": queries,
        "keys": keys,
        "dim": int(found.queries.shape[-1]),
        "added": found.bias is not None,
        "softcap": found.softcap,
        "notes": [*found.notes, f"pairs rounded to within {rounded_up(_error(sides, coded))}"],
    }
    return entry, block(data)


def _coded(vectors: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """Write vectors (..., dim) as whole multiples of a step of their own."""
    steps = (abs(vectors).max(-1) / _MIDDLE).astype("<f4")
    codes = np.rint(vectors / np.where(steps, steps, 1)[..., None])
    return steps, (codes.clip(-_MIDDLE, _MIDDLE) + _MIDDLE).astype("<u2")


def _error(sides: Sequence[NDArray[Any]], coded: Sequence[tuple[Any, Any]]) -> float:
    """Bound the error of any pair, |δq| |k| + |q + δq| |δk|."""
    steps_of = [(codes.astype(float) - _MIDDLE) * steps[..., None] for steps, codes in coded]
    query, key = (_longest(other - side) for side, other in zip(sides, steps_of, strict=True))
    return query * _longest(sides[1]) + _longest(steps_of[0]) * key


def _longest(vectors: NDArray[Any]) -> float:
    return float(np.linalg.norm(vectors, axis=-1).max())
