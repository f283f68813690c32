"""Runs a model on the texts from which edits patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, EditError
from gattn.heads.trace import AttentionTrace
from gattn.models.edit.base import Edit
from gattn.models.edit.hear.parts import By, Parts, check_by, is_vectors
from gattn.models.edit.hear.paths import OnlyPaths
from gattn.models.edit.hear.without import Without
from gattn.models.edit.kept.kept import Messages, are_texts, is_zero
from gattn.models.edit.kept.only import Only
from gattn.models.edit.part import EdgePart, Part
from gattn.models.edit.tensors.activations import Activations, What
from gattn.models.edit.tensors.patch import Ablate, Patch
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.functions import prepared
from gattn.models.run.other_texts import mean_parts, parts_of
from gattn.models.watch.contexts import Context, without_contexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_OWN = ("zero", "mean")
"""What takes the place of parts without another text."""


class Sources:
    """The texts that edits patch from, on each of which a model runs once for each kind."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._model, self._tokenizer = cast("PreTrainedModel", model), tokenizer
        self._known: dict[tuple[Any, What], Activations] = {}
        self._written: dict[Any, Parts] = {}

    def run(self, edits: Iterable[Edit]) -> list[Edit]:
        """Replace texts in edits by what heads give on them."""
        return [self._with_run(edit) for edit in edits]

    def messages(self, source: Any) -> Messages | None:
        """Run what takes the place of messages; None if nothing does."""
        if isinstance(source, Messages) or is_zero(source):
            return source if isinstance(source, Messages) else None
        if isinstance(source, str) and source == "mean":
            return Messages(source)
        if source is None or isinstance(source, (bool, int, float)):
            raise EditError(
                "ablation is 'zero', 'mean', a list of texts, over which the mean is taken, or one "
                f"text, whose messages take the place of others, not {source!r}."
            )
        if isinstance(source, (list, tuple)) and not source:
            raise EditError(
                f"ablation={source!r} has no text: expected at least one, over which the mean is "
                "taken, or 'zero' or 'mean'."
            )
        if are_texts(source):
            return Messages(source, values=self._once(source, "values", self._mean))
        both: tuple[What, What] = ("attention", "values")
        return Messages(source, *(self._once(source, what, self._one) for what in both))

    def parts(self, by: By) -> By:
        """Run the texts whose parts take the place of others."""
        check_by(by)
        if isinstance(by, Parts) or is_vectors(by) or (isinstance(by, str) and by in _OWN):
            return by
        if are_texts(by):
            return mean_parts(by, [self._parts(one) for one in by])
        return self._parts(by)

    def _parts(self, text: Any) -> Parts:
        name = text if isinstance(text, str) else id(text)
        if name not in self._written:
            self._written[name] = parts_of(text, self._model, self._tokenizer)
        return self._written[name]

    def _with_run(self, edit: Edit) -> Edit:
        if isinstance(edit, (Without, OnlyPaths)):
            return replace(edit, by=self.parts(edit.by))
        if isinstance(edit, Only):
            return replace(edit, ablation=self.messages(edit.ablation) or "zero")
        if isinstance(edit, Patch) and not edit.is_run:
            return edit.with_source(self._once(edit.source, edit.what, self._one))
        if isinstance(edit, Ablate) and isinstance(edit.source, (list, tuple)):
            return edit.with_source(self._once(edit.source, edit.what, self._mean))
        return edit

    def _once(
        self, source: Any, what: What, make: Callable[[Any, What], Activations]
    ) -> Activations:
        name = source if isinstance(source, str) else id(source)
        if (name, what) not in self._known:
            self._known[name, what] = make(source, what)
        return self._known[name, what]

    def _one(self, source: Any, what: What) -> Activations:
        if isinstance(source, AttentionTrace):
            return _of_trace(source, what)
        context = _Recording(what)
        with torch.no_grad(), without_contexts():
            prepared(source, self._model, self._tokenizer).run(context)
        return Activations(f"{source!r:.60}", source, context.found)

    def _mean(self, texts: Sequence[Any], what: What) -> Activations:
        each = [self._one(text, what).found for text in texts]
        said = f"the mean over {len(texts)} text{'s' * (len(texts) != 1)}"
        found = {}
        for place in each[0]:
            tensors = [some[place] for some in each]
            if what == "attention":
                if len({x.shape for x in tensors}) > 1:
                    raise EditError(
                        "Ablate averages attention edge by edge, so all texts have as many tokens; "
                        f"these have {sorted({x.shape[1] for x in tensors})}."
                    )
                found[place] = torch.stack(tensors).mean(0)
            else:
                found[place] = torch.cat(tensors, 1).mean(1, keepdim=True)
        return Activations(said, texts, found, is_mean=True)


