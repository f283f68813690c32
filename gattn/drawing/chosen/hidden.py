"""Tokens that a picture leaves out; all other numbers stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from gattn.analysis.reading.arguments import refuse_pair, several_tokens
from gattn.drawing.canvas import fonts
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.merging import selected, with_all_rows
from gattn.heads.nouns import noun_of, several
from gattn.names.text import quoted

_NAMED = 3
"""The most hidden tokens that a caption names."""


def without_hidden(head: AttentionGraph, hide: Any, *, self_loops: bool) -> AttentionGraph:
    """Leave tokens out, and edges from a token to itself; these edges count as not shown.

    In cross-attention keys are left out, and all queries stay.
    """
    if not self_loops:
        head = head.without_self_loops()
    if hide is None:
        return head
    from gattn.analysis.heads.without_tokens import marked_tokens  # which loads pandas

    refuse_pair("hide", hide, head.geometry)
    head = with_all_rows(head)
    stays = np.flatnonzero(~marked_tokens(head, _choice(hide)))
    if not len(stays):
        nouns = several(noun_of(head.geometry, head.stack))
        raise SelectionError(f"hide={hide!r:.80} leaves none of {head.graph.num_keys} {nouns}.")
    rows = np.arange(head.graph.num_queries) if head.graph.is_bipartite else stays
    return selected(head, rows, stays)


def hidden_said(hide: Any, noun: str = "token") -> str:
    """Say which tokens are left out; "" if none are."""
    if hide is None:
        return ""
    chosen = _choice(hide)
    if isinstance(chosen, str):
        return f"hidden: {f'the first {noun}' if chosen == 'first' else 'special tokens'}"
    if not chosen:
        return ""
    if len(chosen) > _NAMED:
        return f"hidden: {len(chosen)} {several(noun)}"
    named = [
        quoted(one, has_glyph=fonts.has_glyph) if isinstance(one, str) else f"{noun} {one}"
        for one in chosen
    ]
    return f"hidden: {', '.join(named)}"


def _choice(hide: Any) -> str | list[int | str]:
    return (
        hide
        if isinstance(hide, str) and hide in ("special", "first")
        else several_tokens("hide", hide)
    )
