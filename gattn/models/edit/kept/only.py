"""Edits that keep some edges, and cut all others: a model that runs on its circuit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.base import Edit, edit_class
from gattn.models.edit.kept.kept import Messages, is_zero, kept_in_call
from gattn.models.read.places import Place

Rows: TypeAlias = "Sequence[Sequence[int]] | Tensor"
"""Edges as rows (layer, head, query, key)."""
_NO_ROWS = torch.zeros(0, 4, dtype=torch.long, device="cpu")


@edit_class
class Only(Edit):
    r"""Keep only these edges: the attention of all others, in all layers and heads, is zero.

    It is set to zero after normalizing, so that each edge that is kept adds the same message
    :math:`A_{ij} v_j` as in the whole model: nothing is shared out. A query without edges gets
    zero, and goes on with its residual stream.

    Parameters
    ----------
    edges : sequence of (layer, head, query, key), or mapping of str to such sequences
        Which edges; the mapping names a stack for each, and cuts all edges of stacks that it does
        not name.
    stack : str, optional
        The stack of these edges, where the model has several and `edges` does not name them; the
        other stacks stay as they are.
    ablation : "zero", "mean", list of texts, or a text, or whatever else `gattn.capture` takes
        What takes the place of the other edges' messages :math:`A_{ij} v_j`: nothing;
        :math:`A_{ij} \bar v` with the head's mean value over all positions of the same run, later
        ones than the query in a causal model, too, and with a cache over all keys so far; or over
        those of several texts, as of ``Ablate(what="values")``; or the messages
        :math:`A'_{ij} v'_j` of the same edges on another text of as many tokens, such as a
        corrupted one. The model runs on texts when the edit is first used.

    Raises
    ------
    EditError
        If `edges` are not such rows; when the edit is used, if the model lacks one of their stacks,
        layers, heads, tokens or edges.

    Examples
    --------
    >>> with gattn.edited(model, gattn.Only([(1, 1, 5, 4), (2, 0, 12, 5)])):
    ...     logits = model(**inputs).logits
    """

    edges: Rows | Mapping[str, Rows]
    stack: str | None = None
    ablation: Any = "zero"

    layer = None
    head = None
    is_after = True

    def __post_init__(self) -> None:
        if isinstance(self.edges, Mapping):
            if self.stack is not None:
                raise EditError(f"edges names its stacks, so leave out stack={self.stack!r}.")
            rows: Any = {name: _rows(some) for name, some in self.edges.items()}
        else:
            rows = _rows(self.edges)
        object.__setattr__(self, "edges", rows)

    def __repr__(self) -> str:
        """Say how many edges there are."""
        stack = "" if self.stack is None else f", stack={self.stack!r}"
        count = sum(map(len, self._of_stacks.values()))
        ablation = self.as_given().ablation
        if not is_zero(ablation):
            stack += f", ablation={ablation!r:.60}"
        return f"Only({count} edge{'s' * (count != 1)}{stack})"

    def as_given(self) -> Only:
        """Return it with its text in place of the messages on that."""
        if not isinstance(self.ablation, Messages):
            return self
        return replace(self, ablation=self.ablation.said)

    @property
    def _of_stacks(self) -> dict[str | None, Tensor]:
        """The edges of each stack; None is whichever is edited."""
        edges: Any = self.edges
        return dict(edges) if isinstance(edges, Mapping) else {self.stack: edges}

    @property
    def spans_stacks(self) -> bool:  # type: ignore[override]
        """Whether it edits all stacks."""
        return isinstance(self.edges, Mapping)

    def by_stack(self) -> dict[str | None, Edit]:
        """Return its edges of each stack."""
        if not self.spans_stacks:
            return {None: self}
        parts = {name: Only(rows, name, self.ablation) for name, rows in self._of_stacks.items()}
        return {**parts} or {None: self}

    def layers(self) -> list[int] | None:
        """Say that it edits all layers."""
        return None

    def named(self) -> dict[str, set[Any]]:
        """Return the layers of its edges, and their tokens."""
        rows = torch.cat(list(self._of_stacks.values()) or [_NO_ROWS])
        columns = zip(("layer", "head", "query", "key"), rows.T, strict=True)
        return {name: set(some.tolist()) for name, some in columns if name != "head"}

    def in_layer(self, layer: int) -> Edit:
        """Return itself: its part is taken for each call."""
        return self

    def in_call(self, place: Place) -> Edit | None:
        """Return its part in a call."""
        rows = self._of_stacks.get(place.stack if self.spans_stacks else self.stack)
        rows = _NO_ROWS if rows is None else rows
        _, head, query, key = rows[rows[:, 0] == place.layer].T
        given = self.ablation if isinstance(self.ablation, Messages) else None
        if given is None and not is_zero(self.ablation):
            raise EditError(f"{self} was not run: use it in gattn.edited or gattn.effect.")
        return kept_in_call(place, head, query, key, torch.ones(1, len(head), device="cpu"), given)


def _rows(given: Any) -> Tensor:
    """Read edges as (edges, 4)."""
    try:
        rows: Tensor = (
            given
            if isinstance(given, Tensor)
            else torch.as_tensor([list(row) for row in given], device="cpu")
        )
        rows = rows.reshape(-1, 4) if rows.numel() == 0 else rows
        is_right = rows.dim() == 2 and rows.shape[1] == 4 and not rows.is_complex()
        is_right = is_right and (not rows.numel() or not rows.is_floating_point())
        is_right = is_right and rows.dtype != torch.bool and bool((rows >= 0).all())
    except (TypeError, ValueError, RuntimeError):
        is_right = False
    if not is_right:
        raise EditError(
            "Only takes edges as rows (layer, head, query, key) of whole numbers that count from "
            f"0, not {_described(given)}."
        )
    found: Tensor = rows.long().cpu().unique(dim=0)
    return found


def _described(given: Any) -> str:
    """Describe what is no rows; a circuit makes its edit, and a table has rows among others."""
    kind = type(given).__name__
    if hasattr(given, "only"):
        return f"a {kind}, which makes its own: found.only()"
    if hasattr(given, "columns"):
        rows = "table[['layer', 'head', 'query', 'key']].to_numpy()"
        return f"a {kind}: pass {rows}, or take found.only(), the edit of a circuit"
    return f"{given!r:.80}"
