"""Follows the calls of a model: which stack and layer an attention call is, and which tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from gattn.errors import CaptureError
from gattn.models.hugging_face.given import Given, arguments, first_tensor
from gattn.models.hugging_face.media import Belonging, takes_text
from gattn.models.read.following import Progress, Texts, rows_of
from gattn.models.read.layouts import Layout
from gattn.models.read.masks import Mask
from gattn.models.read.on_graphs.numbers import NodeNumbers
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.early_calls import EarlyCall
from gattn.models.read.track.groups import GroupsError
from gattn.models.read.track.layers import LayersOfCall
from gattn.models.read.track.modules import Modules
from gattn.models.read.track.tokens import Tokens


class Tracker:
    """What is known of a model's present call, and of the sequences that it continues.

    `given` is what the call is given, `layers` those it went through so far, `tokens` its real
    ones, and `progress` what is known of its sequences. It `is_edited` once some attention was.

    Parameters
    ----------
    model : Module
        The model.
    known : Tracker, optional
        Another one of the model: what is known of modules and texts serves calls in any thread.
    """

    def __init__(self, model: nn.Module, known: Tracker | None = None) -> None:
        self.model = model
        self.modules: Modules = self._modules_of(model) if known is None else known.modules
        self._texts: Texts = Texts(self.modules.side) if known is None else known._texts
        self.is_calling = self.is_edited = False
        self.needs_tokenizer = False
        """Whether ids are the tokens' only for a caller who gives a tokenizer."""
        self._masks: dict[Any, tuple[Any, Mask]] = {}
        self._encoded: Tensor | None = None
        self.progress = Progress()
        self._take(Given(model, {}) if known is None else known.given)

    @staticmethod
    def _modules_of(model: nn.Module) -> Modules:
        return Modules(model)

    def _take(self, given: Given) -> None:
        self.is_edited = False
        self.given, self.layers = given, LayersOfCall(self.modules)
        self.tokens = Tokens(self.modules, given, self.progress)
        self._masks.clear()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model, or of a model inside it, begins."""
        named = arguments(module, args, kwargs)
        given = Given(self.model, named)
        if given.seen:
            self.progress = self._texts.in_cache(
                given.cache, given.seen, given.batch.size, given.step.reorders
            )
        else:
            known = None if given.encoded is None else self._texts.in_encoded(given.encoded)
            known = known or self._from_media(given, named.get("input_ids"))
            self.progress = known or Progress()
            if given.generating is not None and not given.batch.has_text:
                self.progress.awaits = TensorWeakRef(given.generating)
        self._texts.begin(given.cache, self.progress)
        self._take(given)
        for side in ("input_ids", "decoder_input_ids"):
            ids, is_cached = (
                given.texts(named.get(side)),
                given.seen > 0 and side == self.modules.side,
            )
            if isinstance(ids, Tensor) and ids.dim() == 2:
                self.progress.note_ids(side, ids, given.seen if is_cached else 0)
            # A decoder's call follows its encoder's, whose tokens stay.
            elif is_cached or named.get("encoder_outputs") is None or side != "input_ids":
                self.progress.ids[side] = None
        if not given.seen:
            self.progress.real.clear()
        self.is_calling = True

    def stop(self) -> None:
        """Note that the call runs no more; it ended, or broke off."""
        self.is_calling = False

    def end(self, result: Any) -> None:
        """Note what the call gave."""
        self._masks.clear()
        if result is not None:
            cache = getattr(result, "past_key_values", None)
            cache = self.given.cache if cache is None else cache
            self._texts.end(cache, self.progress, self.given.batch.size)
        self.given.cache = self.given.encoded = None
        encoded = getattr(result, "encoder_last_hidden_state", None)
        if encoded is None and self.given.only_encodes:
            encoded = first_tensor(result)
        if self.given.encodes and isinstance(encoded, Tensor):
            self._texts.encode(encoded, self.progress)
            self._encoded = encoded  # Kept, to recognise the copies that samples continue.

    def read(self, sequence: int) -> tuple[list[list[int]], ...]:
        """Return the codes of each token, such as its id, of each text that a sequence has."""
        found = (self.tokens.ids(stack, sequence) for stack in self.layers.depth)
        return tuple([[one] for one in ids] for ids in found if ids is not None)

    def _from_media(self, given: Given, ids: Any) -> Progress | None:
        """Find what is known of images that `generate` encoded, or of their texts."""
        known, texts = self.progress, given.generating
        if known.awaits is None or texts is None or known.awaits() is not texts:
            return None
        if not given.batch.has_text:
            return known
        known.awaits = None
        rows = rows_of(ids, texts) if isinstance(ids, Tensor) else None
        return None if rows is None else known.encoded(rows)

    def place(self, call: SeenCall) -> Place:
        """Return where a call of the model's attention is."""
        stack, layer, start = self._numbered(call)
        is_cross = stack in self.modules.crossing
        has_other_keys = self.given.cache is None and call.query.shape[2] != call.key.shape[2]
        is_bipartite = is_cross or has_other_keys
        belonging = self._belonging(call, stack, start)
        if is_bipartite:
            queries, keys = self.tokens.cross_sides(call, self.mask(call), stack)
        else:
            queries, keys = self.tokens.own_sides(call, self.mask(call), stack, belonging)
        if start:
            queries, keys = (
                [
                    Side(side.slots, side.first + start - self.given.batch.origin(sequence))
                    for side, sequence in zip(some, belonging.sequences, strict=True)
                ]
                for some in (queries, keys)
            )
        self.layers.note(call, start)
        place = Place(stack, layer, is_bipartite, queries, keys, belonging.sequences, is_cross)
        if is_bipartite and not belonging.is_alone:
            return self.tokens.side_by_side(place, call, belonging)
        return place

    def _numbered(self, call: SeenCall) -> tuple[str, int, int]:
        """Return a call's stack and layer, and where its tokens begin if it continues the last."""
        name, stack = self.modules.name(call.module), self._stack(call)
        start = self.layers.start_of_split(call) if self.is_calling else 0
        if start:
            return stack, self.layers.last(name), start
        return stack, self._next_layer(name, stack), 0

    def _next_layer(self, name: str, stack: str) -> int:
        """Return the number of the layer in which a module attends."""
        return self.layers.next(name, stack) if self.is_calling else self.layers.again(name)

    def layout(self, module: nn.Module, part: int, lead: Sequence[int]) -> Layout | None:
        """Say what the leading dimensions of a call's tensors are, if more than their number tells.

        `part` counts the calls of attention within one run of the module.
        """
        return None

    def whole(
        self, module: nn.Module, part: int, lead: tuple[int, ...], length: int, slots: int
    ) -> Place | None:
        """Place a call in which whole texts read themselves, before it is read; None if it is not.

        `lead` are the leading sizes of its tensors, `length` and `slots` its queries and keys.
        """
        return None

    def go_on(self, module: nn.Module, part: int, place: Place) -> None:
        """Go on after a call that `whole` has placed, whether anybody reads it or not."""

    def check(self, name: str) -> None:
        """Refuse a module's call whose tokens are not known, as attention was edited before."""

    def check_met(self, module: nn.Module, part: int) -> None:
        """Refuse a call that was edited early if the model's code then did something else."""

    def numbers(self, module: nn.Module) -> NodeNumbers | None:
        """Say which nodes of the data those of a call over edges are, if not as they come."""
        return None

    def reads(self, module: nn.Module, lead: Sequence[int], *, over_last: bool = True) -> bool:
        """Return whether attention that does not come through transformers' interface is read.

        It is not proved here, so it must be torch's own multi-head attention.
        """
        return isinstance(module, nn.MultiheadAttention)

    @property
    def proves(self) -> bool:
        """Whether attention that is seen by torch's functions is proved."""
        return False

    def turns(self, module: nn.Module) -> bool:
        """Return whether a module's rows of attention are heads, and a leading dimension queries.

        That is where it was proved, though sizes do not tell.
        """
        return False

    def leaves_out(self, module: nn.Module, part: int) -> bool:
        """Return whether a call was proved to attend over something else than tokens."""
        return False

    @property
    def may_be_padded(self) -> Mapping[str, str]:
        """The modules of the last call whose queries may hold padding, and what shows it."""
        return {}

    @property
    def left_out(self) -> Sequence[str]:
        """The modules of the last call that attend over something else than tokens."""
        return []

    def alteration(self, module: nn.Module, number: int) -> str:
        """Return how a softmax is altered before it meets its values: "scaled", "mixed" or ""."""
        return ""

    def early(self, module: nn.Module, number: int) -> EarlyCall | None:
        """Return which call of attention a softmax becomes, if edits may be put in with it.

        `number` counts the softmaxes of one run of the module.
        """
        return None

    def begins_texts(self, module: nn.Module, part: int, shape: Sequence[int]) -> bool:
        """Return whether a call goes on with no text, whose keys would tell which one.

        `shape` is that of its scores.
        """
        return True

    def met(self, call: SeenCall) -> None:
        """Look at a call that was placed before its values were known, now that they are."""

    def comes_again(self, module: nn.Module, number: int) -> int | None:
        """Return the number of a softmax that meets the values, where a module takes it twice."""
        return None

    def beside(self, module: nn.Module, part: int, *, is_early: bool) -> Collection[str]:
        """Say what else the model makes of the scores of a call, which its edits do not reach."""
        return ()

    def forget_early(self, module: nn.Module, number: int) -> None:
        """Edit a softmax no more before it meets its values, though this was proved."""

    def _stack(self, call: SeenCall) -> str:
        return self.modules.stack(call.module, lambda: self._is_encoder(call))

    def _is_encoder(self, call: SeenCall) -> bool:
        """Tell an encoder by a call in which tokens see those after them."""
        return call.query.shape[2] != 1 and self.mask(call).sees_ahead

    def _belonging(self, call: SeenCall, stack: str, start: int) -> Belonging:
        count, _, length, _ = call.query.shape
        found = self.given.batch.belonging(stack, count, start, length)
        if found is None:
            texts = self.given.batch.texts
            raise CaptureError(
                f"{call.where} attends in {count} sequences, and the model was given {texts} "
                f"text{'s' * (texts != 1)}: which belongs to which is not known. Open the context "
                "on the part of the model that is given these sequences."
            )
        if not (found.is_alone or takes_text(self.model)):
            raise GroupsError(call.where, count, len(set(found.sequences)))
        return found

    def mask(self, call: SeenCall) -> Mask:
        """Read a call's mask, once for all layers that share it."""
        name = id(call.mask), call.is_scores, call.mask is None and call.is_causal
        if name not in self._masks:
            if call.is_scores:
                self._masks.clear()  # The scores of earlier layers would stay in memory.
            self._masks[name] = call.mask, Mask.of(call)
        return self._masks[name][1]

    def generates(self, length: int) -> bool:
        """Return whether a call's tokens were generated, rather than given in a prompt.

        Outside `generate` those are tokens that come one by one.
        """
        is_prompt = self.given.step.is_prompt
        return self.given.seen > 0 and (length == 1 if is_prompt is None else not is_prompt)
