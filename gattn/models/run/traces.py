"""Makes a trace of what was recorded of a sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.models.load.encoding import Encoding
from gattn.models.load.token_texts import names_of
from gattn.models.load.words import words_of_run
from gattn.models.run.recorded import RecordedLayer, RecordedSequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def trace_of(
    sequence: RecordedSequence,
    model: str,
    encoding: Encoding | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> AttentionTrace:
    """Make the trace of a sequence; its tokens are those of the encoding, where that is known."""
    stacks = {}
    for stack, layers in sequence.layers.items():
        names = _names(sequence, stack, tokenizer) if encoding is None else encoding.names(stack)
        heads = {
            (layer, graph.head or 0): graph
            for layer, known in layers.items()
            for graph in _graphs(known, names | {"edits": sequence.edits})
        }
        stacks[stack] = Stack(stack, dict(sorted(heads.items())))
    logits = torch.cat([some for some, _ in sequence.logits]) if sequence.logits else None
    text = "" if encoding is None else encoding.text
    return AttentionTrace(stacks, model, sequence.generated, logits, text)


def _names(
    sequence: RecordedSequence, stack: str, tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, Any]:
    """Name the tokens of a stack, as far as their ids are known."""
    keys, queries = (sequence.ids.get((stack, is_query)) for is_query in (False, True))
    names: dict[str, Any] = {
        name: names_of(ids, tokenizer)
        for name, ids in (("tokens", keys), ("query_tokens", queries))
        if ids is not None
    }
    if keys is not None and stack != "cross":
        names["words"] = words_of_run(keys, sequence.generated, tokenizer)
    return names


def _graphs(layer: RecordedLayer, names: dict[str, Any]) -> list[AttentionGraph]:
    found = []
    for heads, store in layer.stores.items():
        for graph in store.graphs(**layer.attributes[heads]):
            fields = _fitting(graph, names) | {"generated": layer.generated}
            if layer.groups > 1:
                fields["key_value_head"] = (graph.head or 0) // layer.groups
            if layer.norms is not None:
                key = graph.graph.edge_index[0].numpy()
                norms = layer.norms[graph.head or 0].numpy()
                name = "contribution" if layer.is_projected else "value_norm"
                fields[name] = abs(graph.attention) * norms[key]
            found.append(replace(graph, **fields))
    return found


def _fitting(graph: AttentionGraph, names: dict[str, Any]) -> dict[str, Any]:
    """Take the names that are as many as the graph's tokens: an image's patches have none."""
    sizes = {
        "tokens": graph.graph.num_tokens,
        "words": graph.graph.num_tokens,
        "query_tokens": graph.graph.num_queries,
    }
    return {name: some for name, some in names.items() if len(some) == sizes.get(name, len(some))}
