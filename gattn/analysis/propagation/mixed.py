"""Layers mixed with the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.reductions import Reduction, described, facts_of
from gattn.analysis.reading.results import Array, array
from gattn.analysis.reading.sources import in_numbers
from gattn.errors import SelectionError
from gattn.names.choices import HeadChoice

Residual: TypeAlias = "float | ArrayLike | xr.DataArray | None"
"""The share of the residual stream: a number, (layers, tokens), or None for the usual one."""

NOTED = 1e-6
"""The share from which on notes mention something."""

_WHOLE = 0.05
"""How far from 1 the sums of whole rows are at most, rounded to half precision."""


@dataclass(frozen=True, eq=False)
class Mixed:
    r"""Layers with the residual stream in them, as rollout and flow walk them.

    Parameters
    ----------
    layers : Layers
        What they were made of.
    numbers : tuple of int
        Which layers of the model they are.
    matrices : list of Tensor
        :math:`\tilde A` of each, (queries, keys), as `rollout` has it; lower bounds if edges
        were dropped.
    lost : list of Tensor
        At most how much each row lacks, (queries,).
    facts : dict
        How they were made.
    which : str
        Which heads were made one, and how, in words.
    """

    layers: Layers
    numbers: tuple[int, ...]
    matrices: list[Tensor]
    lost: list[Tensor]
    facts: dict[str, Any]
    which: str

    @classmethod
    def of(
        cls,
        layers: Layers,
        heads: HeadChoice,
        reduce: Reduction,
        residual: Residual,
        from_layer: int | None = None,
    ) -> Mixed:
        """Mix attention with the residual stream; see `rollout`."""
        layers = layers.square().consecutive()
        first = layers.layers[0] if from_layer is None else from_layer
        if first not in layers.layers:
            known = list(layers.layers)
            raise SelectionError(f"No layer {first} to start from; there are {known}.")
        shares = _shares(residual, layers)
        _check(layers, bool(shares.any()))
        matrices, lost = [], []
        for n, (matrix, mass) in enumerate(layers.reduced_with_mass(heads, reduce)):
            if layers.layers[n] < first:
                continue
            mixed, some = _mixed(matrix, mass, torch.from_numpy(shares[n]).to(matrix))
            matrices.append(mixed)
            lost.append(some)
        facts: dict[str, Any] = {"is_rolled_out": True}
        facts["holds_residual"] = layers.holds_residual or bool(shares.any())
        facts |= facts_of(heads, reduce)
        facts["residual"] = float(shares.flat[0]) if np.ptp(shares) == 0 else "by token"
        numbers = tuple(range(first, layers.layers[-1] + 1))
        return cls(layers, numbers, matrices, lost, facts, described(heads, reduce))

    def notes(self) -> list[str]:
        """Return what to mind, apart from attention that is missing."""
        empty = sum(int((matrix.sum(-1) + lost <= 0).sum()) for matrix, lost in self)
        notes = [f"{empty} rows of layers are empty: nothing goes through them"] if empty else []
        if there := self.layers.present:
            named = zip(self.layers.layers, there, strict=True)
            heads = (f"{in_numbers('head', some)} in layer {layer}" for layer, some in named)
            notes.append(f"layers have different heads: {', '.join(heads)}")
        return notes

    def _described(self) -> str:
        """Say in words how heads and the residual stream were mixed."""
        residual = self.facts["residual"]
        share = residual if isinstance(residual, str) else f"{residual:g}"
        has_heads = len(self.layers.heads) > 1 or not self.layers.read_from.is_array
        mixed = "" if self.layers.holds_residual else f"residual {share}"
        return ", ".join(filter(None, [self.which * has_heads, mixed]))

    def rolled(self) -> tuple[list[Tensor], list[Tensor]]:
        """Multiply the matrices up to each layer, and bound what each row of the products lacks."""
        products, bounds = [self.matrices[0]], [self.lost[0]]
        for matrix, lost in list(self)[1:]:
            products.append(matrix @ products[-1])
            bounds.append(lost + matrix @ bounds[-1])
        return products, bounds

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.matrices, self.lost, strict=True)

    def array(
        self,
        values: Tensor | NDArray[Any],
        name: str,
        notes: Sequence[str],
        rows: Mapping[str, Sequence[int]],
    ) -> Array:
        """Name the axes of a result; of tokens some rows."""
        layers = self.layers
        axes: dict[str, Sequence[Any]] = {"layer": self.numbers} if values.ndim > 2 else {}
        axes |= {axis: [layers.positions[row] for row in some] for axis, some in rows.items()}
        return array(
            values,
            axes,
            name=name,
            computed_from="; ".join(filter(None, [str(layers.read_from), self._described()])),
            notes=[*layers.mass_notes(), *notes],
            tokens={axis: [layers.tokens[row] for row in some] for axis, some in rows.items()},
            geometry={
                axis: None if places is None else places[np.asarray(rows[axis])]
                for axis, places in layers.places(rows).items()
            },
            edits=layers.read_from.edits,
            **self.facts,
        )


def _mixed(matrix: Tensor, mass: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Mix kept attention, of rows of a whole mass, with the residual; say what rows lost."""
    whole = (1 - share) * mass + share
    whole = torch.where(whole > 0, whole, 1)
    dropped = (mass - matrix.sum(-1)).clamp_min(0)
    mixed = ((1 - share[:, None]) * matrix + share.diag()) / whole[:, None]
    return mixed, (1 - share) * dropped / whole


