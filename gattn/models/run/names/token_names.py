"""Names a sequence's tokens for edits that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from gattn.errors import EditError
from gattn.heads.geometry.grid import Grid
from gattn.models.edit.base import Edit
from gattn.models.edit.unmet import Seen
from gattn.models.load.loading import find_tokenizer
from gattn.models.load.token_texts import names_of_run, spellings_of
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall, extra_of
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.names.growing import GrowingTexts
from gattn.models.run.names.misnamed import (
    MOVED,
    PLURAL,
    SIDES,
    enough_texts,
    of_both_sides,
    other_count,
    other_grid,
    unclear_owner,
    unknown_stack,
)
from gattn.models.run.names.naming import Naming, patches_of
from gattn.models.watch.contexts import names_shown
from gattn.names.tokens import unclear_pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Names: TypeAlias = dict[str, Sequence[str] | None]
"""The names of the queries and of the keys, as graphs show them; None if they have none."""

Spellings: TypeAlias = dict[str, tuple[Sequence[str], ...]]
"""Other names of the same tokens."""


_MOVED = f"{MOVED}: give positions, which count them as they come"
_UNNAMED: tuple[Names, Spellings, dict[str, str]] = (
    {"query": None, "key": None},
    {"query": (), "key": ()},
    {"query": _MOVED, "key": _MOVED},
)
"""The names of tokens of which it is not known which they are."""


class TokenNames:
    """Names of tokens: the layer's, the user's, those that graphs show, and the tokenizer's.

    Tokens that none of these names are named as patches, where it is known which they are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, naming: Naming) -> None:
        self._tokenizer, self._naming = tokenizer, naming
        self._beside_patches: dict[tuple[str, str], int] = {}
        self._growing = GrowingTexts()

    def of(
        self, call: SeenCall, place: Place, sequence: int, tracker: Tracker
    ) -> tuple[Names, Spellings, dict[str, str]]:
        """Name a sequence's queries and keys; also say why a side has no names.

        Nodes have the names that the layer gives them; its keys may have other spellings, too.
        """
        if not call.is_named:
            return _UNNAMED
        names, spellings = self._of_tokenizer(place, sequence, tracker)
        of_nodes = call.names_of(count_of(place, sequence, "key"))
        for side, name in (("query", "query_tokens"), ("key", "tokens")):
            if name in of_nodes:
                names[side], spellings[side] = of_nodes[name], ()
        if call.token_spellings:
            spellings["key"] = (call.token_spellings,)
        reasons = self._as_given(call, place, sequence, tracker, names, spellings)
        sizes, grids = _sizes(place, sequence), self.grids(call, place, sequence)
        for side in [side for side, known in names.items() if known is None]:
            if side in grids:
                names[side] = grids[side].names()
            elif self._naming.grid is not None:
                said = other_grid(self._naming.grid, place.stack, sizes[side], PLURAL[side])
                reasons.setdefault(side, f"{said}, or give positions")
        return names, spellings, reasons

    def check_pairs(self, edit: Edit, call: SeenCall, place: Place, sequence: int) -> None:
        """Refuse a pair of positions that may be meant as a patch, on a side that has patches."""
        sides = {side: getattr(edit, side, None) for side in SIDES}
        said = {side: text for side, of in sides.items() if (text := unclear_pair(side, of))}
        if said and (wrong := said.keys() & self.grids(call, place, sequence)):
            raise EditError(f"{edit}: {said[min(wrong)]}")

    def grids(self, call: SeenCall, place: Place, sequence: int) -> dict[str, Grid]:
        """Give the grids that a sequence's queries and keys lie on, by side, if any."""
        if not call.is_named:
            return {}
        sizes = _sizes(place, sequence)
        where = place.stack, sequence
        return self._naming.grids(call.tokens, sizes, *where, is_bipartite=place.is_bipartite)

    def check(self, seen: Seen) -> None:
        """Refuse names of stacks, or of tokens, that the model did not have."""
        if unknown := self._naming.stacks - seen.layers.keys():
            raise EditError(unknown_stack(min(unknown), seen.layers))
        if seen.sequences and (wrong := self._naming.surplus(seen.sequences)):
            raise EditError(f"{wrong}.")
        for (stack, _), size in self._beside_patches.items():
            others = sorted(other for (other, _), n in seen.counts.items() if n == size)
            if others and not self._naming.stacks:
                raise EditError(f"{unclear_owner(size, others[0], stack)}.")
        for wrong in self._growing.wrong():
            raise EditError(f"{wrong}.")

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
            plain = names_of_run(ids, self._tokenizer)
            shown = names_shown(tracker, place.stack, sequence, is_query=side == "query")
            names[side] = shown if shown is not None and len(shown) == len(ids) else plain
            spellings[side] = (*spellings_of(ids, self._tokenizer), plain)
        return names, spellings

    def _as_given(
        self,
        call: SeenCall,
        place: Place,
        sequence: int,
        tracker: Tracker,
        names: dict[str, Sequence[str] | None],
        spellings: dict[str, tuple[Sequence[str], ...]],
    ) -> dict[str, str]:
        """Name tokens as the user does; say which sides that fails for.

        Where one list names queries and keys that are other tokens, it may be meant for either.
        """
        by_side = self._naming.of(place.stack, sequence)
        if not by_side:
            return {}
        reasons: dict[str, str] = {}
        named: set[str] = set()
        read, has_sides = tracker.read(sequence), self._naming.has_sides(place.stack, sequence)
        for side in SIDES:
            if (given := by_side.get(side)) is None:
                continue
            count = count_of(place, sequence, side)
            proved = patches_of(call.tokens, side, is_bipartite=place.is_bipartite)
            whole = self._naming.with_patches(given, proved, count)
            if len(whole) > len(given):
                self._beside_patches[place.stack, side] = len(given)
            known: Sequence[str] = [*whole, *extra_of(names[side] or ())]
            if not place.is_part and (has_sides or not place.is_bipartite):
                known = self._growing.named(known, place, side, sequence, read, count)
            if len(known) == count:
                names[side], spellings[side] = known, ()
                named.add(side)
            else:
                enough = enough_texts(self._naming.others(proved, count))
                what = PLURAL[side]
                reasons[side] = other_count(len(known), place.stack, count, what, enough, "and")
        is_one_text = not place.is_bipartite or call.reads_itself
        if len(named) > 1 and not (is_one_text or has_sides):
            names.update(dict.fromkeys(SIDES))
            return dict.fromkeys(SIDES, of_both_sides(place.stack))
        return {side: reason for side, reason in reasons.items() if names[side] is None}


def _sizes(place: Place, sequence: int) -> dict[str, int]:
    """Count a sequence's queries and its keys."""
    return {side: count_of(place, sequence, side) for side in SIDES}


def count_of(place: Place, sequence: int, side: str) -> int:
    """Count the queries or the keys of a sequence."""
    if place.sizes is not None:
        return place.sizes[side == "key"]
    some = place.keys if side == "key" else place.queries
    own = [one for one, of in zip(some, place.sequences, strict=True) if of == sequence]
    return max(one.end for one in own)
