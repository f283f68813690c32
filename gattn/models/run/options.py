"""The options of a capture: which heads, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gattn.errors import CaptureError
from gattn.keep import Keep, as_keep
from gattn.models.load.limits import text_config
from gattn.names.choices import Chosen, HeadChoice, LayerChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from gattn.engines.tiles import RowBlock
    from gattn.models.edit.part import Part
    from gattn.models.load.encoding import Encoding
    from gattn.models.read.places import Place

Contributions: TypeAlias = bool | Literal["value"]

_LARGEST_DEFAULT = 1 << 30


class Onlooker(Protocol):
    """Looks on while attention is recorded, such as to sum up what is not kept."""

    def begin(self, place: Place, part: Part) -> Callable[[RowBlock], None] | None:
        """Return a function that takes the blocks of some heads, or None to look away."""


@dataclass(frozen=True)
class Options:
    """What to capture; `gattn.capture` documents each option."""

    keep: Keep | None = None
    layers: LayerChoice = None
    heads: HeadChoice = None
    scores: bool = False
    contributions: Contributions = False
    onlooker: Onlooker | None = None

    def __post_init__(self) -> None:
        if self.keep is not None:
            object.__setattr__(self, "keep", as_keep(self.keep))
        _ = self.chosen  # A wrong choice is an error already here.
        if self.contributions not in (True, False, "value"):
            raise CaptureError(
                f"contributions is True, False or 'value', not {self.contributions!r}."
            )

    @cached_property
    def chosen(self) -> Chosen:
        """The layers and heads, read."""
        return Chosen.of(self.layers, self.heads)

    def look(self, place: Place, part: Part) -> Callable[[RowBlock], None] | None:
        """Ask the onlooker, if there is one, who takes the blocks of some heads."""
        return None if self.onlooker is None else self.onlooker.begin(place, part)

    def size(self, model: PreTrainedModel, encodings: Sequence[Encoding]) -> int:
        """Estimate how many bytes all edges of some sequences take at most."""
        pairs = sum(encoding.num_pairs for encoding in encodings)
        return self.bytes_of(self._num_heads(model) * pairs)

    def bytes_of(self, edges: int) -> int:
        """Return how many bytes a number of edges takes."""
        return 4 * edges * (1 + self.scores + bool(self.contributions))

    def check_size(self, model: PreTrainedModel, encodings: Sequence[Encoding]) -> None:
        """Refuse to keep all edges by default if they take too much memory."""
        self.check_bytes(self.size(model, encodings), f" of {self._num_heads(model):,} heads")

    def check_bytes(self, size: int, of: str = "") -> None:
        """Refuse to keep all edges (`of` some heads) by default if they take too many bytes."""
        if self.keep is None and size > _LARGEST_DEFAULT:
            raise CaptureError(
                f"Keeping all edges{of} takes {size / 2**30:.1f} GiB or more; pass "
                "keep=Threshold(0.01) or keep=TopK(8), choose layers and heads, or insist with "
                "keep=All()."
            )

    def _num_heads(self, model: PreTrainedModel) -> int:
        config = text_config(model.config)
        sizes = (getattr(config, f"num_{of}", 1) for of in ("hidden_layers", "attention_heads"))
        layers, heads = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
        return self.chosen.count(layers, heads)
