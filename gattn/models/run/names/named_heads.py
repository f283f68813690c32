"""Puts texts in place of the names of a head's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.models.read.seen_call import extra_of


def are_both_named(
    before: Mapping[tuple[int, int], AttentionGraph],
    heads: Mapping[tuple[int, int], AttentionGraph],
) -> bool:
    """Return whether the same texts name both the queries and the keys of some head."""
    return any(
        head.tokens is not before[place].tokens
        and head.query_tokens is not before[place].query_tokens
        for place, head in heads.items()
    )


def with_names(head: AttentionGraph, names: Mapping[str, Sequence[str]]) -> AttentionGraph:
    """Name the tokens of each side that has as many; the same head if none has."""
    graph = head.graph
    grown = 0 if graph.is_bipartite else head.generated
    keys = names.get("key")
    keys = None if keys is None else [*keys, *extra_of(head.tokens)]
    if (found := _fitted(keys, graph.num_tokens, grown)) is not None:
        head = replace(head, tokens=found)
    if graph.is_bipartite:
        found = _fitted(names.get("query"), graph.num_queries, head.generated)
        head = head if found is None else replace(head, query_tokens=found)
    return head


def _fitted(names: Sequence[str] | None, count: int, generated: int) -> tuple[str, ...] | None:
    """Take the names of a text of which some was generated; None if they are of another.

    They may be those of its prompt, so that what was generated is called by its position, or also
    name its last token, which the model did not read any more.
    """
    if names is None:
        return None
    if generated and len(names) == count - generated:
        return (*names, *map(str, range(len(names), count)))
    is_whole = len(names) == count or (generated > 0 and len(names) == count + 1)
    return tuple(names[:count]) if is_whole else None


def names_all(stack: Stack, names: Mapping[str, Sequence[str]]) -> bool:
    """Return whether there are as many names as a stack has tokens on some side."""
    return any(
        size == len(names.get(side, ()))
        for head in stack.values()
        for side, size in (("query", head.graph.num_queries), ("key", head.graph.num_keys))
    )
