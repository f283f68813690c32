"""Tests a circuit by runs of the model: on it alone, without it, and on random ones like it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.circuits.runs import Floats, Masks, Runs


@dataclass(frozen=True, eq=False)
class Proof:
    """What was measured of a circuit, as shares of the metric; `Circuit` explains each.

    `losses` are those of the units that are kept, NaN where time was up; `live` are the edges on
    which the answer depends.
    """

    faithfulness: float
    completeness: float
    losses: Floats
    random: Floats
    live: NDArray[np.bool_]


def tested(runs: Runs, mask: Masks, least: float, random: int, seed: int, stop: float) -> Proof:
    """Measure a circuit, and as many random ones of its size and layers.

    Random ones, none of them the circuit itself, and what it loses without each unit, are measured
    until it is time to stop.
    """
    some = np.flatnonzero(mask)
    single = np.repeat(mask[None], len(some), axis=0)
    single[np.arange(len(some)), some] = False
    drawn = _drawn(runs.groups.profile, mask, random, np.random.default_rng(seed))
    live = _live(runs, mask, least)
    kept, rest = runs.of_edges(live[None])[0], runs.of_edges(~live[None])[0]
    (whole,) = runs.faithfulness(mask[None])
    like = _in_time(runs, drawn, stop)
    losses = whole - _in_time(runs, single, stop)
    return Proof(float(kept), float(1 - rest), losses, like[np.isfinite(like)], live)


def _live(runs: Runs, mask: Masks, least: float) -> NDArray[np.bool_]:
    """Return the edges of units, without those that have no path to the answer.

    Attention is normalized over keys that are left out, too, so what leads to these alone may still
    matter a little: a run says whether enough is kept without it.
    """
    edges, positions = runs.groups.edges, runs.runner.read_at
    kept: NDArray[np.bool_] = mask[runs.groups.of_edge]
    (whole,) = runs.faithfulness(mask[None])
    used = runs.used(kept)
    candidates = [used]
    if positions and len(edges.stacks) == 1 and runs.has_stream:
        candidates.insert(0, edges.with_path(used, positions))
    for some in candidates:
        if runs.of_edges(some[None])[0] >= min(least, whole - runs.slack):
            return some
    return kept


def _in_time(runs: Runs, masks: Masks, stop: float) -> Floats:
    """Measure sets until it is time to stop; NaN for the others."""
    found, size = np.full(len(masks), np.nan), runs.batch_size
    for start in range(0, len(masks), size):
        part = slice(start, start + size)
        if runs.seconds < stop or runs.knows(masks[part]):
            found[part] = runs.faithfulness(masks[part])
    return found


def _drawn(profile: np.ndarray, mask: Masks, count: int, generator: np.random.Generator) -> Masks:
    """Draw sets other than this one, with as many units of each layer; none if there is none."""
    layers = [np.flatnonzero(profile == layer) for layer in np.unique(profile[mask])]
    if all(mask[units].all() for units in layers):
        return np.zeros((0, len(mask)), dtype=bool)
    masks = np.repeat(mask[None], count, axis=0)
    while (same := masks[(masks == mask).all(1)]).size:
        same[:] = False
        for units in layers:
            size = int(mask[units].sum())
            for row in same:
                row[generator.choice(units, size, replace=False)] = True
        masks[(masks == mask).all(1)] = same
    return masks
