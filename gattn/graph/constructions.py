"""Rules that are drawn at random or measured from features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from gattn.checks import check_memory
from gattn.errors import GraphError
from gattn.graph.arrays import whole_numbers
from gattn.graph.rules.base import BLOCK_PAIRS, Rule
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Blocks, Globals, Window

_DRAWN_BYTES = 256  # of a block's own tensors, about
_MOST_DRAWN = 10**10


def bigbird_rule(num_tokens: int, block_size: int, random_blocks: int, seed: int) -> Rule:
    """Build BigBird's rule; see `TokenGraph.bigbird`."""
    blocks = -(-num_tokens // block_size)
    random_blocks = min(random_blocks, blocks)
    size = 8 * blocks * (2 * random_blocks + _DRAWN_BYTES // 8)
    what = f"BigBird's {random_blocks:,} random blocks for each of {blocks:,} blocks"
    check_memory(size, what, "take larger blocks")
    work = blocks * min(random_blocks**2, blocks)
    if work > _MOST_DRAWN:
        raise GraphError(
            f"Drawing {random_blocks:,} of {blocks:,} blocks for each of them takes {work:.1e} "
            f"steps; at most {_MOST_DRAWN:.0e} are done. Take larger blocks."
        )
    generator = torch.Generator().manual_seed(seed)
    draw = _few_far_blocks if random_blocks**2 < blocks else _many_far_blocks
    query, key = draw(blocks, random_blocks, generator)
    ends = Globals(torch.tensor([0, max(blocks - 1, 0)]))
    band = Combined("|", Window(1, 1), ends)
    return Blocks(block_size, Combined("|", band, Edges.from_pairs(query, key, blocks)))


def _few_far_blocks(blocks: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw some blocks for each that are neither near it nor at an end, as (block, drawn)."""
    block = torch.arange(blocks)
    low, high = (block - 1).clamp_min(1), (block + 1).clamp_max(blocks - 2)
    near = (high - low + 1).clamp_min(0)
    far = (blocks - 2 - near).clamp_min(0)
    chosen = torch.zeros(blocks, 0, dtype=torch.long)  # of the far ones, rising
    for number in range(count):
        left = (far - number).clamp_min(1)
        drawn = (torch.rand(blocks, generator=generator, dtype=torch.float64) * left).long()
        for before in chosen.T:
            drawn += drawn >= before
        chosen = torch.cat([chosen, drawn[:, None]], dim=1).sort(1).values
    key = chosen + 1
    key += near[:, None] * (key >= low[:, None])
    there = chosen < far[:, None]
    return torch.stack([block[:, None].expand_as(key)[there], key[there]])


def _many_far_blocks(blocks: int, count: int, generator: torch.Generator) -> Tensor:
    """Do what `_few_far_blocks` does, in a time that does not grow with their number."""
    drawn = [torch.zeros(0, 2, dtype=torch.long)]
    for block in range(blocks):
        order = torch.randperm(blocks, generator=generator)
        is_far = ((order - block).abs() > 1) & (order > 0) & (order < blocks - 1)
        far = order[is_far][:count]
        drawn.append(torch.stack([torch.full_like(far, block), far], dim=1))
    return torch.cat(drawn).T


def expander_rule(num_tokens: int, degree: int, seed: int, max_tries: int) -> Rule:
    """Draw an expander; see `TokenGraph.expander`."""
    if degree >= num_tokens:
        raise GraphError(
            f"degree must be below the number of tokens, {num_tokens:,}, not {degree:,}: more "
            "permutations reach no more tokens."
        )
    check_memory(64 * num_tokens * degree, f"An expander of {num_tokens:,} x {degree:,} edges")
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.arange(num_tokens).repeat(degree)
    wanted = 2 * degree - 2 * (2 * degree - 1) ** 0.5 - 0.1
    for _ in range(max_tries):
        drawn = torch.cat([torch.randperm(num_tokens, generator=generator) for _ in range(degree)])
        if second_laplacian_eigenvalue(nodes, drawn, num_tokens) >= wanted:
            query, key = torch.cat([nodes, drawn]), torch.cat([drawn, nodes])
            return Edges.from_pairs(query, key, num_tokens)
    raise GraphError(
        f"No expander of {num_tokens} tokens and degree {degree} in {max_tries} draws; "
        "use a larger degree or another seed."
    )


def second_laplacian_eigenvalue(query: Tensor, key: Tensor, num_tokens: int) -> float:
    """Compute λ₂ of the Laplacian of edges that form a regular graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    ends = (query.numpy(), key.numpy())
    ones = np.ones(len(query))
    adjacency = coo_array((ones, ends), shape=(num_tokens, num_tokens)).tocsr()
    adjacency = adjacency + adjacency.T
    start = np.random.default_rng(0).normal(size=num_tokens)
    if num_tokens <= 500:
        values = np.linalg.eigvalsh(adjacency.toarray())[-2:]
    else:
        values = np.sort(eigsh(adjacency, k=2, which="LA", v0=start, return_eigenvectors=False))
    return float(2 * len(query) / num_tokens - values[0])


def nearest_rule(features: Tensor, k: int, causal: bool) -> Rule:
    """Find nearest neighbours, a block of tokens at a time; see `TokenGraph.nearest`."""
    n = len(features)
    positions = torch.arange(n, device=features.device)
    rows, keys = [positions[:0]], [positions[:0]]
    for block in positions.split(max(1, BLOCK_PAIRS // max(n, 1))):
        distance = torch.cdist(features[block], features)
        distance[torch.arange(len(block)), block] = -1.0
        if causal:
            distance = distance.masked_fill(positions > block[:, None], torch.inf)
        near, index = distance.topk(min(k, n), largest=False)
        row, column = torch.isfinite(near).nonzero(as_tuple=True)
        rows.append(block[row])
        keys.append(index[row, column])
    return Edges.from_pairs(torch.cat(rows), torch.cat(keys), n)


def pairs_of(edges: Iterable[tuple[int | str, int | str]], words: Sequence[str]) -> Tensor:
    """Find the positions (key, query) of edges as [key; query]; see `TokenGraph.from_edges`."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    pairs = [(_position(a, places), _position(b, places)) for a, b in edges]
    return whole_numbers(pairs, "edges").reshape(-1, 2).T


def _position(token: int | str, places: dict[str, list[int]]) -> int:
    if not isinstance(token, str):
        return token
    found = places.get(token, [])
    if len(found) != 1:
        raise GraphError(
            f"The token {token!r} occurs {len(found)} times among the {len(places)} different "
            "ones; name an edge's end by its position."
        )
    return found[0]
