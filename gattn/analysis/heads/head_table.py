"""Describes heads: one row per head, in numbers that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard, Union, cast

import numpy as np

from gattn.analysis.heads.even_attention import EVEN_COLUMNS, even_scores
from gattn.analysis.heads.head_labels import label_of
from gattn.analysis.heads.head_scores import describe
from gattn.analysis.reading.layers import Attention, heads_of, named
from gattn.analysis.reading.results import Table, table
from gattn.edit_records import in_words, union
from gattn.errors import SelectionError
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.progress import walk

Place: TypeAlias = tuple[str, int, int]
"""A stack's name, a layer and a head."""

Heads: TypeAlias = Union[Attention, Sequence[AttentionGraph]]  # noqa: UP007 - a name as well
"""What holds attention, or a list of graphs, one per head, such as `attention_graphs` gives."""


class HeadTable(Table):
    """What `head_table` gives: a `Table` whose picture has the labels beside it."""


def head_table(attention: Heads, *, tokens: Sequence[str] = (), progress: bool = True) -> HeadTable:
    r"""Describe every head.

    Only kept edges are read. Shares are of the kept attention :math:`\sum A_{ij}` of all queries,
    so the share of the whole attention is at most 1 - ``kept`` away. Queries without attention do
    not count; what is not defined is NaN: all scores where there is no attention, and induction
    where no token came before.

    Parameters
    ----------
    attention : Heads
        Whatever holds it; traces with several stacks, and lists of `AttentionGraph`, too.
    tokens : sequence of str
        The tokens' texts, where `attention` is an array, which does not know them.
    progress : bool
        Whether to show a progress bar on stderr, after the first second.

    Returns
    -------
    Table
        One row per head, by ``stack`` ("" where it has no name), ``layer`` and ``head``, with

        - ``key_value_head``: the head of keys and values that it reads, where queries are grouped;
        - ``entropy``: mean over queries of :math:`-\sum_j p_j \ln p_j`, in nats;
        - ``mean_distance``: :math:`\sum A_{ij} |i - j| / \sum A_{ij}`, in tokens;
        - ``previous_token``, ``next_token``: mean over the queries that have such a token of the
          attention to it;
        - ``first_token``: mean over queries of the attention to position 0;
        - ``same_token``: share on tokens with the query's text, the query itself among them;
        - ``duplicate_token``: mean over the queries whose token came before of the attention to its
          earlier occurrences;
        - ``induction``: mean over the queries whose token came before of the attention to the
          tokens that followed its earlier occurrences, the induction score;
        - ``sink_mass``: mean over queries of the attention to position 0 and to a sink outside of
          the text; ``outside_sink`` is the latter alone, where there is one;
        - ``confidence``: mean over queries of the largest attention of an edge;
        - ``edges``: mean number of edges of a query, kept or not;
        - ``edges_for_90``: mean number of edges that hold 90 % of a query's attention;
        - ``locality``: share on keys at most 2 tokens away;
        - ``punctuation``: share on tokens that are nothing but punctuation;
        - ``special_tokens``: share on the tokenizer's special tokens;
        - ``kept``: share of the attention that the kept edges hold;
        - ``even_previous_token`` and so on: what these would be if each query gave the same to all
          its keys: those of the token graph, or where that is not known (arrays, edges not kept)
          all keys, only those up to the query where no edge leads ahead. In
          ``even_duplicate_token`` and ``even_induction`` keys that are also the query itself, the
          token before it or position 0 count as the head attends to them;
        - ``label``: what it does, in words; see `gattn.analysis.heads.head_labels.head_labels`.

        What rests on positions is NaN in cross-attention, and what rests on tokens where their
        texts are not known; special tokens are known where a fast tokenizer read the text.

    Raises
    ------
    ShapeError
        Where attention is negative, or the array is none of attention.

    References
    ----------
    Clark et al. (2019), What does BERT look at? Olsson et al. (2022), In-context learning and
    induction heads. Xiao et al. (2024), Efficient streaming language models with attention sinks.
    """
    attention = named(attention, tokens)
    heads = by_place(attention)
    index = ["stack", "layer", "head"]
    rows: list[dict[str, Any]] = [
        dict(zip(index, place, strict=True))
        | {"key_value_head": head.key_value_head, **describe(head)}
        | _even_columns(head)
        for place, head in walk(list(heads.items()), "heads", "head", progress=progress)
    ]
    for row in rows:
        row["label"] = label_of(row)
    # A column at a time, pandas would take longer than all scores.
    for name in ("key_value_head", "outside_sink"):
        if all(row[name] is None or row[name] != row[name] for row in rows):
            rows = [_without(row, name, f"even_{name}") for row in rows]
    plain = table(
        rows or dict.fromkeys(index, ()),
        name="heads",
        computed_from=described(list(heads.values())),
        edits=union(head.edits for head in heads.values()),
        notes=_notes(list(heads.values())),
        index=index,
    )
    made = HeadTable(plain)
    made.attrs = plain.attrs
    if "key_value_head" in made:
        made = made.astype({"key_value_head": "Int64"})
    return made


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _even_columns(head: AttentionGraph) -> dict[str, float]:
    scores = even_scores(head)
    return {column: scores.get(name, np.nan) for column, name in EVEN_COLUMNS.items()}


