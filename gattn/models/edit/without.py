"""Edits of what a head reads of the residual stream: path patching between components."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.errors import EditError
from gattn.models.edit.base import Edit
from gattn.models.edit.where.heads import Numbers
from gattn.models.read.places import Place

End = Literal["query", "key", "value"]
SIDES = ("query", "key", "value")


@dataclass(frozen=True, eq=False, repr=False)
class Without(Edit):
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

    runs_alone = True

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

    @property
    def parts(self) -> list[str]:
        """The names of the parts."""
        return [self.part] if isinstance(self.part, str) else list(self.part)


def _layer_of(part: str) -> int:
    """Return the layer of a head, MLP or bias by its name; -1 for embeddings."""
    found = re.fullmatch(r"(?:(?:mlp|bias) )?(\d+)(?:\.\d+)?", part)
    return int(found[1]) if found else -1


@dataclass(frozen=True, eq=False, repr=False)
class Heard(Edit):
    """A `Without` in one call: what its layer computes of the stream without the parts.

    `given` are the queries, keys or values of all heads, (1, heads, tokens, dim).
    """

    text: str
    side: End
    given: Tensor
    layer: Numbers = None
    head: Numbers = None
    stack: str | None = None

    def __repr__(self) -> str:
        return self.text

    def instead(
        self, call: AttentionCall, heads: Sequence[int], own: Sequence[int]
    ) -> AttentionCall:
        """Put it into some heads, which have `own` numbers in a call."""
        before = cast("Tensor", getattr(call, self.side)).clone()
        before[:, own] = self.given[:, heads].to(before)
        changed: dict[str, Any] = {self.side: before}
        return replace(call, **changed)
