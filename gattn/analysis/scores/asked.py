"""The scores of one head, and the edges of it that are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gattn.analysis.scores.head_scores import HeadScores
from gattn.errors import SelectionError
from gattn.names.text import placed
from gattn.names.tokens import find_token
from gattn.on_page import OnPage

_SEVERAL = {"query": "queries", "key": "keys"}


@dataclass(frozen=True, eq=False)
class AskedScores(OnPage, HeadScores):
    """The scores of one head, of which some edges are asked about.

    Parameters
    ----------
    query, key : tuple of int
        The queries, and the keys, each with an edge that is asked about; without keys all. The rest
        is as in `HeadScores`.
    """

    query: tuple[int, ...] = ()
    key: tuple[int, ...] | None = None

    def among(self, queries: Sequence[int], keys: Sequence[int] | None) -> Self:
        """Ask about edges, and so about the queries and keys that have one of them."""
        one = replace(self, query=tuple(queries), key=None if keys is None else tuple(keys))
        if keys is None:
            return one
        found = one.edges()
        if not bool(found.any()):
            raise SelectionError(
                f"Head {self.layer}.{self.head} has no edge from the key {self.named(keys)} to "
                f"the query {self.named(queries)}: expected keys that the queries may attend to."
            )
        return replace(
            one,
            query=tuple(n for n in queries if bool(found[n].any())),
            key=tuple(n for n in keys if bool(found[:, n].any())),
        )

    def _on_page(self) -> tuple[object, dict[str, Any]]:
        """Return its head, each edge of whose queries can be asked why."""
        return self.graph(), {"why": self.among(self.query, None)}

    def edges(self) -> Tensor:
        """Return which edges are asked about, as booleans (queries, keys)."""
        chosen = torch.zeros_like(self.scores, dtype=torch.bool)
        keys = list(range(len(self.tokens)) if self.key is None else self.key)
        chosen[
            torch.tensor(self.query, device="cpu")[:, None], torch.tensor(keys, device="cpu")
        ] = True
        return chosen & (self.scores > -torch.inf)

    def counted(self, contrast: int | str | None) -> Tensor:
        """Return how much each edge counts: (queries, keys)."""
        allowed = (self.scores > -torch.inf).double()
        mean = self.attention / self.attention.sum(-1, keepdim=True).clamp_min(1e-300)
        if self.key is None:
            edges = torch.zeros_like(allowed)
            edges[list(self.query)] = mean[list(self.query)] / len(self.query)
        else:
            edges = self.edges().double()
            edges /= edges.sum()
        rows = edges.sum(-1, keepdim=True)
        if contrast is None:
            even = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
            return edges if self.key is not None else edges - rows * even
        if contrast == "mean":
            if self.key is None:
                raise SelectionError(
                    "contrast='mean' is what is asked about where no key= is: name a key there, "
                    "or here."
                )
            return edges - rows * mean
        other = self._other(contrast)
        if bool((rows[:, 0] > allowed[:, other] * rows[:, 0]).any()):
            raise SelectionError(
                f"A query may not attend to the key {self.named([other])}: expected contrast= a "
                "key that all queries may attend to."
            )
        edges[:, other] -= rows[:, 0]
        return edges

    def asked(self, contrast: int | str | None = None) -> str:
        """Say what it was computed from, which edges are asked about, and beside what."""
        sides = {"query": self.query, "key": self.key}
        said = [
            f"{side if len(places) == 1 else _SEVERAL[side]} {self.named(places)}"
            for side, places in sides.items()
            if places is not None
        ]
        if contrast is not None:
            is_mean = contrast == "mean"
            other = "the mean key" if is_mean else f"key {self.named([self._other(contrast)])}"
            said.append(f"less that of {other}")
        return ", ".join([self.computed_from, *said])

    def _other(self, contrast: int | str) -> int:
        return find_token(contrast, range(len(self.tokens)), self.tokens, "contrast")

    def named(self, places: Sequence[int]) -> str:
        """Name tokens, by position and text."""
        if len(places) == len(self.tokens) > 3:
            return "all tokens"
        return ", ".join(placed(n, self.tokens, n) for n in places)
