"""Names the tokens of each stack of a run, as tables of effects show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gattn.errors import CaptureError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.models.edit.base import Edit
from gattn.models.load.token_texts import names_of_run
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall, extra_of
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.names.misnamed import PLURAL
from gattn.models.run.names.naming import Naming, Texts, patches_of
from gattn.models.run.names.token_names import TokenNames, count_of
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SIDES = ("query", "key")


class StackNames(Context):
    """Notes the stacks of a run, and names the tokens of each as all its sequences do.

    Tokens without names, and those that sequences name differently, are named by their positions.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, naming: Naming) -> None:
        self._names = TokenNames(tokenizer, naming)
        self._tokenizer, self._naming = tokenizer, naming
        self._calls = self._sequences = 0
        self._found: dict[str, dict[str, list[str]]] = {}
        self._are_one_side: dict[str, bool] = {}
        self._in_call: set[tuple[str, int]] = set()
        self._misfit: CaptureError | None = None

    def begin(self, tracker: Tracker) -> None:
        """Count the calls, whose sequences may be others."""
        self._calls += 1
        self._in_call = set()

    def ignores(self, place: Place) -> bool:
        """Note a call, and return whether its stack needs no more names."""
        sequences = set(place.sequences)
        self._sequences = max(self._sequences, len(sequences))
        for side, names in self._found.get(place.stack, {}).items():
            if any(count_of(place, one, side) != len(names) for one in sequences):
                names.clear()
        return self._in_call.issuperset((place.stack, one) for one in sequences)

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Name the tokens of a stack, and edit nothing."""
        if self.ignores(place):
            return []
        self._are_one_side[place.stack] = not place.is_bipartite
        for sequence in sorted(set(place.sequences)):
            self._in_call.add((place.stack, sequence))
            for side, names in self._of(call, place, sequence, tracker).items():
                before = self._found.setdefault(place.stack, {}).setdefault(side, names)
                before[:] = _common(before, names)
        return []

    def _of(
        self, call: SeenCall, place: Place, sequence: int, tracker: Tracker
    ) -> dict[str, list[str]]:
        """Name the tokens of a sequence in a stack."""
        known, *_ = self._names.of(call, place, sequence, tracker)
        texts: dict[str, list[str]] = {}
        for side in _SIDES:
            count = count_of(place, sequence, side)
            names = known[side] or self._ids(call, place, sequence, tracker, side)
            self._compare(call, place, side, count - len(extra_of(names)))
            texts[side] = list(names if len(names) == count else map(str, range(count)))
        return texts

    def _ids(
        self, call: SeenCall, place: Place, sequence: int, tracker: Tracker, side: str
    ) -> Sequence[str]:
        """Name tokens by their ids, as graphs do without a tokenizer; () if these are not known."""
        is_known = call.is_named and (self._tokenizer is not None or not tracker.needs_tokenizer)
        if not is_known:
            return ()
        ids = tracker.tokens.ids(place.stack, sequence, is_query=side == "query")
        return () if ids is None else names_of_run(ids, self._tokenizer)

    def _compare(self, call: SeenCall, place: Place, side: str, tokens: int) -> None:
        """Note texts of a stack that is named if they are not as many as its tokens."""
        given = self._naming.of(place.stack).get(side)
        if place.stack not in self._naming.stacks or given is None:
            return
        what = PLURAL[side] if place.is_bipartite else "tokens"
        proved = patches_of(call.tokens, side, is_bipartite=place.is_bipartite)
        try:
            self._naming.fitted(given, place.stack, tokens, proved, what)
        except CaptureError as error:
            self._misfit = error

    def check(self) -> None:
        """Refuse texts that are not as many as the tokens of the only call."""
        if self._misfit is not None and self._is_one:
            raise self._misfit

    @property
    def _is_one(self) -> bool:
        return self._calls == self._sequences == 1

    @property
    def texts(self) -> Texts | dict[str, Texts]:
        """The tokens of the only stack, or of each; none of a side that differs in size."""
        return told(
            {
                stack: found["key"] if self._are_one_side[stack] else found
                for stack, found in self._found.items()
            }
        )


def _common(some: list[str], others: list[str]) -> list[str]:
    """Name tokens as both do, otherwise by position; none if they are not equally many."""
    if len(some) != len(others):
        return []
    return some if some == others else list(map(str, range(len(some))))


def texts_of(trace: AttentionTrace) -> Texts | dict[str, Texts]:
    """Give the tokens of a trace's only stack, or of each."""
    return told({name: _texts(list(heads.values())) for name, heads in trace.stacks.items()})


def told(stacks: dict[str, Texts]) -> Texts | dict[str, Texts]:
    """Give the tokens of the only stack alone, if its queries and keys are the same."""
    only = next(iter(stacks.values()), [])
    return stacks if len(stacks) > 1 or isinstance(only, Mapping) else only


def _texts(heads: Sequence[AttentionGraph]) -> Texts:
    """Name the tokens of a stack; none if they differ between its heads."""
    if not heads:
        return []
    every = [(head.labels(), head.query_labels()) for head in heads]
    keys, queries = every[0]
    found = {"query": queries, "key": keys} if heads[0].graph.is_bipartite else keys
    return found if all(one == every[0] for one in every) else _unnamed(found)


def _unnamed(texts: Texts) -> Texts:
    return {side: [] for side in texts} if isinstance(texts, Mapping) else []
