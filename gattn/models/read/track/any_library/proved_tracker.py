"""A tracker that knows a model's calls of attention by what was proved of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import nn

from gattn.errors import CaptureError, EditError
from gattn.models.read.on_graphs.numbers import UNKNOWN, NodeNumbers
from gattn.models.read.track.any_library.any_modules import AnyModules
from gattn.models.read.track.any_library.proved import FollowedCall, Proved
from gattn.models.read.track.early_calls import SOFTMAX, EarlyCall
from gattn.models.read.track.tracking import Tracker


class ProvedTracker(Tracker):
    """Says of each call of attention what was proved of it.

    Parameters
    ----------
    model, known
        As for a `Tracker`.
    prove : callable, optional
        Gives what is proved of a call of the model: of the model, the module that is called, and
        what it is given.
    """

    modules: AnyModules

    plan: Proved | None = None
    """What was proved of the calls of attention in the present call."""

    def __init__(
        self,
        model: nn.Module,
        known: Tracker | None = None,
        prove: Callable[..., Proved | None] | None = None,
    ) -> None:
        self._prove = prove
        super().__init__(model, known)
        self._left_unread = False
        self._followed: FollowedCall | None = None
        self._is_as_proved = True
        self._as_proved: set[tuple[str, int]] = set()
        self._on_graphs: Counter[str] = Counter()
        self._graph = 0

    @staticmethod
    def _modules_of(model: nn.Module) -> AnyModules:
        return AnyModules(model)

    def _begin_proved(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Prove what a call that begins will attend to, unless it is known."""
        self.plan, self._left_unread = None, False
        self._on_graphs.clear()
        self._as_proved.clear()
        self._graph = 0
        self.plan = None if self._prove is None else self._prove(self.model, module, args, kwargs)

    def _compare(self) -> None:
        """Follow whether the call does as was proved, from where the model begins."""
        if self.plan is not None:
            self._followed = self.plan.follow_call()

    def stop(self) -> None:
        """Note that the call runs no more."""
        super().stop()
        if self._followed is not None:
            self._followed.end()
        self._followed = None

    def _are_in_order(self, place: tuple[str, int]) -> bool:
        return self._followed is None or self._followed.are_in_order(place)

    def _does_the_same(self, place: tuple[str, int]) -> bool:
        return self._followed is None or self._followed.does_the_same(place)

    def _end_proved(self, result: Any) -> None:
        """Refuse a call that ended of which attention was left unread."""
        self._is_as_proved = True
        if self.plan is not None and self._left_unread and result is not None:
            self.plan.check()

    def check(self, name: str) -> None:
        """Refuse a call before which an edit made the model's code do something else."""
        if self.is_edited and not self._is_as_proved:
            raise EditError(
                f"Before {name or 'the model itself'} attends, the model's code decides by numbers "
                "what it does, and an open edit changes these, so that it does something else than "
                "was proved: which tokens these are is not known. Edit or capture one of the "
                "layers only."
            )

    def check_met(self, module: nn.Module, part: int) -> None:
        """Refuse a call that was edited early if the model's code then did something else."""
        name, found = self.modules.name(module), self._followed
        if found is None or not self.is_calling or (name, part) not in self._as_proved:
            return
        if not found.meets_values_alike((name, part)):
            raise EditError(
                f"{name or 'the model itself'} decides by its attention what it does before this "
                "meets the values, and an open edit of it changes that, so that it does something "
                "else than was proved: which tokens its values are of is not known. Edit other "
                "heads or layers, or let its code do the same whatever it attends to."
            )

    def numbers(self, module: nn.Module) -> NodeNumbers | None:
        """Say which nodes of the data those of a call over edges are, if not as they come."""
        plan = self.plan
        if plan is None or self._followed is None:
            return None
        name = self.modules.name(module)
        place = name, self._on_graphs[name]
        self._on_graphs[name] += 1
        if (reason := plan.values_of_others.get(place)) is not None:
            shown = name or "the model itself"
            raise CaptureError(f"The attention of {shown} cannot be read: {reason}.")
        self._graph = plan.graphs.get(place, 0)
        found = UNKNOWN if plan.refused else plan.numbers.get(place)
        if found is not None and not self._followed.are_nodes_as_proved(found.orders):
            found = UNKNOWN
        if found is not None and not found.is_known:
            plan.unknown_nodes.add(name)
        return found

    def _mixes_softmaxes(self, module: nn.Module) -> bool:
        if self.plan is None or not self.plan.altered:
            return False
        name = self.modules.name(module)
        return sum(where == name for where, _ in self.plan.altered) > 1

    def reads(self, module: nn.Module, lead: Sequence[int], *, over_last: bool = True) -> bool:
        """Return whether the model was proved: what does not look like attention is refused then.

        Where it failed, the user's call fails with the same exception, or is refused at its end.
        """
        if self.plan is not None and self.plan.has_failed:
            self._left_unread = True
            return False
        return True

    @property
    def proves(self) -> bool:
        """Whether attention that is seen by torch's functions is proved."""
        return True

    def turns(self, module: nn.Module) -> bool:
        """Return whether a module's rows of attention are heads, and a leading dimension queries.

        That is where it was proved, though sizes do not tell.
        """
        return self.plan is not None and self.modules.name(module) in self.plan.turned

    def leaves_out(self, module: nn.Module, part: int) -> bool:
        """Return whether a call was proved to attend over something else than tokens."""
        plan, place = self.plan, (self.modules.name(module), part)
        if plan is None:
            return False
        return place in plan.left_out or place in plan.gates or place in plan.untold

    @property
    def left_out(self) -> Sequence[str]:
        """The modules of the last call that attend over something else than tokens."""
        return [] if self.plan is None else sorted({name for name, _ in self.plan.left_out})

    def alteration(self, module: nn.Module, number: int) -> str:
        """Return how a softmax is altered before it meets its values: "scaled", "mixed" or ""."""
        place = self.modules.name(module), number
        return "" if self.plan is None else self.plan.altered.get(place, "")

    def early(self, module: nn.Module, number: int) -> EarlyCall | None:
        """Return which call of attention a softmax becomes, if edits may be put in with it."""
        return (
            None if self.plan is None else self.plan.early.get((self.modules.name(module), number))
        )

    def comes_again(self, module: nn.Module, number: int) -> int | None:
        """Return the number of a softmax that meets the values, where a module takes it twice."""
        place = self.modules.name(module), number
        return None if self.plan is None else self.plan.twice.get(place, (None, None))[0]

    def beside(self, module: nn.Module, part: int, *, is_early: bool) -> Collection[str]:
        """Say what else the model makes of the scores of a call, which its edits do not reach."""
        if self.plan is None:
            return ()
        name = self.modules.name(module)
        twice = {(of, call) for (of, _), (_, call) in self.plan.twice.items()}
        again = [SOFTMAX] if (name, part) in twice and not is_early else []
        return [*self.plan.uses.get((name, part), ()), *again]

    def forget_early(self, module: nn.Module, number: int) -> None:
        """Edit a softmax no more before it meets its values, as what was proved says."""
        if self.plan is not None:
            self.plan.early.pop((self.modules.name(module), number), None)
