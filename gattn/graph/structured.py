"""Token graphs that a few numbers describe: constructors of `TokenGraph`.

Each stays a rule, so it costs no memory until its edges are asked for. To add one here, name it
in `TokenGraph`, too. For one of your own, write a rule: see `gattn/graph/rules/base.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gattn.checks import whole
from gattn.errors import GraphError
from gattn.graph.arrays import check_inside, whole_numbers
from gattn.graph.rules.base import Rule
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.simple import Causal, Complete, Documents, Globals, Prefix, Strided, Window

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


def complete(cls: type[TokenGraph], num_tokens: int) -> TokenGraph:
    """Every token attends to every token, itself included."""
    return cls(Complete(), num_tokens, num_tokens)


def causal(
    cls: type[TokenGraph], num_queries: int, *, num_keys: int | None = None, query_offset: int = 0
) -> TokenGraph:
    """No query sees the future: k <= q.

    Parameters
    ----------
    num_queries : int
        The number of queries.
    num_keys : int, optional
        The number of keys; by default as many as the last query reaches.
    query_offset : int
        The position of the first query, such as the length of a cache.
    """
    num_queries = whole("num_queries", num_queries, 0, GraphError)
    query_offset = whole("query_offset", query_offset, 0, GraphError)
    keys = num_queries + query_offset if num_keys is None else num_keys
    return cls(Causal(), num_queries, keys, query_offset)


def window(cls: type[TokenGraph], num_tokens: int, size: int, *, causal: bool = True) -> TokenGraph:
    """Allow the last `size` keys, `q - size < k <= q`; `|q - k| <= size` where not causal."""
    size = positive("size", size)
    rule = Window(size - 1, 0) if causal else Window(size, size)
    return cls(rule, num_tokens, num_tokens)


def dilated(cls: type[TokenGraph], num_tokens: int, size: int, dilation: int) -> TokenGraph:
    """`|q - k| <= size` and `(q - k) mod dilation = 0`."""
    size, dilation = positive("size", size), positive("dilation", dilation)
    return cls(Window(size, size, dilation), num_tokens, num_tokens)


def strided(cls: type[TokenGraph], num_tokens: int, stride: int) -> TokenGraph:
    """Causal and `(q - k) mod stride = 0` (Child et al. 2019)."""
    rule = Combined("&", Causal(), Strided(positive("stride", stride)))
    return cls(rule, num_tokens, num_tokens)


def prefix(cls: type[TokenGraph], num_tokens: int, length: int) -> TokenGraph:
    """Causal, and every token reads the first `length` tokens."""
    rule = Combined("|", Causal(), Prefix(positive("length", length)))
    return cls(rule, num_tokens, num_tokens)


def documents(
    cls: type[TokenGraph], ids: Sequence[int] | Tensor, *, causal: bool = False
) -> TokenGraph:
    """Tokens attend within their own document; `ids` gives the document of each token."""
    found = whole_numbers(ids, "ids")
    if found.dim() != 1:
        raise GraphError(f"ids must be one id per token, not {tuple(found.shape)}.")
    rule: Rule = Documents(found.cpu().clone())
    if causal:
        rule = Combined("&", rule, Causal())
    return cls(rule, len(found), len(found))


def longformer(
    cls: type[TokenGraph], num_tokens: int, size: int, global_positions: Sequence[int] = ()
) -> TokenGraph:
    """`|q - k| <= size`, plus full rows and columns at `global_positions` (Beltagy et al. 2020)."""
    size = positive("size", size)
    positions = whole_numbers(global_positions, "global_positions").unique().cpu()
    check_inside(positions, num_tokens, "global_positions")
    rule = Combined("|", Window(size, size), Globals(positions))
    return cls(rule, num_tokens, num_tokens)


def self_loops(cls: type[TokenGraph], num_tokens: int) -> TokenGraph:
    """Every token attends to itself alone."""
    return cls(Window(0, 0), num_tokens, num_tokens)


def bipartite(cls: type[TokenGraph], num_queries: int, num_keys: int) -> TokenGraph:
    """Cross-attention: every query attends to every key, and they are different tokens."""
    return cls(Complete(), num_queries, num_keys, is_bipartite=True)


def positive(name: str, size: int) -> int:
    """Take a whole number of at least 1."""
    return whole(name, size, 1, GraphError)
