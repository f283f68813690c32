"""Edits of what a head reads of the residual stream: path patching between components."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.heard import SIDES, End, Hears, Removed
from gattn.models.edit.where.heads import Numbers
from gattn.models.read.places import Place

if TYPE_CHECKING:
    from gattn.models.stream.parts import Stream
    from gattn.models.stream.rows import Rows


@dataclass(frozen=True, eq=False, repr=False)
class Without(Hears):
    r"""Take parts of the residual stream away from what heads read: path patching.

    The queries, keys or values of the heads are computed anew from the stream without the parts,
    norms included, by the model's own layer; nothing else hears of it. So the paths from the parts
    to these heads' queries, keys or values are cut, and no other path.

    Parameters
    ----------
    part : str or sequence of str
        What wrote the parts, as `gattn.why` names them: a head "1.1", "mlp 0", "bias 0", or an
        embedding by its module's name, such as "wte"; "embedding" is all of these.
    side : "query", "key" or "value"
        Which side of the heads does not hear of them.
    layer, head : int or sequence of int, optional
        The heads, of later layers than the parts; all of these by default.
    by : "zero" or "mean"
        What takes their place: nothing, or their mean over the text's tokens.
    stack : str, optional
        Which stack, where the model has several.

    Raises
    ------
    EditError
        If `part`, `side` or `by` are something else; when the edit is used, if there is no such
        part before the layer, if several texts run at once, padded, or with a cache, and if
        gradients are taken: the parts are constants to them.

    Notes
    -----
    The layer's modules up to its attention run twice more, and so do hooks on them.

    References
    ----------
    Goldowsky-Dill et al. (2023), Localizing model behavior with path patching.

    Examples
    --------
    >>> without = gattn.Without("1.1", side="key", layer=2, head=0)
    >>> with gattn.edited(model, without):
    ...     logits = model(**inputs).logits
    """

    part: str | Sequence[str]
    side: End = "key"
    layer: Numbers = None
    head: Numbers = None
    by: Literal["zero", "mean"] = "zero"
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.part if isinstance(self.part, (list, tuple)) else [self.part]
        if not parts or not all(isinstance(one, str) for one in parts):
            raise EditError(
                f"part names what wrote to the stream, as in '1.1', 'mlp 0', not {self.part!r:.60}."
            )
        if self.side not in SIDES:
            raise EditError(f"side is one of {SIDES}, not {self.side!r:.60}.")
        if self.by not in ("zero", "mean"):
            raise EditError(f"by is 'zero' or 'mean', not {self.by!r:.60}.")

    def applies(self, place: Place) -> bool:
        """Return whether it edits a layer: by default those after what wrote the parts."""
        if self.layer is None and any(_layer_of(one) >= place.layer for one in self.parts):
            return False
        return super().applies(place)

    def removed(self, stream: Stream, rows: Rows, heads: int) -> list[Removed]:
        """Sum the parts that are taken away, less what takes their place."""
        vector = self._named(stream, rows)
        if self.by == "mean":
            if not rows.are_whole:
                raise EditError(
                    f"{self} takes the mean over all tokens, and a call that continues a cache has "
                    "only some: run the whole text with use_cache=False."
                )
            vector = vector - rows.mean(vector)
        return [Removed(vector, [(self.side, self.heads(heads))])]

    def _named(self, stream: Stream, rows: Rows) -> Tensor:
        """Return the sum of the parts: (rows, dim)."""
        names = [str(one) for one in stream.writers]
        chosen: set[int] = set()
        for part in self.parts:
            some = [n for n, name in enumerate(names) if name == part]
            if part == "embedding" and not some:
                some = [n for n, one in enumerate(stream.writers) if one.kind == "embedding"]
            if not some:
                raise EditError(
                    f"{self} names the part {part!r}, but what wrote the stream before layer "
                    f"{rows.place.layer} is {', '.join(names)}."
                )
            chosen |= set(some)
        return stream.parts[sorted(chosen)].sum(0)

    @property
    def parts(self) -> list[str]:
        """The names of the parts."""
        return [self.part] if isinstance(self.part, str) else list(self.part)


def _layer_of(part: str) -> int:
    """Return the layer of a head, MLP or bias by its name; -1 for embeddings."""
    found = re.fullmatch(r"(?:(?:mlp|bias) )?(\d+)(?:\.\d+)?", part)
    return int(found[1]) if found else -1
