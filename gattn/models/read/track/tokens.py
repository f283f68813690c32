"""Which slots of a call's tensors are real tokens, at which positions, and with which ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.hugging_face.given import Given, repeated
from gattn.models.hugging_face.media import Belonging, modality
from gattn.models.read.following import Progress
from gattn.models.read.masks import Mask
from gattn.models.read.places import Place, Side, ordered, sides
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.modules import Modules


class Tokens:
    """The tokens of one call of a model.

    Parameters
    ----------
    modules : Modules
        The model's modules.
    given : Given
        What the call is given.
    progress : Progress
        What is known of the sequences that it continues.
    """

    def __init__(self, modules: Modules, given: Given, progress: Progress) -> None:
        self._modules, self._given, self._progress = modules, given, progress
        self._all: dict[tuple[int, int], tuple[Tensor, list[Side]]] = {}

    def own_sides(
        self, call: SeenCall, mask: Mask, stack: str, belonging: Belonging
    ) -> tuple[list[Side], list[Side]]:
        """Find the real tokens of self-attention: those that may attend to themselves."""
        count, _, length, _ = call.query.shape
        slots = call.key.shape[2]
        start = self._given.seen if self._is_cached(stack) else 0
        total = start + length
        dropped = max(total - slots, 0)
        before = repeated(self._progress.real.get(stack), count)
        told = self._told(stack, count, total)
        if start and (before is None or before.shape[1] < start):
            before = (
                torch.ones(count, start, dtype=torch.bool, device="cpu") if told is None else told
            )
        is_plain = mask.values is None and told is None and belonging.is_alone
        if is_plain and not start and slots >= length:
            self._progress.real[stack], whole = self._all_real(count, length)
            return whole, whole
        if before is not None:
            before = before[:, :start]
        unread = mask.unread(count, start - dropped, length)
        if self._given.has_own_mask:
            now = mask.is_used(count, start - dropped, length)
        else:
            now = mask.reads_itself(count, start - dropped, length)
            now = now if told is None else (now & ~unread) | told[:, start:]
        unfinished = self._given.step.unfinished
        if start and unfinished is not None and len(unfinished) == count:
            now = now & unfinished[:, None]
        real = now if before is None or not start else torch.cat([before, now], dim=1)
        self._progress.real[stack] = real
        queries = sides(real, start, length)
        name = self._modules.name(call.module)
        self._modules.note_holes(name, now)
        if told is None and not call.is_foreign:
            untold = mask.untold(torch.zeros_like(unread), start - dropped)
            self._modules.note_unread(name, untold, now, [side.first for side in queries])
        keys = sides(real, dropped, total - dropped)
        if not belonging.is_alone:
            ranks = belonging.ranks
            queries = [Side(x.slots, n * length) for n, x in zip(ranks, queries, strict=True)]
            keys = [Side(x.slots, n * slots) for n, x in zip(ranks, keys, strict=True)]
        return queries, keys

    def _all_real(self, count: int, length: int) -> tuple[Tensor, list[Side]]:
        """Find the real tokens where all are, once for all layers."""
        if (count, length) not in self._all:
            real = torch.ones(count, length, dtype=torch.bool, device="cpu")
            self._all[count, length] = real, [Side(torch.arange(length, device="cpu"), 0)] * count
        return self._all[count, length]

    def _is_cached(self, stack: str) -> bool:
        """Return whether a stack continues the call's cache: encoders run anew each time."""
        is_encoder = self._modules.is_encoder_decoder and "encoder" in stack.split(".")
        if modality(stack) or is_encoder:
            return False
        self._progress.cached.add(stack)
        return self._given.cache is not None

    def _told(self, stack: str, count: int, total: int) -> Tensor | None:
        """Return which tokens the caller's mask calls real; sparse attention may skip some."""
        if modality(stack):
            return None
        of_decoder = self._modules.is_encoder_decoder and stack == "decoder"
        told = self._given.padding.get("decoder_attention_mask" if of_decoder else "attention_mask")
        return told if told is not None and told.shape == (count, total) else None

    def cross_sides(self, call: SeenCall, mask: Mask, stack: str) -> tuple[list[Side], list[Side]]:
        """Find the real tokens of cross-attention: a key that nobody may read is padding.

        Where a call reads itself and further keys, so is a query that does not read itself.
        """
        count, _, length, _ = call.query.shape
        self._progress.read[stack] = mask.is_read(count, call.key.shape[2])
        keys = sides(self._progress.read[stack], 0, call.key.shape[2])
        real, start = self._progress.real.get("decoder"), self._given.seen
        if stack != "cross" or real is None or real.shape != (count, start + length):
            real, start = torch.ones(count, length, dtype=torch.bool, device="cpu"), 0
            if call.extra_keys and call.reads_itself:
                real = mask.reads_itself(count, 0, length)
        return sides(real, start, length), keys

    def side_by_side(self, place: Place, call: SeenCall, belonging: Belonging) -> Place:
        """Put the groups of a sequence next to each other: queries that read keys of their own.

        All slots of the keys have numbers, padded ones too, as it differs from group to group.
        """
        counts = Counter(belonging.sequences)
        if len(set(counts.values())) > 1:
            raise CaptureError(
                f"{call.where} reads {' and '.join(map(str, counts.values()))} images or sounds of "
                f"{len(counts)} texts; expected as many of each text: run texts one by one."
            )
        many, length, slots = max(counts.values()), call.query.shape[2], call.key.shape[2]
        queries = [
            Side(x.slots, n * length, n * length + x.slots, count=many * length)
            for n, x in zip(belonging.ranks, place.queries, strict=True)
        ]
        keys = [Side(ordered(slots), 0, n * slots + ordered(slots)) for n in belonging.ranks]
        return replace(place, queries=queries, keys=keys, sizes=(many * length, many * slots))

    def ids(self, stack: str, sequence: int, is_query: bool = False) -> list[int] | None:
        """Return the real token ids of a sequence so far, where they are known."""
        has_decoder = self._modules.is_encoder_decoder
        # The keys of cross-attention are texts where an encoder read them.
        is_foreign = stack in self._modules.crossing and not is_query and not has_decoder
        if stack in self._modules.foreign or is_foreign or self._may_be_beside(stack):
            return None
        of_decoder = has_decoder and (stack == "decoder" or is_query)
        ids = self._progress.ids.get("decoder_input_ids" if of_decoder else "input_ids")
        if ids is None or sequence >= len(ids):
            return None
        real = self._progress.real.get("decoder" if of_decoder else stack)
        if stack == "cross" and not is_query:
            real = self._progress.read.get(stack)
        row = ids[sequence].cpu()
        if real is None or real.shape[0] != len(ids):
            return [int(i) for i in row]
        if real.shape[1] != len(row):
            return None
        return [int(i) for i in row[real[sequence]]]

    def segments(self, stack: str, sequence: int) -> tuple[int, ...]:
        """Return the token type of each real token of a sequence, if the call has several."""
        types, real = self._given.token_types, self._progress.real.get(stack)
        if (
            not self._reads_inputs(stack)
            or types is None
            or real is None
            or self._given.seen
            or real.shape != types.shape
        ):
            return ()
        found = types[sequence].cpu()[real[sequence]].tolist() if sequence < len(types) else []
        return tuple(map(int, found)) if len(set(found)) > 1 else ()

    def _reads_inputs(self, stack: str) -> bool:
        """Return whether a stack attends among the tokens of the inputs, and not of a decoder."""
        is_decoder = self._modules.is_encoder_decoder and "encoder" not in stack.split(".")
        is_other = stack in self._modules.foreign or stack in self._modules.crossing
        return not (is_decoder or is_other or modality(stack) or self._may_be_beside(stack))

    def _may_be_beside(self, stack: str) -> bool:
        """Return whether a stack that no name tells apart has as many tokens as what is no text."""
        real = self._progress.real.get(stack)
        return "." in stack and real is not None and real.shape[1] in self._given.lengths_beside

    def fed(self, sequence: int) -> tuple[Tensor, Tensor] | None:
        """Return the ids of all of a sequence's slots that its cache holds, and which are real."""
        ids, real = self._progress.ids.get(self._modules.side), self._progress.real_in_cache
        if ids is None or real is None or real.shape != ids.shape or sequence >= len(ids):
            return None
        return ids[sequence].cpu(), real[sequence]

    def real_rows(self, rows: Tensor, sequence: int) -> Tensor:
        """Take the rows of a call's result that stand for real tokens."""
        real = self._progress.real.get("decoder", self._progress.real.get("encoder"))
        if real is None or sequence >= len(real) or rows.dim() < 2:
            return rows
        some = real[sequence, self._given.seen :]
        if isinstance(self._given.kept_logits, int) and len(rows) == self._given.kept_logits:
            some = some[-len(rows) :]
        return rows if len(some) != len(rows) or bool(some.all()) else rows[some.to(rows.device)]
