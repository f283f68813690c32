"""The checks: capturing and edits on one model of a library."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import gattn
from benchmarks.coverage.libraries.case import Case
from benchmarks.coverage.libraries.layouts import Heads, Layout, layout, split
from benchmarks.coverage.libraries.mixtures import mixture_error
from benchmarks.coverage.libraries.same import difference, same, state
from benchmarks.coverage.libraries.softmaxes import (
    Change,
    Softmax,
    joined,
    slow_path,
    softmaxes,
)
from benchmarks.coverage.libraries.verdict import (
    CAPTURED,
    EXACT,
    NO_ATTENTION,
    NOT_RUN,
    REFUSED,
    WRONG,
    Verdict,
    WrongError,
)
from gattn.errors import GattnError

Place = tuple[str, int]
Placed = dict[Place, tuple[Softmax, Layout]]
TOLERANCE, PRECISE, EDITED, FAST_PATH = 1e-5, 1e-9, 2e-5, 1e-6
MOST_PLACES = 3
_UNREAD = "may be attention, but was not proved", "does not show its attention"


def examine(case: Case) -> Verdict:
    """Compare gattn with the softmaxes of a model, and with what its library shows."""
    own = _own(case)
    told = Verdict(case.name, EXACT)
    try:
        captured, notes, unread = capture(case)
        told = replace(told, fast_path=notes, reason=unread)
        try:
            placed, told = compare(case, own, captured, told)
        except WrongError as error:
            # Where scores are large, rounding alone moves attention in single precision.
            precise, tolerance = _precise(case)
            if tolerance != PRECISE:
                raise error
            placed, told = _compared_precisely(precise, told)
    except GattnError as error:
        verdict = REFUSED if any(_is_wanted(one, case) for one in own) else NO_ATTENTION
        return replace(told, verdict=verdict, reason=_line(error))
    except MemoryError:
        return replace(told, verdict=NOT_RUN, reason="comparing it takes too much memory")
    except Exception as error:
        return replace(told, verdict=WRONG, reason=_reason(error))
    if not captured:
        return replace(told, verdict=NO_ATTENTION)
    try:
        with slow_path():
            verdict = CAPTURED if told.reason else EXACT
            return replace(told, verdict=verdict, edits=check_edits(case, placed))
    except GattnError as error:
        return replace(told, verdict=CAPTURED, reason=_line(error))
    except Exception as error:
        return replace(told, verdict=WRONG, reason=_reason(error))


def _compared_precisely(case: Case, told: Verdict) -> tuple[Placed, Verdict]:
    return compare(case, _own(case), capture(case)[0], told, PRECISE)


def _own(case: Case) -> list[Softmax]:
    with softmaxes(case.model) as kernels:
        case.run()
    return joined(kernels.softmaxes) if case.in_slices else kernels.softmaxes


def capture(case: Case) -> tuple[dict[Place, list[Heads]], bool, str]:
    """Capture a run, and check that this changes nothing.

    Returns whether the fast path matters, and the warning about what gattn leaves out, if any.
    """
    plain = case.run()
    if not same(plain, case.run()):
        raise ValueError("the model gives another output each time")
    before = state(case.model)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with gattn.capturing(case.model, keep=gattn.All()) as run:
                watched = case.run()
        traces = run.traces
    finally:
        if state(case.model) != before:
            raise WrongError("hooks, attributes or functions are not what they were before")
        if not same(plain, case.run()):
            raise WrongError("the output is not bit for bit what it was before")
    fast = not same(plain, watched)
    if fast:
        with slow_path():
            slow = case.run()
        if not same(slow, watched):
            raise WrongError("the output while capturing is not bit for bit the plain one")
        if (error := difference(watched, plain, is_padded=True)) > FAST_PATH:
            raise WrongError(f"the output while capturing differs by {error:.1e}")
    unread = [str(one.message) for one in said if any(some in str(one.message) for some in _UNREAD)]
    return _dense(traces), fast, _line("".join(unread))


def _dense(traces: Sequence[Any]) -> dict[Place, list[Heads]]:
    """Return each layer's attention as dense arrays, one for each sequence."""
    found: dict[Place, list[Heads]] = {}
    for trace in traces:
        for name, stack in trace.stacks.items():
            for layer in stack.layers:
                heads = [graph for place, graph in stack.items() if place[0] == layer]
                dense = np.stack([graph.to_dense() for graph in heads])
                found.setdefault((name, layer), []).append(dense)
    return found