class _Recording(Context):
    """Records what the heads of each layer give on one sequence."""

    reads_one_call = True

    def __init__(self, what: What) -> None:
        self._what = what
        self.found: dict[tuple[What, str, int], Tensor] = {}

    def wants(self, place: Place) -> bool:
        """Look at all calls."""
        return True

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Record a call."""
        if len(set(place.sequences)) > 1:
            raise CaptureError(f"A patch is from one sequence, got {len(set(place.sequences))}.")
        for reading in readings:
            if len(reading.elements) > 1 and self._what != "attention":
                raise CaptureError(
                    f"{call.where} attends in windows: patch its attention, not its {self._what}."
                )
            found = self._read(call, reading)
            if found is None:
                continue
            for element in range(len(reading.elements)):
                self._put(place, reading, found[element])

    def _read(self, call: SeenCall, reading: Reading) -> Tensor | None:
        """Read what is given: (elements, heads, ...), over the call's own tokens."""
        if self._what == "attention":
            return _attention(reading)
        if not reading.has_values or reading.lists_edges:
            return None
        if self._what == "values":
            return reading.attention.value
        slots = reading.queries.slots.to(call.output.device)
        return call.output[reading.elements][:, slots].transpose(1, 2).clone()

    def _put(self, place: Place, reading: Reading, given: Tensor) -> None:
        """Put it at the tokens' positions."""
        queries, keys = reading.queries, reading.keys
        sizes = place.sizes or (
            max(side.end for side in place.queries),
            max(side.end for side in place.keys),
        )
        shape = {"attention": sizes, "values": sizes[1:], "outputs": sizes[:1]}[self._what]
        rest = () if self._what == "attention" else given.shape[-1:]
        name = self._what, place.stack, place.layer
        if name not in self.found:
            heads = place.heads or len(given)
            self.found[name] = given.new_zeros(heads, *shape, *rest)
        whole = self.found[name]
        own = whole[place.head : place.head + 1] if place.heads else whole
        if self._what == "attention":
            own[:, queries.at[:, None], keys.at] = given
        else:
            own[:, (keys if self._what == "values" else queries).at] = given


def _attention(reading: Reading) -> Tensor:
    """Compute the whole attention of a call: (elements, heads, queries, keys)."""
    heads = list(range(reading.heads))
    kind = EdgePart if reading.lists_edges else Part
    return kind(reading, heads, reading.attention, heads, (), False).dense(scores=False)


def _of_trace(trace: AttentionTrace, what: What) -> Activations:
    if what != "attention":
        raise EditError(f"A trace holds attention, but not {what}: give the text that it is of.")
    found: dict[tuple[What, str, int], Tensor] = {}
    for name, stack in trace.stacks.items():
        for (layer, head), graph in stack.items():
            if graph.positions is not None or graph.query_positions is not None:
                raise EditError("Patch takes a trace of all tokens, not of some.")
            if graph.graph.query_offset:
                raise EditError("Patch takes a trace of all tokens, not of a step.")
            if dropped := int(graph.dropped_edges.sum()):
                raise EditError(
                    f"Patch takes a trace of all edges, but head {layer}.{head} of {name!r} "
                    f"dropped {dropped} of {int(graph.total_edges.sum())}: capture it with "
                    "keep=gattn.All()."
                )
            sizes = graph.graph.num_queries, graph.graph.num_keys
            attention = torch.from_numpy(graph.attention)
            most = 1 + max(n for at, n in stack if at == layer)
            whole = found.setdefault(
                ("attention", name, layer), attention.new_full((most, *sizes), torch.nan)
            )
            whole[head] = 0
            whole[head][graph.query, graph.key] = attention
    return Activations("a trace", trace, found)
