"""Edges that may be cut, and the edits that cut them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gattn.analysis.faithfulness.edge_rankings import table_reader
from gattn.analysis.faithfulness.token_rankings import Scores
from gattn.engines.tiles import RowBlock
from gattn.graph.rules.keys import list_keys
from gattn.heads.head import AttentionGraph, Ints
from gattn.models.edit.base import Edit
from gattn.models.edit.edges import Cut
from gattn.models.edit.swap import ModelScore, Swap
from gattn.models.read.reading import Reading
from gattn.weights.base import Tree
from gattn.weights.pairs import Pairs
from gattn.weights.position import PositionWeight


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """Edges of a model's heads that may be cut.

    Parameters
    ----------
    heads : sequence of AttentionGraph
        The heads, all of their edges kept.
    chosen : sequence of array of int
        Which edges of each head.
    stack : str, optional
        Their stack, if the model has several.
    scores : mapping of str to array
        What each ranking says of them.
    """

    heads: Sequence[AttentionGraph]
    chosen: Sequence[Ints]
    stack: str | None
    scores: Mapping[str, Scores]

    unit = "edge"

    def __len__(self) -> int:
        return sum(map(len, self.chosen))

    @property
    def units(self) -> Ints:
        """Number the pairs of tokens in each layer: an edge has one number in all heads."""
        codes = [
            ((head.layer or 0) * head.graph.num_queries + head.query[some]) * head.graph.num_keys
            + head.key[some]
            for head, some in zip(self.heads, self.chosen, strict=True)
        ]
        return np.unique(np.concatenate(codes), return_inverse=True)[1]

    def without(self, cut: NDArray[np.bool_], renormalize: bool) -> list[Edit]:
        """Return edits that cut some of the edges, one per layer: one per head would be slow."""
        stack, graph = self.stack, self.heads[0].graph
        num_heads = 1 + max(head.head or 0 for head in self.heads)
        lost: dict[int, NDArray[np.bool_]] = {}
        parts = np.split(cut, np.cumsum([len(some) for some in self.chosen])[:-1])
        for head, some, part in zip(self.heads, self.chosen, parts, strict=True):
            edges, layer = some[part], head.layer or 0
            if len(edges) and layer not in lost:
                lost[layer] = np.zeros((graph.num_queries, graph.num_keys, num_heads), dtype=bool)
            if len(edges):
                lost[layer][head.query[edges], head.key[edges], head.head or 0] = True
        return [
            Swap(layer=layer, weight=ModelScore() + Barred(torch.from_numpy(pairs)), stack=stack)
            if renormalize
            else Zeroed(torch.from_numpy(pairs), layer, stack=stack)
            for layer, pairs in lost.items()
        ]

    def cut(self, number: int, renormalize: bool) -> Cut:
        """Cut one edge."""
        starts = np.cumsum([0, *map(len, self.chosen)])
        place = int(np.searchsorted(starts, number, side="right")) - 1
        head, edge = self.heads[place], self.chosen[place][number - starts[place]]
        query, key = int(head.query[edge]), int(head.key[edge])
        return Cut(head.layer, head.head, query, key, renormalize=renormalize, stack=self.stack)

    def effects(self, table: pd.DataFrame) -> Scores:
        """Find the edges' effects in a table."""
        known = table[table["effect"].notna()]
        reader = table_reader("effects", known, "effect", 1.0, self.heads[0], self.stack)
        return np.concatenate(
            [reader(head)[some] for head, some in zip(self.heads, self.chosen, strict=True)]
        )


class Barred(PositionWeight):
    """A score of -inf, which removes the edge, for some pairs of each head, and 0 for all others.

    Parameters
    ----------
    pairs : Tensor
        Booleans (queries, keys, heads).
    """

    def __init__(self, pairs: Tensor) -> None:
        super().__init__()
        self.bias = nn.Buffer(torch.zeros(pairs.shape, device="cpu").masked_fill(pairs, -torch.inf))

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return self.bias.to(pairs.query.device)[pairs.query[..., 0], pairs.key[..., 0]]

    def dot_form(self, query: Tree, key: Tree) -> None:  # type: ignore[override]
        """Have none: torch's fused kernel makes NaN of rows that are all -inf."""
        return


@dataclass(frozen=True, eq=False, repr=False)
class Zeroed(Edit):
    """Zero the attention of some pairs after normalizing: booleans (queries, keys, heads)."""

    pairs: Tensor
    layer: int
    head: None = None
    stack: str | None = None

    is_after = True

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Zero them."""
        inside = self.pairs[block.rows][:, list_keys(block.columns).cpu()].permute(2, 0, 1)
        return attention.masked_fill(inside.to(attention.device), 0.0)