def compare(
    case: Case,
    own: list[Softmax],
    captured: dict[Place, list[Heads]],
    told: Verdict,
    tolerance: float = TOLERANCE,
) -> tuple[Placed, Verdict]:
    """Find each captured layer among the model's softmaxes, and miss none."""
    left, placed = list(own), {}
    for place, heads in captured.items():
        placed[place] = softmax, _ = _found(place, heads, left, tolerance=tolerance)
        left.remove(softmax)
    for one, _ in placed.values():
        if over := _other_than_tokens(one, case):
            raise WrongError(f"{one.path} attends over {over}")
    weighing = [one for one in left if one.weighs or one.is_mixed]
    missed = [one for one in weighing if _is_wanted(one, case)]
    told = replace(told, reason=told.reason if missed else "")
    if len({one.path for one in missed}) > _count(told.reason):
        raise WrongError(
            f"{len(missed)} of {len(missed) + len(placed)} attentions were not captured: "
            + ", ".join(f"{one.path} {tuple(one.attention.shape)}" for one in missed[:3])
        )
    shown = list(case.own(case)) if case.own else []
    for number, tensor in enumerate(shown):
        if any(_is_same(tensor, one.attention, tolerance) for one in missed):
            continue  # A warning names its module.
        try:
            _found(("shown", number), [], own, tensor, captured, tolerance)
        except WrongError:
            own_of = {place: softmax for place, (softmax, _) in placed.items()}
            if not mixture_error(tensor, captured, own_of) < tolerance:
                raise
    stacks: dict[str, int] = {}
    for name, _ in placed:
        stacks[name] = stacks.get(name, 0) + 1
    error = max((one.error for _, one in placed.values()), default=0.0)
    told = replace(told, attentions=len(placed), error=error, shown=len(shown), stacks=stacks)
    return placed, told


def _is_same(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() < tolerance)


def _count(unread: str) -> int:
    """Return how many modules a warning names that may attend."""
    more = re.search(r"(?:and so|nor) do(?:es)? (\d+) more", unread)
    return bool(unread) + (int(more[1]) if more else 0)


def _is_wanted(softmax: Softmax, case: Case) -> bool:
    """Return whether a softmax is over several tokens, as is known."""
    return not _other_than_tokens(softmax, case) and softmax.attention.shape[-1] > 1


def _other_than_tokens(softmax: Softmax, case: Case) -> str:
    return case.not_tokens.get(softmax.kind, "") or case.not_tokens.get(softmax.role, "")


