"""A call of a model as it runs, beside what was proved of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gattn.models.doors.orders import Orders
from gattn.models.doors.steps import Steps
from gattn.models.watch.contexts import present

if TYPE_CHECKING:
    from gattn.models.doors.proof.layouts.plan import Place, Plan


class FollowedCall:
    """Follows a call of a model until its end, as far as what was proved depends on it.

    Parameters
    ----------
    plan : Plan
        What was proved.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._nodes = Orders(plan.orders, plan.idle_hooks)
        self._tokens = Orders(plan.in_place.decided, plan.idle_hooks)
        self._steps = Steps(plan.idle_hooks) if plan.steps else None

    def end(self) -> None:
        """Follow the call no more."""
        self._nodes.end()
        self._tokens.end()
        if self._steps is not None:
            self._steps.end()

    def are_nodes_as_proved(self, decided: int) -> bool:
        """Return whether values decided as in the proof so far, as many times."""
        return self._nodes.are_as_proved(decided)

    def are_in_order(self, place: Place) -> bool:
        """Return whether a call that runs keeps the names of its tokens.

        It notes who moved the tokens of one that does not.
        """
        plan = self._plan
        if place in plan.unordered:
            return False
        count = plan.in_place.counts.get(place)
        is_proved = count is None or self._tokens.are_as_proved(count)
        if not is_proved:
            self._note_makers(plan.in_place.makers[place])
        return is_proved

    def _note_makers(self, names: Collection[str]) -> None:
        """Note who moved tokens; without edits, values decide as in the proof of such inputs."""
        some = [calls for calls, context in present() if context.edits_attention]
        switched = self._tokens.switched
        own = [
            calls.tracker.modules.name(switched)
            for calls in some
            if switched and calls.owns(switched)
        ]
        if own:
            self._plan.switched.add(own[0])
        else:
            self._plan.picked = sorted({*self._plan.picked, *names})

    def does_the_same(self, place: Place) -> bool:
        """Return whether the model's code has called what it called before a call that runs.

        Where tokens are in place again, names are left out if values decide otherwise. Calls of
        which nothing is known are as before.
        """
        if self._steps is None or place in self._plan.in_place.counts:
            return True
        known = self._plan.steps.get(place)
        return known is None or self._steps.so_far in known.before

    def meets_values_alike(self, place: Place) -> bool:
        """Return whether it has done so until a call that it began meets the values."""
        known = None if self._steps is None else self._plan.steps.get(place)
        return self._steps is None or known is None or self._steps.so_far in known.met
