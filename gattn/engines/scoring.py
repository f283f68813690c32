"""Scores of edges and of tiles, in pieces that fit the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from operator import itemgetter

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.engines.tensors.memory import (
    Pasted,
    Recomputed,
    keep_freed_memory,
    take,
    with_dtypes_of,
)
from gattn.engines.tensors.sparse import edge_products
from gattn.errors import ContractError, ShapeError
from gattn.normalizers.base import widened
from gattn.weights.base import Pairs, PairWeight, Tree, WeightFunction, map_tree

PIECE_NUMBERS = 1 << 20
"""How many numbers a weight function handles at once: they should stay in the cache."""

_PIECE_KEYS = 512  # the fewest keys in a piece of a tile, as pieces are copied to rows


def score_edges(call: AttentionCall, rows: slice | None = None) -> Tensor:
    """Score the edges of all queries, or of `rows`, sorted by query: (B, H, E)."""
    neighbours = call.edges
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
    """Describe a run of the call's sorted edges."""
    features = sorted_features(call, edges)
    query, key = call.edges.query[edges], call.edges.key[edges]
    query, key = query + (call.graph.query_offset + call.first_key), key + call.first_key
    return Pairs(query[:, None], key[:, None], features)


def sorted_features(call: AttentionCall, edges: slice) -> Tensor | None:
    """Take the features of a run of the call's sorted edges: (edges, F)."""
    neighbours, order, features = call.edges, call.edges.order, call.edge_features
    if features is not None and features.dim() == 3:
        return features[neighbours.query[edges], neighbours.key[edges]]
    if features is None or order is None:
        return None if features is None else features[edges]
    return features[order[edges]]


