"""How strongly one query reads each token of a text, or how strongly each reads one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.frame import token_said
from gattn.drawing.chosen.shown import all_of, kept_by, share_of
from gattn.drawing.one_head.look import check_values
from gattn.errors import SelectionError
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph
from gattn.names.tokens import find_token

_NOT_SHARED_OUT = ("score", "value_norm")
"""Values that a dropped edge lacks, whereas its attention counts as 0."""


@dataclass(frozen=True)
class Shade:
    """What is written, and how strongly each token is shaded."""

    tokens: Sequence[str]
    words: Sequence[int | None]
    amounts: NDArray[np.float64]
    is_edge: NDArray[np.bool_]
    outlined: int | None
    generated: int
    caption: str


def shade_of(
    heads: Sequence[AttentionGraph], query: int | str | None, key: int | str | None, values: str
) -> Shade:
    """Read what a query reads of each token, or what each reads of a key, on average over heads."""
    _check_one_text(heads, query, key)
    for head in heads:
        check_values(head, values)
    first = heads[0]
    keys, queries = first.node_ids()
    of_key, bipartite = key is not None, first.graph.is_bipartite
    if key is None:
        wanted = -1 if query is None else query
        place = find_token(wanted, queries, first.query_labels(), "query")
        name = f"query {token_said(queries[place], first.query_labels(), place)}"
    else:
        place = find_token(key, keys, first.labels()[: len(keys)], "key")
        name = f"key {token_said(keys[place], first.labels(), place)}"
    of_queries = of_key and bipartite
    tokens = first.query_labels() if of_queries else first.labels()
    amounts, having = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=int)
    for head in heads:
        chosen = np.flatnonzero((head.key if of_key else head.query) == place)
        others = head.query[chosen] + head.graph.query_offset if of_key else head.key[chosen]
        amounts[others] += head.edge_values[values][chosen]
        having[others] += 1
    is_edge = having > 0
    if values in _NOT_SHARED_OUT:
        mark = "; each token's mean is of the heads that have its edge"
        mark *= bool((having[is_edge] < len(heads)).any())
        amounts[is_edge] /= having[is_edge]
    else:
        mark, amounts = "", amounts / len(heads)
    generated = first.generated if of_queries or not bipartite else 0
    mark += f"; underlined: {generated} generated" if generated else ""
    what = _who_reads(heads, place) if of_key else _what_is_read(heads, place)
    return Shade(
        tokens,
        () if of_queries else first.words,
        amounts,
        is_edge,
        None if bipartite else place + (0 if of_key else first.graph.query_offset),
        generated,
        f"{'what reads ' if of_key else ''}{name}{'' if of_key else ' reads'}: {what}{mark}",
    )


def _check_one_text(
    heads: Sequence[AttentionGraph], query: int | str | None, key: int | str | None
) -> None:
    if query is not None and key is not None:
        raise SelectionError("Give a query or a key, not both: what it reads, or what reads it.")
    if not heads or not all(isinstance(head, AttentionGraph) for head in heads):
        raise SelectionError(
            "Give a head, or several, as in draw_text([trace[2, 0], trace[2, 1]])."
        )
    texts = {(tuple(head.labels()), tuple(head.query_labels())) for head in heads}
    if len(texts) > 1:
        raise SelectionError("These heads are of several texts; a picture shows one text.")
    if not min(heads[0].graph.num_queries, heads[0].graph.num_keys):
        raise SelectionError("There is nothing to draw: this head has no queries or no keys.")


def _what_is_read(heads: Sequence[AttentionGraph], row: int) -> str:
    kept = sum(int(head.graph.in_degree[row]) for head in heads)
    total = sum(int(head.total_edges[row]) for head in heads)
    text = all_of(total)
    if kept < total:
        mass = sum(float(head.kept_mass[row]) for head in heads)
        whole = sum(float(head.total_mass[row]) for head in heads)
        some = f"{kept:,} of {total:,} edges{share_of(mass, whole, what_of(heads))}"
        text = ", ".join(filter(None, [kept_by(heads), some]))
    sinks = [float(head.sink[row]) for head in heads if head.sink is not None]
    return text + (f"; {sum(sinks) / len(heads):.2g} from the sink" if sinks else "")


def _who_reads(heads: Sequence[AttentionGraph], column: int) -> str:
    count = sum(int((head.key == column).sum()) for head in heads)
    if all(head.graph.num_edges == int(head.total_edges.sum()) for head in heads):
        return all_of(count)
    return ", ".join(filter(None, [kept_by(heads), f"{count:,} edges were kept"]))
