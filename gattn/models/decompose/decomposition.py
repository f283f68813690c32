"""What was read of the attention sublayers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gattn.edit_records import Edits

R = TypeVar("R")


@dataclass(frozen=True)
class Decomposition(Generic[R]):
    """What was read of each sublayer of one stack.

    Parameters
    ----------
    results : list
        What the function returned, one per layer.
    layers : tuple of int
        The layers.
    stack : str
        The stack's name.
    tokens : tuple of str
        The tokens' texts, or their positions where they have none.
    source : str
        What it was computed from, in words.
    notes : list of str
        Caveats.
    error : float
        The largest difference between the vectors' sum and what the model added to the residual
        stream, relative to the largest number of the latter.
    edits : tuple of Edit
        The edits that were open.
    """

    results: list[R]
    layers: tuple[int, ...]
    stack: str
    tokens: tuple[str, ...]
    source: str
    notes: list[str]
    error: float
    edits: Edits = ()

    @property
    def check(self) -> str:
        """Return how exact the decomposition is."""
        return (
            "the vectors sum to what the model's attention adds to the residual stream within "
            f"{self.error:.1e} of its largest number"
        )
