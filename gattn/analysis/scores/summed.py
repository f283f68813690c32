"""The largest parts of a sum over pairs, for pictures."""

from __future__ import annotations

import torch

from gattn.analysis.reading.results import Array, array


def summed(terms: Array, axis: int, most: int) -> Array:
    """Keep the parts with the largest numbers along an axis, and sum the others up."""
    name = str(terms.dims[axis])
    values = terms.to_numpy() if axis == 0 else terms.to_numpy().T
    if len(values) <= most:
        return terms
    sizes = abs(values).sum(1)
    chosen = sorted(sorted(range(len(values)), key=lambda n: -sizes[n])[: most - 1])
    others = [n for n in range(len(values)) if n not in chosen]
    labels = [*terms[name].to_numpy()[chosen].tolist(), f"{len(others)} others"]
    kept = torch.from_numpy(values[chosen])
    made = torch.cat([kept, torch.from_numpy(values[others]).sum(0, keepdim=True)])
    other = str(terms.dims[1 - axis])
    axes = {name: labels, other: terms[other].to_numpy().tolist()}
    made = made if axis == 0 else made.T
    found = array(
        made.numpy(),
        axes if axis == 0 else {other: axes[other], name: labels},
        name=str(terms.name),
        computed_from=str(terms.attrs["computed_from"]),
        notes=terms.notes,
    )
    return found.assign_coords({n: x for n, x in terms.coords.items() if not x.dims})
