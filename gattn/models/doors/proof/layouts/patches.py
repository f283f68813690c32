"""Proves which patch of an image each token of a model is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.plan import Place
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL, decoded, words
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import TokenMap

_MOST_GRIDS = 3
_NUMBER = re.compile(r"\d+")


def place_patches(
    sites: Iterable[Site],
    layouts: dict[Place, list[tuple[tuple[int, ...], Layout]]],
    reruns: Reruns,
) -> None:
    """Find the patches of images that tokens are, of self-attention by its first call with as many.

    The other layers of the same list have the same tokens, unless the halves of the image reach
    others. In cross-attention it is the keys that may be patches, which later queries or words
    read, in each layer perhaps others. Lists whose layers differ have no grid.
    """
    sites = list(sites)
    for site in sites:
        if site.place in layouts and not _may_have_picture(site, reruns):
            found = layouts[site.place]
            layouts[site.place] = [(lead, _without_grid(one)) for lead, one in found]
    some = {site: found[0][1] for site in sites if len(found := layouts.get(site.place, [])) == 1}
    some = {site: one for site, one in some.items() if one.tokens and not one.tokens.grid}
    for site in some:
        reruns.ask(site.chain[-1], site)
    known: dict[int, tuple[str, TokenMap]] = {}
    lists: dict[object, list[tuple[Site, TokenMap]]] = {}
    for site, layout in some.items():
        assert layout.tokens is not None
        tokens, path = layout.tokens, _NUMBER.sub("", site.place[0])
        first_path, first = known.get(tokens.num_keys, (path, None))
        if tokens.is_cross or first is None:
            tokens = _with_patches(site, layout, tokens, reruns)
        elif path == first_path and first.grid:
            whole = replace(tokens, grid=first.grid, cells=first.cells)
            is_alike = _may_be(site, layout, whole, reruns)
            tokens = whole if is_alike else _with_patches(site, layout, tokens, reruns)
        if not tokens.is_cross:
            known.setdefault(tokens.num_keys, (path, tokens))
        kind = path, tokens.is_cross, tokens.num_keys
        lists.setdefault(kind, []).append((site, tokens))
    for own in lists.values():
        if all(_are_alike(own[0][1], tokens) for _, tokens in own):
            for site, tokens in own:
                layouts[site.place] = [(site.lead, replace(some[site], tokens=tokens))]


def _may_have_picture(site: Site, reruns: Reruns) -> bool:
    """Return whether a model's input may be a picture: not if all are series or texts.

    These are (batch, steps, channels), and ids (texts, choices, tokens).
    """
    given = reruns.tensors(site.chain[-1])
    return not given or any(x.dim() > 3 for x in given)


def _without_grid(layout: Layout) -> Layout:
    """Leave out where tokens lie, which are then named by their positions."""
    if layout.tokens is None or not layout.tokens.grid:
        return layout
    return replace(layout, tokens=replace(layout.tokens, grid=()))


def _are_alike(one: TokenMap, other: TokenMap) -> bool:
    """Return whether tokens lie in the same cells, or in none."""
    if one.cells is None or other.cells is None:
        return one.cells is other.cells
    return one.grid == other.grid and torch.equal(one.cells, other.cells)


def _may_be(site: Site, layout: Layout, tokens: TokenMap, reruns: Reruns) -> bool:
    """Return whether the halves of the image reach the tokens that are said to lie there."""
    image = _image(site, reruns)
    assert tokens.cells is not None
    if image is None:
        return True
    try:
        halves = _halves(site, layout, reruns, image)
    except UnprovedError:
        return True
    columns = tokens.grid[1]
    at = torch.where(tokens.cells == NONE, NONE, tokens.cells % columns)
    left, right = (at != NONE) & (at < columns // 2), at >= columns - columns // 2
    return all(bool(half[own].all()) for half, own in zip(halves, (left, right), strict=True))


def _with_patches(site: Site, layout: Layout, tokens: TokenMap, reruns: Reruns) -> TokenMap:
    """Find the grid of patches that the tokens of a call form, if they do: its keys.

    Parameters
    ----------
    site : Site
        A call of attention, whose tokens are known and were not mixed before it.
    layout : Layout
        What was proved of it.
    tokens : TokenMap
        Its tokens.
    reruns : Reruns
        Runs the model again.

    Returns
    -------
    TokenMap
        With the grid and each token's cell, if each cell's pixels reach exactly one token, and no
        token is reached by two; else as given.

    Notes
    -----
    Rows of pixels are NaN in each of a few runs, by a code, and then columns. Tokens that no pixel
    reaches, such as a class token, are in no cell.
    """
    image = _image(site, reruns)
    if image is None:
        return tokens
    try:
        halves = _halves(site, layout, reruns, image)
        for rows, columns in _grids(*halves, *reruns.sources(site.chain[-1])[image].shape[-2:]):
            cells = _cells(site, layout, reruns, image, (rows, columns))
            if cells is not None:
                return replace(tokens, grid=(rows, columns), cells=cells)
    except UnprovedError:
        return tokens
    return tokens


def _image(site: Site, reruns: Reruns) -> int | None:
    """Return which input of the model is an image, if exactly one looks like it."""
    shapes = [x.shape for x in reruns.sources(site.chain[-1])]
    found = [n for n, one in enumerate(shapes) if len(one) == 4 and one[1] < min(one[2:])]
    return found[0] if len(found) == 1 else None


def _halves(site: Site, layout: Layout, reruns: Reruns, image: int) -> tuple[Tensor, Tensor]:
    """Find the tokens that each half's pixels reach: if all scores are NaN, none can be told."""
    width = reruns.sources(site.chain[-1])[image].shape[-1]
    is_left = torch.arange(width, device="cpu") < width // 2
    left = _of_tokens(site, layout, reruns, image, is_left[None])
    return left, _of_tokens(site, layout, reruns, image, ~is_left[None])


