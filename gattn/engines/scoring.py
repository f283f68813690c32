"""Scores of edges and of tiles, in pieces that stay in the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from gattn.engines.base import AttentionCall, checked_scores
from gattn.engines.sparse import edge_products
from gattn.normalizers.base import widened
from gattn.weights.base import Pairs, PairWeight, Tree, WeightFunction, map_tree

PIECE_NUMBERS = 1 << 20
"""How many numbers a step of a weight function holds: they should stay in the cache."""

_PIECE_KEYS = 512


def uncompiled(run: Callable[[AttentionCall], Tensor]) -> Callable[[AttentionCall], Tensor]:
    """Keep `torch.compile` out of an engine: it would unroll its loops over blocks."""
    return cast("Callable[[AttentionCall], Tensor]", torch.compiler.disable(run))


def recomputed(function: Callable[..., Any], *arguments: Any, random: bool = False) -> Any:
    """Call a function; for a gradient call it again instead of keeping what it computed.

    Parameters
    ----------
    random : bool
        Whether it draws random numbers, which must be the same again.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(
        function,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=random,
        determinism_check="none",
    )


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next piece, instead of giving it back.

    Otherwise each piece may take its memory from the system anew, page by page. glibc stops doing
    so for sizes up to the largest that was freed; nothing of this memory is ever touched.
    """
    torch.empty(30 << 18, dtype=torch.float32)


def score_edges(call: AttentionCall, rows: slice | None = None) -> Tensor:
    """Score the edges of all queries or of some, sorted by query: (B, H, E)."""
    neighbours = call.edges[0]
    if rows is None:
        rows, some, edges = slice(None), neighbours, slice(0, neighbours.num_edges)
    else:
        some = neighbours.rows(rows)
        first = int(neighbours.pointer[rows.start])
        edges = slice(first, first + some.num_edges)
    form = call.dot_form
    if form is None:
        return _in_pieces(call, edges)
    batch, heads = call.query.shape[:2]
    terms = []
    if form.query is not None and form.key is not None:
        query, key = form.query[:, :, rows] * form.scale, form.key
        query, key = query.flatten(0, 1), key.flatten(0, 1)
        terms.append(edge_products(query, key, some).unflatten(0, (batch, heads)))
    pairs, shape = _pairs(call, edges), (batch, some.num_edges, heads)
    for term in form.bias:
        scores = checked_scores(term(None, None, pairs), shape, term)
        terms.append(widened(scores).expand(shape).transpose(1, 2))
    total: Tensor = sum(terms[1:], start=terms[0])
    return total


def _pairs(call: AttentionCall, edges: slice) -> Pairs:
    """Say what is known of some of the call's sorted edges."""
    neighbours, order = call.edges
    query, key, features = neighbours.query[edges], neighbours.key[edges], call.edge_features
    if features is not None and features.dim() == 3:
        features = features[query, key]
    elif features is not None:
        features = features[edges] if order is None else features[order[edges]]
    return Pairs(query[:, None] + call.graph.query_offset, key[:, None], features)


