"""Tests a circuit by runs of the model: on it alone, without it, and on random ones like it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gattn.analysis.circuits.runs import Floats, Masks, Runs


@dataclass(frozen=True, eq=False)
class Proof:
    """What was measured of a circuit, as shares of the metric; `Circuit` explains each."""

    faithfulness: float
    completeness: float
    losses: Floats
    random: Floats


def tested(runs: Runs, mask: Masks, random: int, seed: int) -> Proof:
    """Measure a circuit, and as many random ones of its size and layers."""
    some = np.flatnonzero(mask)
    single = np.repeat(mask[None], len(some), axis=0)
    single[np.arange(len(some)), some] = False
    drawn = _drawn(runs.groups.profile, mask, random, np.random.default_rng(seed))
    found = runs.faithfulness(np.concatenate([mask[None], ~mask[None], single, drawn]))
    whole, rest, without, like = np.split(found, np.cumsum([1, 1, len(some)]))
    return Proof(float(whole[0]), float(1 - rest[0]), whole[0] - without, like)


def _drawn(profile: np.ndarray, mask: Masks, count: int, generator: np.random.Generator) -> Masks:
    """Draw sets with as many units of each layer."""
    masks = np.zeros((count, len(mask)), dtype=bool)
    for layer in np.unique(profile[mask]):
        units = np.flatnonzero(profile == layer)
        size = int(mask[units].sum())
        for row in masks:
            row[generator.choice(units, size, replace=False)] = True
    return masks
