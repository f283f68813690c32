"""What a tracker asks of what was proved of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import TYPE_CHECKING, Protocol

from gattn.models.read.layouts import Layout
from gattn.models.read.on_graphs.numbers import NodeNumbers
from gattn.models.read.track.early_calls import EarlyCall

if TYPE_CHECKING:
    from gattn.models.read.track.any_library.wholes import Whole


class FollowedCall(Protocol):
    """What a call of a model has done so far, beside what was proved of it."""

    def end(self) -> None:
        """Follow the call no more."""

    def are_nodes_as_proved(self, decided: int) -> bool:
        """Return whether values decided as in the proof so far, as many times."""

    def are_in_order(self, place: tuple[str, int]) -> bool:
        """Return whether a call's tokens are in the order of the input, by module and number."""

    def does_the_same(self, place: tuple[str, int]) -> bool:
        """Return whether code has done the same before a call as when it was proved."""

    def meets_values_alike(self, place: tuple[str, int]) -> bool:
        """Return whether code has done the same before a call that has begun meets the values."""


class Proved(Protocol):
    """What was proved of a model with some kind of inputs."""

    def layout(self, name: str, ordinal: int, lead: tuple[int, ...], run: int = 0) -> Layout | None:
        """Return the layout of a call of attention, or refuse it with the reason."""

    def reads_others(self, place: tuple[str, int]) -> bool:
        """Return whether a call's keys are tokens of another side, in each of its runs."""

    def only_layout(self, place: tuple[str, int], lead: tuple[int, ...]) -> Layout | None:
        """Return a call's layout, if it always has that one."""

    @property
    def wholes(self) -> dict[object, Whole | None]:
        """What `whole_of` has found of its calls."""

    def check(self) -> None:
        """Refuse a model of which nothing can be trusted."""

    @property
    def refused(self) -> str:
        """Why nothing can be trusted of the model; empty if it can."""

    @property
    def has_failed(self) -> bool:
        """Whether the model raised an exception of its own when it was to be proved."""

    @property
    def are_tokens_first(self) -> bool:
        """Whether the model's batch is the second dimension of its inputs."""

    @property
    def gates(self) -> Collection[tuple[str, int]]:
        """The calls that only weigh what a token has several of, by module and number."""

    @property
    def untold(self) -> Mapping[tuple[str, int], str]:
        """Why it could not be proved of sums whether they weigh tokens, by module and number."""

    @property
    def turned(self) -> Collection[str]:
        """The modules whose rows are heads, though sizes do not tell."""

    @property
    def early(self) -> MutableMapping[tuple[str, int], EarlyCall]:
        """Which calls softmaxes become that may be edited before, by module and number."""

    @property
    def uses(self) -> Mapping[tuple[str, int], Collection[str]]:
        """What else is made of the scores of calls, by module and number."""

    @property
    def twice(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The softmaxes taken twice: the number of the one that meets values, and its call's."""

    @property
    def altered(self) -> Mapping[tuple[str, int], str]:
        """How softmaxes are altered before they meet the values, by module and number."""

    @property
    def left_out(self) -> Collection[tuple[str, int]]:
        """The calls that attend over something else than tokens, by module and number."""

    @property
    def by_values(self) -> Collection[tuple[str, int]]:
        """The calls whose tokens values pick."""

    @property
    def beside(self) -> Collection[tuple[str, int]]:
        """The calls whose tokens are other ones than the ids that the model is given."""

    @property
    def numbers(self) -> Mapping[tuple[str, int], NodeNumbers]:
        """Which nodes of the data those of calls over edges are, by module and number."""

    @property
    def values_of_others(self) -> Mapping[tuple[str, int], str]:
        """Why it is not proved of such calls that they weigh the values of their keys."""

    @property
    def graphs(self) -> Mapping[tuple[str, int], int]:
        """The numbers of the graphs of these calls, if they attend over several."""

    @property
    def unknown_nodes(self) -> set[str]:
        """The modules of which the nodes are not known."""

    @property
    def keeps_nothing(self) -> bool:
        """Whether no later call can continue the texts of one: the model keeps none of its keys."""

    def follow_call(self) -> FollowedCall:
        """Follow whether a call of the model, which begins, does as was proved."""