def _in_pieces(call: AttentionCall, edges: slice) -> Tensor:
    """Score edges by gathering the vectors at both ends of a few at a time."""
    keep_freed_memory()
    neighbours = call.edges
    batch, heads = call.query.shape[:2]
    given = call.operands
    query, key = (map_tree(widened, side) for side in given)
    weight = _compiled(call.weight) if call.compile else call.weight

    def score(query: Tree, key: Tree, piece: slice) -> tuple[Tensor, Tree, Tree]:
        ends, query = take(query, neighbours.query[piece])
        other_ends, key = take(key, neighbours.key[piece])
        ends, other_ends = with_dtypes_of(given[0], ends), with_dtypes_of(given[1], other_ends)
        ends, other_ends = (map_tree(lambda x: x.transpose(1, 2), x) for x in (ends, other_ends))
        shape = (batch, piece.stop - piece.start, heads)
        scores = weight(ends, other_ends, _pairs(call, piece))
        scores = widened(checked_scores(scores, shape, call.weight)).expand(shape)
        return scores.transpose(1, 2), query, key

    size = edges.stop - edges.start
    whole = Pasted(widened(call.query.new_empty(0)).new_empty(batch, heads, size), dim=-1)
    pieces = list(_pieces(edges.start, edges.stop, PIECE_NUMBERS // max(2 * call.edge_width, 1)))
    recomputed = Recomputed(many=len(pieces) > 1)
    for piece in pieces:
        scores, query, key = recomputed(score, query, key, piece)
        whole.add(scores)
    return whole.whole


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    size = max(size, 1)
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def score_tile(call: AttentionCall, query: Tree, key: Tree, pairs: Callable[[], Pairs]) -> Tensor:
    """Score all pairs of a tile: (B, H, Q, .), (B, H, K, .) -> (B, H, Q, K).

    Parameters
    ----------
    query, key : trees
        Tokens of the call's `operands`.
    pairs : callable
        Gives positions (Q, 1, 1) and (1, K, 1), or with a batch axis in front; features likewise.
    """
    form = call.dot_form
    if form is None:
        return _tile_in_pieces(call, query, key, pairs())
    bias = tile_bias(call, pairs)
    if query is None:
        assert bias is not None
        return bias
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    scores = (query * form.scale) @ key.transpose(-2, -1)
    return scores if bias is None else scores + bias


def tile_bias(call: AttentionCall, pairs: Callable[[], Pairs]) -> Tensor | None:
    """Add up the dot form's terms of pairs on a tile: (1 or B, H or 1, Q, K)."""
    assert call.dot_form is not None
    if not call.dot_form.bias:
        return None
    some, total = pairs(), None
    for term in call.dot_form.bias:
        scores = term.on_tile(None, None, some)
        shape = (len(scores), call.query.shape[1], some.query.shape[-3], some.key.shape[-2])
        scores = widened(checked_scores(scores, shape, term))
        total = scores if total is None else total + scores
    return total


def _tile_in_pieces(call: AttentionCall, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
    """Score a tile by the weight function itself, a few queries with many keys at a time."""
    batch, heads = call.query.shape[:2]
    queries, keys = pairs.query.shape[-3], pairs.key.shape[-2]
    if pairs.query.dim() > 3:
        batch = len(pairs.query)
    weight = _compiled(call.weight) if call.compile else call.weight
    scores = Pasted(widened(call.query.new_empty(0)).new_empty(batch, heads, queries, keys), dim=2)
    blocks = batch // max(len(call.query), 1)
    most = max(PIECE_NUMBERS // max(blocks * call.tile_width, 1), 1)
    for rows in _pieces(0, queries, most // min(keys, _PIECE_KEYS) if keys else queries):
        some = map_tree(itemgetter((slice(None), slice(None), rows)), query)
        parts = []
        for columns in _pieces(0, keys, max(most // (rows.stop - rows.start), 1)):
            others = map_tree(itemgetter((slice(None), slice(None), columns)), key)
            wanted = batch, heads, rows.stop - rows.start, columns.stop - columns.start
            found = weight.on_tile(some, others, _among(pairs, rows, columns))
            parts.append(widened(checked_scores(found, wanted, call.weight)).expand(wanted))
        if parts:
            scores.add(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
    return scores.whole


def _among(pairs: Pairs, rows: slice, columns: slice) -> Pairs:
    features = None if pairs.features is None else pairs.features[..., rows, columns, :]
    return Pairs(pairs.query[..., rows, :, :], pairs.key[..., columns, :], features)


def _compiled(weight: WeightFunction) -> WeightFunction:
    """Let torch compile a weight function; torch caches what it compiled before."""
    if isinstance(weight, PairWeight):
        return PairWeight(torch.compile(weight.function))
    compiled = copy.copy(weight)
    compiled.forward = torch.compile(weight.forward)  # type: ignore[method-assign]
    compiled.on_tile = torch.compile(weight.on_tile)  # type: ignore[method-assign]
    return compiled


def checked_scores(scores: Tensor, shape: tuple[int, ...], weight: WeightFunction) -> Tensor:
    """Hold what a weight function returned to its contract: one score per pair and head.

    The pair axes must be complete; batch and heads may be 1, and a leading one may be missing.
    """
    if not isinstance(scores, Tensor):
        raise ContractError(
            f"{weight} must return a tensor, one score for each pair and head: {shape} here, not "
            f"{scores!r:.60}."
        )
    missing = len(shape) - scores.dim()
    padded = (1,) * missing + tuple(scores.shape)
    heads = 2 if len(shape) == 3 else 1
    wrong = [
        axis
        for axis, (size, wanted) in enumerate(zip(padded, shape, strict=False))
        if size != wanted and not (size == 1 and axis in (0, heads))
    ]
    if missing in (0, 1) and wrong == [heads]:
        raise ShapeError(
            f"{weight} scores {padded[heads]} heads, but the tensors have {shape[heads]}; build "
            "it for that number."
        )
    if missing not in (0, 1) or wrong:
        raise ContractError(
            f"{weight} must return one score for each pair and head, (..., heads) or (..., 1): "
            f"{shape} here, but it returned {tuple(scores.shape)}. Reduce the feature axis only, "
            "for example with .sum(-1)."
        )
    return scores
