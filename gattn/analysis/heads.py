"""Describes heads: one row a head, in numbers that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gattn.errors import ShapeError
from gattn.head import AttentionGraph
from gattn.trace import AttentionTrace

if TYPE_CHECKING:
    import pandas as pd


def head_table(trace: AttentionTrace) -> pd.DataFrame:
    r"""Describe every head of a trace.

    Only kept edges are read, and shares are of the kept attention, so a `Keep` that drops much
    moves the numbers; ``kept`` says how much is there.

    Returns
    -------
    pandas.DataFrame
        One row a head, by ``stack``, ``layer`` and ``head``, with

        - ``key_value_head``: the head of keys and values that it reads, where queries are grouped;
        - ``entropy``: mean over queries of :math:`-\sum_j p_j \ln p_j`, in nats;
        - ``mean_distance``: :math:`\sum A_{ij} |i - j| / \sum A_{ij}`, in tokens;
        - ``previous_token``: :math:`\sum A_{i,i-1} / \sum A_{ij}`;
        - ``first_token``: mean over queries of the attention to position 0;
        - ``induction``: share on keys that follow an earlier occurrence of the query's token;
        - ``kept``: share of the attention that the kept edges hold.

        Distances and what rests on them are NaN in cross-attention.

    References
    ----------
    Clark et al. (2019), What does BERT look at? Olsson et al. (2022), In-context learning and
    induction heads.
    """
    import pandas as pd

    rows = [
        {
            "stack": name,
            "layer": layer,
            "head": head,
            "key_value_head": stack[layer, head].key_value_head,
            **describe(stack[layer, head]),
        }
        for name, stack in trace.stacks.items()
        for layer, head in sorted(stack)
    ]
    index = ["stack", "layer", "head"]
    table = pd.DataFrame(rows, columns=None if rows else index).set_index(index)
    if any(head.key_value_head is not None for head in trace.heads()):
        return table.astype({"key_value_head": "Int64"})
    return table.drop(columns="key_value_head", errors="ignore")


def describe(head: AttentionGraph) -> dict[str, float]:
    """Describe one head; see `head_table`."""
    if bool((head.attention < 0).any()):
        raise ShapeError("Head scores need attention >= 0; this head has negative attention.")
    graph = head.graph
    query, key = head.query, head.key
    weight = head.attention.astype(np.float64)
    mass = np.bincount(query, weight, graph.num_queries)
    share = np.divide(weight, mass[query], out=np.zeros_like(weight), where=mass[query] > 0)
    surprise = np.zeros_like(share)
    np.log(share, out=surprise, where=share > 0)
    rows = max(int((mass > 0).sum()), 1)
    scores = {"entropy": float(-(share * surprise).sum()) / rows + 0.0}  # never -0.0
    if graph.is_bipartite:
        names = ("mean_distance", "previous_token", "first_token", "induction")
        return scores | dict.fromkeys(names, np.nan) | {"kept": head.share_kept}
    node = query + graph.query_offset
    positions = head.node_positions
    query_position, key_position = positions[node], positions[key]
    total = max(float(weight.sum()), np.finfo(np.float64).tiny)
    tokens = np.array(head.labels(), dtype=object)
    is_next = (key > 0) & (positions[key - 1] == key_position - 1)
    follows = is_next & (key <= node) & (tokens[key - 1] == tokens[node])
    return scores | {
        "mean_distance": float((weight * np.abs(query_position - key_position)).sum() / total),
        "previous_token": float(weight[key_position == query_position - 1].sum() / total),
        "first_token": float(weight[key_position == 0].sum()) / rows,
        "induction": float(weight[follows].sum() / total),
        "kept": head.share_kept,
    }
