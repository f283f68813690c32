"""Proves that calls attend over something else than tokens: channels, branches, experts."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial

import torch

from gattn.models.doors.proof.candidates import Reader
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.dependence import are_of_one_each, reaches_all_keys
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.replaying import Replays, Site

MOST_SOURCES = 6
"""How many inputs of a run are tried."""


def are_channels(reader: Reader, images: Collection[tuple[int, ...]]) -> bool:
    """Return whether the slots are channels of images, each of which holds all pixels."""
    shape, side = reader.dependence.shape, reader.side
    pixels = {n for n, size in enumerate(shape) if n > 1 and size > 1}
    slots = shape[1:2] == side.depends.shape[1:]
    return shape in images and slots and 1 in side.apart and not side.apart & pixels


def are_maps(reader: Reader, images: Collection[tuple[int, ...]]) -> bool:
    """Return whether each slot holds all pixels of one of several images, such as of branches."""
    shape, side = reader.dependence.shape, reader.side
    for dim in side.apart - {0}:
        image = (*shape[:dim], *shape[dim + 1 :])
        pixels = {n + (n >= dim) for n, size in enumerate(image) if n > 1 and size > 1}
        if image in images and shape[dim] == side.depends.shape[1] and not side.apart & pixels:
            return True
    return False


def has_no_tokens(site: Site, run: Run, replays: Replays) -> bool:
    """Prove that keys are no tokens of what the attending module is given."""
    some = replays.sources(run)
    if run is not site.chain[0] or len(some) > MOST_SOURCES or site.keys == 1:
        return False
    probes = [partial(replays.reached, site, 0, run, n) for n in range(len(some))]
    whole = torch.ones((), dtype=torch.bool)
    reaching = [n for n, probe in enumerate(probes) if bool(probe(whole).keys.any())]
    return bool(reaching) and all(
        reaches_all_keys(tuple(some[n].shape), probes[n]) for n in reaching
    )


def weighs_own(site: Site, replays: Replays) -> bool:
    """Prove that each sum is made of one token alone of what the attending module is given."""
    run, some = site.chain[0], replays.sources(site.chain[0])
    probes = [partial(replays.reached, site, 0, run, n) for n in range(len(some))]
    with suppress(UnprovedError):
        return len(some) <= MOST_SOURCES and are_of_one_each(
            [tuple(x.shape) for x in some], probes
        )
    return False