def _check(layers: Layers, adds_residual: bool) -> None:
    """Refuse numbers that cannot go through the layers."""
    if layers.is_rolled_out:
        raise SelectionError(
            "These numbers went through the layers already: pass the attention that they were "
            "computed from."
        )
    away = float((layers.mass - 1).abs().max())
    if layers.is_length and adds_residual and away > _WHOLE:
        raise SelectionError(
            "These are lengths of vectors, of which the residual stream has no share. Pass "
            'contributions(..., of="residual") or alti(...), which hold the residual stream, or '
            "residual=0 to do without it."
        )


def _shares(residual: Residual, layers: Layers) -> NDArray[np.float64]:
    """Return the residual stream's share in each row, (layers, tokens)."""
    if residual is None:
        residual = 0.0 if layers.holds_residual else 0.5
    if isinstance(residual, xr.DataArray):
        residual = _aligned(residual, layers)
    try:
        shares = np.asarray(residual, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SelectionError(_wrong_residual(residual, layers)) from error
    size = (len(layers), len(layers.positions))
    if shares.ndim and shares.shape != size:
        raise SelectionError(_wrong_residual(f"an array {shares.shape}", layers))
    if not bool(((shares >= 0) & (shares <= 1)).all()):
        raise SelectionError(_wrong_residual(residual, layers))
    if layers.holds_residual and shares.any():
        raise SelectionError(
            "These numbers hold the residual stream already, and it must not be added again: leave "
            "residual= out."
        )
    return np.array(np.broadcast_to(shares, size))


def _aligned(shares: xr.DataArray, layers: Layers) -> NDArray[np.float64]:
    """Take the shares of these layers and tokens by their numbers."""
    try:
        some = shares.sel(layer=list(layers.layers), query=list(layers.query_positions))
        found: NDArray[np.float64] = some.transpose("layer", "query").to_numpy()
    except (KeyError, ValueError) as error:
        raise SelectionError(
            f"residual is of layers and queries {dict(shares.sizes)} which do not hold layers "
            f"{list(layers.layers)} with {len(layers.positions)} queries."
        ) from error
    return found


def _wrong_residual(residual: object, layers: Layers) -> str:
    return (
        "residual is a share from 0 to 1, or an array of them (layers, tokens), "
        f"({len(layers)}, {len(layers.positions)}) here, not {residual!r:.80}."
    )
