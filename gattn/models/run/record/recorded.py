"""What is recorded of a sequence: its layers, tokens and logits, and the trace made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.edit_records import Edits
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.store.kept_edges import KeptEdges
from gattn.heads.trace import AttentionTrace
from gattn.models.load.encoding import Encoding
from gattn.models.load.token_texts import names_of_run, words_of_run
from gattn.models.read.following import Progress
from gattn.models.read.on_graphs.seen_edges import places_in
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.token_maps import TokenMap
from gattn.models.run.record.predictions import predictions_of
from gattn.models.run.record.relabelling import Positions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(eq=False)
class RecordedLayer:
    """A layer of a stack of one sequence: its heads' edges, and the lengths of its values.

    `norms` (heads, keys) are those of W_O v_j where it `is_projected`, else those of v_j; where it
    passes `messages`, these are their lengths (edges, heads) along the edges of a graph.
    """

    groups: int = 1
    is_cached: bool = False
    is_projected: bool = False
    is_cross: bool = False
    stores: dict[tuple[int, ...], KeptEdges] = field(default_factory=dict)
    attributes: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)
    norms: Tensor | None = None
    messages: tuple[TokenGraph, Tensor] | None = None
    queries: int = 0
    generated: int = 0
    positions: Positions | None = None

    def going_back(self) -> Callable[[], None]:
        """Return a function that undoes whatever is added from now on."""
        marks = {heads: (store, store.mark()) for heads, store in self.stores.items()}
        norms, queries, generated = self.norms, self.queries, self.generated

        def go_back() -> None:
            self.stores = {heads: store for heads, (store, _) in marks.items()}
            for store, mark in marks.values():
                store.go_back(mark)
            self.norms, self.queries, self.generated = norms, queries, generated

        return go_back

    def add_norms(self, norms: Tensor, first: int) -> None:
        """Add the norms of keys (heads, keys) from position `first` on; known ones come again.

        Elements whose slots have `positions` add their keys one after another.
        """
        norms = norms.cpu()
        if self.norms is None:
            self.norms = norms
        elif self.positions is not None:
            self.norms = torch.cat([self.norms, norms], dim=1)
        elif (known := self.norms.shape[1]) < first + norms.shape[1]:
            self.norms = torch.cat([self.norms, norms[:, known - first :]], dim=1)

    def add_messages(self, graph: TokenGraph, lengths: Tensor) -> None:
        """Add the lengths of messages, (edges, heads), along the edges of a graph."""
        self.messages = graph, lengths

    def first(self, tokens: int) -> RecordedLayer:
        """Copy the first queries, and the keys that stood there."""
        surplus = max(self.queries - tokens, 0)
        stores = {
            heads: store.first_rows(store.num_rows - surplus)
            for heads, store in self.stores.items()
        }
        is_whole = self.positions is not None or any(x.is_bipartite for x in stores.values())
        left = self.queries - surplus
        return replace(
            self,
            stores=stores,
            attributes={heads: dict(some) for heads, some in self.attributes.items()},
            norms=self.norms if is_whole or self.norms is None else self.norms[:, :left],
            queries=left,
            generated=max(self.generated - surplus, 0),
        )


@dataclass(eq=False)
class RecordedSequence:
    """What is known of one sequence.

    `owner` continued it last, as one of its rows; `fed` are the ids of all its slots, and which of
    these are real; `read` are the ids of the texts it was given, where names are given. Logits come
    with the number of tokens after which they end, or -1 if it is not known of which they are.
    `grids` are those that the tokens of stacks form; which tokens those of `unnamed` stacks are is
    not known, and queries of `own` stacks are among their keys. `segments` are the token types of
    stacks, and `ahead` the positions up to which some token of a stack read a later one.
    """

    owner: Progress
    row: int = 0
    layers: dict[str, dict[int, RecordedLayer]] = field(default_factory=dict)
    ids: dict[tuple[str, bool], list[int] | None] = field(default_factory=dict)
    logits: list[tuple[Tensor, int]] = field(default_factory=list)
    edits: Edits = ()
    fed: tuple[Tensor, Tensor] | None = None
    read: tuple[list[list[int]], ...] = ()
    grids: dict[str, TokenMap] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    segments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ahead: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """How many tokens went into a cache."""
        return max((layer.queries for layer in self._cached()), default=0)

    def _cached(self) -> list[RecordedLayer]:
        layers = [layer for stack in self.layers.values() for layer in stack.values()]
        return [layer for layer in layers if layer.is_cached]

    def first(self, tokens: int) -> RecordedSequence:
        """Copy its first tokens; layers that no cache continues are shared."""
        layers = {
            stack: {
                n: layer.first(tokens) if layer.is_cached else layer
                for n, layer in some.items()
                if tokens or not layer.is_cached
            }
            for stack, some in self.layers.items()
        }
        logits = [(some[: len(some) - max(end - tokens, 0)], end) for some, end in self.logits]
        ids = {
            (stack, is_query): some[:tokens] if some and self._grows(stack, is_query) else some
            for (stack, is_query), some in self.ids.items()
        }
        return replace(
            self,
            layers={stack: some for stack, some in layers.items() if some},
            ids=ids,
            logits=[(some, min(end, tokens)) for some, end in logits if len(some)],
            ahead={
                stack: frozenset(n for n in some if n < tokens)
                for stack, some in self.ahead.items()
            },
        )

    def note_ahead(self, stack: str, positions: Collection[int]) -> None:
        """Note positions up to which some token of a stack read a later one."""
        known = self.ahead.get(stack, frozenset())
        self.ahead = {**self.ahead, stack: known.union(positions)}

    def copied(self) -> RecordedSequence:
        """Copy it whole."""
        layers = {
            stack: {n: layer.first(layer.queries) for n, layer in some.items()}
            for stack, some in self.layers.items()
        }
        ids, logits, grids = dict(self.ids), list(self.logits), dict(self.grids)
        copies: dict[str, Any] = {"unnamed": set(self.unnamed), "own": set(self.own)}
        copies["segments"] = dict(self.segments)
        return replace(self, layers=layers, ids=ids, logits=logits, grids=grids, **copies)

    def _grows(self, stack: str, is_query: bool) -> bool:
        """Return whether a stack's ids grow with a cache: the keys of cross-attention do not."""
        layers = self.layers.get(stack, {}).values()
        return any(layer.is_cached and (is_query or not layer.is_cross) for layer in layers)

    @property
    def generated(self) -> int:
        """How many tokens were generated; cross-attention sees the same ones again."""
        layers = (layer for stack in self.layers.values() for layer in stack.values())
        return max((layer.generated for layer in layers if not layer.is_cross), default=0)

    def generate_after(self, prompt: int) -> None:
        """Note that all tokens after a prompt of this length were generated."""
        for layer in self._cached():
            layer.generated = max(layer.queries - prompt, 0)


