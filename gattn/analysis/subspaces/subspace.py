"""The result of `gattn.analysis.shared_subspace`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.analysis.reading.results import Table
from gattn.analysis.scores.taken_apart import Why
from gattn.analysis.scores.why import Token, in_parts, places
from gattn.analysis.subspaces.head_vectors import HeadVectors
from gattn.door import DrawnByKind, Pictured
from gattn.models.run.functions import Runnable
from gattn.models.stream.writers.parts import Writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class SharedSubspace(Pictured):
    r"""Directions in which a head's queries and keys vary together on edges of one kind.

    Parameters
    ----------
    layer, head : int
        The head.
    covariance : Tensor (dim, dim)
        The contrastive covariance :math:`C = U \Sigma V^\top`, with queries times the scale.
    query, key : Tensor (dim, rank)
        The singular vectors U and V that are kept.
    singular_values : Tensor (dim,)
        All of them, the largest first.
    held_out, shuffled : Tensor (dim,), (shuffles, dim)
        :math:`u_c^\top C' v_c` with the covariance C' of held-out texts, and the singular values of
        shuffled labels.
    components, separation : Table
        See `gattn.analysis.shared_subspace`.
    read : callable
        Reads the head's vectors on a text.
    """

    layer: int
    head: int
    covariance: Tensor
    query: Tensor
    key: Tensor
    singular_values: Tensor
    held_out: Tensor
    shuffled: Tensor
    components: Table
    separation: Table
    read: Callable[[Runnable], HeadVectors]

    @property
    def rank(self) -> int:
        """How many components are kept."""
        return self.query.shape[1]

    @property
    def computed_from(self) -> str:
        """What it was computed from."""
        return self.components.computed_from

    @property
    def notes(self) -> list[str]:
        """What to mind when reading it."""
        return self.components.notes

    def why(self, text: Runnable, query: Token = None, key: Token = None) -> Why:
        r"""Take scores of a text apart, by the components that queries and keys have.

        A query is the sum of its components :math:`u_c u_c^\top q` and the "rest", a key of
        :math:`v_c v_c^\top k` and the "rest", and the score is the sum over all pairs, of which
        ``component c`` with ``component c`` is :math:`(q \cdot u_c)(u_c \cdot v_c)(v_c \cdot k)`.

        Parameters
        ----------
        text : str, sequence of int, Tensor, mapping, or callable
            The text, as in `gattn.why`.
        query, key : int, str, or sequence of these, optional
            The edges, as in `gattn.why`.

        Returns
        -------
        Why
            As `gattn.why` gives it, verified against the scores that the model computed: with
            `table`, `matrix`, `draw`, and the attention `without` a component.

        Raises
        ------
        SelectionError, CaptureError
            As in `gattn.why`.
        """
        seen = self.read(text)
        vectors = seen.query / seen.scale, seen.key
        sides = []
        for whole, directions in zip(vectors, (self.query, self.key), strict=True):
            within = torch.einsum("td,dc,ec->cte", whole, directions, directions)
            sides.append(torch.cat([within, (whole - within.sum(0))[None]]))
        writers = [Writer("given", name=f"component {n}") for n in range(self.rank)]
        writers.append(Writer("error", name="rest"))
        made = in_parts(seen.call, seen.place, seen.reading, self.head, writers, sides, seen.tokens)
        asked = places("query", query, seen.tokens)
        return replace(made, computed_from=self.computed_from).among(
            asked, None if key is None else places("key", key, seen.tokens)
        )

    if TYPE_CHECKING:

        def draw(
            self,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            **options: Any,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""
    else:
        draw = DrawnByKind()

    def __repr__(self) -> str:
        said = f"SharedSubspace({self.layer}.{self.head}, rank {self.rank})"
        return f"{said}\n{self.separation.to_string(float_format='{:.2f}'.format)}"
