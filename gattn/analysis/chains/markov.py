"""Attention as a Markov chain: a walker at query i goes on to key j with probability A_ij."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from gattn.analysis.chains.chain import Chain, chain_notes
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.progress import walk

_LARGEST = 1e10
"""Entries of Z beyond which no digits of the stationary distribution are left to trust."""


def pagerank(
    attention: Attention,
    damping: float = 0.85,
    *,
    tokens: Sequence[str] = (),
    progress: bool = True,
) -> Array:
    r"""Rank the tokens of every head by how often a walker along attention is there.

    The walker goes from query to key, so that a token ranks high if tokens that rank high attend
    to it: :math:`\pi = \alpha P^\top \pi + (1 - \alpha) / n`, with the rows of A divided by
    their sums in P. From a query that attends to nothing it goes to any token alike.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens.
    damping : float
        The probability α of following attention rather than starting anew at any token.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Array (layer, head, token)
        Each head's ranks sum to 1. Where edges were dropped, the coordinate ``error_bound``
        (layer, head) says how far the ranks may be from those of the whole attention, as
        :math:`\|\pi - \hat\pi\|_1 \le \frac{2 \alpha}{1 - \alpha} \sum_i \hat\pi_i \delta_i` with
        the share δ that each row lost.

    Raises
    ------
    SelectionError
        If `damping` is not in [0, 1), or queries and keys are different tokens.

    Notes
    -----
    It is ``nx.pagerank(head.to_networkx().reverse())``: NetworkX follows the edges, and gattn's run
    from key to query.

    References
    ----------
    Page et al. (1999), The PageRank citation ranking. Erel et al. (2025), Attention (as
    Discrete-Time Markov) Chains.
    """
    layers = layers_of(attention, tokens).square()
    if isinstance(damping, bool) or not isinstance(damping, Real) or not 0 <= damping < 1:
        raise SelectionError(f"damping is a number of at least 0 and below 1, not {damping!r:.80}.")
    ranks, bounds, empty, damping = [], [], 0, float(damping)
    for n in walk(range(len(layers)), "pagerank", "layer", progress=progress):
        chain = Chain.of(layers, n)
        size = chain.step.shape[-1]
        eye = torch.eye(size, dtype=chain.step.dtype, device=chain.step.device)
        restart = chain.step.new_full((len(chain.step), size), (1 - damping) / size)
        rank = torch.linalg.solve(eye - damping * chain.step.mT, restart)
        ranks.append(rank)
        bound = 2 * damping / (1 - damping) * (rank * chain.missing).sum(-1)
        bounds.append(bound.clamp_max(2))
        empty += chain.empty
    return _result("pagerank", layers, ranks, bounds, chain_notes(layers, empty), damping=damping)


def stationary(attention: Attention, *, tokens: Sequence[str] = (), progress: bool = True) -> Array:
    r"""Find where a walker along attention is in the long run, :math:`\pi = \pi P`.

    Parameters
    ----------
    attention, tokens, progress
        As in `pagerank`.

    Returns
    -------
    Array (layer, head, token)
        NaN for heads with several closed classes, sets of tokens that no walk leaves: there it
        depends on the start. Causal heads end at the first token whatever their weights, which the
        notes say. Where edges were dropped, the coordinate ``error_bound`` (layer, head, token) has
        :math:`|\pi_j - \hat\pi_j| \le \max_i \delta_i (\max_i Z_{ij} - \min_i Z_{ij})` with the
        share δ that each row lost and :math:`Z = (I - \hat P + 1 u^\top)^{-1}`.

    Raises
    ------
    SelectionError
        If queries and keys are different tokens.

    References
    ----------
    Haviv and Van der Heyden (1984), Perturbation bounds for the stationary probabilities of a
    finite Markov chain. Erel et al. (2025), Attention (as Discrete-Time Markov) Chains.
    """
    layers = layers_of(attention, tokens).square()
    found, bounds, empty, trivial, several = [], [], 0, 0, []
    for n in walk(range(len(layers)), "stationary", "layer", progress=progress):
        chain = Chain.of(layers, n)
        share, spread = _long_run(chain)
        found.append(share)
        bounds.append((chain.missing.amax(-1)[:, None] * spread).clamp_max(1))
        empty += chain.empty
        trivial += int((share == 1).sum())
        unknown = share.isnan().any(-1).tolist()
        several += [
            (layers.layers[n], h) for h, no in zip(layers.heads, unknown, strict=True) if no
        ]
    notes = chain_notes(layers, empty)
    if trivial:
        notes.append(
            f"{trivial} of {len(layers) * len(layers.heads)} heads end at one token whatever their "
            "weights, as causal heads do at the first: read their pagerank instead"
        )
    if several:
        names = ", ".join(f"{layer}.{head}" for layer, head in several[:5])
        more = f" and {len(several) - 5} more" if len(several) > 5 else ""
        notes.append(
            f"no single stationary distribution in heads {names}{more}: some walks never meet, or "
            "too rarely for double precision"
        )
    return _result("stationary", layers, found, bounds, notes)


def bounces(
    attention: Attention, query: int | str, steps: int = 4, *, tokens: Sequence[str] = ()
) -> Array:
    r"""Follow a walker along attention from one token: :math:`e_i^\top P^k`.

    Parameters
    ----------
    attention, tokens
        As in `pagerank`.
    query : int or str
        The token i where it starts: its position, negative from the end, or its text.
    steps : int
        How many steps k to follow.

    Returns
    -------
    Array (layer, head, step, token)
        The probability of being at each token after 0, 1, 2 ... steps. Step 1 is the query's
        attention, divided by its sum. Where edges were dropped, the coordinate ``error_bound``
        (layer, head, step) says how far it may be from that of the whole attention, in the sum of
        absolute differences.

    Raises
    ------
    SelectionError
        If there is no such token or number of steps, or queries and keys are different tokens.

    References
    ----------
    Erel et al. (2025), Attention (as Discrete-Time Markov) Chains.
    """
    layers = layers_of(attention, tokens).square()
    row, steps = layers.row(query, "query"), whole("steps", steps, 1, SelectionError)
    found, bounds, empty = [], [], 0
    for n in range(len(layers)):
        chain = Chain.of(layers, n)
        place = chain.step.new_zeros(len(chain.step), chain.step.shape[-1])
        place[:, row] = 1
        places, errors = [place], [place.new_zeros(len(place))]
        for _ in range(steps):
            errors.append(errors[-1] + 2 * (places[-1] * chain.missing).sum(-1))
            places.append(torch.einsum("hq,hqk->hk", places[-1], chain.step))
        found.append(torch.stack(places, 1))
        bounds.append(torch.stack(errors, 1).clamp_max(2))
        empty += chain.empty
    notes = chain_notes(layers, empty)
    return _result("bounces", layers, found, bounds, notes, query=layers.positions[row])


def _long_run(chain: Chain) -> tuple[Tensor, Tensor]:
    """Return each head's stationary distribution, and how far the columns of Z spread."""
    size = chain.step.shape[-1]
    eye = torch.eye(size, dtype=chain.step.dtype, device=chain.step.device)
    inverse, _ = torch.linalg.inv_ex(eye - chain.step + 1 / size)
    share = inverse.mean(-2).clamp_min(0)
    known = inverse.abs().amax((-2, -1)) < _LARGEST
    for head, classes in enumerate(chain.closed_classes()):
        if len(classes) > 1:
            known[head] = False
        elif len(classes[0]) == 1:
            share[head] = eye[classes[0][0]]
            known[head] = True
        else:
            outside = torch.ones(size, dtype=torch.bool, device=share.device)
            outside[torch.from_numpy(classes[0])] = False
            share[head, outside] = 0
    share = share / share.sum(-1, keepdim=True)
    spread = (inverse.amax(-2) - inverse.amin(-2)).nan_to_num(nan=torch.finfo(inverse.dtype).max)
    unknown = ~known[:, None]
    return share.masked_fill(unknown, torch.nan), spread.masked_fill(unknown, torch.nan)


def _result(
    name: str,
    layers: Layers,
    found: list[Tensor],
    bounds: list[Tensor],
    notes: list[str],
    **facts: float,
) -> Array:
    values, bound = torch.stack(found).cpu().numpy(), torch.stack(bounds).cpu().numpy()
    axes = layers.axes("layer", "head")
    if values.ndim == 4:
        axes["step"] = range(values.shape[2])
    axes |= layers.axes("token")
    if np.nanmax(bound, initial=0) <= 0:
        return layers.array(values, axes, name, notes, **facts)
    notes = [*notes, "error_bound says how far dropped edges can move it"]
    made = layers.array(values, axes, name, notes, **facts)
    return made.assign_coords(error_bound=(list(axes)[: bound.ndim], bound))
