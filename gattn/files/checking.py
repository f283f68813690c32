"""Checks token graphs that were read from a file for everything that the engines rely on.

Rules built by gattn are correct by construction; those of a file are checked here, once, before
anything is computed with them.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import torch
from torch import Tensor

from gattn.errors import GraphError
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph

DEEPEST = 100
"""How deep rules may be nested."""
_LARGEST = 1 << 40
_ALWAYS_KEYS = 1 << 24
_KEYS_PER_BYTE = 64
_ALWAYS_PAIRS = 1 << 26
_PAIRS_PER_BYTE = 1 << 10
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_graph(graph: TokenGraph, size: int) -> None:
    """Check a token graph that was read from a file of `size` bytes.

    It may not be far too large for that size, its edges must be in order and in range, and the
    fields of its rules must have the right types.
    """
    if not isinstance(graph, TokenGraph):
        raise GraphError(f"expected a TokenGraph, not a {type(graph).__name__}.")
    most = max(_ALWAYS_KEYS, _KEYS_PER_BYTE * size)
    if max(graph.num_queries + graph.query_offset, graph.num_keys) > most:
        raise GraphError(f"{graph.num_queries} x {graph.num_keys} tokens in {size} bytes.")
    positions = range(graph.query_offset, graph.query_offset + graph.num_queries)
    pairs = _check(graph.rule, positions, graph.num_keys, DEEPEST)
    if pairs > max(_ALWAYS_PAIRS, _PAIRS_PER_BYTE * size) and _is_walked(graph):
        raise GraphError(f"a rule of {pairs} steps in {size} bytes.")


def _is_walked(graph: TokenGraph) -> bool:
    """Return whether counting the edges of a graph needs a loop over all pairs."""
    some = torch.tensor([graph.query_offset][: graph.num_queries], device="cpu")
    return graph.rule.listed() is None and graph.rule.degrees(some, graph.num_keys) is None


def _check(rule: object, queries: range, num_keys: int, depth: int) -> int:
    """Check a rule, and return how many pairs a loop over all of them visits."""
    if not isinstance(rule, rules.Rule):
        raise GraphError(f"expected a rule, not a {type(rule).__name__}.")
    if not depth:
        raise GraphError(f"rules are nested more than {DEEPEST} deep.")
    _check_fields(rule)
    if isinstance(rule, rules.Combined):
        if rule.operation not in ("&", "|", "-"):
            raise GraphError(f"{rule.operation!r} joins no rules.")
        sides = (rule.left, rule.right)
        return sum(_check(side, queries, num_keys, depth - 1) for side in sides)
    if isinstance(rule, rules.Disjoint):
        return _check_disjoint(rule, queries, num_keys, depth)
    if isinstance(rule, rules.Blocks):
        blocks = range(queries.start // rule.size, -(-queries.stop // rule.size))
        _check(rule.rule, blocks, -(-num_keys // rule.size), depth - 1)
    if isinstance(rule, rules.Edges):
        _check_edges(rule, queries, num_keys)
    if isinstance(rule, rules.Documents) and len(rule.ids) < max(queries.stop, num_keys):
        raise GraphError(f"{len(rule.ids)} document ids for {max(queries.stop, num_keys)} tokens.")
    return len(queries) * num_keys


_LEAST = {"dilation": 1, "stride": 1, "size": 1, "first_query": 0}


def _check_fields(rule: rules.Rule) -> None:
    """Check the numbers and tensors of a rule."""
    for field in fields(rule):  # type: ignore[arg-type]
        value = getattr(rule, field.name)
        if field.type == "int":
            least = _LEAST.get(field.name, -_LARGEST)
            if type(value) is not int or not least <= value <= _LARGEST:
                raise GraphError(f"{field.name} of a rule is {value!r:.80}.")
        elif field.type in ("Tensor", "Tensor | None"):
            is_list = isinstance(value, Tensor) and value.dim() == 1 and value.dtype in _WHOLE
            if not is_list and not (value is None and field.type != "Tensor"):
                raise GraphError(f"{field.name} of a rule is not a list of whole numbers.")


def _check_disjoint(rule: rules.Disjoint, queries: range, num_keys: int, depth: int) -> int:
    starts = (rule.query_starts, rule.key_starts)
    if not all(isinstance(part, tuple) and len(part) == len(rule.rules) for part in starts):
        raise GraphError("a disjoint union needs a first query and a first key for each graph.")
    pairs = 0
    ends = [(*rule.query_starts, queries.stop), (*rule.key_starts, num_keys)]
    for numbers in ends:
        if any(type(number) is not int for number in numbers) or numbers[0] != 0:
            raise GraphError("a disjoint union's graphs must start at whole numbers, from 0.")
        if any(after < before for before, after in pairwise(numbers)):
            raise GraphError("the graphs of a disjoint union must not overlap.")
    sizes = zip(*(pairwise(numbers) for numbers in ends), strict=True)
    for own, ((first, stop), (first_key, stop_key)) in zip(rule.rules, sizes, strict=True):
        pairs += _check(own, range(stop - first), stop_key - first_key, depth - 1)
    return pairs


def _check_edges(rule: rules.Edges, queries: range, num_keys: int) -> None:
    pointer, key = rule.pointer, rule.key
    if pointer.dtype != torch.int64 or key.dtype not in (torch.int32, torch.int64):
        raise GraphError(f"edges must be of int64, not {pointer.dtype} and {key.dtype}.")
    if rule.num_rows != len(queries) or rule.first_query != queries.start:
        raise GraphError(f"edges of {rule.num_rows} queries, but there are {len(queries)}.")
    degree = pointer.diff()
    if pointer[0] != 0 or pointer[-1] != len(key) or bool((degree < 0).any()):
        raise GraphError(f"the pointer must rise from 0 to the {len(key)} edges.")
    if not len(key):
        return
    if int(key.min()) < 0 or int(key.max()) >= num_keys:
        raise GraphError(f"the keys of edges must lie in 0 .. {num_keys - 1}.")
    rises = key.diff() > 0
    rises[pointer[(pointer > 0) & (pointer < len(key))] - 1] = True
    if not bool(rises.all()):
        raise GraphError("edges must be sorted by query, then key, each there once.")
