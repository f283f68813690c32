"""The attention of a head if parts were gone from its queries or its keys."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gattn.analysis.scores.head_scores import HeadScores
from gattn.analysis.scores.pairs import Listed


def changes_without(
    made: HeadScores, side: Literal["query", "key"], at: list[int], edges: Tensor | None
) -> list[tuple[int, dict[str, Any]]]:
    """Say for each part what the attention of some queries would be without it.

    `edges` are those asked about, booleans (queries, keys); without them, all are. Each row comes
    with the number of its writer, the largest change first.
    """
    query, key = made.totals()
    query, raw, before = query[at], query[at] @ key.T, made.attention[at]
    slope = before * made.slope(raw)
    own, tokens = (made.queries, at) if side == "query" else (made.keys, range(len(key)))
    rows: list[tuple[int, dict[str, Any]]] = []
    for writer, places, vectors in Listed.of(own, torch.tensor(tokens, device="cpu")):
        part = torch.zeros_like(raw)
        if side == "query":
            part[places] = vectors @ key.T
        else:
            part[:, places] = query @ vectors.T
        after, name = made.attention_of(at, raw - part), str(made.writers[writer])
        if edges is None:
            change = (after - before).abs().sum(-1).mean() / 2
            rows.append((writer, {"part": name, "change": float(change)}))
            continue
        first = slope * part
        first = first - before * first.sum(-1, keepdim=True)
        kept = [float((x * edges).sum() / len(at)) for x in (before, after, -first)]
        row = {"part": name, "attention": kept[0], "without": kept[1]}
        rows.append((writer, row | {"change": kept[1] - kept[0], "first_order": kept[2]}))
    return sorted(rows, key=lambda one: -abs(float(one[1]["change"])))
