"""Attention by dense algebra over all pairs: the one answer that every engine is held to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.weights.base import as_weight_function, map_tree
from gattn.weights.pairs import Pairs, Positions


@dataclass
class Expected:
    output: Tensor
    attention: Tensor
    scores: Tensor


def expected(query, key, value, graph, weight, normalizer, features=None):
    """Attend from (B, H, Q, D) over (B, H, K, D) and (B, H, K, V); -inf where no edge is."""
    query_places = torch.arange(graph.num_queries) + graph.query_offset
    mask, key_places = graph.mask(), torch.arange(graph.num_keys)
    places = query_places, key_places
    return _expected(query, key, value, mask, places, weight, normalizer, features)


def expected_of_list(query, key, value, edge_index, weight, normalizer, features=None):
    """Attend over listed edges, doubled ones counted: each edge has a key of its own."""
    keys, queries = edge_index
    places = torch.arange(query.shape[2])
    mask = queries == places[:, None]
    key, value = key[:, :, keys], value[:, :, keys]
    if features is not None:
        features = features[:, keys] if features.dim() == 3 else features.expand(len(mask), -1, -1)
    return _expected(query, key, value, mask, (places, keys), weight, normalizer, features)


def _expected(query, key, value, mask, places, weight, normalizer, features):
    heads = query.shape[1]
    key, value = _for_each_head(key, heads), _for_each_head(value, heads)
    if features is not None and features.dim() == 2:
        features = _on_pairs(features, mask)
    scores = _scores(query, key, places, weight, features)
    scores = scores.masked_fill(~mask, -torch.inf)
    attention = normalizer(scores)
    return Expected(attention @ value, attention, scores)


def _for_each_head(tokens, heads):
    return tokens.repeat_interleave(heads // tokens.shape[1], dim=1)


def _on_pairs(features, mask):
    """Lay the features of the edges, sorted by query and key, out on all pairs."""
    dense = features.new_zeros(*mask.shape, features.shape[-1])
    return dense.index_put(mask.nonzero(as_tuple=True), features)


def _scores(query, key, places, weight, features):
    """Score every pair by the weight function's formula for one pair: (B, H, Q, K)."""
    weight = as_weight_function(weight)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    rows = torch.arange(queries).repeat_interleave(keys)
    columns = torch.arange(keys).repeat(queries)
    sides = weight.prepare(query, key, Positions(*places))
    left = map_tree(lambda x: x.transpose(1, 2)[:, rows], sides[0])
    right = map_tree(lambda x: x.transpose(1, 2)[:, columns], sides[1])
    on_pairs = None if features is None else features[rows, columns]
    pairs = Pairs(places[0][rows, None], places[1][columns, None], on_pairs)
    scores = weight(left, right, pairs)
    return scores.expand(batch, queries * keys, heads).mT.reshape(batch, heads, queries, keys)
