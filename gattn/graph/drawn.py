"""Token graphs that are drawn at random: constructors of `TokenGraph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gattn.checks import check_memory, whole
from gattn.errors import GraphError
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Blocks, Globals, Window
from gattn.graph.structured import positive

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph

_DRAWN_BYTES = 256  # roughly, of a block's own tensors
_MOST_DRAWN = 10**10


def bigbird(
    cls: type[TokenGraph],
    num_tokens: int,
    block_size: int,
    *,
    random_blocks: int = 3,
    seed: int = 0,
) -> TokenGraph:
    """Block attention of BigBird (Zaheer et al. 2020).

    Each block attends to itself, to its two neighbours and to `random_blocks` of the others,
    drawn with `seed`; the first and the last block attend to all blocks, and all attend to them.
    """
    num_tokens = whole("num_tokens", num_tokens, 0, GraphError)
    block_size = min(positive("block_size", block_size), max(num_tokens, 1))
    blocks = -(-num_tokens // block_size)
    random_blocks = min(whole("random_blocks", random_blocks, 0, GraphError), blocks)
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
    ends = Globals(torch.tensor([0, max(blocks - 1, 0)], device="cpu"))
    band = Combined("|", Window(1, 1), ends)
    rule = Blocks(block_size, Combined("|", band, Edges.from_pairs(query, key, blocks)))
    return cls(rule, num_tokens, num_tokens)


def _few_far_blocks(blocks: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` blocks for each, neither near it nor at an end: rows block and drawn."""
    block = torch.arange(blocks, device="cpu")
    low, high = (block - 1).clamp_min(1), (block + 1).clamp_max(blocks - 2)
    near = (high - low + 1).clamp_min(0)
    far = (blocks - 2 - near).clamp_min(0)
    chosen = torch.zeros(blocks, 0, dtype=torch.long, device="cpu")  # of the far ones, rising
    for number in range(count):
        left = (far - number).clamp_min(1)
        drawn = (
            torch.rand(blocks, generator=generator, dtype=torch.float64, device="cpu") * left
        ).long()
        for before in chosen.T:
            drawn += drawn >= before
        chosen = torch.cat([chosen, drawn[:, None]], dim=1).sort(1).values
    key = chosen + 1
    key += near[:, None] * (key >= low[:, None])
    there = chosen < far[:, None]
    return torch.stack([block[:, None].expand_as(key)[there], key[there]])


def _many_far_blocks(blocks: int, count: int, generator: torch.Generator) -> Tensor:
    """Do the same as `_few_far_blocks`, in time that does not grow with `count`."""
    drawn = [torch.zeros(0, 2, dtype=torch.long, device="cpu")]
    for block in range(blocks):
        order = torch.randperm(blocks, generator=generator, device="cpu")
        is_far = ((order - block).abs() > 1) & (order > 0) & (order < blocks - 1)
        far = order[is_far][:count]
        drawn.append(torch.stack([torch.full_like(far, block), far], dim=1))
    return torch.cat(drawn).T


def expander(
    cls: type[TokenGraph], num_tokens: int, degree: int, *, seed: int = 0, max_tries: int = 100
) -> TokenGraph:
    """Random regular expander (Exphormer, Shirzad et al. 2023).

    The union of `degree` random permutations and their inverses, drawn again until its
    Laplacian's second eigenvalue reaches ``2 d - 2 sqrt(2 d - 1) - 0.1``. Graphs of up to 10
    tokens are complete.

    Raises
    ------
    GraphError
        If none of `max_tries` draws is a good expander.
    """
    degree = positive("degree", degree)
    num_tokens = whole("num_tokens", num_tokens, 0, GraphError)
    if num_tokens <= 10:
        return cls.complete(num_tokens)
    if degree >= num_tokens:
        raise GraphError(
            f"degree must be below the number of tokens, {num_tokens:,}, not {degree:,}: more "
            "permutations reach no more tokens."
        )
    check_memory(64 * num_tokens * degree, f"An expander of {num_tokens:,} x {degree:,} edges")
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.arange(num_tokens, device="cpu").repeat(degree)
    wanted = 2 * degree - 2 * (2 * degree - 1) ** 0.5 - 0.1
    for _ in range(max_tries):
        drawn = torch.cat(
            [torch.randperm(num_tokens, generator=generator, device="cpu") for _ in range(degree)]
        )
        if second_laplacian_eigenvalue(nodes, drawn, num_tokens) >= wanted:
            query, key = torch.cat([nodes, drawn]), torch.cat([drawn, nodes])
            return cls(Edges.from_pairs(query, key, num_tokens), num_tokens, num_tokens)
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
