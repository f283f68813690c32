"""Tests a circuit by runs of the model: on it alone, without it, and on random ones like it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.circuits.measuring.runs import Floats, Masks, Runs
from gattn.analysis.circuits.measuring.searching import Search


@dataclass(frozen=True, eq=False)
class Proof:
    """What was measured of a circuit, as shares of the metric; `Circuit` explains each.

    `live` are its edges, on which the answer depends, and `units` those that have some of them;
    `losses` are what the edges keep less without each of these units, NaN where time was up.
    """

    faithfulness: float
    completeness: float
    units: Masks
    losses: Floats
    random: Floats
    live: NDArray[np.bool_]


def tested(runs: Runs, search: Search, random: int, seed: int) -> Proof:
    """Measure the circuit that was found, and as many random ones of its size and layers.

    Random ones, none of them the circuit itself, and what it loses without each unit, are measured
    until it is time to stop. If all units were needed, and one is not once edges without a path are
    gone, it goes.
    """
    of_edge, mask = runs.groups.of_edge, search.best
    least, stop = search.least, search.limits.stop
    while True:
        live = _live(runs, mask, least)
        units = np.bincount(of_edge[live], minlength=len(mask)) > 0
        kept = runs.of_edges(live[None])[0]
        losses = kept - _without_each(runs, live, units, stop)
        spare = kept - losses >= least
        if not search.is_minimal or not spare.any():
            break
        mask = units.copy()
        mask[np.flatnonzero(units)[np.nanargmin(losses)]] = False
    rest = runs.of_edges(~live[None])[0]
    drawn = _drawn(runs.groups.profile, units, random, np.random.default_rng(seed))
    like = _in_time(runs, drawn, stop)
    return Proof(float(kept), float(1 - rest), units, losses, like[np.isfinite(like)], live)


def _without_each(runs: Runs, live: NDArray[np.bool_], units: Masks, stop: float) -> Floats:
    """Measure what edges keep without each of their units, until it is time to stop."""
    of_edge, some = runs.groups.of_edge, np.flatnonzero(units)
    is_whole = np.array_equal(live, units[of_edge])
    found, size = np.full(len(some), np.nan), runs.batch_size
    for start in range(0, len(some), size):
        part = some[start : start + size]
        if is_whole:  # The search may have run these.
            single = np.repeat(units[None], len(part), axis=0)
            single[np.arange(len(part)), part] = False
            found[start : start + size] = _in_time(runs, single, stop)
        elif runs.seconds < stop:
            found[start : start + size] = runs.of_edges(live & (of_edge != part[:, None]))
    return found


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
