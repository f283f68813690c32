"""Names a sequence's tokens for edits that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gattn.errors import EditError
from gattn.models.edit.unmet import Seen
from gattn.models.load.loading import find_tokenizer
from gattn.models.load.token_texts import names_of, spellings_of
from gattn.models.read.places import Place
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.naming import Naming
from gattn.models.watch.contexts import names_shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NODE = re.compile(r".*? \d+(?= |$)")

Names: TypeAlias = dict[str, Sequence[str] | None]
"""The names of the queries and of the keys, as graphs show them; None if they have none."""

Spellings: TypeAlias = dict[str, tuple[Sequence[str], ...]]
"""Other names of the same tokens."""


_MOVED = (
    "the model moved, picked or mixed its tokens before, so that it is not known which are here: "
    "give positions, which count them as they come"
)
UNNAMED: tuple[Names, Spellings, dict[str, str]] = (
    {"query": None, "key": None},
    {"query": (), "key": ()},
    {"query": _MOVED, "key": _MOVED},
)
"""The names of tokens of which it is not known which they are."""


class TokenNames:
    """Names of tokens: the layer's, the user's, those that graphs show, and the tokenizer's."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, naming: Naming) -> None:
        self._tokenizer, self._naming = tokenizer, naming
        self._given_more: dict[tuple[str, str], int] = {}

    def of(
        self,
        place: Place,
        sequence: int,
        tracker: Tracker,
        of_nodes: Mapping[str, tuple[str, ...]],
    ) -> tuple[Names, Spellings, dict[str, str]]:
        """Name a sequence's queries and keys; also say why a side has no names."""
        names, spellings = self._of_tokenizer(place, sequence, tracker)
        reasons = self._as_given(place, sequence, names, spellings, of_nodes)
        return names, spellings, reasons

    def check(self, seen: Seen) -> None:
        """Refuse names of stacks, or of tokens, that the model did not have."""
        if unknown := self._naming.stacks - seen.layers.keys():
            raise EditError(
                f"tokens= names the stack {min(unknown)!r}; the stacks are {sorted(seen.layers)}."
            )
        for (stack, side), size in self._given_more.items():
            count = seen.counts[stack, side]
            if size > count + 1:  # The last token that was generated was not read.
                raise EditError(f"{_other_count(size, stack, side, count)}.")

    def _of_tokenizer(
        self, place: Place, sequence: int, tracker: Tracker
    ) -> tuple[dict[str, Sequence[str] | None], dict[str, tuple[Sequence[str], ...]]]:
        """Name a sequence's queries and keys as graphs do, and as the tokenizer does."""
        if self._tokenizer is None:
            self._tokenizer = find_tokenizer(tracker.model)  # type: ignore[arg-type]
        names: dict[str, Sequence[str] | None] = {"query": None, "key": None}
        spellings: dict[str, tuple[Sequence[str], ...]] = {"query": (), "key": ()}
        for side in names:
            ids = tracker.tokens.ids(place.stack, sequence, is_query=side == "query")
            if ids is None or self._tokenizer is None:
                continue
            plain = names_of(ids, self._tokenizer)
            shown = names_shown(tracker, place.stack, sequence, is_query=side == "query")
            names[side] = shown if shown is not None and len(shown) == len(ids) else plain
            spellings[side] = (*spellings_of(ids, self._tokenizer), plain)
        return names, spellings

    def _as_given(
        self,
        place: Place,
        sequence: int,
        names: dict[str, Sequence[str] | None],
        spellings: dict[str, tuple[Sequence[str], ...]],
        of_nodes: Mapping[str, tuple[str, ...]],
    ) -> dict[str, str]:
        """Name tokens as the layer does, or as the user does; say which sides that fails for."""
        for side, name in (("query", "query_tokens"), ("key", "tokens")):
            if name in of_nodes:
                names[side] = of_nodes[name]
                spellings[side] = (tuple(map(_without_relation, of_nodes[name])),)
        given = self._naming.of(place.stack, sequence)
        if given is None:
            return {}
        reasons: dict[str, str] = {}
        is_step = any(
            one.first and one.positions is None
            for one, of in zip(place.queries, place.sequences, strict=True)
            if of == sequence
        )
        for side, some in (("query", place.queries), ("key", place.keys)):
            own = [one for one, of in zip(some, place.sequences, strict=True) if of == sequence]
            count = max(one.end for one in own)
            if place.sizes is not None:
                count = place.sizes[side == "key"]
            may_grow = not place.is_bipartite and place.sizes is None and len(given) > count
            if may_grow:  # Steps with a cache may follow.
                self._given_more[place.stack, side] = len(given)
            if len(given) == count or (is_step and len(given) < count) or may_grow:
                names[side], spellings[side] = given[:count], ()
            else:
                reasons[side] = _other_count(len(given), place.stack, side, count)
        return {side: reason for side, reason in reasons.items() if names[side] is None}


def _other_count(given: int, stack: str, side: str, count: int) -> str:
    sides = "queries" if side == "query" else "keys"
    return (
        f"tokens= gives {given} texts, and the stack {stack!r} has {count} {sides}: give one text "
        "per token"
    )


def _without_relation(name: str) -> str:
    """Leave out the type of edges in the name of a node, as in "paper 3 cites"."""
    found = _NODE.match(name)
    return found[0] if found else name