def by_place(attention: Heads) -> dict[Place, AttentionGraph]:
    """List heads by stack ("" where it has no name), layer and head.

    Raises
    ------
    ShapeError
        As `gattn.analysis.reading.layers.Layers.of` does.
    SelectionError
        Where several graphs have one place.
    """
    if isinstance(attention, AttentionTrace):
        return {place: head for one in attention.stacks.values() for place, head in _placed(one)}
    if isinstance(attention, Stack):
        return dict(_placed(attention))
    graphs = attention if is_graphs(attention) else heads_of(cast(Attention, attention))
    found = {("", head.layer or 0, head.head or 0): head for head in graphs}
    if len(found) < len(graphs):
        raise SelectionError(
            f"These {len(graphs)} graphs are of {len(found)} heads: take those of one text, and "
            "give each its layer= and head=."
        )
    return found


def is_graphs(attention: object) -> TypeGuard[Sequence[AttentionGraph]]:
    """Say whether something is a list of attention graphs."""
    return isinstance(attention, (list, tuple)) and all(
        isinstance(one, AttentionGraph) for one in attention
    )


def _placed(stack: Stack) -> list[tuple[Place, AttentionGraph]]:
    return [((stack.name, *place), stack[place]) for place in sorted(stack)]


def described(heads: Sequence[AttentionGraph]) -> str:
    """Say in words what heads these are."""
    if not heads:
        return "no heads"
    sizes = dict.fromkeys(
        f"{head.graph.num_queries} queries, {head.graph.num_keys} keys"
        if head.graph.is_bipartite or head.graph.num_queries != head.graph.num_keys
        else f"{head.graph.num_keys} tokens"
        for head in heads
    )
    count = f"{len(heads)} head" + "s" * (len(heads) > 1)
    edits = in_words(union(head.edits for head in heads))
    parts = [heads[0].model, count, *sizes, steps.in_words(heads[0].kept_by), edits]
    return ", ".join(filter(None, parts))


def _notes(heads: Sequence[AttentionGraph]) -> list[str]:
    total = sum(float(head.total_mass.sum()) for head in heads)
    kept = sum(float(head.kept_mass.sum()) for head in heads)
    if total and kept < (1 - 1e-6) * total:
        return [
            f"{1 - kept / total:.2%} of the attention was not kept: a head's shares are at most "
            "1 - kept from those of all edges; its induction, duplicate_token, previous_token and "
            "next_token are lower bounds; "
            "its entropy and edges_for_90 are of the kept ones alone"
        ]
    return []
