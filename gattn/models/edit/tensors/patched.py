"""The part of a patch or an ablation in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gattn.engines import tiles
from gattn.engines.tiles import RowBlock
from gattn.errors import EditError
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.base import Edit
from gattn.models.edit.edges import AtTokens
from gattn.models.edit.part import EdgePart, Part
from gattn.models.edit.tensors.activations import What
from gattn.models.edit.where.heads import Numbers
from gattn.models.edit.where.tokens import Tokens, chosen
from gattn.models.read.places import Side
from gattn.normalizers.base import neighbourhood_sums

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading


@dataclass(frozen=True, eq=False, repr=False)
class Patched(AtTokens):
    """The part of a patch or an ablation in one call.

    `given` is what comes from elsewhere, (heads, ...); None if it is zero or a mean of the call's
    own, as `source` says.
    """

    said: str
    source: Any
    given: Tensor | None
    layer: Numbers
    head: Numbers
    query: Tokens
    key: Tokens
    what: What
    stack: str | None

    is_after = True

    def __post_init__(self) -> None:
        """Take all as it is."""

    def __repr__(self) -> str:
        return self.said

    @property
    def gives_values(self) -> bool:  # type: ignore[override]
        """Whether it changes more than attention."""
        return self.what != "attention"

    @property
    def changes_attention(self) -> bool:  # type: ignore[override]
        """Whether it puts attention in."""
        return self.what == "attention"

    @property
    def gives_all_attention(self) -> bool:  # type: ignore[override]
        """Whether it replaces whole heads' attention."""
        return self.what == "attention" and self.query is None and self.key is None

    def among(self, heads: Sequence[int]) -> Patched:
        """Return its part in some heads."""
        return self if self.given is None else replace(self, given=self.given[list(heads)])

    def meets(self, reading: Reading) -> bool:
        """Return whether it has anything to edit in a call, whose values must be known."""
        is_plain = reading.has_values and reading.splits_heads and not reading.lists_edges
        if self.gives_values and not is_plain:
            raise EditError(
                f"{self}: this layer shows its attention, but not its {self.what}: take "
                "what='attention'."
            )
        heads = self.heads(reading.heads)
        if self.given is not None:
            check_heads(self, self.given, heads)
        return super().meets(reading)

    def changes(self, reading: Reading) -> Tensor:
        """Return which queries may change: those whose attention, values or output differ."""
        if self.what == "outputs":
            return chosen(reading.queries, self.query)
        if self.what == "values":
            own = reading.attention.value
            assert own is not None
            heads = self.heads(reading.heads)
            new = self.among(heads).values(own[:, heads], reading)
            differs = (new != own[:, heads]).any(-1).any(1).any(0).cpu()
            keys = (differs & chosen(reading.keys, self.key)).nonzero()[:, 0]
            changed = torch.zeros(len(reading.queries), dtype=torch.bool, device="cpu")
            for rows in torch.arange(len(changed), device="cpu").split(1024):
                changed[rows] = reading.graph.allowed(rows, keys).any(1).cpu()
            return changed
        heads = self.heads(reading.heads)
        changed = torch.zeros(len(reading.queries), dtype=torch.bool, device="cpu")
        part = self.among(heads)
        if reading.lists_edges:
            key, query = reading.graph.edge_index
            plain = EdgePart(reading, heads, reading.attention, heads, (), False)
            for edges, _, own in plain.edge_blocks():
                new = part.shared_on_edges(own, edges, query[edges], key[edges], reading)
                changed[query[edges].cpu()[(new != own).any(1).any(0).cpu()]] = True
            return changed
        for block in tiles.row_blocks(reading.attention, scores=False):
            own = block.attention[:, heads]
            new = part.shared(own, block, reading)
            changed[block.rows] |= (new != own).any(-1).any(1).any(0).cpu()
        return changed

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Replace the attention of some rows."""
        if self.what != "attention":
            return attention
        columns = list_keys(block.columns).cpu()
        rows = chosen(reading.queries, self.query)[block.rows]
        inside = rows[:, None] & chosen(reading.keys, self.key)[columns]
        if self.given is None:
            new = self._even(attention, block.allowed)
        else:
            new = self._taken(attention, block, columns, inside, reading)
        return torch.where(inside.to(attention.device), new, attention)

    def _even(self, attention: Tensor, allowed: Tensor | None) -> Tensor:
        """Return zero, or the mean over each query's edges."""
        if self.source == "zero":
            return torch.zeros_like(attention)
        if allowed is None:
            return attention.mean(-1, keepdim=True).expand_as(attention)
        count = allowed.sum(-1, keepdim=True).clamp_min(1)
        return attention.sum(-1, keepdim=True) / count * allowed

    def _taken(
        self,
        attention: Tensor,
        block: RowBlock,
        columns: Tensor,
        inside: Tensor,
        reading: Reading,
    ) -> Tensor:
        """Take the attention of some rows from that of the other text, edges `inside` at least."""
        assert self.given is not None
        is_edge = inside if block.allowed is None else inside & block.allowed.cpu()
        self._rows(reading.keys, _where(columns[is_edge.any(0)], reading.keys), 2)
        wanted = chosen(reading.queries, self.query)
        rows = self._rows(reading.queries, wanted)[block.rows]
        wanted, keys = wanted[block.rows], reading.keys.at[columns]
        missing = max(0, reading.keys.end - self.given.shape[2])
        whole = functional.pad(self.given[:, rows], (0, missing))
        some = whole[:, :, keys].to(attention.device)
        is_elsewhere = (whole != 0).sum(-1) > (whole[:, :, keys] != 0).sum(-1)
        outside = (is_elsewhere.to(some.device) & wanted.to(some.device)).any()
        if block.allowed is not None:
            outside |= ((some != 0) & ~block.allowed & wanted[:, None].to(some.device)).any()
        if bool(outside):
            raise EditError(
                f"{self}: there, a query attends to a token that it cannot attend to here; "
                "expected a text of as many tokens, or more in a causal model."
            )
        return some.to(attention.dtype)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Replace the attention of some listed edges."""
        ends = (reading.queries, query.cpu()), (reading.keys, key.cpu())
        inside = chosen(reading.queries, self.query)[query.cpu()]
        inside = inside & chosen(reading.keys, self.key)[key.cpu()]
        if self.source == "zero":
            new = torch.zeros_like(attention)
        elif self.given is None:
            new = _mean_of_neighbourhoods(attention, query, len(reading.queries))
        else:
            rows, keys = (
                self._rows(side, _where(numbers[inside], side), axis)[numbers]
                for axis, (side, numbers) in enumerate(ends, 1)
            )
            new = self.given[:, rows, keys].to(attention)
        return torch.where(inside.to(attention.device), new, attention)

    def values(self, values: Tensor, reading: Reading) -> Tensor:
        """Replace values (elements, heads, keys, dim)."""
        if self.what != "values":
            return values
        return self._replaced(values, chosen(reading.keys, self.key), reading.keys)

    def outputs(self, output: Tensor, part: Part) -> Tensor:
        """Replace outputs (elements, heads, queries, dim), as earlier edits left them."""
        if self.what != "outputs":
            return output
        queries = part.reading.queries
        return self._replaced(output, chosen(queries, self.query), queries)

    def _replaced(self, now: Tensor, wanted: Tensor, side: Side) -> Tensor:
        if self.source == "zero":
            new = torch.zeros_like(now)
        elif self.given is None:
            new = now.mean(2, keepdim=True)
        else:
            new = self.given if self.source.is_mean else self.given[:, self._rows(side, wanted)]
        return torch.where(wanted[:, None].to(now.device), new.to(now), now)

    def _rows(self, side: Side, wanted: Tensor, axis: int = 1) -> Tensor:
        """Return the positions of a call's tokens, of which the other text must have the wanted."""
        assert self.given is not None
        size = self.given.shape[axis]
        if bool((side.at[wanted] >= size).any()):
            raise EditError(
                f"{self}: that has {size} tokens, but the text has {side.end}; expected as many, "
                "or more in a causal model, or positions that both have, chosen by query= and key=."
            )
        return side.at.clamp_max(size - 1)


def check_heads(edit: Edit, given: Tensor, heads: Sequence[int]) -> None:
    """Refuse heads that what is given (heads, ...) lacks: they are beyond its end, or NaN."""
    lacking = [head for head in heads if head >= len(given) or bool(given[head].isnan().any())]
    if lacking:
        raise EditError(f"{edit}: that lacks the heads {lacking}.")


def _where(numbers: Tensor, side: Side) -> Tensor:
    """Return which of a side's tokens are at these places."""
    found = torch.zeros(len(side), dtype=torch.bool, device="cpu")
    found[numbers] = True
    return found


def _mean_of_neighbourhoods(attention: Tensor, query: Tensor, count: int) -> Tensor:
    """Return the mean over each query's edges (elements, heads, edges), all of them given."""
    query = query.to(attention.device)
    one = torch.ones_like(attention)
    total, edges = (neighbourhood_sums(x, query, count) for x in (attention, one))
    return (total / edges.clamp_min(1))[..., query]
