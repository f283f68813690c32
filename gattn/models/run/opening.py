"""Opens contexts on live models, after proving that their attention can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn

from gattn.models.doors.attaching import attached
from gattn.models.doors.attending import attending, is_as_any, routes, unseen
from gattn.models.hugging_face.media import takes_text
from gattn.models.load.loading import as_written
from gattn.models.run.record import warnings_of_parts as told
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from gattn.models.doors.proof.kinds import Kinds
    from gattn.models.doors.proof.layouts.plan import Plan


@contextmanager
def opened(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of the model.

    Contexts nest, and take part only in calls of their own thread or task, and of those that copy
    its context variables. What does not come through transformers' interface is proved when the
    model is called.
    """
    model = as_written(model)
    is_any = is_read_as_any(model)
    parts = [] if is_any else unseen(model)
    plans: dict[int, Plan | Kinds] = {}

    def proved(*call: Any) -> Plan | Kinds:
        plan = _prove(model, is_any, *call)
        plans[id(plan)] = plan
        return plan

    with context.watching(model), attached(model, context, proved, is_any) as calls:
        yield calls
        shown, left = calls.last.layers.shown, calls.last.left_out
        padded, modules = calls.last.may_be_padded, calls.last.modules
    if left:
        told.of_others(model, left, told.CHANNELS)
    own = _of_whole_calls(plans.values())
    books = {name for plan in own for name in plan.looking_up}
    if shown and books:
        told.of_others(model, sorted(books), told.PARAMETERS)
    calls.learned = [told.named(model, name) for name in sorted(books)]
    weighing = {name for plan in own for name, _ in plan.gates}
    calls.weighing = [told.named(model, name) for name in sorted(weighing)]
    if shown:
        told.of_altered(model, own, shown)
    if untold := {name: why for plan in own for (name, _), why in plan.untold.items()}:
        told.of_untold(model, untold)
    for stack, (name, earlier) in modules.apart.items():
        told.of_apart(model, name, stack, earlier)
    if padded:
        told.of_padding(model, padded)
    if modules.unread:
        told.of_unread(model, sorted(modules.unread))
    if modules.with_holes:
        told.of_holes(model, sorted(modules.with_holes))
    exchangeable = {name for plan in own for name in plan.exchangeable}
    if shown and exchangeable:
        told.of_exchangeable(model, sorted(exchangeable))
    picked = {name for plan in own for name in plan.picked}
    if shown and picked:
        told.of_picks(model, sorted(picked))
    if shown and (switched := {name for plan in own for name in plan.switched}):
        told.of_switched(model, sorted(switched))
    unknown_nodes = {name: plan.refused for plan in own for name in plan.unknown_nodes}
    if shown and unknown_nodes:
        told.of_nodes(model, unknown_nodes)
    silent = {name for plan in plans.values() for name in plan.silent}
    missed = {one for one in silent if not _is_within(one, shown)}
    unmet = {told.named(model, name) for plan in plans.values() for name in plan.unmet}
    calls.unfollowed = sorted(unmet)
    missed |= unmet
    again = {name for plan in own for name in plan.again}
    missed -= {told.named(model, name) for name in again}
    if shown and missed:
        told.of_missed(sorted(missed))
    if shown and again:
        told.of_uses(model, sorted(again))
    if shown and (others := [told.named(model, part) for part in parts if part not in shown]):
        told.of_missed(others)


def is_read_as_any(model: nn.Module) -> bool:
    """Return whether a model is read as one of any library.

    So is one of transformers that takes no ids and does more than attend from all tokens to all
    with heads, as in windows of an image: of its texts and caches there is nothing to be known.
    """
    if is_as_any(model) or model.training or "input_ids" in signature(model.forward).parameters:
        return is_as_any(model)
    if not routes(model):
        from gattn.models.doors.proof.kinds import known_kinds

        return not known_kinds(model).is_read
    parts = map(model.get_submodule, unseen(model))
    if all(isinstance(part, nn.MultiheadAttention) for part in parts):
        from gattn.models.doors.proof.grouping import attends_in_groups

        return bool(attending(model)) and not takes_text(model) and attends_in_groups(model)
    return not attending(model) or _reads_all(model)


def _reads_all(model: nn.Module) -> bool:
    """Return whether all attention of a model is proved on a small input, as of any library."""
    from gattn.models.doors.proof.copying.small_inputs import small_input
    from gattn.models.doors.proof.plans import plan_of

    given = small_input(model)
    plan = None if given is None else plan_of(model, model, (), given)
    return plan is not None and not (plan.refused or plan.reasons)


def _prove(model: nn.Module, is_any: bool, *call: Any) -> Plan | Kinds:
    if is_any:  # What proves takes long to load, and most models need no proof.
        from gattn.models.doors.proof.plans import plan_of

        return plan_of(*call)
    from gattn.models.doors.proof.kinds import kinds_of

    return kinds_of(*call)


def _of_whole_calls(proved: Collection[Plan | Kinds]) -> list[Plan]:
    if not proved:
        return []
    from gattn.models.doors.proof.layouts.plan import Plan

    return [plan for plan in proved if isinstance(plan, Plan)]


def _is_within(part: str, shown: Collection[str]) -> bool:
    """Return whether a part, or one around or inside it, showed attention in the last call."""
    name = part.split(" (")[0]
    return any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in shown)
