"""Describes traces, stacks and graphs in the header of a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gattn.analysis.circuits.found import Circuit
from gattn.analysis.heads.head_table import head_table
from gattn.analysis.heads.summed.head_scores import SCORES
from gattn.analysis.reading.heads import Place
from gattn.drawing.page.places import places_of
from gattn.drawing.page.tokens.telling import Told
from gattn.errors import SelectionError, ShapeError
from gattn.heads import steps
from gattn.heads.geometry import Geometry
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of, several
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.pieces import joined

_LONGEST = 400
"""The most characters of the text above the page."""
_TITLE = 80
"""The most tokens of a text that has to be joined from tokens."""
_FEW, _SIDE = 60, 36
"""The most characters of tokens that are not known to be words, and of keys before queries."""


def text_of(trace: AttentionTrace, head: AttentionGraph) -> str:
    """Say what a head of a trace reads: its text, or its keys' and its queries' if these differ."""
    is_text = bool(trace.text) and next(trace.heads()).labels() == head.labels()
    noun = "key" if head.graph.is_bipartite else noun_of(head.geometry, head.stack)
    keys = (
        trace.text
        if is_text
        else _said(head.labels(), head.words, head.geometry, head.tokens, noun)
    )
    if not head.graph.is_bipartite:
        return keys
    queries = _said(head.query_labels(), (), head.query_geometry, head.query_tokens, "query")
    return f"{_cut(keys, _SIDE)} → {_cut(queries, _SIDE)}"


def _said(
    labels: Sequence[str],
    words: Sequence[int | None],
    geometry: Geometry | None,
    names: Any,
    noun: str,
) -> str:
    """Join the first tokens into a text, without special ones; of other tokens only a few."""
    if geometry is not None and list(labels) == geometry.names():
        return geometry.described()
    counted = f"{len(labels):,} {noun if len(labels) == 1 else several(noun)}"
    if not names:
        return counted
    if words:
        said = [i for i, word in enumerate(words) if word is not None][:_TITLE]
        return joined([labels[i] for i in said], [words[i] for i in said])
    have_own = any(label.startswith(" ") for label in labels)
    between = "" if have_own else ", " if any(" " in label for label in labels) else " "
    text = between.join(labels[:_TITLE]).strip()
    return text if len(text) <= _FEW else f"{_cut(text, _FEW)} ({counted})"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip(' ,')}…"


def trace_entry(
    trace: AttentionTrace,
    entries: Iterator[dict[str, Any]],
    descriptions: dict[Place, dict[str, Any]],
    circuit: Circuit | None = None,
    told: Told | None = None,
) -> dict[str, Any]:
    """Describe a trace; `entries` are those of its packed graphs, in order.

    ``circuitEdges`` says of a head how many edges a circuit has there. A stack has what is `told`
    of its tokens.
    """
    marked = _in_heads(circuit)
    return {
        "model": trace.model,
        "stacks": [
            _stack(stack)
            | (told or Told()).of(trace, stack)
            | {
                "text": text_of(trace, next(iter(stack.values())))[:_LONGEST],
                "graphs": [
                    _graph(stack, place)
                    | {"circuitEdges": marked[stack.name, *place]}
                    | descriptions.get((stack.name, *place), {})
                    | entry
                    for place, entry in zip(sorted(stack), entries, strict=False)
                ],
            }
            for stack in trace.stacks.values()
            if len(stack)
        ],
    }


def _in_heads(circuit: Circuit | None) -> Counter[Any]:
    """Count the edges of a circuit in each head."""
    rows = [] if circuit is None else json.loads(circuit.graph["rows"])
    return Counter((stack, layer, head) for stack, layer, head, *_ in rows)


def labels_and_scores(layer: Stack) -> list[tuple[Place, dict[str, Any]]]:
    """Return the label and the scores of each head; signed attention has none."""
    try:
        table = head_table(layer, progress=False)
    except ShapeError:
        return []
    scores = table[[name for name in SCORES if name in table]].to_dict("records")
    return [
        (place, {"label": label, "scores": _numbers(row)})
        for place, label, row in zip(table.index, table["label"], scores, strict=True)
    ]


def _numbers(row: dict[Any, float]) -> dict[str, float]:
    return {str(name): float(f"{x:.4g}") for name, x in row.items() if np.isfinite(x)}


def _stack(stack: Stack) -> dict[str, Any]:
    heads = [stack[place] for place in sorted(stack)]
    first, *others = heads
    for head in others:
        if _nodes_of(head) != _nodes_of(first):
            raise SelectionError(
                f"The heads of the {stack.name} stack have different tokens, so a page cannot show "
                "them together: capture them in one run, or make a page of each."
            )
    graph = first.graph
    own = {
        "tokens": first.labels(),
        "positions": first.node_positions.tolist(),
        "places": places_of(first.geometry),
    }
    size = graph.num_queries if graph.is_bipartite else graph.num_tokens
    generated = 0 if graph.is_bipartite else first.generated
    special = [i for i, word in enumerate(first.words) if word is None]
    if not any(word is not None for word in first.words[size - generated :]):
        special = [i for i in special if i < size - generated]  # their words are unknown
    return {
        "name": stack.name,
        "noun": noun_of(first.geometry, first.stack),
        "layers": stack.layers,
        "heads": stack.head_numbers,
        "keys": own | {"words": list(first.words) or None, "special": special},
        "queries": {
            "tokens": first.query_labels(),
            "positions": first.node_ids()[1],
            "words": None,
            "special": [],
            "places": places_of(first.query_geometry),
        }
        if graph.is_bipartite
        else None,
        "numQueries": graph.num_queries,
        "offset": graph.query_offset,
        "generatedFrom": size - first.generated if first.generated else None,
    }


def are_alike(before: AttentionGraph, after: AttentionGraph) -> bool:
    """Return whether heads of two runs have the same tokens, as far as both say which these are."""
    known = zip(_names_of(before), _names_of(after), strict=True)
    return _sizes_of(before) == _sizes_of(after) and all(
        one == other or not (one and other) for one, other in known
    )


def _nodes_of(head: AttentionGraph) -> tuple[Any, ...]:
    """Return what heads of one run must have in common to be shown together."""
    return *_sizes_of(head), *_names_of(head)


def _sizes_of(head: AttentionGraph) -> tuple[Any, ...]:
    graph = head.graph
    sizes = graph.num_queries, graph.num_keys, graph.query_offset, graph.is_bipartite
    return *sizes, head.node_positions.tolist()


def _names_of(head: AttentionGraph) -> tuple[Any, ...]:
    return head.tokens, head.query_tokens, head.geometry, head.query_geometry


def _graph(stack: Stack, place: tuple[int, int]) -> dict[str, Any]:
    head = stack[place]
    numbers = (head.layer, head.head) if len(stack) == 1 else place
    named = zip(("layer", "head"), numbers, strict=True)
    names = [f"{what} {n}" for what, n in named if n is not None] or ["one head"]
    return {
        "layer": place[0],
        "head": place[1],
        "name": " · ".join(names),
        "layerName": names[0],
        "keyValueHead": head.key_value_head,
        "label": "",
        "scores": {},
        "keep": "" if head.kept_by == steps.ALL else steps.to_text(head.kept_by),
        "weightFunction": head.weight_function,
        "normalizer": head.normalizer,
        "edges": head.graph.num_edges,
        "totalEdges": int(head.total_edges.sum()),
    }
