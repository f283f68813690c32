"""Parts of the residual stream that a caller gives: features, a basis, a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.errors import SelectionError, ShapeError
from gattn.models.stream.writers.dictionaries import Dictionary
from gattn.models.stream.writers.parts import Stream, Writer

_DEPENDENT = 1e-4


@dataclass(frozen=True, eq=False)
class Features:
    r"""Directions of the residual stream, and how active each is in each token.

    The stream before a layer is :math:`x_i = \sum_f a_{if} d_f + e_i`: of features of a sparse
    autoencoder or of transcoders, with an error e that they leave. `gattn.why` takes scores apart
    by them, so that those of a pair of features are :math:`a_{if} a_{jg}\, d_f^T Q_i^T K_j d_g`.

    Parameters
    ----------
    directions : Tensor (features, dim)
        What each feature writes to the stream: rows of the decoder.
    activations : Tensor (tokens, features), optional
        How active features are; it may be sparse. Without it, the directions are a basis of a
        subspace or, if there is one, a probe, and activations are the stream's coordinates, with
        the smallest error. A decoder's bias is a feature whose activation is 1.
    names : sequence of str, optional
        The features' names; "feature 0" and so on by default.

    Raises
    ------
    ShapeError
        If shapes do not fit, or directions without activations are not independent; when they are
        used, if they hold NaN or infinity.
    SelectionError
        If names are missing or repeated.

    References
    ----------
    Kamath et al. (2025), Tracing attention computation through feature interactions.

    Examples
    --------
    >>> features = gattn.Features(sae.W_dec, sae.encode(stream))
    >>> gattn.why(text, model, layer=2, head=0, query=-1, key=9, parts=features).table()
    """

    directions: Tensor
    activations: Tensor | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given, active = self.directions, self.activations
        if not isinstance(given, Tensor) or given.dim() != 2 or not given.is_floating_point():
            raise ShapeError(
                "directions are a tensor of numbers (features, dim), not "
                f"{_told(given)}; one direction is one row."
            )
        is_like = isinstance(active, Tensor) and active.dim() == 2
        if active is not None and (not is_like or active.shape[1] != len(given)):
            raise ShapeError(
                f"activations are a tensor (tokens, features), here (tokens, {len(given)}), not "
                f"{_told(active)}."
            )
        if self.names is None:
            return
        names = [str(one) for one in self.names]
        if isinstance(self.names, str) or len(names) != len(given) or len(set(names)) < len(names):
            raise SelectionError(
                f"names are as many as features, {len(given)}, and each is another one; there are "
                f"{len(set(names))}."
            )

    def __len__(self) -> int:
        return len(self.directions)

    def __repr__(self) -> str:
        return f"Features({len(self)} directions of {self.directions.shape[1]} dimensions)"

    def stream(self, total: Tensor) -> Stream:
        """Take a stream (tokens, dim) apart, the error last of the whole parts."""
        if self.directions.shape[1] != total.shape[1]:
            raise ShapeError(
                f"directions have {self.directions.shape[1]} dimensions, but the residual stream "
                f"before the layer has {total.shape[1]}: expected (features, {total.shape[1]})."
            )
        directions = self.directions.detach().to(total)
        _check_finite("The directions", directions)
        active = self._coordinates(directions, total)
        if len(active) != len(total):
            raise ShapeError(
                f"activations are those of {len(active)} tokens, but the model reads {len(total)}, "
                f"special tokens included: expected ({len(total)}, {len(self)})."
            )
        names = self.names or [f"feature {n}" for n in range(len(self))]
        writers = [Writer("given", name=str(name)) for name in names]
        some = Dictionary.of(writers, active, directions)
        _check_finite("The activations", some.amounts)
        error = total - some.total(len(total))
        return Stream([Writer("error")], error[None], [some])

    def _coordinates(self, directions: Tensor, total: Tensor) -> Tensor:
        if self.activations is not None:
            return self.activations.detach().to(total)
        sizes = torch.linalg.svdvals(directions)
        if len(directions) > directions.shape[1] or sizes[-1] <= _DEPENDENT * sizes[0]:
            raise ShapeError(
                f"{len(self)} directions that are not independent give no coordinates of their "
                "own: pass activations=, or fewer directions."
            )
        inverse: Tensor = torch.linalg.pinv(directions)
        return total @ inverse


def stream_of(parts: Features | Mapping[str, Tensor], total: Tensor, own: str) -> Stream:
    """Take a stream (tokens, dim) apart as a caller says, for the head `own`."""
    names = parts.names or () if isinstance(parts, Features) else parts
    if not isinstance(parts, (Features, Mapping)) or not (names or isinstance(parts, Features)):
        raise SelectionError(
            "parts are gattn.Features, or a mapping from a name of your own to a tensor, as in "
            f"{{'feature': x}}, not {parts!r:.80}."
        )
    if taken := sorted({"error", "bias", own} & set(map(str, names))):
        raise SelectionError(
            f"No part may have the name {taken[0]!r}, which stands for something else: choose "
            "another."
        )
    if isinstance(parts, Features):
        return parts.stream(total)
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.shape != total.shape:
            raise ShapeError(
                f"The part {name!r} must be a tensor (tokens, dim), here {tuple(total.shape)}, "
                f"not {_told(part)}."
            )
        _check_finite(f"The part {name!r}", part)
    some = [part.detach().to(total) for part in parts.values()]
    error = total - sum(some, torch.zeros_like(total))
    writers = [Writer("given", name=str(name)) for name in parts]
    return Stream([*writers, Writer("error")], torch.stack([*some, error]))


def _check_finite(what: str, given: Tensor) -> None:
    """Refuse what sums to no stream, as activations do that overflowed in half precision."""
    if not bool(given.isfinite().all()):
        raise ShapeError(f"{what} must be finite, but NaN or infinity is among the numbers.")


def _told(given: object) -> str:
    return f"{tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
