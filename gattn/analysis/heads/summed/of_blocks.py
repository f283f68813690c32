"""Sums over all edges of heads, while their attention is computed, where it is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gattn.analysis.heads.summed.nodes import Nodes, marks
from gattn.analysis.heads.summed.of_edges import refuse_negative
from gattn.analysis.heads.summed.patterns import PATTERNS, edges_of_patterns
from gattn.analysis.heads.summed.sums import ROUNDING, SHARE, Sums
from gattn.caching import cached_property
from gattn.engines.tiles import RowBlock
from gattn.graph.rules.keys import Keys, list_keys
from gattn.graph.rules.simple import Causal, Complete
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.largest import sorted_rows

_PIECE, _PIECE_OF_DEVICE = 1 << 18, 1 << 24
"""How many numbers are read at once: few stay in the cache, many are worth a kernel launch."""

_MOST_LISTED = 1 << 24
"""How many pairs of patterns are kept for the next layer."""

_OF_ROWS = ("entropy", "confidence", "edges_for_90")
_OF_KEYS = ("punctuation", "special_tokens", "first_token", "position")
_NAMES = (*_OF_ROWS, *_OF_KEYS, *PATTERNS, "mean_distance")
_KEYS_FROM, _PATTERNS_FROM = len(_OF_ROWS), len(_OF_ROWS) + len(_OF_KEYS)


class Marks:
    """Which keys, and which pairs in blocks, are marked: found once for all layers of a text."""

    def __init__(self) -> None:
        self._keys: dict[tuple[object, ...], Tensor] = {}
        self._pairs: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._size = 0

    def keys(self, nodes: Nodes, device: torch.device) -> Tensor:
        """Mark keys, (keys, marks) in float64, one column being positions; unknown marks are 0."""
        name = nodes, device
        if name not in self._keys:
            found = torch.zeros(nodes.num_keys, len(_OF_KEYS), dtype=torch.float64, device="cpu")
            found[:, _OF_KEYS.index("position")] = torch.arange(nodes.num_keys, device="cpu")
            for mark, some in marks(nodes).items():
                found[:, _OF_KEYS.index(mark)] = torch.from_numpy(some[: nodes.num_keys])
            self._keys[name] = found.to(device)
        return self._keys[name]

    def pairs(
        self, nodes: Nodes, rows: slice, keys: Keys, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """List the pairs of each pattern in a block, as flat indices, and where each list ends."""
        if isinstance(keys, Tensor):
            return _pairs(nodes, rows, keys, device)
        name = nodes, rows.start, rows.stop, keys.start, keys.stop, device
        if name not in self._pairs:
            found = _pairs(nodes, rows, keys, device)
            self._size += len(found[0])
            if self._size > _MOST_LISTED:
                return found
            self._pairs[name] = found
        return self._pairs[name]


def _pairs(nodes: Nodes, rows: slice, keys: Keys, device: torch.device) -> tuple[Tensor, Tensor]:
    row, key = np.arange(rows.start, rows.stop)[:, None], list_keys(keys).cpu().numpy()
    found = edges_of_patterns(nodes, row, key)
    lists = [np.flatnonzero(found[name]) for name in PATTERNS if name in found]
    index = np.concatenate([*lists, np.zeros(0, dtype=np.int64)])
    ends = np.cumsum([0, *map(len, lists)])
    return torch.from_numpy(index).to(device), torch.from_numpy(ends).to(device)


class BlockSums:
    """Sums over all edges of heads of several texts, block by block.

    Nothing leaves the blocks' device before `of` is asked, and then only sums and masses. Products
    are in the blocks' precision, and sums in float64: in float32, scores are those of
    `sums_of_edges` to about 1e-7.

    Parameters
    ----------
    graph : TokenGraph
        Who may attend to whom, the same in all texts; on the CPU.
    nodes : sequence of Nodes
        Those of each text, at positions 0, 1, 2 ...
    heads : int
        How many heads there are.
    device : torch.device
        Where the blocks are.
    known : Marks
        Remembers what is marked.
    """

    def __init__(
        self,
        graph: TokenGraph,
        nodes: Sequence[Nodes],
        heads: int,
        device: torch.device,
        known: Marks,
    ) -> None:
        self._graph, self._nodes, self._known = graph, nodes, known
        self._is_causal = isinstance(graph.rule, Causal) and not graph.is_bipartite
        self._marked = torch.stack([known.keys(one, device) for one in nodes])
        sizes = len(nodes), heads
        self._sums = torch.zeros(*sizes, len(_NAMES), dtype=torch.float64, device=device)
        self._lowest = self._sums.new_zeros(*sizes, 1)
        self._mass = self._sums.new_zeros(*sizes, graph.num_queries)

    @torch.no_grad()
    def add(self, block: RowBlock) -> None:
        """Add whole rows; attention is 0 for pairs that are not edges."""
        texts, heads, rows, width = block.attention.shape
        if not width:
            return
        most = _PIECE if block.attention.device.type == "cpu" else _PIECE_OF_DEVICE
        step = max(most // (texts * heads * width), 1)
        for start in range(0, rows, step):
            piece = block.attention[:, :, start : start + step]
            first = block.rows.start + start
            self._add(slice(first, first + piece.shape[2]), block.columns, piece)

    def _add(self, rows: slice, keys: Keys, attention: Tensor) -> None:
        rising = sorted_rows(attention)
        mass = rising.cumsum(-1, dtype=torch.float64)
        total = mass[..., -1]
        self._mass[:, :, rows] = total
        torch.minimum(self._lowest, mass[..., 0].amin(-1, keepdim=True), out=self._lowest)
        share = attention / total.where(total > 0, 1.0).to(attention.dtype)[..., None]
        surprise = share.clamp_min(torch.finfo(share.dtype).tiny).log_().mul_(share)
        weakest = torch.searchsorted(mass, total[..., None] * (1 - SHARE + ROUNDING), right=True)
        of_rows = (
            surprise.sum((-2, -1), dtype=torch.float64).neg_(),
            rising[..., -1].sum(-1, dtype=torch.float64),
            mass[0, 0].numel() - weakest.sum((-2, -1)),
        )
        self._sums[..., :_KEYS_FROM] += torch.stack(of_rows, -1)
        marked = self._marked[:, keys if isinstance(keys, slice) else keys.to(attention.device)]
        of_keys = attention.sum(-2, dtype=torch.float64) @ marked
        self._sums[..., _KEYS_FROM:_PATTERNS_FROM] += of_keys
        if not (self._is_causal or self._graph.is_bipartite):
            distance = self._distance(rows, keys, attention)
            far = torch.mul(attention, distance, out=surprise).sum((-2, -1), dtype=torch.float64)
            self._sums[..., -1] += far
        for text, nodes in enumerate(self._nodes):
            index, ends = self._known.pairs(nodes, rows, keys, attention.device)
            if len(index):
                self._add_pairs(text, attention[text].flatten(1).index_select(1, index), ends)

    def _add_pairs(self, text: int, picked: Tensor, ends: Tensor) -> None:
        """Add the attention of the pairs of patterns, one after another."""
        sums = pad(picked.cumsum(1, dtype=torch.float64), (1, 0)).index_select(1, ends).diff()
        self._sums[text, :, _PATTERNS_FROM : _PATTERNS_FROM + sums.shape[1]] += sums

    def _distance(self, rows: slice, keys: Keys, attention: Tensor) -> Tensor:
        """Return how far the keys are from the queries, (rows, keys)."""
        offset, device = self._graph.query_offset, attention.device
        query = torch.arange(rows.start + offset, rows.stop + offset, device=device)
        distance = query[:, None] - list_keys(keys, device).to(device)
        return distance.abs_().to(attention.dtype)

    @cached_property
    def _packed(self) -> Tensor:
        """All sums and masses, (texts, heads, numbers)."""
        return torch.cat([self._sums, self._lowest, self._mass], -1)

    def is_of(self, text: int, head: AttentionGraph) -> bool:
        """Return whether a head has the nodes of a text."""
        return Nodes.of(head) == self._nodes[text]

    def of(self, text: int, heads: Sequence[AttentionGraph]) -> Sums:
        """Give the sums of a text, whose heads as recorded know sinks and numbers of edges.

        Raises
        ------
        ShapeError
            If attention is negative.
        """
        nodes, graph, found = self._nodes[text], self._graph, self._packed[text].cpu().numpy().T
        sums = dict(zip(_NAMES, found, strict=False))
        refuse_negative(found[len(_NAMES)].min())
        mass = found[len(_NAMES) + 1 :].T
        if self._is_causal:  # No key is ahead of its query.
            sums["mean_distance"] = mass @ nodes.rows - sums["position"]
        sinks = [head.sink for head in heads if head.sink is not None]
        return Sums(
            nodes,
            None if isinstance(graph.rule, (Causal, Complete)) else graph,
            self._is_causal or graph.num_keys <= graph.query_offset + 1,
            mass,
            mass > 0,
            heads[0].total_edges,
            np.ones(len(heads)),
            np.stack(sinks).astype(np.float64) if sinks else None,
            {name: sums[name] for name in _defined(nodes)},
        )


def bring_to_host(several: Sequence[BlockSums]) -> None:
    """Bring all sums to the host, in one transfer from each device."""
    of_device: dict[torch.device, list[BlockSums]] = {}
    for one in several:
        of_device.setdefault(one._packed.device, []).append(one)
    for alike in of_device.values():
        whole = torch.cat([one._packed.flatten() for one in alike]).cpu()
        parts = whole.split([one._packed.numel() for one in alike])
        for one, part in zip(alike, parts, strict=True):
            one._packed = part.view(one._packed.shape)


def _defined(nodes: Nodes) -> list[str]:
    """List the sums that are defined."""
    found = [*_OF_ROWS]
    found += ["punctuation"] if nodes.tokens else []
    found += ["special_tokens"] if nodes.words else []
    if nodes.is_bipartite:
        return found
    return [*found, "mean_distance", "first_token", *(PATTERNS if nodes.tokens else PATTERNS[:3])]
