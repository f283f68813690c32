"""Scores of edges and of tiles, in pieces that fit the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from gattn.engines.call import AttentionCall
from gattn.engines.tensors.memory import keep_freed_memory, with_dtypes_of
from gattn.engines.tensors.piecewise import Known, Piece, Piecewise
from gattn.engines.tensors.sparse import edge_products
from gattn.errors import ContractError, ShapeError
from gattn.graph.rules.neighbourhoods import Block
from gattn.normalizers.base import Normalizer, widened
from gattn.weights.base import PairWeight, Tree, WeightFunction, map_tree
from gattn.weights.pairs import Pairs

PIECE_NUMBERS = 1 << 20
"""How many numbers a weight function handles at once: they should stay in the cache."""

DEVICE_NUMBERS = 1 << 24
"""The same on an accelerator, where a piece is a few kernels, each of which should fill it."""

GRADIENT_SHARE = 4
"""Into how many a piece is cut for a gradient, which needs several times the memory."""

_HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
_PIECE_KEYS = 512  # the fewest keys in a piece of a tile, as pieces are copied to rows


def piece_numbers(call: AttentionCall) -> int:
    """Return how many numbers a weight function handles at once."""
    is_on_host = call.query.device.type in ("cpu", "meta")
    return PIECE_NUMBERS if is_on_host else DEVICE_NUMBERS


def score_edges(call: AttentionCall, rows: slice | None = None) -> Tensor:
    """Score the edges of all queries, or of `rows`, sorted by query: (B, H, E)."""
    neighbours = call.edges
    if rows is None:
        rows, some, edges = slice(None), neighbours, slice(0, neighbours.num_edges)
    else:
        some, edges = neighbours.rows(rows), neighbours.edges_of(rows)
    form = call.dot_form
    if form is None:
        return _in_pieces(call, edges)
    batch, heads = call.query.shape[:2]
    terms = []
    if form.query is not None and form.key is not None:
        query, key = form.query[:, :, rows].flatten(0, 1), form.key.flatten(0, 1)
        products = edge_products(query, key, some, form.scale)
        terms.append(products.unflatten(0, (batch, heads)))
    pairs, shape = _pairs(call, edges), (batch, some.num_edges, heads)
    for term in form.bias:
        scores = checked_scores(term(None, None, pairs), shape, term)
        terms.append(widened(scores).expand(shape).transpose(1, 2))
    total: Tensor = sum(terms[1:], start=terms[0])
    return total


def share_out(normalizer: Normalizer, scores: Tensor, block: Block) -> Tensor:
    """Normalize the scores of a block of neighbourhoods: (B, H, edges) -> the same shape."""
    if normalizer.pads_rows:
        return normalizer.on_padded_rows(scores, block.padded_rows)
    return normalizer.on_edges(scores, block.query, block.num_queries)


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
    weight = _compiled(call.weight) if call.compile else call.weight

    def score(query: Tree, key: Tree, known: Known) -> Tensor:
        query, key = with_dtypes_of(given[0], query), with_dtypes_of(given[1], key)
        query, key = (map_tree(lambda x: x.transpose(1, 2), side) for side in (query, key))
        pairs = _as_pairs(known)
        scores = weight(query, key, pairs)
        shape = (batch, len(pairs.query), heads)
        scores = widened(checked_scores(scores, shape, call.weight)).expand(shape)
        return scores.transpose(1, 2)

    def piece(some: slice) -> Piece:
        place = (..., slice(some.start - edges.start, some.stop - edges.start))
        ends = neighbours.query[some], neighbours.key[some]
        return Piece(*ends, partial(_known, call, some), place, (some.stop - some.start,))

    def cut(numbers: int) -> list[Piece]:
        size = numbers // max(2 * call.edge_width, 1)
        return [piece(some) for some in _pieces(edges.start, edges.stop, size)]

    whole = widened(call.query.new_empty(0)).new_empty(batch, heads, edges.stop - edges.start)
    query, key = (map_tree(widened, side) for side in given)
    numbers = piece_numbers(call)
    smaller = cut(numbers // GRADIENT_SHARE)
    # What pieces take stays with the process until the peak, which a gradient brings.
    pieces = smaller if torch.is_grad_enabled() else cut(numbers)
    return Piecewise(score, query, key, pieces, smaller).scores(
        whole, is_replayed=_is_replayed(call)
    )


def _is_replayed(call: AttentionCall) -> bool:
    """Return whether what a weight function does may be recorded: no hook would be left out."""
    if call.compile or any(getattr(nn.modules.module, f"_global{name}") for name in _HOOKS):
        return False
    return not any(getattr(one, name) for one in call.weight.modules() for name in _HOOKS)


def _known(call: AttentionCall, edges: slice) -> Known:
    pairs = _pairs(call, edges)
    return pairs.query, pairs.key, pairs.features


def _as_pairs(known: Known) -> Pairs:
    query, key, features = known
    assert query is not None
    assert key is not None
    return Pairs(query, key, features)


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
    assert call.kernel_form is not None
    if not call.kernel_form.bias:
        return None
    some, total = pairs(), None
    for term in call.kernel_form.bias:
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

    def score(query: Tree, key: Tree, known: Known) -> Tensor:
        some = _as_pairs(known)
        shape = batch, heads, some.query.shape[-3], some.key.shape[-2]
        found = weight.on_tile(query, key, some)
        return widened(checked_scores(found, shape, call.weight)).expand(shape)

    def piece(rows: slice, columns: slice) -> Piece:
        size = (rows.stop - rows.start, columns.stop - columns.start)
        known = partial(_among, pairs, rows, columns)
        return Piece(rows, columns, known, (..., rows, columns), size)

    def most(numbers: int) -> int:
        blocks = batch // max(len(call.query), 1)
        return max(numbers // max(blocks * call.tile_width, 1), 1)

    def cut(numbers: int) -> list[Piece]:
        size = most(numbers)
        height = max(size // min(keys, _PIECE_KEYS), 1) if keys else queries
        # The same keys for one piece after another: they are copied once.
        return [
            piece(rows, columns)
            for columns in _pieces(0, keys, size // max(min(height, queries), 1))
            for rows in _pieces(0, queries, height)
        ]

    numbers = piece_numbers(call)
    if queries * keys <= most(numbers):  # what is a single piece need not be cut out
        found = score(query, key, (pairs.query, pairs.key, pairs.features))
        return found.clone(memory_format=torch.contiguous_format)
    whole = widened(call.query.new_empty(0)).new_empty(batch, heads, queries, keys)
    work = Piecewise(score, query, key, cut(numbers), cut(numbers // GRADIENT_SHARE))
    return work.scores(whole, is_replayed=_is_replayed(call))


def _among(pairs: Pairs, rows: slice, columns: slice) -> Known:
    features = None if pairs.features is None else pairs.features[..., rows, columns, :]
    return pairs.query[..., rows, :, :], pairs.key[..., columns, :], features


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
