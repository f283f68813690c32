"""Edits that cut or scale the edges from some keys to some queries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.engines.tiles import RowBlock
from gattn.errors import ContractError, EditError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.graph.rules.simple import Crossing
from gattn.graph.token_graph import TokenGraph
from gattn.models.edit.base import Edit, edit_class
from gattn.models.edit.where.heads import Numbers
from gattn.models.edit.where.tokens import (
    KnownTokens,
    Tokens,
    check_tokens,
    chosen,
    is_relative,
    listed,
    numbers_in,
    one_by_one,
    patches_named,
)

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading


_FEW_PAIRS = 1 << 22


class AtTokens(Edit):
    """An edit of the edges from some keys to some queries."""

    query: Tokens
    key: Tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query", "key"):
            where = patches_named(getattr(self, name))
            check_tokens(name, where)
            object.__setattr__(self, name, where)

    def named(self) -> dict[str, set[Any]]:
        """Return the layers that it names, and the tokens that it names individually."""
        return {
            **super().named(),
            "query": one_by_one(self.query),
            "key": one_by_one(self.key),
        }

    @property
    def needs_tokens(self) -> bool:
        """Whether its positions depend on a call's tokens."""
        return any(map(is_relative, (self.query, self.key)))

    def located(self, query: KnownTokens, key: KnownTokens) -> tuple[Edit, set[tuple[str, Any]]]:
        """Replace texts of tokens and negative positions by positions."""
        places: dict[str, Any] = {}
        found: set[tuple[str, Any]] = set()
        for name, tokens in (("query", query), ("key", key)):
            where = getattr(self, name)
            if isinstance(where, slice) and is_relative(where):
                places[name] = tokens.span(where)
            elif is_relative(where):
                of = {one: tokens.find(self, one) for one in listed(where)}
                places[name] = sorted({n for some in of.values() for n in some}) or slice(0, 0)
                found |= {(name, one) for one, some in of.items() if some}
        located = cast("Edit", replace(self, **places)) if places else self  # type: ignore[type-var]
        return located, found

    def changes(self, reading: Reading) -> Tensor | None:
        """Return which queries of a call it changes."""
        if self.key is None:
            return None if self.query is None else chosen(reading.queries, self.query)
        queries, keys = (
            numbers_in(side, where)
            for side, where in ((reading.queries, self.query), (reading.keys, self.key))
        )
        changed = torch.zeros(len(reading.queries), dtype=torch.bool, device="cpu")
        for rows in queries.split(max(_FEW_PAIRS // max(len(keys), 1), 1)):
            changed[rows] = reading.graph.allowed(rows, keys).any(1).cpu()
        return changed

    def meets(self, reading: Reading) -> bool:
        """Return whether a call has any of its edges."""
        queries, keys = (
            numbers_in(side, where)
            for side, where in ((reading.queries, self.query), (reading.keys, self.key))
        )
        if not len(queries) or not len(keys):
            return False
        if self.query is None and self.key is None:
            return True
        if isinstance(reading.graph.rule, Edges):
            edge = reading.graph.neighbourhoods
            is_query = chosen(reading.queries, self.query)[edge.query.cpu()]
            return bool((is_query & chosen(reading.keys, self.key)[edge.key.cpu()]).any())
        if self.query is None or self.key is None:
            return True
        return bool(reading.graph.allowed(queries, keys).any())

    def _times(self, factor: float, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        rows = chosen(reading.queries, self.query)[block.rows]
        keys = chosen(reading.keys, self.key)[list_keys(block.columns).cpu()]
        inside = (rows[:, None] & keys).to(attention.device)
        return torch.where(inside, attention * factor, attention)

    def _times_on_edges(
        self, factor: float, attention: Tensor, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        rows, keys = chosen(reading.queries, self.query), chosen(reading.keys, self.key)
        inside = (rows[query.cpu()] & keys[key.cpu()]).to(attention.device)
        return torch.where(inside, attention * factor, attention)


@edit_class
class Cut(AtTokens):
    """Cut edges (ablation, knockout): all from some keys to some queries, in some heads.

    Parameters
    ----------
    layer, head : int or sequence of int, optional
        Where; all by default. As the layer, ``(2, 1)`` or ``"2.1"`` is head 1 of layer 2, and
        ``[(2, 0), (3, 1)]`` or ``"2.0,3.1"`` are two heads; ``layer=[2, 1]`` are two layers. Text
        is as on the command line: ``"cross:0-2.1"`` also names a stack.
    query, key : int, str, slice, range or sequence of int or str, optional
        Positions of tokens, a span of them, or a token's text, which stands for all of its
        occurrences; all tokens by default. Texts are those that graphs show, or, if unambiguous,
        the tokenizer's names; a patch of an image is ``"2,4"``, its row and column, several are
        ``[(2, 4), (2, 5)]``, and ``[2, 4]`` are the tokens 2 and 4. Where tokens lie on a grid, the
        tuple ``(2, 4)`` is refused: pictures take it for a patch. Negative positions count from the
        end of the text that the model is first called with: -1 stays the last token of the prompt
        while more are generated with a cache. ``Cut(key=4)`` cuts all edges out of token 4,
        ``Cut(query=4)`` all edges into it, and ``Cut(layer=5, head=1)`` the whole head, which is
        zero ablation.
    renormalize : bool
        True removes the edges before normalizing, so that the others share out their attention; a
        query without edges gets zero. False zeroes their attention afterwards:
        ``Cut(key=t, renormalize=False)`` is value zeroing.
    stack : str, optional
        Which stack, such as "encoder" or "cross"; needed where the model has several.

    References
    ----------
    Geva et al. (2023), Dissecting recall of factual associations: attention knockout.
    Mohebbi et al. (2023), Quantifying context mixing in transformers: value zeroing.
    """

    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    renormalize: bool = True
    stack: str | None = None

    @property
    def is_after(self) -> bool:  # type: ignore[override]
        """Whether it changes attention after normalizing."""
        return not self.renormalize

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Cut edges before normalizing."""
        if not self.renormalize:
            return graph
        shift = 0 if graph.is_bipartite else reading.queries.first - reading.keys.first
        rows = None if self.query is None else numbers_in(reading.queries, self.query) + shift
        keys = None if self.key is None else numbers_in(reading.keys, self.key)
        return graph - replace(graph, rule=Crossing(rows, keys))

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Cut edges after normalizing."""
        return attention if self.renormalize else self._times(0.0, attention, block, reading)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Cut listed edges after normalizing."""
        if self.renormalize:
            return attention
        return self._times_on_edges(0.0, attention, query, key, reading)


@edit_class
class Scale(AtTokens):
    """Multiply the attention of edges after normalizing.

    Parameters
    ----------
    factor : float
        By how much.
    layer, head, query, key, stack
        Where, as in `Cut`.
    """

    factor: float
    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    stack: str | None = None

    is_after = True

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            factor = finite_number("The factor of Scale", self.factor)
        except ContractError as error:
            raise EditError(str(error)) from error
        object.__setattr__(self, "factor", factor)

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Multiply."""
        return self._times(self.factor, attention, block, reading)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Multiply the attention of listed edges."""
        return self._times_on_edges(self.factor, attention, query, key, reading)
