"""Follows the calls of any PyTorch model: stacks by module path, layers by order, no library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.hugging_face.given import arguments
from gattn.models.hugging_face.media import Belonging, ranked
from gattn.models.read.following import Progress
from gattn.models.read.layouts import Layout
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.token_maps import Joined, TokenMap
from gattn.models.read.track.any_library.any_modules import crosses
from gattn.models.read.track.any_library.padded_queries import PaddedQueries
from gattn.models.read.track.any_library.parts_of_layers import part_of_layer
from gattn.models.read.track.any_library.proved import Proved
from gattn.models.read.track.any_library.proved_tracker import ProvedTracker
from gattn.models.read.track.any_library.token_ids import ids_of, texts_of
from gattn.models.read.track.any_library.wholes import whole_of
from gattn.models.read.track.own_caches.continuing import Continuing
from gattn.models.read.track.own_caches.keys import OwnKeys, codes_of, few_of
from gattn.models.read.track.own_caches.texts import OwnCaches
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tokens import Tokens
from gattn.models.read.track.tracking import Tracker
from gattn.models.read.unread import said_padding

_PICKED = (
    "The attention of {} cannot be read: values or chance pick its tokens, as the nearest ones, "
    "and pick others in this run than in the proof, as after an edit of what they depend on, so "
    "that which token a slot stands for is not known."
)
_STEPS = (
    "{} attends again within one call of the model, to the keys of its call before and its own, as "
    "in steps of generation: which text they continue is not known. Open the context on the module "
    "that is called for each step, and call what generates as before."
)


class AnyTracker(ProvedTracker):
    """What is known of the present call of a model of any library."""

    def __init__(
        self,
        model: nn.Module,
        known: Tracker | None = None,
        prove: Callable[..., Proved | None] | None = None,
    ) -> None:
        super().__init__(model, known, prove)
        self._caches: OwnCaches = _caches_of(known)
        self._continuing = Continuing(self._caches, self.progress)
        self._layout: Layout | None = None
        self._lead: tuple[int, ...] = ()
        self._asked: tuple[str, int] | None = None
        self._padding = PaddedQueries(self.modules)
        self.needs_tokenizer = True
        self._known_texts: list[Tensor] | None = None
        self._given: Mapping[str, Any] = {}

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model begins."""
        self.progress = Progress()
        self.modules.begin()
        self._take(self.given)  # Nothing is known of what other libraries' models are given.
        self.inputs = arguments(module, args, kwargs)
        self._continuing = Continuing(self._caches, self.progress)
        self._nodes: dict[str, tuple[int, int, int]] = {}
        self._runs: Counter[tuple[str, int]] = Counter()
        self._slots: dict[tuple[str, int], int] = {}
        self._padding = PaddedQueries(self.modules)
        self._begin_proved(module, args, kwargs)
        are_first = self.plan is not None and self.plan.are_tokens_first
        self._known_texts, self._given = None, self.inputs
        if (ids := ids_of(self.inputs)) is not None:
            self.progress.note_ids(self.modules.side, ids.T if are_first else ids, 0)
        self._compare()
        self.is_calling = True

    def end(self, result: Any) -> None:
        """Note that the call ended."""
        self._masks.clear()
        self.inputs = {}
        runs.clear(self.modules.ids)
        if result is not None:
            self._continuing.end()
        self._end_proved(result)

    def read(self, sequence: int) -> tuple[list[list[int]], ...]:
        """Return what tells the tokens of each text that a sequence of the call was given."""
        if self._known_texts is None:
            are_first = self.plan is not None and self.plan.are_tokens_first
            some = texts_of(self._given)
            self._known_texts = [x.transpose(0, 1) if are_first else x for x in some]
        return tuple(x[sequence].tolist() for x in self._known_texts if sequence < len(x))

    def _stack(self, call: SeenCall) -> str:
        """Name the stack of a call; one that its door names is split where the nodes change."""
        if not call.stack:
            return self.modules.name_stack(
                self.modules.name(call.module),
                call.part,
                call.query.shape[1],
                is_cross=crosses(call),
                is_foreign=call.is_foreign or self._is_beside(call.module, call.part),
                is_softmax=self._mixes_softmaxes(call.module),
            )
        nodes = self._graph, call.query.shape[2], call.key.shape[2]
        stack, number = call.stack, 1
        while self._nodes.setdefault(stack, nodes) != nodes:
            number += 1
            stack = f"{call.stack} {number}"
        return self.modules.note_stack(call, stack)

    def _is_beside(self, module: nn.Module, part: int) -> bool:
        """Return whether a call's tokens are other ones than the ids that the model is given."""
        return self.plan is not None and (self.modules.name(module), part) in self.plan.beside

    def layout(self, module: nn.Module, part: int, lead: Sequence[int]) -> Layout | None:
        """Return the layout that was proved of a call of attention.

        A step that reads what its text has read before has the layout of then: which of the cached
        keys' dimensions are heads is not proved again.
        """
        self._layout, self._lead = None, tuple(lead)
        if self.plan is None:
            return None
        name = self.modules.name(module)
        self._asked = name, part
        run = self._runs[name, part]
        self._runs[name, part] += 1
        memory = self._continuing.memory(name, part)
        try:
            self._layout = self.plan.layout(name, part, self._lead, run)
        except CaptureError:
            self.plan.check()
            if memory is None:
                raise
        if memory is not None and not _are_split_alike(self._layout, memory.layout):
            self._layout = memory.layout.of_step(self._continuing.rows)
        return self._layout

    def place(self, call: SeenCall) -> Place:
        """Return where a call of the model's attention is."""
        where = self.modules.name(call.module), call.part
        asked, self._asked = self._asked, None
        # What runs again after the call, as a checkpoint does, did the same in it.
        self._is_as_proved = not self.is_calling or self._does_the_same(asked or where)
        if self._is_as_proved:
            self._as_proved.add(asked or where)
        try:
            return self._placed(call, where)
        except Exception:  # What was proved does not fit what an edit has changed.
            self.check(call.name)
            raise

    def _placed(self, call: SeenCall, where: tuple[str, int]) -> Place:
        if not call.is_foreign and not self._are_in_order(where):
            if self.plan is not None and where in self.plan.by_values:
                raise CaptureError(_PICKED.format(where[0] or type(self.model).__name__))
            call.is_named = False
        if (place := self._whole(call)) is not None:
            return place
        if call.tokens is not None and call.tokens.joined is not None:
            return self._joined(call, call.tokens, call.tokens.joined)
        if call.tokens is not None and call.tokens.fed is not None:
            call.write_out()
        mask = partial(self.mask, call)
        keys = None if call.is_foreign else OwnKeys.of(call, mask, self._said_padding)
        is_split = bool(self.layers.start_of_split(call))
        place = None if keys is None or is_split else self._own_place(call, keys)
        if place is not None:
            return place
        is_adrift = keys is not None and keys.others_are_read and not is_split
        if is_adrift and self._slots.get(where) == call.key.shape[2] - call.query.shape[2]:
            raise CaptureError(_STEPS.format(where[0] or type(self.model).__name__))
        return replace(self._place_by_itself(call), is_adrift=is_adrift)

    def whole(
        self, module: nn.Module, part: int, lead: tuple[int, ...], length: int, slots: int
    ) -> Place | None:
        """Place a call in which whole texts read themselves, before it is read.

        None if it has to be read for that, or if its keys are to be remembered, since a later call
        may continue its texts.
        """
        plan = self.plan
        if plan is None or not self.is_calling or self._continuing.has_begun:
            return None
        name = self.modules.name(module)
        found = whole_of(plan, name, part, lead, length, slots)
        if found is None or self.layers.ended_with(module):
            return None
        stack = self.modules.name_stack(
            name,
            part,
            found.heads,
            is_cross=False,
            is_foreign=found.is_beside,
            is_softmax=found.is_softmax,
        )
        layer = self.layers.depth.get(stack, 0)
        return Place(stack, layer, False, found.sides, found.sides, found.sequences)

    def begins_texts(self, module: nn.Module, part: int, shape: Sequence[int]) -> bool:
        """Return whether a call goes on with no text, whose keys would tell which one."""
        if self.plan is None or self.plan.keeps_nothing:
            return True
        queries, keys = shape[-2:]
        is_whole = queries == keys or self.plan.reads_others((self.modules.name(module), part))
        return is_whole and not self._continuing.has_begun

    def met(self, call: SeenCall) -> None:
        """Remember the keys of a call that was placed before its values were known."""
        if self.is_calling:
            self._continuing.met(call, self.modules.name(call.module))

    def _whole(self, call: SeenCall) -> Place | None:
        """Place a call that can be placed before it is read."""
        tokens = None if self._layout is None else self._layout.tokens
        if call.mask is not None or tokens is None or call.tokens is not tokens:
            return None
        sizes = call.query.shape[2], call.key.shape[2]
        place = self.whole(call.module, call.part, self._lead, *sizes)
        if place is not None:
            call.is_cross = False
            self.go_on(call.module, call.part, place)
            self.layers.note(call)
        return place

    def go_on(self, module: nn.Module, part: int, place: Place) -> None:
        """Go on after a call that `whole` has placed, whether anybody reads it or not."""
        where = self.modules.name(module), part
        self._are_in_order(where)  # It notes who moved the tokens.
        name = self._continuing.name(*where)
        self.progress.real[place.stack] = self._continuing.begin_whole(name, place)
        self.layers.next(where[0], place.stack)
        self.layers.note(None)
        self._slots[where] = len(place.keys[0])

    def _own_place(self, call: SeenCall, keys: OwnKeys) -> Place | None:
        """Place self-attention, which may continue a text that a cache holds; None if it does not.

        Keys that come before its own, and that no call was seen to read, are those of no text.
        """
        is_cross, call.is_cross = call.is_cross, False
        name = self._continuing.name(self.modules.name(call.module), call.part)
        stack_of = cache(partial(self._stack, call))
        if self.is_calling:
            sides = self._continuing.sides(call, name, stack_of, keys)
        else:
            sides = self._continuing.again(name)
        if sides is None:
            call.is_cross = is_cross
            return None
        if self.progress is not self._continuing.progress:
            self.progress = self._continuing.progress
            self.tokens = Tokens(self.modules, self.given, self.progress)
        stack = stack_of()
        layer = self._next_layer(name[0], stack)
        self.layers.note(call)
        self._slots[name[:2]] = call.key.shape[2]
        self._padding.note(call, sides[0], self.progress.real.get(stack))
        self.modules.note_holes(name[0], keys.real)
        self.modules.note_unread(name[0], keys.untold, keys.real, [x.first for x in sides[0]])
        assert call.tokens is not None
        return Place(stack, layer, False, *sides, list(call.tokens.sequences))

    def _said_padding(self, reads: Tensor, found: Tensor, offset: int) -> Tensor:
        are_first = self.plan is not None and self.plan.are_tokens_first
        return said_padding(self.inputs, reads, found, offset, tokens_first=are_first)

    def _place_by_itself(self, call: SeenCall) -> Place:
        tokens = call.tokens
        if tokens is None or not tokens.is_told:
            place = super().place(call)
            place = self._padding.left_out(call, place, self.progress, lambda: self.mask(call))
            return self._with_memory(call, place)
        stack, layer, _ = self._numbered(call)
        belonging = self._belonging(call, stack, 0)
        length, slots = call.query.shape[2], call.key.shape[2]
        firsts = [n * length for n in belonging.ranks]
        firsts_of_keys = [0] * len(firsts) if tokens.is_cross else firsts
        sizes = tokens.sizes(lambda: self.mask(call).is_read(len(belonging.ranks), slots))
        queries, keys = (
            [
                Side(torch.arange(size, device="cpu"), first, at, count=count)
                for first, at in zip(own_firsts, of, strict=True)
            ]
            for size, own_firsts, of, count in (
                (length, firsts, tokens.query_positions, sizes[0]),
                (slots, firsts_of_keys, tokens.key_positions, sizes[1]),
            )
        )
        sequences = belonging.sequences
        return Place(
            stack, layer, tokens.is_cross, queries, keys, sequences, tokens.is_cross, sizes
        )

    def _joined(self, call: SeenCall, tokens: TokenMap, joined: Joined) -> Place:
        """Return where a call is that is a part of a layer."""
        stack, name = self._stack(call), self.modules.name(call.module)
        if not self.is_calling:
            layer = self.layers.again(name)
        elif joined.continues:
            layer = self.layers.last(name)
        else:
            layer = self.layers.next(name, stack)
        return part_of_layer(call, tokens, joined, stack, layer)

    def _with_memory(self, call: SeenCall, place: Place) -> Place:
        """Say at which positions the queries of a step are that read a memory again."""
        tokens, layout = call.tokens, self._layout
        if tokens is None or layout is None or not tokens.is_cross or not self.is_calling:
            return place
        if tokens.sequences != tuple(range(len(tokens.sequences))):
            return place
        name = self._continuing.name(self.modules.name(call.module), call.part)
        queries = self._continuing.queries(call, name, codes_of(few_of(call)), layout)
        return place if queries is None else replace(place, queries=queries)

    def _belonging(self, call: SeenCall, stack: str, start: int) -> Belonging:
        if call.tokens is None:
            count = len(call.query)
            return Belonging(list(range(count)), [0] * count)
        return ranked(list(call.tokens.sequences))

    @property
    def may_be_padded(self) -> Mapping[str, str]:
        """The modules of the last call whose queries may hold padding, and what shows it."""
        return self._padding.unknown

    def generates(self, length: int) -> bool:
        """Return whether a call's tokens were generated: those that come one by one."""
        return self._continuing.has_begun and length == 1


def _are_split_alike(one: Layout | None, other: Layout) -> bool:
    return one is not None and (one.split, one.heads) == (other.split, other.heads)


def _caches_of(known: Tracker | None) -> OwnCaches:
    return known._caches if isinstance(known, AnyTracker) else OwnCaches()