def _grids(left: Tensor, right: Tensor, height: int, width: int) -> Sequence[tuple[int, int]]:
    """List grids of as many equal patches, those of square ones first.

    The halves of the image share the patches of the column that their border goes through.
    """
    patches, shared = int((left | right).sum()), int((left & right).sum())
    found = []
    for rows in range(2, patches // 2 + 1):
        columns, rest = divmod(patches, rows)
        if rest or height % rows or width % columns:
            continue
        is_through = width // 2 % (width // columns) > 0
        if shared == (rows if is_through else 0):
            found.append((rows, columns))
    sides = [(height // rows, width // columns) for rows, columns in found]
    order = sorted(range(len(found)), key=lambda n: abs(sides[n][0] - sides[n][1]))
    return [found[n] for n in order[:_MOST_GRIDS]]


def _cells(
    site: Site, layout: Layout, reruns: Reruns, image: int, grid: tuple[int, int]
) -> Tensor | None:
    """Return the cell of each token, or None if tokens are not the cells of this grid."""
    found = []
    for dim, count in zip((-2, -1), grid, strict=True):
        code = words(count)
        reached = torch.stack(
            [
                _of_tokens(site, layout, reruns, image, one)
                for one in _bands(code, reruns.sources(site.chain[-1])[image].shape[dim], dim)
            ]
        )
        found.append(decoded(reached, torch.ones_like(reached), code))
    rows, columns = found
    if bool(((rows == SEVERAL) | (columns == SEVERAL)).any()):
        return None
    cells = torch.where((rows == NONE) | (columns == NONE), NONE, rows * grid[1] + columns)
    patches = cells[cells != NONE]
    is_whole = torch.equal(patches.sort().values, torch.arange(grid[0] * grid[1], device="cpu"))
    return cells if is_whole else None


def _bands(code: Tensor, size: int, dim: int) -> Iterator[Tensor]:
    """Mark rows of pixels, or columns, by a code."""
    for word in code:
        marks = word.repeat_interleave(size // len(word))
        yield marks[:, None] if dim == -2 else marks[None]


def _of_tokens(site: Site, layout: Layout, reruns: Reruns, image: int, marks: Tensor) -> Tensor:
    """Return which tokens of a sequence NaN in marked pixels reaches, the same in all sequences."""
    root = site.chain[-1]
    seen = reruns.reached(site, len(site.chain) - 1, root, image, marks[None, None])
    tokens = layout.tokens
    assert tokens is not None
    reached, are_known, positions, count = (
        (seen.keys, seen.keys_known, tokens.key_positions, tokens.num_keys)
        if tokens.is_cross
        else (seen.queries, seen.queries_known, tokens.query_positions, tokens.num_queries)
    )
    if not bool(are_known.all()):
        raise UnprovedError("some of its slots hide what reaches them")
    slots = layout.fold(reached.reshape(*site.lead, -1, 1), site.lead)[..., 0]
    if not torch.equal(slots.any(1), slots.all(1)):
        raise UnprovedError("its heads read different tokens")
    found = torch.zeros(max(tokens.sequences) + 1, count, dtype=torch.bool, device="cpu")
    for sequence, own, at in zip(tokens.sequences, slots[:, 0], positions, strict=True):
        found[sequence, at[at >= 0]] |= own[at >= 0]
    if not torch.equal(found.any(0), found.all(0)):
        raise UnprovedError("its sequences have their patches in different orders")
    return found[0]