def _in_pieces(call: AttentionCall, edges: slice) -> Tensor:
    """Score edges by gathering the vectors at both ends of a few at a time."""
    keep_freed_memory()
    neighbours = call.edges[0]
    batch, heads = call.query.shape[:2]
    query, key = (map_tree(tokens_first, side) for side in call.sides)

    def score(query: Tree, key: Tree, piece: slice) -> tuple[Tensor, Tree, Tree]:
        ends, query = take(query, neighbours.query[piece])
        other_ends, key = take(key, neighbours.key[piece])
        ends, other_ends = (map_tree(lambda x: x.transpose(1, 2), x) for x in (ends, other_ends))
        shape = (batch, piece.stop - piece.start, heads)
        scores = call.weight(ends, other_ends, _pairs(call, piece))
        scores = widened(checked_scores(scores, shape, call.weight)).expand(shape)
        return scores.transpose(1, 2), query, key

    size = edges.stop - edges.start
    whole = Pasted(widened(call.query.new_empty(0)).new_empty(batch, heads, size), dim=-1)
    for piece in _pieces(edges.start, edges.stop, PIECE_NUMBERS // max(2 * call.edge_width, 1)):
        scores, query, key = recomputed(score, query, key, piece)
        whole.add(scores)
    return whole.whole


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    size = max(size, 1)
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


class Pasted:
    """Puts parts one after the other into a whole that was there before them.

    Small parts kept between large temporaries would break up the free memory.
    """

    def __init__(self, whole: Tensor, dim: int) -> None:
        self.whole = whole
        self._dim, self._filled = dim, 0

    def add(self, part: Tensor) -> None:
        """Put the next part."""
        size = part.shape[self._dim]
        if part.requires_grad or self.whole.requires_grad:
            put: Tensor = _Put.apply(self.whole, part, self._dim, self._filled)  # type: ignore[no-untyped-call]
            self.whole = put
        else:
            self.whole.narrow(self._dim, self._filled, size).copy_(part)
        self._filled += size


class _Put(Function):
    """Puts a part into a whole in place; torch's own way copies the whole gradient each time."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: Tensor, dim: int, start: int) -> Tensor:
        ctx.span, ctx.dtype = (dim, start, part.shape[dim]), part.dtype
        ctx.mark_dirty(whole)
        whole.narrow(*ctx.span).copy_(part)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return gradient, gradient.narrow(*ctx.span).to(ctx.dtype), None, None


def score_tile(call: AttentionCall, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
    """Score all pairs of a tile: (B, H, Q, .), (B, H, K, .) -> (B, H, Q, K).

    Parameters
    ----------
    query, key : trees
        Some tokens of the call's `operands`.
    pairs : Pairs
        Positions (Q, 1, 1) and (1, K, 1), or with a batch axis in front; features likewise.
    """
    form = call.dot_form
    if form is None:
        return _tile_in_pieces(call, query, key, pairs)
    bias = tile_bias(call, pairs)
    if query is None:
        assert bias is not None
        return bias
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    scores = (query * form.scale) @ key.transpose(-2, -1)
    return scores if bias is None else scores + bias


def tile_bias(call: AttentionCall, pairs: Pairs) -> Tensor | None:
    """Add up the dot form's terms of pairs on a tile: (1 or B, H or 1, Q, K)."""
    assert call.dot_form is not None
    total = None
    for term in call.dot_form.bias:
        scores = term.on_tile(None, None, pairs)
        shape = (len(scores), call.query.shape[1], pairs.query.shape[-3], pairs.key.shape[-2])
        scores = widened(checked_scores(scores, shape, term))
        total = scores if total is None else total + scores
    return total


def _tile_in_pieces(call: AttentionCall, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
    """Score a tile by the weight function itself, a few queries with many keys at a time."""
    batch, heads = call.query.shape[:2]
    queries, keys = pairs.query.shape[-3], pairs.key.shape[-2]
    if pairs.query.dim() > 3:
        batch = len(pairs.query)
    on_tile = _compiled(call.weight).on_tile if call.compile else call.weight.on_tile
    scores = Pasted(widened(call.query.new_empty(0)).new_empty(batch, heads, queries, keys), dim=2)
    blocks = batch // max(len(call.query), 1)
    most = max(PIECE_NUMBERS // max(blocks * call.tile_width, 1), 1)
    for rows in _pieces(0, queries, most // min(keys, _PIECE_KEYS) if keys else queries):
        some = map_tree(itemgetter((slice(None), slice(None), rows)), query)
        parts = []
        for columns in _pieces(0, keys, max(most // (rows.stop - rows.start), 1)):
            others = map_tree(itemgetter((slice(None), slice(None), columns)), key)
            wanted = batch, heads, rows.stop - rows.start, columns.stop - columns.start
            found = on_tile(some, others, _among(pairs, rows, columns))
            parts.append(widened(checked_scores(found, wanted, call.weight)).expand(wanted))
        if parts:
            scores.add(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
    return scores.whole


def _among(pairs: Pairs, rows: slice, columns: slice) -> Pairs:
    features = None if pairs.features is None else pairs.features[..., rows, columns, :]
    return Pairs(pairs.query[..., rows, :, :], pairs.key[..., columns, :], features)


def _compiled(weight: WeightFunction) -> WeightFunction:
    """Let torch compile a weight function; it finds again what it compiled before."""
    if isinstance(weight, PairWeight):
        return PairWeight(torch.compile(weight.function))
    compiled = copy.copy(weight)
    compiled.on_tile = torch.compile(weight.on_tile)  # type: ignore[method-assign]
    return compiled


def tokens_first(tokens: Tensor) -> Tensor:
    """Lay (B, H, N, .) out so that all numbers of a token, in all the batch, lie together."""
    return tokens.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)


class Runs(NamedTuple):
    """Overlapping runs of tokens, each `step` after the one before it."""

    start: int
    step: int
    number: int
    width: int


def take(tree: Tree, index: slice | Tensor | Runs) -> tuple[Tree, Tree]:
    """Take some tokens of (B, H, N, .); give them, and the tree to take the next ones from.

    Runs come as (B, H, runs, width, .), without a copy.
    """
    if tree is None:
        return None, None
    if isinstance(tree, tuple):
        taken = [take(branch, index) for branch in tree]
        return tuple(some for some, _ in taken), tuple(rest for _, rest in taken)
    if not tree.requires_grad:
        return _selected(tree, index), tree
    return cast("tuple[Tensor, Tensor]", _Take.apply(tree, index))  # type: ignore[no-untyped-call]


class _Take(Function):
    """Takes tokens; handed from block to block, so that all add to one gradient in place."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, index: slice | Tensor | Runs) -> tuple[Tensor, Tensor]:
        ctx.index, ctx.shape, ctx.tokens_first = index, tokens.shape, _is_tokens_first(tokens)
        ctx.set_materialize_grads(False)
        return _selected(tokens, index), tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, some: Tensor | None, rest: Tensor | None) -> tuple[Tensor | None, None]:
        if some is None:
            return rest, None
        if rest is None:
            batch, heads, tokens, dim = ctx.shape
            if ctx.tokens_first:
                rest = some.new_zeros(tokens, batch, heads, dim).permute(1, 2, 0, 3)
            else:
                rest = some.new_zeros(ctx.shape)
        elif torch.is_grad_enabled():  # A gradient of this gradient is wanted.
            rest = rest.clone()
        if isinstance(ctx.index, slice):
            rest[:, :, ctx.index].add_(some)
        elif isinstance(ctx.index, Runs):
            _add_runs(rest, ctx.index, some)
        else:
            rest.permute(2, 0, 1, 3).index_add_(0, ctx.index, some.permute(2, 0, 1, 3))
        return rest, None


def _add_runs(tokens: Tensor, runs: Runs, some: Tensor) -> None:
    """Add runs to where they came from, a step of each at a time: those do not overlap."""
    for first in range(0, runs.width, runs.step):
        part = some[:, :, :, first : first + runs.step]
        target = tokens[:, :, runs.start + first :].unfold(2, part.shape[3], runs.step)
        target[:, :, : runs.number].transpose(3, 4).add_(part)


def _selected(tokens: Tensor, index: slice | Tensor | Runs) -> Tensor:
    if isinstance(index, slice):
        return tokens[:, :, index]
    if isinstance(index, Runs):
        runs = tokens[:, :, index.start :].unfold(2, index.width, index.step)
        return runs[:, :, : index.number].transpose(3, 4)
    if _is_tokens_first(tokens):
        # Rows of a matrix are what torch selects fastest.
        rows = tokens.permute(2, 0, 1, 3)
        some = rows.reshape(len(rows), -1).index_select(0, index)
        return some.view(len(index), *rows.shape[1:]).permute(1, 2, 0, 3)
    return tokens.index_select(2, index)


def _is_tokens_first(tokens: Tensor) -> bool:
    return tokens.permute(2, 0, 1, 3).is_contiguous()
