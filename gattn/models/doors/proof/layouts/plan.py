"""What was proved of a model: the layout of each of its attention calls, or why it is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import CodeType

from torch import nn

from gattn.errors import CaptureError
from gattn.models.doors.proof.layouts.followed_call import FollowedCall
from gattn.models.doors.proof.layouts.ordering import InPlace
from gattn.models.doors.proof.layouts.sameness import is_part, is_same
from gattn.models.doors.steps import Passed
from gattn.models.read.layouts import Layout, usual
from gattn.models.read.on_graphs.numbers import NodeNumbers
from gattn.models.read.track.any_library.wholes import Whole
from gattn.models.read.track.early_calls import EarlyCall

Place = tuple[str, int]
_REFUSED = "What this model attends to cannot be proved, and is not shown on a guess"


_RUNS_ON = (
    " If an edit lets a loop run on that had ended by what it wrote, give it the words, or a "
    "number of steps."
)


@dataclass(eq=False)
class Plan:
    """What was proved of a model with one kind of inputs.

    Parameters
    ----------
    sites : list of (str, int)
        The attention calls in order: the module's name, and how many calls came before within one
        run of it.
    layouts : dict
        The layouts that each of them has.
    reasons : dict
        Why the layout of a call could not be proved.
    left_out : set of (str, int)
        The calls that were proved to attend over something else than tokens, such as channels,
        beside others that attend over tokens.
    gates : set of (str, int)
        The calls that only weigh what a token has several of, such as experts by a router, or what
        is the same for all inputs.
    untold : dict of (str, int)
        Why it could not be proved, beside calls that were, whether others weigh tokens.
    silent : list of str
        The modules that attend, as far as can be told, and show nothing.
    unmet : list of str
        The modules that multiply a softmax with values as no door sees.
    again : list of str
        The modules that multiply the attention of another one with values of their own.
    looking_up : list of str
        The modules that attend to parameters or buffers, as to a codebook.
    picked : list of str
        The modules that pick or order tokens, by value or at random, before others attend to them.
    switched : set of str
        The modules in which values decided otherwise under edits, as for other experts.
    unordered : set of (str, int)
        The calls whose tokens were picked or ordered by value or at random before, so that they
        are numbered as they come and may have no names.
    in_place : InPlace
        The calls whose tokens are in place again, as long as values decide the same.
    by_values : set of (str, int)
        The calls among these whose tokens values picked.
    beside : set of (str, int)
        The calls whose tokens are other ones than the ids that the model is given.
    numbers : dict of (str, int)
        Which nodes of the data those of a call over edges are, by its module and how many of its
        calls came before, where they are others than they come.
    graphs : dict of (str, int)
        The number of the graph that each of these calls attends over, if there are several.
    values_of_others : dict of (str, int)
        Why it is not proved of such a call that it weighs the values of its keys.
    orders : sequence of bytes
        What values decided before; `numbers` hold as long as they decide the same.
    steps : dict
        What code had called before the calls of attention, where values may decide what it does.
    idle_hooks : collection of code
        The user's hooks that change nothing: what they decide by values does not matter.
    unknown_nodes : set of str
        The modules that are given nodes of which it is not known which of the data they are.
    integers : bytes
        Describes the integers and masks that the model is given, if `numbers` hold for these only.
    refused : str
        Why nothing of the model can be trusted; empty if there is no such reason.
    altered : dict of (str, int)
        How softmaxes are changed before they meet the values, "scaled" or "mixed": by the module's
        name, and how many softmaxes came before within one run of it.
    early : dict of (str, int)
        Which call of its module a softmax becomes that may be edited before it meets the values: by
        the module's name, and how many softmaxes came before within one run of it.
    uses : dict of (str, int)
        What else is made of the scores of a call, as by a softmax with another temperature.
    twice : dict of (str, int)
        The softmaxes that a module takes twice: the number of the one that meets the values, and
        that of its call.
    turned : collection of str
        The modules whose rows are heads and a leading dimension queries, though sizes do not tell.
    exchangeable : list of str
        The modules of which it is also proved if rows are heads, and a leading dimension queries.
    is_nested : bool
        Whether the inputs are nested tensors, whose attention doors read sequence by sequence.
    read : dict
        Digests of the model's own tensors that decide how it runs, by the module
        that holds them and their names.
    inputs : dict
        Digests of the inputs that decide how it runs, by their number among all.
    is_stale : bool
        Whether a call came that was not proved, so that the model is proved anew.
    are_tokens_first : bool
        Whether the model's batch is the second dimension of its inputs.
    keeps_nothing : bool
        Whether no later call can continue the texts of one: the model was given and gave plain
        tensors, and keeps nothing of a call.
    has_failed : bool
        Whether the model raised an exception of its own, which the user's call may raise, too.
    wholes : dict
        The calls in which whole texts read themselves, once they ran; see `whole_of`.
    """

    sites: list[Place] = field(default_factory=list)
    layouts: dict[Place, list[tuple[tuple[int, ...], Layout]]] = field(default_factory=dict)
    reasons: dict[Place, str] = field(default_factory=dict)
    left_out: set[Place] = field(default_factory=set)
    gates: set[Place] = field(default_factory=set)
    untold: dict[Place, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    looking_up: list[str] = field(default_factory=list)
    picked: list[str] = field(default_factory=list)
    switched: set[str] = field(default_factory=set)
    unordered: set[Place] = field(default_factory=set)
    in_place: InPlace = field(default_factory=InPlace)
    by_values: set[Place] = field(default_factory=set)
    beside: set[Place] = field(default_factory=set)
    numbers: dict[Place, NodeNumbers] = field(default_factory=dict)
    graphs: dict[Place, int] = field(default_factory=dict)
    values_of_others: dict[Place, str] = field(default_factory=dict)
    orders: Sequence[bytes] = ()
    steps: Mapping[Place, Passed] = field(default_factory=dict)
    idle_hooks: Collection[CodeType] = ()
    unknown_nodes: set[str] = field(default_factory=set)
    integers: bytes = b""
    refused: str = ""
    altered: dict[Place, str] = field(default_factory=dict)
    early: dict[Place, EarlyCall] = field(default_factory=dict)
    uses: dict[Place, list[str]] = field(default_factory=dict)
    twice: dict[Place, tuple[int, int]] = field(default_factory=dict)
    turned: Collection[str] = ()
    exchangeable: list[str] = field(default_factory=list)
    is_nested: bool = False
    read: dict[tuple[str, str], bytes] = field(default_factory=dict)
    inputs: dict[int, bytes] = field(default_factory=dict)
    is_stale: bool = False
    are_tokens_first: bool = False
    keeps_nothing: bool = False
    has_failed: bool = False
    wholes: dict[object, Whole | None] = field(default_factory=dict)

    def layout(self, name: str, ordinal: int, lead: tuple[int, ...], run: int = 0) -> Layout | None:
        """Return the layout of an attention call; None if its door knows.

        Parameters
        ----------
        name, ordinal : str, int
            The module's name, and how many calls came before within this run of it.
        lead : tuple of int
            The sizes of the leading dimensions of its tensors.
        run : int
            How many runs of the module came before within the call of the model.

        Raises
        ------
        CaptureError
            If it was not proved.
        """
        if self.is_nested:
            return None
        self.check()
        place = name, ordinal
        if (only := self.only_layout(place, lead)) is not None:
            return only
        known = self.layouts.get(place, [])
        shown = name or "the model itself"
        if place in self.reasons:
            raise CaptureError(f"The attention of {shown} cannot be read: {self.reasons[place]}.")
        found = [layout for sizes, layout in known if sizes == lead]
        if run < len(known) and is_part(known[run][1]) and known[run][0] == lead:
            return known[run][1]
        are_alike = all(is_same(layout, found[0]) for layout in found)
        if not found or not (are_alike or run < len(known)):
            self.is_stale = True  # The next call is proved anew.
            raise CaptureError(
                f"{shown} attends in another way than when the model was proved on such inputs: "
                f"call {run} with the leading sizes {lead} did not run then. Call it again, and it "
                f"is proved anew.{_RUNS_ON if self.steps else ''}"
            )
        if not are_alike:
            if run < len(known) and known[run][0] == lead:
                return known[run][1]
            raise CaptureError(
                f"{shown} runs several times, and attends to other tokens each time, which is not "
                "read here."
            )
        return found[0]

    def only_layout(self, place: Place, lead: tuple[int, ...]) -> Layout | None:
        """Return a call's layout, if it was proved, and always has that one."""
        known = self.layouts.get(place, ())
        if len(known) != 1 or known[0][0] != lead or place in self.reasons or self.refused:
            return None
        return known[0][1]

    def reads_others(self, place: Place) -> bool:
        """Return whether a call's keys are tokens of another side, in each of its runs."""
        known = [layout.tokens for _, layout in self.layouts.get(place, ())]
        return bool(known) and all(one and one.is_cross and one.fed is None for one in known)

    def follow_call(self) -> FollowedCall:
        """Follow whether a call of the model, which begins, does as was proved."""
        return FollowedCall(self)

    def trust(self, module: nn.Module, place: Place, lead: tuple[int, ...], texts: int) -> None:
        """Take the word of torch's own module on its batch and heads, if nothing was proved.

        Keys that it adds to those of tokens cannot be told from them by what scores depend on. A
        batch of another size than the model's, of so many `texts`, has others folded into it.
        """
        if not isinstance(module, nn.MultiheadAttention) or prod(lead) != texts * module.num_heads:
            return
        for sizes, layout in self.layouts.get(place, ()):
            if prod((layout.split or sizes)[n] for n in layout.heads) != module.num_heads:
                del self.layouts[place]
                self.reasons[place] = (
                    "it attends from the same tokens several times at once, as in a batch that the "
                    "model makes itself"
                )
                return
        if place not in self.layouts or module.bias_k is not None or module.add_zero_attn:
            self.layouts[place] = [(lead, usual(lead, module.num_heads))]
            self.reasons.pop(place, None)

    def share_layout(self, places: Sequence[Place]) -> None:
        """Give softmaxes that are added up the layout that was proved of one of them."""
        known = next((self.layouts[one] for one in places if one in self.layouts), None)
        for place in places:
            if known is not None and place in self.reasons:
                self.layouts[place] = known
                del self.reasons[place]

    def leave_out(
        self,
        others: Mapping[Place, str],
        untold: Mapping[Place, str],
        gates: Collection[Place],
        learned: Collection[Place],
    ) -> None:
        """Leave out calls over something else than tokens, if there are others to show."""
        every = {**others, **untold}
        every = {place: reason for place, reason in every.items() if place not in self.layouts}
        self.gates = {*gates, *learned} - set(self.layouts)
        self.looking_up = sorted({*self.looking_up, *(name for name, _ in learned)})
        if all(place in every or place in self.gates for place in self.sites):
            self.reasons |= every
        else:
            self.left_out = (set(every) - set(untold)) - set(self.reasons)
            self.untold = {one: every[one] for one in untold if one in every}

    def leave_untold(self, alone: Collection[Place]) -> set[Place]:
        """Leave out what was not proved beside what was, where that says nothing of the latter.

        Returns the calls that come later: what was left out may have mixed their tokens.
        """
        every = dict.fromkeys(self.sites)  # A module may run several times.
        left = [place for place in every if place in alone and place in self.reasons]
        if not self.layouts or not left:
            return set()
        later = self._from(left[0]) - {left[0]}
        for place in left:
            more = "; the tokens of later layers, which it may have mixed, have no names"
            self.untold[place] = self.reasons.pop(place) + more * bool(later)
        return later

    def of_rows(self) -> set[Place]:
        """Return the calls that may have learned rows in place of tokens, of which are as many."""
        for place in self.sites:
            for _, layout in self.layouts.get(place, ()):
                tokens = layout.tokens
                if (
                    tokens is not None
                    and tokens.has_own_rows
                    and (tokens.num_queries == tokens.num_keys)
                ):
                    return self._from(place)
        return set()

    def _from(self, place: Place) -> set[Place]:
        """Return the calls that were proved from one on."""
        return set(self.sites[self.sites.index(place) :]) & self.layouts.keys()

    def check(self) -> None:
        """Raise a CaptureError if nothing of the model can be trusted."""
        if self.refused:
            raise CaptureError(f"{_REFUSED}: {self.refused}.")
