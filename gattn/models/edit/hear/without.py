"""Edits of what a head reads of the residual stream: path patching between components."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.base import edit_class
from gattn.models.edit.hear.parts import (
    By,
    Parts,
    check_by,
    check_finite,
    is_vectors,
    placed,
    replaced,
)
from gattn.models.edit.heard import SIDES, End, Hears, Removed
from gattn.models.edit.where.heads import Numbers
from gattn.models.read.places import Place

if TYPE_CHECKING:
    from gattn.models.stream.rows import Rows
    from gattn.models.stream.writers.parts import Stream


@edit_class
class Without(Hears):
    r"""Take parts of the residual stream away from what heads read: path patching.

    The queries, keys or values of the heads are computed anew from the stream without the parts,
    norms included, by the model's own layer; nothing else hears of it. So the paths from the parts
    to these heads' queries, keys or values are cut, and no other path.

    Parameters
    ----------
    part : str, sequence of str, or mapping of str to Tensor
        What wrote the parts, as `gattn.why` names them: a head "1.1", "mlp 0", "bias 0", or an
        embedding by its module's name, such as "wte"; "embedding" is all of these. Or parts of your
        own, as `gattn.why` takes them: what each adds to the stream before the layer, (tokens,
        dim), such as features of a sparse autoencoder; several are taken away together.
    side : "query", "key" or "value"
        Which side of the heads does not hear of them.
    layer, head : int or sequence of int, optional
        The heads, of later layers than the parts; all of these by default. Parts of your own are
        those before one layer, which must be named.
    by : "zero", "mean", list of texts, Tensor, or a text, or whatever else `gattn.capture` takes
        What takes their place: nothing; their mean over the text's tokens, or over those of a list
        of texts; vectors (tokens, dim); or what the same parts are on another text of as many
        tokens, such as a corrupted one. The model runs on texts when the edit is first used.
    stack : str, optional
        Which stack, where the model has several.

    Raises
    ------
    EditError
        If `part`, `side` or `by` are something else; when the edit is used, if there is no such
        part before the layer, if texts have other lengths, if keys or values of a cache would have
        to be computed anew, or if a checkpoint computes a layer again for gradients.

    Notes
    -----
    The layer's modules up to its attention run once more for each edit, and once to verify that
    they give what they gave; so do hooks on them. Each text of a batch is by itself. Parts are
    those of the run at hand, and functions of it: gradients go through them.

    References
    ----------
    Goldowsky-Dill et al. (2023), Localizing model behavior with path patching. Wang et al. (2023),
    Interpretability in the wild: paths patched from another text.

    Examples
    --------
    >>> without = gattn.Without("1.1", side="key", layer=2, head=0)
    >>> with gattn.edited(model, without):
    ...     logits = model(**inputs).logits
    """

    part: str | Sequence[str] | Mapping[str, Tensor]
    side: End = "key"
    layer: Numbers = None
    head: Numbers = None
    by: By = "zero"
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in SIDES:
            raise EditError(f"side is one of {SIDES}, not {self.side!r:.60}.")
        check_by(self.by)
        if isinstance(self.part, Mapping):
            self._check_own(self.part)
            return
        parts = self.part if isinstance(self.part, (list, tuple)) else [self.part]
        if not parts or not all(isinstance(one, str) for one in parts):
            raise EditError(
                f"part names what wrote to the stream, as in '1.1', 'mlp 0', not {self.part!r:.60}."
            )

    def _check_own(self, own: Mapping[str, Tensor]) -> None:
        """Refuse parts of a caller's own that say too little."""
        for name, part in own.items():
            if not isinstance(part, Tensor) or part.dim() != 2 or not part.is_floating_point():
                is_tensor = isinstance(part, Tensor)
                had = f"{tuple(part.shape)}, {part.dtype}" if is_tensor else type(part).__name__
                raise EditError(
                    f"The part {name!r} must be a tensor of floating-point numbers, (tokens, dim), "
                    f"not {had}."
                )
            check_finite(f"The part {name!r}", part)
        if not own:
            raise EditError("part={} has no part: expected at least one.")
        layers = self.layers()
        if layers is None or len(layers) != 1:
            raise EditError(
                "Parts of your own are those of the stream before one layer: name it, as in "
                "layer=2."
            )
        if not (isinstance(self.by, str) and self.by in ("zero", "mean")) and not self.has_vectors:
            raise EditError(
                "What parts of your own are on another text is not known: give vectors by=tensor, "
                "or by='zero' or 'mean'."
            )

    def __repr__(self) -> str:
        """Show the side, and the fields that differ from their defaults."""
        shown = []
        given = self.as_given()
        for one in fields(given):
            value = getattr(given, one.name)
            if value is one.default and one.name != "side":
                continue
            if isinstance(value, Mapping):
                value = list(value)
            if is_vectors(value):
                shown.append(f"{one.name}=a tensor {tuple(value.shape)}")
            else:
                shown.append(f"{one.name}={value!r:.60}")
        return f"Without({', '.join(shown)})"

    @property
    def has_vectors(self) -> bool:
        """Whether vectors take the place of the parts."""
        return is_vectors(self.by)

    @property
    def parts(self) -> list[str]:
        """The names of the parts."""
        return [self.part] if isinstance(self.part, str) else list(self.part)

    def as_given(self) -> Without:
        """Return it with its text in place of what the model wrote on that."""
        return replace(self, by=self.by.given) if isinstance(self.by, Parts) else self

    def applies(self, place: Place) -> bool:
        """Return whether it edits a layer: by default those after what wrote the parts."""
        if place.is_bipartite:
            return False
        if self.layer is None and any(_layer_of(one) >= place.layer for one in self.parts):
            return False
        return super().applies(place)

    def removed(self, stream: Stream, rows: Rows, heads: int) -> list[Removed]:
        """Sum the parts that are taken away, less what takes their place."""
        if isinstance(self.part, Mapping):
            like = stream.parts
            own = [placed(x[None], rows, like, f"{self}: {n!r}") for n, x in self.part.items()]
            vectors = sum(own[1:], own[0])
        else:
            vectors = self._named(stream)
        (vector,) = replaced(vectors, self.by, self._named, rows, self)
        return [Removed(vector, [(self.side, self.heads(heads))])]

    def _named(self, stream: Stream) -> Tensor:
        """Return the sum of the parts of a stream: (1, tokens, dim)."""
        names = [str(one) for one in stream.writers]
        chosen: set[int] = set()
        for part in self.parts:
            some = [n for n, name in enumerate(names) if name == part]
            if part == "embedding" and not some:
                some = [n for n, one in enumerate(stream.writers) if one.kind == "embedding"]
            if not some:
                raise EditError(
                    f"{self} names the part {part!r}, but what wrote the stream before is "
                    f"{', '.join(names)}."
                )
            chosen |= set(some)
        return stream.parts[sorted(chosen)].sum(0, keepdim=True)


def _layer_of(part: str) -> int:
    """Return the layer of a head, MLP or bias by its name; -1 for embeddings."""
    found = re.fullmatch(r"(?:(?:mlp|bias) )?(\d+)(?:\.\d+)?", part)
    return int(found[1]) if found else -1
