"""The nodes of heads: who they are, and which of them are special."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

TEXTS = 4
"""How many texts are cached: all heads of a trace have the same."""


class Nodes(NamedTuple):
    """Queries and keys, their tokens and positions: all that patterns depend on.

    Most heads of a trace have the same, so what follows from them is cached.
    """

    tokens: tuple[str, ...]
    words: tuple[int | None, ...]
    positions: tuple[int, ...] | None
    num_queries: int
    num_keys: int
    query_offset: int
    is_bipartite: bool

    @classmethod
    def of(cls, head: AttentionGraph) -> Nodes:
        """Take those of a head."""
        known = None if head.positions is None else tuple(head.positions.tolist())
        return cls.on(head.graph, tuple(head.tokens), tuple(head.words), known)

    @classmethod
    def on(
        cls,
        graph: TokenGraph,
        tokens: tuple[str, ...],
        words: tuple[int | None, ...],
        positions: tuple[int, ...] | None = None,
    ) -> Nodes:
        """Name those of a token graph."""
        sizes = graph.num_queries, graph.num_keys, graph.query_offset
        return cls(tokens, words, positions, *sizes, graph.is_bipartite)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The node of each query."""
        return np.arange(self.num_queries) + self.query_offset

    @property
    def place(self) -> NDArray[np.int64]:
        """The position of each node."""
        if self.positions is not None:
            return np.array(self.positions, dtype=np.int64)
        return np.arange(max(self.num_keys, self.query_offset + self.num_queries))


def marks(nodes: Nodes) -> dict[str, NDArray[np.bool_]]:
    """Mark the nodes that count as keys whatever the query, by score."""
    found = {}
    if nodes.tokens:
        found["punctuation"] = punctuation(nodes.tokens)
    if nodes.words:
        found["special_tokens"] = special_tokens(nodes.words)
    if not nodes.is_bipartite:
        found["first_token"] = nodes.place == 0
    return found


@lru_cache(1 << 14)
def is_punctuation(token: str) -> bool:
    """Return whether a token is nothing but punctuation and symbols."""
    letters = token.strip()
    return bool(letters) and all(unicodedata.category(letter)[0] in "PS" for letter in letters)


@lru_cache(TEXTS)
def punctuation(tokens: tuple[str, ...]) -> NDArray[np.bool_]:
    """Mark the tokens that are nothing but punctuation and symbols."""
    return np.array(list(map(is_punctuation, tokens)), dtype=bool)


def special_tokens(words: tuple[int | None, ...]) -> NDArray[np.bool_]:
    """Mark the nodes that are special tokens: those that are no part of a word."""
    return np.array([word is None for word in words], dtype=bool)


def texts(nodes: Nodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give each token the number of its text, and that of the token before it, or -1."""
    token, place = _numbered(nodes.tokens), nodes.place
    follows_on = np.diff(place, prepend=place[:1]) == 1
    return token, np.where(follows_on, np.roll(token, 1), -1)


@lru_cache(TEXTS)
def _numbered(tokens: tuple[str, ...]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in tokens], dtype=np.int64)


def first_places(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the first place of each number from 0; beyond the end if it has none."""
    found = np.full(len(numbers), len(numbers))
    places = np.flatnonzero(numbers >= 0)[::-1]
    found[numbers[places]] = places
    return found