def starts_anew(run: Sequence[RecordedSequence], place: Place, readings: Iterable[Reading]) -> bool:
    """Return whether a call begins a text that a layer of a run has begun before."""
    for reading in readings:
        for sequence in reading.sequences:
            known = sequence < len(run) and place.layer in run[sequence].layers.get(place.stack, {})
            if known and not place.head and not reading.queries.first and len(reading.queries):
                return True
    return False


def trace_of(
    sequence: RecordedSequence,
    model: str,
    encoding: Encoding | None,
    tokenizer: PreTrainedTokenizerBase | None,
    shift: int | None = None,
) -> AttentionTrace:
    """Make the trace of a sequence, with the names of its encoding, if there is one.

    `shift` says which token its logits predict; see `predictions.shift_of`.
    """
    stacks = {}
    for stack, layers in sequence.layers.items():
        names = _names(sequence, stack, tokenizer) if encoding is None else encoding.names(stack)
        names = {} if stack in sequence.unnamed else names
        heads = {
            (layer, graph.head or 0): graph
            for layer, known in layers.items()
            for graph in _graphs(known, names | {"edits": sequence.edits})
        }
        stacks[stack] = Stack(stack, dict(sorted(heads.items())))
    logits = torch.cat([some for some, _ in sequence.logits]) if sequence.logits else None
    text = "" if encoding is None else encoding.text
    told = predictions_of(sequence.logits, sequence.ids, stacks, shift, tokenizer, sequence.ahead)
    return AttentionTrace(stacks, model, sequence.generated, logits, text, told)


def _names(
    sequence: RecordedSequence, stack: str, tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, Any]:
    """Name the tokens of a stack, as far as their ids are known."""
    keys, queries = (sequence.ids.get((stack, is_query)) for is_query in (False, True))
    names: dict[str, Any] = {
        name: names_of_run(ids, tokenizer)
        for name, ids in (("tokens", keys), ("query_tokens", queries))
        if ids is not None
    }
    if keys is not None and stack != "cross":
        names["words"] = words_of_run(keys, sequence.generated, tokenizer)
    if stack in sequence.segments:
        names["segments"] = sequence.segments[stack]
    return names


def _graphs(layer: RecordedLayer, names: dict[str, Any]) -> list[AttentionGraph]:
    found = []
    for heads, store in layer.stores.items():
        attributes = dict(layer.attributes[heads])
        for known in store.fields(attributes.pop("has_sink")):
            fields = known | attributes | _lengths(layer, known)
            if layer.groups > 1:
                fields["key_value_head"] = (known["head"] or 0) // layer.groups
            last: dict[str, Any] = {"generated": layer.generated}
            if layer.positions is None:
                last |= _fitting(known["graph"], names)
                found.append(AttentionGraph(**fields | last))
            else:
                graph = layer.positions.of(AttentionGraph(**fields))
                found.append(replace(graph, **last, **_fitting(graph.graph, names)))
    return found


def _lengths(layer: RecordedLayer, known: dict[str, Any]) -> dict[str, Any]:
    """Give the lengths of what a head's edges add, where the layer knows those of values."""
    graph, head = known["graph"], known["head"] or 0
    found = {}
    if layer.norms is not None:
        keys = graph.edge_index[0] if layer.positions is None else layer.positions.slots(graph)
        name = "contribution" if layer.is_projected else "value_norm"
        found[name] = abs(known["attention"]) * layer.norms[head].numpy()[keys.numpy()]
    if layer.messages is not None:
        whole, lengths = layer.messages
        key, query = graph.edge_index
        found["value_norm"] = lengths[places_in(whole, query, key), head].numpy()
    return found


def _fitting(graph: TokenGraph, names: dict[str, Any]) -> dict[str, Any]:
    """Take the names that match the graph's number of tokens: an image's patches have none."""
    sizes = {
        "tokens": graph.num_tokens,
        "words": graph.num_tokens,
        "segments": graph.num_tokens,
        "query_tokens": graph.num_queries,
    }
    return {name: some for name, some in names.items() if len(some) == sizes.get(name, len(some))}
