"""Tells of which text of the batch each element of a call is, where a model moves whole texts.

Old models of sequences sort them by length, and bring them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.codes import SEVERAL, decoded, words
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.read.layouts import Layout

_REPEATED = (
    "the model repeats texts of the batch before it attends, and leaves others out, so that which "
    "text each element is cannot be told: run one text at a time"
)


def with_texts(
    some: Sequence[Told],
    sizes: tuple[int, int],
    run: Callable[[Tensor], None],
    *,
    are_likely: bool,
) -> dict[Site, Layout | str]:
    """Say of which text each element of some calls is, where that is another one than they say.

    Parameters
    ----------
    some : sequence of Told
        The calls, which have learned then of which texts they are.
    sizes : tuple of int
        How many texts there are, and how many tokens each has.
    run : callable
        Runs the model with NaN in some tokens of each text, (runs, texts, tokens).
    are_likely : bool
        Whether texts are likely to be moved; else a run with half of them comes first.

    Returns
    -------
    dict
        The layouts of calls on other texts, or why they cannot be told.
    """
    texts, count = sizes
    code = words(texts)
    rows = code[:, :, None] & (torch.arange(count, device="cpu") % 2 == 0)  # All hide all scores.
    if not are_likely:
        run(rows[:1])
        if all(_are_own(one, code[0], count) for one in some):
            return {}
    run(rows)
    found: dict[Site, Layout | str] = {}
    for one in some:
        before, sequences = one.tokens.sequences, _texts_of(one, code, count)
        if len({*sequences}) < len({*before}):
            found[one.site] = _REPEATED
        elif sequences != before:
            one.layout = replace(one.layout, tokens=replace(one.tokens, sequences=sequences))
            found[one.site] = one.layout
    return found


def move_alike(one: Told, code: Tensor) -> bool:
    """Return whether the tokens of all texts moved in the same way, by the runs of a code."""
    for n, positions in one.sides(code.shape[1]):
        own = one.decoded(n, code)
        pairs = torch.cat((positions, own), 1).unique(dim=0)
        if bool((own == SEVERAL).any()) or len(pairs) > len(positions.unique(dim=0)):
            return False
    return True


def _are_own(one: Told, marked: Tensor, count: int) -> bool:
    """Return whether elements of `marked` texts are marked in the only run, and no others."""
    wanted = marked[torch.tensor(one.tokens.sequences, device="cpu")]
    sides = one.sides(count) if one.runs else ()  # It may not have run.
    found = (_marked(one, n, positions, count) for n, positions in sides)
    return all(not bool((told & (seen != wanted)).any()) for seen, told in found)


def _texts_of(one: Told, code: Tensor, count: int) -> tuple[int, ...]:
    """Return the text of each element; what depends on none or on several stays where it was."""
    found = torch.tensor(one.tokens.sequences, device="cpu")
    for n, positions in one.sides(count) if len(one.runs) == len(code) else ():
        own = decoded(*_marked(one, n, positions, count), code)
        found = torch.where(own >= 0, own, found)
    return tuple(found.tolist())


def _marked(one: Told, n: int, positions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which elements have a marked slot on a side, and where that is known (runs, ...)."""
    is_token = (positions >= 0) & (positions < count)
    seen, known = (torch.stack([run[n][m] for run in one.runs]) for m in (0, 1))
    return (seen & known & is_token).any(2), (known & is_token).any(2)
