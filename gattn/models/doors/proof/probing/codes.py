"""Codes that tell from a few runs which one position each slot depends on.

Each position has a codeword of the same weight and is marked in the runs where its word has a one.
A slot is marked where any position that it depends on is, so the union of two different words has
more ones than a word: a slot with as many ones as a word depends on exactly one position.
"""

from __future__ import annotations

from itertools import combinations, islice, pairwise
from math import comb

import torch
from torch import Tensor

NONE = -1
"""A slot that depends on no position."""
SEVERAL = -2
"""A slot that depends on several."""


def words(count: int) -> Tensor:
    """Return the fewest runs in which `count` positions can be told apart, booleans (runs, count).

    Each run marks about half of the positions.
    """
    runs = next(n for n in range(1, count + 2) if comb(n, n // 2) >= count)
    found = torch.zeros(runs, count, dtype=torch.bool, device="cpu")
    weight = max(runs // 2, 1)
    for position, ones in enumerate(islice(combinations(range(runs), weight), count)):
        found[list(ones), position] = True
    return found


def sparse_words(count: int, runs: int) -> Tensor:
    """Return a code of few runs that mark few positions each, and rarely neighbouring ones."""
    runs = min(runs, count)
    weight = next((n for n in range(1, runs // 2) if comb(runs, n) >= count), None)
    if weight is None:
        return words(count)
    found = torch.zeros(runs, count, dtype=torch.bool, device="cpu")
    for position, ones in enumerate(_turned(runs, weight)[:count]):
        found[list(ones), position] = True
    return found


def _turned(runs: int, weight: int) -> list[tuple[int, ...]]:
    """List the words of a weight, each one turned by one run after that before it."""
    some = sorted(combinations(range(1, runs), weight - 1), key=lambda others: -_gap(others, runs))
    turned = (
        tuple(sorted((first + n) % runs for n in (0, *others)))
        for others in some
        for first in range(runs)
    )
    return list(dict.fromkeys(turned))


def _gap(others: tuple[int, ...], runs: int) -> int:
    return min(y - x for x, y in pairwise((0, *others, runs)))


def decoded(marked: Tensor, known: Tensor, code: Tensor) -> Tensor:
    """Return the position that each slot depends on, `NONE`, or `SEVERAL`.

    Parameters
    ----------
    marked, known : Tensor (runs, ...)
        Whether a slot was marked in a run, and whether that is known.
    code : Tensor (runs, positions)
        The words.

    Notes
    -----
    Where it is unknown in as many runs as a word still lacks, those are its ones: if the slot
    depends on any position, that one's word fits nowhere else.
    """
    weight = int(code[:, 0].sum())
    ones = (marked & known).sum(0)
    filled = (ones + (~known).sum(0) == weight) & ~known.all(0)
    marked = (marked & known) | (filled & ~known)
    total = marked.sum(0)
    powers = 1 << torch.arange(len(code), device="cpu")
    names = (code.long() * powers[:, None]).sum(0)
    order = names.argsort()
    seen = (marked.long() * powers.reshape(-1, *(1,) * (marked.dim() - 1))).sum(0)
    place = torch.searchsorted(names[order], seen).clamp(max=len(order) - 1)
    found = torch.where(names[order][place] == seen, order[place], SEVERAL)
    found = torch.where(total == weight, found, SEVERAL)
    return torch.where((ones == 0) & ~filled & (total == 0), _nothing(known, weight), found)


def _nothing(known: Tensor, weight: int) -> Tensor:
    """Return `NONE` where too few runs are unknown to hide a word."""
    hidden = (~known).sum(0) >= weight
    return torch.where(hidden, SEVERAL, NONE)
