"""The context that edits the attention of a live model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gattn.errors import EditError
from gattn.models.doors.functions.calling.beside import forget_beside, warn_of_beside
from gattn.models.doors.functions.calling.checkpoints import Backward, is_in_checkpoint, refuse
from gattn.models.doors.functions.softmaxes.early import forget_firsts
from gattn.models.doors.functions.softmaxes.unreached import forget_late, warn_of_unreached
from gattn.models.edit.base import Edit
from gattn.models.edit.ends import Ends
from gattn.models.edit.heard import Hears
from gattn.models.edit.unmet import Seen, Unmet
from gattn.models.edit.where.tokens import KnownTokens, only_one
from gattn.models.load.scripts import is_training
from gattn.models.load.walking import modules_of
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.hear.hearing import Hearing
from gattn.models.run.names.naming import Naming
from gattn.models.run.names.token_names import TokenNames
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(eq=False)
class _Call:
    """An edited call.

    The `located` edits are found by id, stack, sequence, whether its tokens have names, and how
    many they are. The `given` edits are found by the ids of their parts `here`.

    `may_checkpoint` says that a checkpoint in it would be computed again by the backward pass, and
    `is_checkpointed` that one was edited; if the model trains, it `awaits_backward`.
    """

    awaits_backward: bool = False
    may_checkpoint: bool = False
    is_checkpointed: bool = False
    stack: str = ""
    layer: int = 0
    located: dict[tuple[int, str, int, bool, tuple[int, int]], Edit] = field(default_factory=dict)
    given: dict[int, Edit] = field(default_factory=dict)
    here: dict[tuple[int, str, int, int], Edit | None] = field(default_factory=dict)
    heard: list[Edit] = field(default_factory=list)


class Editing(Context):
    """Edits the elements of a batch, with one list of edits for all or one list for each."""

    def __init__(
        self,
        edits: Sequence[Sequence[Edit]],
        tokenizer: PreTrainedTokenizerBase | None = None,
        naming: Naming | None = None,
    ) -> None:
        self._edits, self._names = edits, TokenNames(tokenizer, naming or Naming())
        self._unmet = {
            (id(edit), stack): Unmet(part)
            for some in edits
            for edit in some
            for stack, part in edit.by_stack().items()
        }
        self._seen, self._has_ended, self._broke = Seen(), False, False
        self._relative = {id(edit) for some in edits for edit in some if edit.needs_tokens}
        self._positions: dict[tuple[int, str], set[int | None]] = {}
        self._stack_of: dict[int, str] = {}
        self._unclear: Edit | None = None
        self._calls: dict[Tracker, _Call] = {}
        self._ends: dict[Tracker, Ends] = {}
        self.backward = Backward()
        self._hears = [edit for some in edits for edit in some if isinstance(edit, Hears)]
        self.hears_parts = bool(self._hears)
        self.edits_attention = any(map(bool, edits))
        self._layers = None if self._hears else _layers_of(edits)
        self._hearing = Hearing(self, self._is_heard)

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Watch the residual stream, if an edit names parts of it."""
        return self._hearing.watching(model) if self._hears else nullcontext()

    def begin(self, tracker: Tracker) -> None:
        """Note whether the backward pass will run the model's layers again."""
        self._seen.was_called = True
        self._ends.setdefault(tracker, Ends(self._edits)).begin(tracker)
        with_gradient = torch.is_grad_enabled()
        is_checkpointed = with_gradient and any(
            is_training(module) and getattr(module, "gradient_checkpointing", False)
            for module in modules_of(tracker.model)
        )
        self._calls[tracker] = _Call(is_checkpointed, with_gradient)
        if self._hears:
            self._hearing.begin(tracker)

    @property
    def order(self) -> list[tuple[str, int]]:
        """The stacks and layers in the order in which they ran."""
        return list(self._seen.order)

    def of(self, sequence: int) -> Sequence[Edit]:
        """Return the edits of a sequence, as given."""
        number = sequence if len(self._edits) > 1 else 0
        return self._edits[number] if number < len(self._edits) else ()

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Return the edits of each element, with their tokens located."""
        now = self._calls.setdefault(tracker, _Call())  # Attention may run again after its call.
        now.awaits_backward &= tracker.is_calling
        now.stack, now.layer = place.stack, place.layer
        self._seen.note(place)
        if call.is_foreign and not call.is_named and place.stack not in self._seen.unknown_nodes:
            self._seen.unknown_nodes.append(place.stack)
        applied: list[Sequence[Edit]] = []
        for sequence in place.sequences:
            found = [edit for edit in self.of(sequence) if edit.applies(place)]
            for edit in found:
                self._note_stack(edit, place)
            if self._unclear is not None:
                return []  # Refused at the end of the call, when all stacks are known.
            here = [self._locate(edit, call, place, sequence, tracker) for edit in found]
            applied.append([edit for edit in here if edit is not None])
        if not any(applied):
            return []
        if self._hears:
            applied = self._heard(applied, call, place, now)
        if now.may_checkpoint and tracker.is_calling and is_in_checkpoint():
            now.is_checkpointed = True
            now.awaits_backward = tracker.model.training and call.is_seen_again
            self.backward.is_lost |= not call.is_seen_again
        return applied

    def _heard(
        self, edits: list[Sequence[Edit]], call: SeenCall, place: Place, now: _Call
    ) -> list[Sequence[Edit]]:
        """Put what heads read in place of the edits that say what they do not."""
        heard = self._hearing.heard(edits, call, place)
        for name, edit in heard.items():
            given = next(one for some in edits for one in some if id(one) == name)
            now.given[id(edit)] = now.given.get(name, given)
            now.heard.append(edit)
        return [[heard.get(id(edit), edit) for edit in some] for some in edits]

    def _is_heard(self, place: Place) -> bool:
        """Return whether a later layer reads what a call writes without some of it."""
        return any(edit.hears_of(place) for edit in self._hears)

    def ignores(self, place: Place) -> bool:
        """Note a call, and return whether no edit applies to it."""
        self._seen.note(place)
        if self._layers is not None and place.layer not in self._layers:
            return True
        given = (edit for sequence in {*place.sequences} for edit in self.of(sequence))
        return not self._hears and not any(edit.applies(place) for edit in given)

    def wants(self, place: Place) -> bool:
        """Return whether an edit names parts of the stream that a call writes."""
        return bool(self._hears) and self._hearing.wants(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note what a call writes to the stream."""
        self._hearing.see(call, place)

    def _note_stack(self, edit: Edit, place: Place) -> None:
        known = self._stack_of.setdefault(id(edit), place.stack)
        if known != place.stack and not edit.spans_stacks:
            self._unclear = edit

    def end(self, tracker: Tracker, result: Any) -> None:
        """Refuse an edit that could be meant for several stacks, and gradients taken too late."""
        self._has_ended = True
        self._hearing.end(tracker)
        forget_firsts(tracker)
        warn_of_beside(tracker)
        warn_of_unreached(tracker, result)
        if tracker in self._calls and self._calls[tracker].is_checkpointed:
            self.backward.guard(result)
        if self._unclear is not None:
            stacks = ", ".join(map(repr, self._seen.layers))
            raise EditError(
                f"{self._unclear} does not say which stack to edit, and the model has {stacks}: "
                f"name one, as in stack={self._stack_of[id(self._unclear)]!r}."
            )

    def broke(self, tracker: Tracker) -> None:
        """Forget a call that broke off."""
        self._broke = True
        self._hearing.end(tracker)
        forget_firsts(tracker)
        forget_beside(tracker)
        forget_late(tracker)

    def _locate(
        self, edit: Edit, call: SeenCall, place: Place, sequence: int, tracker: Tracker
    ) -> Edit | None:
        now = self._calls[tracker]
        self._names.check_pairs(edit, call, place, sequence)
        if id(edit) in self._relative:
            sizes = place.sizes or (call.query.shape[2], call.key.shape[2])
            name = id(edit), place.stack, sequence, call.is_named, sizes
            if name not in now.located:
                now.located[name] = self._find(edit, call, place, sequence, tracker)
            found = now.located[name]
        else:
            found = edit
        where = id(found), place.stack, place.layer, place.head
        if where not in now.here:
            now.here[where] = found.in_layer(place.layer).in_call(place)
        here = now.here[where]
        if here is not None and here is not edit:
            now.given[id(here)] = edit
        return here

    def _find(
        self, edit: Edit, call: SeenCall, place: Place, sequence: int, tracker: Tracker
    ) -> Edit:
        """Replace texts of tokens and negative positions by positions."""
        names, spellings, reasons = self._names.of(call, place, sequence, tracker)
        grids = self._names.grids(call, place, sequence)
        self._seen.note_names(place.stack, names, reasons)
        query, key = (
            KnownTokens(
                names[side],
                spellings[side],
                self._ends[tracker].count(edit, place, sequence, tracker, side),
                reasons.get(side, ""),
                grids.get(side),
            )
            for side in ("query", "key")
        )
        found, which = edit.located(query, key)
        if (unmet := self._unmet.get((id(edit), None))) is not None:
            unmet.find(which)
        for side in names:
            one = only_one(getattr(found, side, None))
            self._positions.setdefault((id(edit), side), set()).add(one)
        # One edit for equal positions, so that these elements are read together.
        located = self._calls[tracker].located
        alike = (known for (of, *_), known in located.items() if of == id(edit))
        return next((known for known in alike if known.named() == found.named()), found)

    def stack(self, edit: Edit) -> str | None:
        """Return the only stack that an edit names, or edited among several; None if not so."""
        is_clear = len(self._seen.layers) > 1 and not edit.spans_stacks
        return edit.stack or (self._stack_of.get(id(edit)) if is_clear else None)

    def position(self, edit: Edit, side: str) -> int | None:
        """Return the only query or key that an edit names in all that ran; None if it is not so."""
        own = {only_one(getattr(edit, side, None))}
        found = self._positions.get((id(edit), side), own)
        return next(iter(found)) if len(found) == 1 else None

    def met(self, readings: Sequence[Reading], tracker: Tracker) -> None:
        """Note which edits had something to edit."""
        if not self._unmet:
            return
        now = self._calls[tracker]
        for reading in readings:
            for edit in reading.edits:
                given = id(now.given.get(id(edit), edit))
                for name in ((given, None), (given, now.stack)):
                    unmet = self._unmet.get(name)
                    if unmet is not None:
                        unmet.meet(edit, now.layer, reading)
                        if unmet.is_met:  # Another thread may meet it at the same time.
                            self._unmet.pop(name, None)

    def check(self) -> None:
        """Refuse edits that had nothing to edit, or that the backward pass would miss."""
        if any(call.awaits_backward for call in self._calls.values()):
            refuse()
        if self._seen.layers and self._broke and not self._has_ended:
            return  # Whether a call that broke off had something to edit is not known.
        self._names.check(self._seen)
        if self._unmet:
            raise EditError(
                f"{next(iter(self._unmet.values())).said(self._seen)}. A trace (gattn.capture, "
                "gattn.capturing) shows layers, heads, tokens and edges."
            )


def _layers_of(edits: Sequence[Sequence[Edit]]) -> set[int] | None:
    """Return the layers that edits name; None if one of them may apply to any."""
    found: set[int] = set()
    for edit in (edit for some in edits for edit in some):
        layers = edit.layers() if type(edit).applies is Edit.applies else None
        if layers is None:
            return None
        found.update(layers)
    return found
