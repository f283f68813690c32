"""Says of a proved call in which whole texts read themselves what is the same in each run."""

from __future__ import annotations

from dataclasses import dataclass

from gattn.models.read.places import Side, whole_side
from gattn.models.read.track.any_library.proved import Proved


@dataclass(frozen=True, eq=False)
class Whole:
    """A call in which each element is a text of the batch, all of whose slots are tokens.

    `is_beside` says that its tokens are other ones than the ids that the model is given, and
    `is_softmax` that it may be one of several softmaxes that are mixed.
    """

    heads: int
    sides: list[Side]
    sequences: list[int]
    is_beside: bool
    is_softmax: bool


def whole_of(
    plan: Proved, name: str, part: int, lead: tuple[int, ...], length: int, slots: int
) -> Whole | None:
    """Return what was proved of a call, by its module and number, and its sizes.

    None if it is not such a call, if it may attend in several ways, or if its keys are to be
    remembered, since a later call may continue its texts. It is found once for each plan.
    """
    given = name, part, lead, length, slots
    if given not in plan.wholes:
        plan.wholes[given] = _whole_of(plan, (name, part), lead, length, slots)
    return plan.wholes[given]


def _whole_of(
    plan: Proved, place: tuple[str, int], lead: tuple[int, ...], length: int, slots: int
) -> Whole | None:
    is_left = place in plan.left_out or place in plan.gates or place in plan.untold
    layout = None if is_left else plan.only_layout(place, lead)
    if layout is None or not layout.is_of_whole_texts or length != slots:
        return None
    if not plan.keeps_nothing:
        return None
    assert layout.tokens is not None
    sequences = list(layout.tokens.sequences)
    return Whole(
        layout.num_heads(lead),
        [whole_side(length)] * len(sequences),
        sequences,
        place in plan.beside,
        sum(where == place[0] for where, _ in plan.altered) > 1,
    )
