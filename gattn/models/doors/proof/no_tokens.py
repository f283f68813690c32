"""Proves that calls attend over something else than tokens: channels, branches, experts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.proof.candidates import Reader
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.dependence import Probe
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.outlining import are_of_one_each, reaches_all_keys
from gattn.models.doors.proof.probing.rerunning import Reruns

MOST_SOURCES = 6
"""How many inputs of a run are tried."""
_MOST_PARTS = 64
"""How many inputs may have a part of each token."""


def are_channels(reader: Reader, images: Collection[tuple[int, ...]]) -> bool:
    """Return whether the slots are channels of images, each of which holds all pixels."""
    shape, side = reader.dependence.shape, reader.side
    pixels = {n for n, size in enumerate(shape) if n > 1 and size > 1}
    slots = shape[1:2] == side.depends.shape[1:]
    is_image = len(shape) > 3 and shape in images
    return is_image and slots and 1 in side.apart and not side.apart & pixels


def are_features(reader: Reader) -> bool:
    """Return whether the slots are features of rows, (..., features), each of which all rows have.

    Embeddings and recurrent networks give such rows, so that what comes last is no token.
    """
    shape, side = reader.dependence.shape, reader.side
    last = len(shape) - 1
    rows = [size for n, size in enumerate(shape[:-1]) if n not in side.batch]
    return side.apart - side.batch == {last} and prod(rows) > 1


def are_states(run: Run, reader: Reader) -> bool:
    """Return whether the slots are the last states of a recurrent network's layers or directions.

    These come after its rows, along the first dimension.
    """
    side = reader.side
    return run.recurs and reader.source > 0 and 0 in side.apart - side.batch


def has_features(reader: Reader, images: Collection[tuple[int, ...]]) -> bool:
    """Return whether slots hold all of some dimension: those that tell them apart are no channels.

    Attention of each channel by itself would else seem to read as many tokens.
    """
    shape, apart = reader.dependence.shape, reader.side.apart
    are_whole = any(size > 1 and n not in apart for n, size in enumerate(shape))
    return are_whole and not (shape in images and 1 in apart)


def keeps_tokens(
    site: Site, runs: Iterable[Run], reruns: Reruns, images: Collection[tuple[int, ...]]
) -> bool:
    """Prove that each value of a sum holds several tokens of an input of some run, side by side.

    So it is with branches of a convolution. No token is in the value of one key alone.
    """
    for run in runs:
        for n, x in enumerate(reruns.sources(run)[:MOST_SOURCES]):
            probe = partial(reruns.reached, site, 0, run, n)
            with suppress(UnprovedError):
                if _are_side_by_side(tuple(x.shape), probe, images):
                    return True
    return False


def _are_side_by_side(
    shape: tuple[int, ...], probe: Probe, images: Collection[tuple[int, ...]]
) -> bool:
    """Prove that tokens reach all keys, and that in each of some dimension some part is its own.

    A recurrent network takes all tokens to all keys, too, but those in between have no such part.
    """
    features = 1 if shape in images else len(shape) - 1
    found = False
    for dim, size in enumerate(shape):
        if dim in (0, features) or size == 1:
            continue
        form = [-1 if n == dim else 1 for n in range(len(shape))]
        places = (0,), (size // 2, size // 2 + 1), (size - 1, size - 2)
        parts: list[Tensor] = []
        for some in places:
            for index in some:  # A convolution with steps may skip every second one.
                now = probe((torch.arange(size, device="cpu") == index).reshape(form)).parts
                if now is not None and bool(now.any(2).all()):
                    parts.append(now)
                    break
        if len(parts) < len(places):
            return False
        marks = torch.stack(parts)
        own = marks & (marks.sum(0) == 1)
        found |= bool(own.any(3).all())
    return found


def has_no_tokens(site: Site, run: Run, reruns: Reruns) -> bool:
    """Prove that keys are no tokens of what the attending module is given, or makes recurrently."""
    some = reruns.sources(run)
    is_own = run is site.chain[0] or run.recurs
    if not is_own or len(some) > MOST_SOURCES or site.keys == 1:
        return False
    probes = [partial(reruns.reached, site, 0, run, n) for n in range(len(some))]
    whole = torch.ones((), dtype=torch.bool, device="cpu")
    reaching = [n for n, probe in enumerate(probes) if bool(probe(whole).keys.any())]
    return bool(reaching) and all(
        reaches_all_keys(tuple(some[n].shape), probes[n]) for n in reaching
    )


def weighs_own(site: Site, reruns: Reruns, images: Collection[tuple[int, ...]]) -> bool:
    """Prove that each sum is made of one token alone of what the attending module is given."""
    run, some = site.chain[0], reruns.sources(site.chain[0])
    probes = [partial(reruns.reached, site, 0, run, n) for n in range(len(some))]
    with suppress(UnprovedError):
        return len(some) <= MOST_SOURCES and _are_of_one_each(
            some, probes, images, with_values=False
        )
    return False


def weighs_parts(
    site: Site, level: int, reruns: Reruns, images: Collection[tuple[int, ...]], batch: int
) -> bool:
    """Prove that each element weighs only what one token alone has several of, as after each layer.

    All keys are made of that token, so none is of a cache, and all queries of the same inputs, each
    of which holds several tokens: it is no attention between inputs that are tokens each.
    """
    run, some = site.chain[level], reruns.sources(site.chain[level])
    if not 0 < len(some) <= _MOST_PARTS or any(_positions(x, images) <= batch for x in some):
        return False
    keys = torch.zeros(prod(site.lead), site.keys, dtype=torch.bool, device="cpu")
    with suppress(UnprovedError):
        for n in range(len(some)):
            now = reruns.reached(
                site, level, run, n, torch.ones((), dtype=torch.bool, device="cpu")
            )
            if not torch.equal(now.queries.any(1), now.queries.all(1)):
                return False
            keys |= now.keys | now.values
        probes = [partial(reruns.reached, site, level, run, n) for n in range(len(some))]
        if site.queries > 1 and any(map(_are_stretches, some, probes)):
            return False
        return bool(keys.all()) and _are_of_one_each(some, probes, images, with_values=True)
    return False


def _are_stretches(x: Tensor, probe: Probe) -> bool:
    """Return whether queries and keys are stretches of rows, as patches of a channel over time.

    What a token has several of is each made of all its features.
    """
    last = torch.arange(x.shape[-1], device="cpu") == x.shape[-1] // 2
    now = probe(last)
    return all(bool((side.any(1) & ~side.all(1)).any()) for side in (now.queries, now.keys))


def _are_of_one_each(
    some: Sequence[Tensor],
    probes: Sequence[Probe],
    images: Collection[tuple[int, ...]],
    *,
    with_values: bool,
) -> bool:
    shapes = [tuple(x.shape) for x in some]
    features = [_features(shape, images) for shape in shapes]
    return are_of_one_each(shapes, features, probes, with_values=with_values)


def _features(shape: tuple[int, ...], images: Collection[tuple[int, ...]]) -> int:
    return 1 if shape in images else len(shape) - 1


def _positions(x: Tensor, images: Collection[tuple[int, ...]]) -> int:
    shape = tuple(x.shape)
    return x.numel() // shape[_features(shape, images)] if x.numel() and shape else 0
