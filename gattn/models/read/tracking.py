"""Follows the calls of a model: which stack and layer an attention call is, and which tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from gattn.errors import CaptureError
from gattn.models.hugging_face import caches
from gattn.models.hugging_face.generating import Step, present_step
from gattn.models.hugging_face.given import arguments, first_tensor, is_mask, of_choices, repeated
from gattn.models.hugging_face.media import Batch, Belonging, generated_from, modality
from gattn.models.read.following import Progress, Texts, rows_of
from gattn.models.read.masks import Mask
from gattn.models.read.modules import Modules
from gattn.models.read.places import Place, Side, sides

if TYPE_CHECKING:
    from gattn.models.read.seen_call import SeenCall


class _Last(NamedTuple):
    """The last attention call; a query that is gone was no part of a split."""

    module: nn.Module
    query: ref[Tensor]
    stop: int


class Tracker:
    """What is known of a model's present call, and of the sequence that it goes on with."""

    def __init__(self, model: nn.Module, known: Tracker | None = None) -> None:
        self.model = model
        # What is known of the model and of texts serves all its calls, in any thread.
        self._modules: Modules = Modules(model) if known is None else known._modules
        self._is_encoder_decoder = self._modules.is_encoder_decoder
        side = "decoder_input_ids" if self._is_encoder_decoder else "input_ids"
        self._texts: Texts = Texts(side) if known is None else known._texts
        # What follows is of the present call.
        self.is_calling = False
        self._seen = 0
        self._cache: Any = None
        self._encodes = self._is_encoding = False
        self._generating: Tensor | None = None
        self._has_own_mask = False
        self._padding: dict[str, Tensor] = {}
        self.progress = Progress()
        self._batch = Batch({}, None)
        self._calls: dict[str, int] = {}
        self._layers: dict[str, list[int]] = {}
        self.ran: set[str] = set()
        self._masks: dict[Any, tuple[Any, Mask]] = {}
        self._last: _Last | None = None
        self._step = Step()
        self._encoded: Tensor | None = None

    def owns(self, module: nn.Module) -> bool:
        """Say whether a module is a part of the model."""
        return self._modules.owns(module)

    def name(self, module: nn.Module) -> str:
        """Give a module's qualified name."""
        return self._modules.name(module)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model, or of a model inside it, begins."""
        self._step = present_step(self.model)
        self._begin(arguments(module, args, kwargs))
        self.is_calling = True

    def end(self, result: Any) -> None:
        """Note what the call gave."""
        self._last = None
        self._masks.clear()
        if result is not None:
            cache = getattr(result, "past_key_values", None)
            self._texts.end(self._cache if cache is None else cache, self.progress, self.batch)
        self._cache = None
        encoded = getattr(result, "encoder_last_hidden_state", None)
        if encoded is None and self._is_encoding:
            encoded = first_tensor(result)
        if self._encodes and isinstance(encoded, Tensor):
            self._texts.encode(encoded, self.progress)
            self._encoded = encoded  # It stays, to know the copies that samples go on with.

    def _begin(self, given: Mapping[str, Any]) -> None:
        self._calls.clear()
        self._layers.clear()
        self.ran.clear()
        self._masks.clear()
        self._last = None
        self._encodes = self._is_encoding = False
        self._batch = self._batched(given)
        cache: Any = given.get("past_key_values")
        self._cache = cache
        self._seen = 0 if cache is None else caches.length(cache)
        if self._seen:
            self.progress = self._texts.in_cache(cache, self._seen, self.batch, self._step.reorders)
        else:
            self.progress = self._from_encoder(given) or self._from_media(given) or Progress()
            if self._generating is not None and not self._batch.has_text:
                self.progress.awaits = TensorWeakRef(self._generating)
        self._texts.begin(cache, self.progress)
        self._has_own_mask = any(x.dim() == 4 for n, x in given.items() if is_mask(n, x))
        self._padding = {n: x.detach() != 0 for n, x in given.items() if is_mask(n, x)}
        if getattr(given.get("input_ids"), "ndim", 2) == 3:
            self._padding = {name: of_choices(mask) for name, mask in self._padding.items()}
        for side in ("input_ids", "decoder_input_ids"):
            ids = of_choices(given.get(side))
            before = self.progress.ids.get(side)
            goes_on = self._seen > 0 and side == self._texts.side
            if not isinstance(ids, Tensor) or ids.dim() != 2:
                # A decoder's call follows its encoder's, whose tokens stay.
                if goes_on or given.get("encoder_outputs") is None or side != "input_ids":
                    self.progress.ids[side] = None
            elif not goes_on:
                self.progress.ids[side] = ids
            else:
                known = repeated(before, len(ids))
                if known is not None:  # It may hold tokens of a call that failed.
                    known = torch.cat([known[:, : self._seen], ids], 1)
                    known = known if known.shape[1] == self._seen + ids.shape[1] else None
                self.progress.ids[side] = known
        if not self._seen:
            self.progress.real.clear()

    def _from_encoder(self, given: Mapping[str, Any]) -> Progress | None:
        """Find the call that encoded what a decoder is given, repeated for samples of it, say."""
        decodes = any(
            given.get(f"decoder_{name}") is not None for name in ("input_ids", "inputs_embeds")
        )
        taken = first_tensor(given.get("encoder_outputs"))
        self._encodes = self._is_encoder_decoder and taken is None
        self._is_encoding = self._encodes and not decodes
        if not self._is_encoder_decoder or taken is None:
            return None
        return self._texts.in_encoded(taken)

    def _batched(self, given: Mapping[str, Any]) -> Batch:
        """Read what a call is given; images that `generate` encodes first belong to its texts."""
        self._generating = None
        if not self._is_encoder_decoder:
            self._generating = generated_from(self.model)
        return Batch(given, self._modules.config, self._generating)

    def _from_media(self, given: Mapping[str, Any]) -> Progress | None:
        """Find what is known of the images that `generate` encoded, or of their texts."""
        known, texts, ids = self.progress, self._generating, given.get("input_ids")
        if known.awaits is None or texts is None or known.awaits() is not texts:
            return None
        if not self._batch.has_text:
            return known
        known.awaits = None
        rows = rows_of(ids, texts) if isinstance(ids, Tensor) else None
        return None if rows is None else known.encoded(rows)

    def place(self, call: SeenCall) -> Place:
        """Say where a call of the model's attention is.

        Raises
        ------
        CaptureError
            Where that cannot be known.
        """
        name = self.name(call.module)
        stack = self._modules.stack(call.module, lambda: self._is_encoder(call))
        start = self._start_of_split(call)
        if start:
            layer = self._layers[name][-1]
        elif self.is_calling:
            layer = self._calls.get(stack, 0)
            self._calls[stack] = layer + 1
            self._layers.setdefault(name, []).append(layer)
        else:
            layer = self._layer_outside(name)
        is_bipartite = stack.endswith("cross") or (
            self._cache is None and call.query.shape[2] != call.key.shape[2]
        )
        mask = self.mask(call)
        belonging = self._belonging(call, stack, start)
        find = self._cross_sides if is_bipartite else self._own_sides
        queries, keys = find(call, mask, stack, belonging)
        if start:
            queries, keys = (
                [
                    Side(side.slots, side.first + start - self._batch.origin(sequence))
                    for side, sequence in zip(some, belonging.sequences, strict=True)
                ]
                for some in (queries, keys)
            )
        self._last = _Last(call.module, ref(call.query), start + call.query.shape[2])
        return Place(stack, layer, is_bipartite, queries, keys, belonging.sequences)

    def _belonging(self, call: SeenCall, stack: str, start: int) -> Belonging:
        count, _, length, _ = call.query.shape
        found = self._batch.belonging(stack, count, start, length)
        if found is None:
            raise CaptureError(
                f"{call.name} attends in {count} sequences, and the model was given "
                f"{self._batch.texts} texts: which belongs to which is not known. Run texts one "
                "by one."
            )
        return found

    def mask(self, call: SeenCall) -> Mask:
        """Read a call's mask, once for all layers that share it."""
        name = id(call.mask), call.is_scores
        if call.mask is None or name not in self._masks:
            mask = Mask.of(call)
            if call.mask is None:
                return mask
            self._masks[name] = call.mask, mask
        return self._masks[name][1]

    def generates(self, length: int) -> bool:
        """Say whether a call goes on with tokens that were generated, rather than with a prompt.

        Outside of `generate` these come one by one.
        """
        is_prompt = self._step.is_prompt
        return self._seen > 0 and (length == 1 if is_prompt is None else not is_prompt)

    @property
    def seen(self) -> int:
        """How many tokens of its cache the present call goes on with."""
        return self._seen

    @property
    def depth(self) -> dict[str, int]:
        """How many layers of each stack the present call went through so far."""
        return self._calls

    @property
    def shown(self) -> set[str]:
        """The names of the modules whose attention was seen in this call."""
        return set(self._layers)

    @property
    def known(self) -> set[str]:
        """The names of the modules whose attention was seen in any call."""
        return set(self._modules.stacks)

    @property
    def batch(self) -> int | None:
        """How many sequences the present call has."""
        return self._batch.size

    def _start_of_split(self, call: SeenCall) -> int:
        """Say where the tokens of a call begin that goes on with those of the last.

        Vision models split the queries of a layer by image, and attend in each part by itself.
        """
        last = self._last
        if last is None or not self.is_calling or last.module is not call.module:
            return 0
        one, other = last.query(), call.query
        if one is None:
            return 0
        is_of_one = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        return last.stop if is_of_one and one.storage_offset() < other.storage_offset() else 0

    def _layer_outside(self, name: str) -> int:
        """Find the layer of a call that comes after the model's: gradient checkpointing's."""
        layers = self._layers.get(name, [])
        if len(layers) != 1:
            raise CaptureError(
                f"{name} was called outside of a call of the {type(self.model).__name__} that the "
                "context was opened on, so its layer and tokens are not known; call that model "
                "itself."
            )
        return layers[0]

    def _is_encoder(self, call: SeenCall) -> bool:
        """Tell an encoder by a call in which tokens see those after them."""
        return call.query.shape[2] != 1 and self.mask(call).sees_ahead

    def _own_sides(
        self, call: SeenCall, mask: Mask, stack: str, belonging: Belonging
    ) -> tuple[list[Side], list[Side]]:
        """Find the real tokens of self-attention: those that may attend to themselves."""
        count, _, length, _ = call.query.shape
        slots = call.key.shape[2]
        start = self._seen if self._is_cached(stack) else 0
        total = start + length
        dropped = max(total - slots, 0)
        before = repeated(self.progress.real.get(stack), count)
        told = self._told(stack, count, total)
        if start and (before is None or before.shape[1] < start):
            before = torch.ones(count, start, dtype=torch.bool) if told is None else told
        if before is not None:
            before = before[:, :start]
        if self._has_own_mask:
            now = mask.is_used(count, start - dropped, length)
        else:
            now = mask.reads_itself(count, start - dropped, length)
            now = now if told is None else now | told[:, start:]
        unfinished = self._step.unfinished
        if start and unfinished is not None and len(unfinished) == count:
            now = now & unfinished[:, None]
        real = now if before is None or not start else torch.cat([before, now], dim=1)
        self.progress.real[stack] = real
        queries = sides(real, start, length)
        keys = sides(real, dropped, total - dropped)
        if not belonging.is_alone:
            ranks = belonging.ranks
            queries = [Side(x.slots, n * length) for n, x in zip(ranks, queries, strict=True)]
            keys = [Side(x.slots, n * slots) for n, x in zip(ranks, keys, strict=True)]
        return queries, keys

    def _is_cached(self, stack: str) -> bool:
        """Say whether a stack goes on with the call's cache: encoders run anew each time."""
        if modality(stack) or (self._is_encoder_decoder and "encoder" in stack.split(".")):
            return False
        self.progress.cached.add(stack)
        return self._cache is not None

    def _told(self, stack: str, count: int, total: int) -> Tensor | None:
        """Say which tokens the caller's mask calls real: sparse attention may read none of them."""
        if modality(stack):
            return None
        of_decoder = self._is_encoder_decoder and stack == "decoder"
        told = self._padding.get("decoder_attention_mask" if of_decoder else "attention_mask")
        return told.cpu() if told is not None and told.shape == (count, total) else None

    def _cross_sides(
        self, call: SeenCall, mask: Mask, stack: str, belonging: Belonging
    ) -> tuple[list[Side], list[Side]]:
        """Find the real tokens of cross-attention: a key that nobody may read is padding."""
        count, _, length, _ = call.query.shape
        if not belonging.is_alone:
            raise CaptureError(
                f"{call.name} attends from {count} groups of queries to keys of their own, for "
                f"{len(set(belonging.sequences))} sequences; expected one group a sequence. "
                "Several images a sequence are not read here."
            )
        self.progress.read[stack] = mask.is_read(count, call.key.shape[2])
        keys = sides(self.progress.read[stack], 0, call.key.shape[2])
        real, start = self.progress.real.get("decoder"), self._seen
        if stack != "cross" or real is None or real.shape != (count, start + length):
            real, start = torch.ones(count, length, dtype=torch.bool), 0
        return sides(real, start, length), keys

    def ids(self, stack: str, sequence: int, is_query: bool = False) -> list[int] | None:
        """Give the real token ids of a sequence so far, where they are known."""
        if stack in self._modules.foreign or (
            stack.endswith("cross") and not self._knows_keys(is_query)
        ):
            return None
        of_decoder = self._is_encoder_decoder and (stack == "decoder" or is_query)
        ids = self.progress.ids.get("decoder_input_ids" if of_decoder else "input_ids")
        if self._is_encoder_decoder and stack == "decoder" and ids is None:
            ids = self.progress.ids.get("decoder_input_ids")
        if ids is None or sequence >= len(ids):
            return None
        real = self.progress.real.get("decoder" if of_decoder else stack)
        if stack == "cross" and not is_query:
            real = self.progress.read.get(stack)
        row = ids[sequence].cpu()
        if real is None or real.shape[0] != len(ids):
            return [int(i) for i in row]
        if real.shape[1] != len(row):
            return None
        return [int(i) for i in row[real[sequence]]]

    def _knows_keys(self, is_query: bool) -> bool:
        """Whether the tokens of cross-attention are texts: its keys are those of an encoder."""
        return is_query or self._is_encoder_decoder

    def fed(self, sequence: int) -> tuple[Tensor, Tensor] | None:
        """Give the ids of all of a sequence's slots that go on with a cache, and which are real."""
        ids = self.progress.ids.get(self._texts.side)
        real = next((self.progress.real.get(name) for name in self.progress.cached), None)
        if ids is None or real is None or real.shape != ids.shape or sequence >= len(ids):
            return None
        return ids[sequence].cpu(), real[sequence]

    def real_rows(self, rows: Tensor, sequence: int) -> Tensor:
        """Take the rows of a call's result that stand for real tokens."""
        real = self.progress.real.get("decoder", self.progress.real.get("encoder"))
        if real is None or sequence >= len(real) or rows.dim() < 2:
            return rows
        some = real[sequence, self._seen :]
        return rows if len(some) != len(rows) or bool(some.all()) else rows[some.to(rows.device)]

    def check_layers(self) -> None:
        """Refuse a call whose layers cannot be numbered by their order.

        Raises
        ------
        CaptureError
            Where the attention of some layers was not seen, or modules are called several times a
            layer.
        """
        self._modules.check_layers(self._layers, self._calls)
