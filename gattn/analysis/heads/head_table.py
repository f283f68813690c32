"""Describes heads: one row per head, in numbers that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gattn.analysis.heads.head_labels import label_of
from gattn.analysis.heads.summed.even_attention import EVEN_COLUMNS, even_scores
from gattn.analysis.heads.summed.head_scores import scores
from gattn.analysis.heads.summed.of_edges import sums_of_edges
from gattn.analysis.heads.summed.sums import Sums
from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import by_place, described
from gattn.analysis.reading.results import Table
from gattn.edit_records import union
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of
from gattn.progress import walk


class HeadTable(Table):
    """What `head_table` gives: a `Table` whose picture has the labels beside it."""


def head_table(attention: Heads, *, tokens: Sequence[str] = (), progress: bool = True) -> HeadTable:
    r"""Describe every head.

    Only kept edges are read. Shares are of the kept attention :math:`\sum A_{ij}` of all queries,
    so shares of the whole attention differ by at most 1 - ``kept``. Queries without attention do
    not count. Scores that are not defined are NaN: all of them without attention, and induction if
    no token came before.

    Parameters
    ----------
    attention : Heads
        Whatever holds it; also traces with several stacks, and lists of `AttentionGraph`.
    tokens : sequence of str
        The texts of an array's tokens.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per head, by ``stack`` ("" if it has no name), ``layer`` and ``head``, with

        - ``key_value_head``: the head of keys and values that it reads, with grouped queries;
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
          the text; ``outside_sink`` is the latter alone, if there is one;
        - ``confidence``: mean over queries of the largest attention of an edge;
        - ``edges``: mean number of edges of a query, kept or not;
        - ``edges_for_90``: mean number of edges that hold 90 % of a query's attention;
        - ``locality``: share on keys at most 2 tokens away;
        - ``punctuation``: share on tokens that are nothing but punctuation;
        - ``special_tokens``: share on the tokenizer's special tokens;
        - ``kept``: share of the attention that the kept edges hold;
        - ``even_previous_token`` and so on: the scores of even attention, the same from each query
          to all its keys: those of the token graph or, if that is not known (arrays, edges not
          kept), all keys, but only those up to the query if no edge leads ahead. In
          ``even_duplicate_token`` and ``even_induction`` keys that are also the query itself, the
          token before it or position 0 count as the head attends to them;
        - ``label``: what it does, in words; see `gattn.analysis.head_labels`.

        Scores of positions are NaN in cross-attention, and scores of tokens if their texts are not
        known; special tokens are known if a fast tokenizer read the text.

    Raises
    ------
    ShapeError
        If attention is negative, or an array does not have its shape.

    References
    ----------
    Clark et al. (2019), What does BERT look at? Olsson et al. (2022), In-context learning and
    induction heads. Xiao et al. (2024), Efficient streaming language models with attention sinks.
    """
    heads = by_place(named(attention, tokens))
    rows = [
        {"key_value_head": head.key_value_head} | labelled(row, head)
        for head in walk(list(heads.values()), "heads", "head", progress=progress)
        for row in scored(sums_of_edges(head))
    ]
    drop_empty(rows)
    index = ["stack", "layer", "head"]
    placed = [
        dict(zip(index, place, strict=True)) | row for place, row in zip(heads, rows, strict=True)
    ]
    # A column at a time, pandas would take longer than all scores.
    nouns = {stack: _noun(head) for (stack, *_), head in heads.items() if _noun(head) != "token"}
    made = HeadTable.of(
        placed or dict.fromkeys(index, ()),
        name="heads",
        computed_from=described(list(heads.values())),
        edits=union(head.edits for head in heads.values()),
        notes=_notes(list(heads.values())),
        index=index,
        num_heads=len(placed),
        **{"nouns": nouns} if nouns else {},
    )
    if "key_value_head" in made:
        made = made.astype({"key_value_head": "Int64"})
    return made


def labelled(row: dict[str, Any], head: AttentionGraph) -> dict[str, Any]:
    """Add to a head's scores what it does, in words."""
    return row | {"label": label_of(row, _noun(head))}


def _noun(head: AttentionGraph) -> str:
    return noun_of(head.geometry, head.stack)


def scored(sums: Sums) -> list[dict[str, Any]]:
    """Score heads: a row for each, without its place and its label."""
    found = scores(sums)
    even = even_scores(sums)
    none = np.full(len(sums.kept), np.nan)
    found |= {column: even.get(name, none) for column, name in EVEN_COLUMNS.items()}
    columns = [column.tolist() for column in found.values()]
    return [dict(zip(found, row, strict=True)) for row in zip(*columns, strict=True)]


def drop_empty(rows: Sequence[dict[str, Any]]) -> None:
    """Drop the columns that few models have, if no head has them."""
    for name in ("key_value_head", "outside_sink"):
        if all(row[name] is None or row[name] != row[name] for row in rows):
            for row in rows:
                row.pop(name)
                row.pop(f"even_{name}", None)


def _notes(heads: Sequence[AttentionGraph]) -> list[str]:
    total = sum(float(head.total_mass.sum()) for head in heads)
    kept = sum(float(head.kept_mass.sum()) for head in heads)
    if total and kept < (1 - 1e-6) * total:
        return [
            f"{(1 - kept / total) * 100:.2f} % of the attention was not kept: a head's shares are "
            "at most 1 - kept from those of all edges; its induction, duplicate_token, "
            "previous_token and next_token are lower bounds; "
            "its entropy and edges_for_90 are of the kept ones alone"
        ]
    return []
