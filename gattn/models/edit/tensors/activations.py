"""What heads give in another run: attention, values and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from gattn.errors import EditError

What: TypeAlias = Literal["attention", "values", "outputs"]
KINDS = get_args(What)


@dataclass(frozen=True, eq=False)
class Activations:
    """What the heads of a model give on other texts, for edits that put it into a run.

    Parameters
    ----------
    said : str
        What they were recorded from, in words.
    given : object
        What they were recorded from: a text or texts, or a trace.
    found : mapping of (what, stack, layer) to Tensor
        "attention" (heads, queries, keys), "values" (heads, keys, dim) and "outputs" (heads,
        queries, dim) of each position.
    is_mean : bool
        Whether values and outputs are means over all positions, of which there is one row.
    """

    said: str
    given: Any
    found: Mapping[tuple[What, str, int], Tensor] = field(default_factory=dict)
    is_mean: bool = False

    def __repr__(self) -> str:
        return self.said

    def of(self, what: What, stack: str, layer: int) -> Tensor:
        """Return those of a layer."""
        if (what, stack, layer) not in self.found:
            raise EditError(
                f"There are no {what} of layer {layer} of {stack!r} to patch in: {self.said} does "
                "not show them."
            )
        return self.found[what, stack, layer]
