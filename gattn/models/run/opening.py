"""Opens contexts on live models, after proving that their attention can be read."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from gattn.models.doors.attaching import attached
from gattn.models.doors.attending import is_as_any, unseen
from gattn.models.doors.proof.kinds import Kinds, kinds_of
from gattn.models.doors.proof.layouts.plan import Plan
from gattn.models.doors.proof.proving import plan_of
from gattn.models.load.loading import as_written
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context

_CHANNELS = (
    "over channels, or over tokens that were mixed before, as by a norm or a gate over all of them"
)
_SCALED = "multiplies its attention with other numbers"
_MIXES = "mixes the attention of its heads", "mixes the attention of several softmaxes"
_PARAMETERS = "to parameters, as to a codebook"


@contextmanager
def opened(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of the model.

    Contexts nest, and take part only in calls of their own thread or task, and of those that copy
    its context variables. What does not come through transformers' interface is proved when the
    model is called.
    """
    model = as_written(model)
    parts = [] if is_as_any(model) else unseen(model)
    prove: Callable[..., Plan | Kinds] = plan_of if is_as_any(model) else kinds_of
    plans: dict[int, Plan | Kinds] = {}

    def proved(*call: Any) -> Plan | Kinds:
        plan = prove(*call)
        plans[id(plan)] = plan
        return plan

    with context.watching(model), attached(model, context, proved) as calls:
        yield calls
        shown, left = calls.last.layers.shown, calls.last.left_out
        apart = calls.last.modules.apart
    if left:
        _warn_of_others(model, left, _CHANNELS)
    books = {name for plan in plans.values() if isinstance(plan, Plan) for name in plan.looking_up}
    if shown and books:
        _warn_of_others(model, sorted(books), _PARAMETERS)
    own = [plan for plan in plans.values() if isinstance(plan, Plan)]
    if shown:
        _warn_of_altered(model, own, shown)
    if untold := {name: why for plan in own for (name, _), why in plan.untold.items()}:
        _warn_of_untold(model, untold)
    for stack, (name, earlier) in apart.items():
        _warn_of_apart(model, name, stack, earlier)
    picked = {name for plan in own for name in plan.picked}
    if shown and picked:
        _warn_of_picks(model, sorted(picked))
    adrift = {name for plan in own for name in plan.adrift}
    if shown and adrift:
        _warn_of_nodes(model, sorted(adrift))
    silent = {name for plan in plans.values() for name in plan.silent}
    missed = {one for one in silent if not _is_within(one, shown)}
    missed |= {_named(model, name) for plan in plans.values() for name in plan.unmet}
    again = {name for plan in own for name in plan.again}
    missed -= {_named(model, name) for name in again}
    if shown and missed:
        _warn(model, sorted(missed))
    if shown and again:
        _warn_of_uses(model, sorted(again))
    if shown and (others := [part for part in parts if part.split(" (")[0] not in shown]):
        _warn(model, others)


def _is_within(part: str, shown: Collection[str]) -> bool:
    """Return whether a part, or one around or inside it, showed attention in the last call."""
    name = part.split(" (")[0]
    return any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in shown)


def _warn(model: nn.Module, missed: list[str]) -> None:
    kind = type(model).__name__
    said = (
        f"1 module of {kind} does not show its attention, {missed[0]}"
        if len(missed) == 1
        else f"{len(missed)} modules of {kind} do not show their attention, such as {missed[0]}"
    )
    warnings.warn(
        f"{said}: gattn can neither show nor edit it, and numbers layers without it.",
        stacklevel=5,
    )


def _warn_of_others(model: nn.Module, left: Sequence[str], over: str) -> None:
    kind, first = type(model).__name__, left[0] or "the model itself"
    said = (
        f"1 module of {kind} attends {over}, {first}"
        if len(left) == 1
        else f"{len(left)} modules of {kind} attend {over}, such as {first}"
    )
    warnings.warn(
        f"{said}: gattn neither shows nor edits this attention, and layers are counted without it.",
        stacklevel=5,
    )


def _warn_of_uses(model: nn.Module, again: Sequence[str]) -> None:
    """Name what uses attention that another module computed."""
    others = f", and so do {len(again) - 1} more modules" if len(again) > 1 else ""
    warnings.warn(
        f"{_named(model, again[0])} multiplies the attention of another module with values of its "
        f"own{others}: this attention is shown once, as that of the module which used it first.",
        stacklevel=5,
    )


def _named(model: nn.Module, name: str) -> str:
    return f"{name or 'the model itself'} ({type(model.get_submodule(name)).__name__})"


def _warn_of_untold(model: nn.Module, untold: Mapping[str, str]) -> None:
    """Name what sums by a softmax, and may or may not weigh tokens."""
    kind, (first, why) = type(model).__name__, min(untold.items())
    first = first or "the model itself"
    said = (
        f"1 module of {kind} sums with the weights of a softmax, {first}"
        if len(untold) == 1
        else f"{len(untold)} modules of {kind} sum with the weights of a softmax, such as {first}"
    )
    warnings.warn(
        f"{said}, which may be attention, but was not proved: {why}. gattn neither shows nor edits "
        "it, and layers are counted without it.",
        stacklevel=5,
    )


def _warn_of_altered(model: nn.Module, plans: Iterable[Plan], shown: Collection[str]) -> None:
    """Say which softmaxes are not yet the attention that meets the values."""
    softmaxes = {(*place, how) for plan in plans for place, how in plan.altered.items()}
    counts = Counter((name, how) for name, _, how in softmaxes if name in shown)
    does = {
        name: _SCALED if how == "scaled" else _MIXES[count > 1]
        for (name, how), count in sorted(counts.items())
    }
    for what in dict.fromkeys(does.values()):
        names = [name for name, found in does.items() if found == what]
        kind = type(model.get_submodule(names[0])).__name__
        first = f"{names[0]} ({kind})" if names[0] else kind
        others = f", and so does {names[1]}" if len(names) == 2 else ""
        if len(names) > 2:
            others = f", and so do {len(names) - 1} more modules"
        warnings.warn(
            f"{first} {what} before it meets the values{others}: what is shown and edited are the "
            "softmaxes.",
            stacklevel=5,
        )


def _warn_of_apart(model: nn.Module, name: str, stack: str, earlier: str) -> None:
    kind = type(model.get_submodule(name)).__name__
    warnings.warn(
        f"{name or 'The model itself'} ({kind}) attends in a later call in another way, as where "
        f"its queries are the newest tokens alone: that is the stack {stack!r}, which continues no "
        f"text, and which edits of {earlier!r} do not reach.",
        stacklevel=5,
    )


def _warn_of_picks(model: nn.Module, picked: Sequence[str]) -> None:
    kind = type(model.get_submodule(picked[0])).__name__
    warnings.warn(
        f"{picked[0] or 'The model itself'} ({kind}) picks or orders tokens, by their values or at "
        "random: they are numbered in the order in which the modules that attend are given them, "
        "and have no names.",
        stacklevel=5,
    )


def _warn_of_nodes(model: nn.Module, adrift: Sequence[str]) -> None:
    """Name the layers whose nodes are not known."""
    others = f", and so do {len(adrift) - 1} more modules" if len(adrift) > 1 else ""
    warnings.warn(
        f"{_named(model, adrift[0])} attends over nodes of which it cannot be proved which nodes "
        f"of the data they are{others}: the model moves, picks or makes them itself. They are "
        "numbered in the order in which the module is given them, and have no names.",
        stacklevel=5,
    )
