"""Proves which tokens queries stand for by where the model writes their rows.

Queries that mix all tokens, as by a wide convolution, do not tell which one each stands for. Its
row of the output does: where a module adds it to a token's residual stream, the query is that
token's.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.candidates import Inputs, Reader
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL, decoded, words
from gattn.models.doors.proof.probing.dependence import Dependence
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Entered, Given, Run
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.probing.taints import replaced, sources, with_nan

_HEADS = (
    "its heads and queries change places between scores and values, as by a view: the scores of a "
    "row are made of another token than the one that the row is added to (transpose them instead)"
)


def tells_keys_alone(inputs: Inputs, site: Site) -> bool:
    """Return whether an input tells the tokens of keys, and mixes them in as many queries."""
    is_told = inputs.keys is not None and inputs.step is None
    return is_told and inputs.queries is None and 1 < site.queries == site.keys


def with_written(inputs: Inputs, site: Site, reruns: Reruns) -> Inputs:
    """Tell queries that mix tokens by those that the run around them adds their rows to."""
    keys = inputs.keys
    if keys is None or not inputs.is_mixed or not tells_keys_alone(inputs, site):
        return inputs
    if not _are_written_in_place(site, inputs.run, keys, reruns):
        return inputs
    if _are_heads(keys.dependence):
        raise UnprovedError(_HEADS)
    return replace(inputs, queries=keys, is_mixed=False, is_by_rows=True)


def _are_heads(found: Dependence) -> bool:
    """Return whether all queries of a leading index are made of one token, and of another's not.

    The keys of both are the same.
    """
    index = found.keys.index
    names = torch.stack(list(index.values()), 1).flatten(1)
    _, group = torch.unique(names, dim=0, return_inverse=True)
    for its in (found.queries.index.get(dim) for dim in index.keys() - found.keys.batch):
        if its is None or not bool((its >= 0).all()) or bool((its != its[:, :1]).any()):
            continue
        if any(len(its[group == n].unique()) > 1 for n in group.unique()):
            return True
    return False


def _are_written_in_place(site: Site, run: Run, keys: Reader, reruns: Reruns) -> bool:
    """Prove that each row is added to the token of the key in its slot, and to no other.

    A run must pass on its input, in which NaN in a token reaches what NaN in a row reaches.
    """
    side = keys.side
    keys.dependence.complete(keys.probe)
    if not side.is_exact or not side.index or not bool(side.depends.all()):
        return False
    shape = keys.dependence.shape

    def by_token(dim: int, marked: Tensor) -> list[Tensor]:
        entered = _marking(run, keys.source, keys.dependence.along(dim, marked))
        return _answers(run, reruns, entered)

    def by_row(dim: int, marked: Tensor) -> list[Tensor]:
        rows = marked[side.index[dim]].reshape(*site.lead, site.queries, 1)
        return _answers(run, reruns, None, site, rows)

    codes = {dim: words(shape[dim]) for dim in side.index}
    found: list[list[Tensor]] = []
    for dim, code in codes.items():
        tokens, rows = ([by(dim, row) for row in code] for by in (by_token, by_row))
        if not tokens[0] or not all(map(_are_equal, tokens, rows)):
            return False
        marks = [torch.stack(some) for some in zip(*tokens, strict=True)]
        found.append([decoded(x, torch.ones_like(x), code) for x in marks])
    return _have_each([shape[dim] for dim in codes], list(zip(*found, strict=True)))


def _have_each(sizes: list[int], answers: list[tuple[Tensor, ...]]) -> bool:
    """Return whether each number of an answer has parts of one token at most, and each token some.

    `answers` hold the index of each dimension that each number depends on.
    """
    seen = set()
    for index in answers:
        if any(bool((x == SEVERAL).any()) for x in index):
            return False
        is_token = torch.stack([x != NONE for x in index]).all(0)
        position = torch.zeros_like(index[0])
        for size, x in zip(sizes, index, strict=True):
            position = position * size + x
        seen |= set(position[is_token].unique().tolist())
    return len(seen) == prod(sizes)


def _are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _marking(run: Run, source: int, marks: Tensor) -> Entered:
    def entered(now: Run, module: object, given: Given) -> Given | None:
        if now.around is not None or now.name != run.name:
            return None
        x = sources(given)[source]
        return replaced(given, x, with_nan(x, marks))

    return entered


def _answers(
    run: Run,
    reruns: Reruns,
    entered: Entered | None,
    site: Site | None = None,
    rows: Tensor | None = None,
) -> list[Tensor]:
    """Run a module in which attention gives zero, but NaN in some rows of one call."""

    def see(one: Site, call: RawCall) -> None:
        call.output.zero_()
        if one is site and rows is not None:
            call.output.masked_fill_(rows.to(call.output.device), torch.nan)

    answer = reruns.through(run, see, entered)
    return [x.isnan().cpu() for x in answer]