def _found(
    place: Place,
    heads: list[Heads],
    among: list[Softmax],
    shown: torch.Tensor | None = None,
    captured: dict[Place, list[Heads]] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[Softmax, Layout]:
    """Find the softmax that a captured layer is, or the captured layer that is shown."""
    if shown is not None:
        same = [one for one in among if one.attention.shape == shown.shape]
        softmax = Softmax(0, "", "", shown.detach(), width=same[0].width if same else 0)
        pairs = [(softmax, layout(softmax, one)) for one in (captured or {}).values()]
    else:
        pairs = []
        for softmax in among:
            pairs.append((softmax, layout(softmax, heads)))
            if pairs[-1][1] is not None and pairs[-1][1].error < tolerance:
                break
    errors = [(one, at) for one, at in pairs if at is not None]
    best = min(errors, key=lambda pair: pair[1].error, default=None)
    if best is None or not best[1].error < tolerance:
        size = tuple(shown.shape) if shown is not None else [one.shape for one in heads[:2]]
        nearest = (
            "none has this size" if best is None else f"the nearest is off by {best[1].error:.1e}"
        )
        which = "the library shows" if shown is not None else "gattn shows"
        other = "gattn does not" if shown is not None else "the model does not compute"
        raise WrongError(f"{which} an attention, {place}, {size}, that {other}: {nearest}")
    return best


def check_edits(case: Case, placed: Placed) -> int:
    """Check that cuts give what the same change below all functions gives; count them."""
    case, tolerance = _precise(case)
    plain = case.run()
    stacks = list(dict.fromkeys(stack for stack, _ in placed))
    own = [gattn.Swap(weight=gattn.ModelScore(), stack=stack) for stack in stacks]
    with gattn.edited(case.model, *own):
        swapped = case.run()
    if (error := difference(swapped, plain)) > tolerance:
        raise WrongError(f"with its own scores the output is off by {error:.1e}")
    count = 0
    for place in _chosen(list(placed), MOST_PLACES):
        softmax, where = placed[place]
        for cuts, change in _cuts(place, softmax, where):
            count += _check_cut(case, plain, cuts, softmax.changes(change), tolerance)
    if not count:
        raise WrongError("no cut changes the output")
    if not same(plain, case.run()):
        raise WrongError("the output is not bit for bit what it was before the edits")
    return count


def _precise(case: Case) -> tuple[Case, float]:
    """Return the case in double precision, if the model bears it, and how exact edits must be."""
    try:
        double = case.double()
        own = _own(double)
    except Exception:
        return case, EDITED
    is_precise = all(one.attention.dtype == torch.float64 for one in own)
    return double, PRECISE if is_precise else EDITED


def _chosen(places: list[Place], most: int) -> list[Place]:
    """Choose the first layer of each stack and the last of all, a few at most."""
    first = {stack: (stack, layer) for stack, layer in reversed(places)}
    return list(dict.fromkeys([*list(first.values())[-most + 1 :], places[-1]]))


def _cuts(place: Place, softmax: Softmax, where: Layout) -> list[tuple[gattn.Cut, Change]]:
    """Pair edits with the changes of the softmax that do the same: a head, and an edge."""
    stack, layer = place
    head = where.dims[2] - 1
    found = [(gattn.Cut(layer=layer, head=head, stack=stack), where.without_head(head))]
    attention = split(softmax.attention.double(), where.dims, where.order)
    for query, key in _edges(attention[0, :, head], where):
        cut = gattn.Cut(layer=layer, head=head, query=query, key=key, stack=stack)
        found.append((cut, where.without_edge(head, query, key)))
    return found


def _edges(windows: torch.Tensor, where: Layout) -> list[tuple[int, int]]:
    """Find an edge that matters but does not hold all attention of its row."""
    best = torch.where(windows < 0.9, windows, 0).flatten(0, 1).max(1)
    found = []
    for row in best.values.argsort(descending=True)[:1].tolist():
        window, slot = divmod(row, windows.shape[1])
        query = int(where.queries[0][window, slot])
        key = int(where.keys[0][window, best.indices[row]])
        if query >= 0 and key >= 0 and best.values[row] > 0:
            found.append((query, key))
    return found


def _check_cut(
    case: Case, plain: Any, cut: gattn.Cut, changes: dict[int, Change], tolerance: float
) -> int:
    with softmaxes(case.model, changes):
        expected = case.run()
    if difference(expected, plain) < 10 * tolerance:
        return 0
    with gattn.edited(case.model, cut):
        output = case.run()
    if (error := difference(output, expected)) > tolerance:
        effect = difference(expected, plain)
        raise WrongError(f"{cut} gives another output: off by {error:.1e} (effect {effect:.1e})")
    return 1


def _line(error: Exception | str) -> str:
    return " ".join(str(error).split())


def _reason(error: Exception) -> str:
    return f"{'' if isinstance(error, WrongError) else type(error).__name__ + ': '}{_line(error)}"
