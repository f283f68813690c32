"""The scores of one head as sums over pairs of parts, and what follows for its attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx
import torch
from torch import Tensor

from gattn.analysis.reading.results import Array, Table, array
from gattn.analysis.scores.head_scores import HeadScores
from gattn.analysis.scores.summed import summed
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.stream.parts import Writer
from gattn.names.tokens import find_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

End = Literal["query", "key"]
_SHOWN = 10


@dataclass(frozen=True, eq=False)
class Why(HeadScores):
    r"""The scores of one head, taken apart: see `gattn.why`.

    Parameters
    ----------
    query, key : tuple of int
        The edges that are asked about; without keys all. The rest is as in `HeadScores`.
    """

    query: tuple[int, ...] = ()
    key: tuple[int, ...] | None = None

    # What is asked

    def among(self, queries: Sequence[int], keys: Sequence[int] | None) -> Why:
        """Ask about edges."""
        one = replace(self, query=tuple(queries), key=None if keys is None else tuple(keys))
        if keys is not None and not bool(one._edges().any()):
            raise SelectionError(
                f"Head {self.layer}.{self.head} has no edge from the key {_named(self, keys)} to "
                f"the query {_named(self, queries)}: expected keys that the queries may attend to."
            )
        return one

    def _edges(self) -> Tensor:
        """Return which edges are asked about, as booleans (queries, keys)."""
        chosen = torch.zeros_like(self.scores, dtype=torch.bool)
        keys = list(range(len(self.tokens)) if self.key is None else self.key)
        chosen[torch.tensor(self.query)[:, None], torch.tensor(keys)] = True
        return chosen & (self.scores > -torch.inf)

    def _counted(self, contrast: int | str | None) -> Tensor:
        """Return how much each edge counts: (queries, keys)."""
        allowed = (self.scores > -torch.inf).double()
        mean = self.attention / self.attention.sum(-1, keepdim=True).clamp_min(1e-300)
        if self.key is None:
            if contrast is not None:
                raise SelectionError(
                    "contrast= compares an edge with others, but no key= was asked about."
                )
            rows = torch.zeros_like(allowed)
            rows[list(self.query)] = 1 / len(self.query)
            return rows * (mean - allowed / allowed.sum(-1, keepdim=True).clamp_min(1))
        edges = self._edges().double()
        edges = edges / edges.sum()
        if contrast is None:
            return edges
        if contrast == "mean":
            return edges - edges.sum(-1, keepdim=True) * mean
        other = self._other(contrast)
        rows = edges.sum(-1)
        if bool((allowed[:, other] * rows < rows).any()):
            raise SelectionError(f"A query may not attend to the key {_named(self, [other])}.")
        edges = edges.clone()
        edges[:, other] -= rows
        return edges

    # Numbers

    def matrix(self, contrast: int | str | None = None) -> Array:
        """Return the score as a sum over pairs: one row per part of queries, one column per key's.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            As in `table`.

        Raises
        ------
        SelectionError
            As in `table`.
        """
        counted = self._counted(contrast)
        keys = torch.einsum("ij,bjd->bid", counted, self.keys)
        terms = torch.einsum("aid,bid->ab", self.queries, keys)
        names = [str(one) for one in self.writers]
        of_all = ["scores are those of keys by their attention, less the mean over all keys"]
        return array(
            terms.numpy(),
            {"query_part": names, "key_part": names},
            name=f"score of head {self.layer}.{self.head}",
            computed_from=self._asked(contrast),
            notes=self.notes if self.key is not None else [*self.notes, *of_all],
        )

    def table(self, contrast: int | str | None = None) -> Table:
        r"""List the pairs of parts that the score is a sum of, the largest first.

        Where several edges are asked about, scores are means over them.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            Take another key's score away, :math:`s_{ij} - s_{ik}`: a position or a text. "mean" is
            the mean over all keys, weighted by the attention: :math:`s_{ij} - \sum_k A_{ik}
            s_{ik}`, which is, to first order, how :math:`\log A_{ij}` depends on a part.

        Returns
        -------
        Table
            Columns ``query_part``, ``key_part``, ``score`` and ``share``, its share of the sum.
            What the model adds to scores is a row named "added". Without keys, `score` is how much
            higher the scores of the keys are that the queries attend to than those of all keys that
            they may attend to, a mean over queries: :math:`\sum_j A_{ij} s_{ij} - \frac{1}{|N(i)|}
            \sum_{j \in N(i)} s_{ij}`.

        Raises
        ------
        SelectionError
            If there is no such key, or there are no edges to compare.
        """
        matrix = self.matrix(contrast)
        names = [str(one) for one in self.writers]
        rows = [(one, other) for one in names for other in names]
        values = matrix.to_numpy().flatten().tolist()
        if self.bias is not None:
            rows.append(("added", "added"))
            counted = self._counted(contrast)
            values.append(float((self.bias * counted).masked_fill(counted == 0, 0.0).sum()))
        total = sum(values)
        order = sorted(range(len(rows)), key=lambda n: -abs(values[n]))
        some = {
            "query_part": [rows[n][0] for n in order],
            "key_part": [rows[n][1] for n in order],
            "score": [values[n] for n in order],
            "share": [values[n] / total if total else 0.0 for n in order],
        }
        return Table.of(
            some, name="score", computed_from=matrix.computed_from, notes=matrix.notes, total=total
        )

    def without(self, side: End = "key") -> Table:
        r"""Say what the attention would be if a part were gone from all queries, or from all keys.

        Norms stay as they are, which `gattn.Without` does not assume.

        Parameters
        ----------
        side : {"query", "key"}
            Whose part.

        Returns
        -------
        Table
            One row per part, the largest change first. Of edges that were asked about, the sum of
            their ``attention`` (a mean over queries), that ``without`` the part, exactly, and the
            ``change`` of it with its ``first_order``, :math:`-\sum_{ij} A_{ij} (\delta_{ij} -
            \sum_k A_{ik} \delta_{ik})` for the part :math:`\delta` of the scores. Without keys, the
            ``change`` is how much of a query's attention goes to other keys, a mean over queries:
            :math:`\tfrac{1}{2} \sum_j |A'_{ij} - A_{ij}|`.

        Raises
        ------
        SelectionError
            If `side` is neither.
        CaptureError
            If the attention is not the softmax of the scores, as under an edit that scales it.
        """
        if side not in ("query", "key"):
            raise SelectionError(f"side is 'query' or 'key', not {side!r:.40}.")
        at = list(self.query)
        self.check_softmax(at)
        query, key = self.queries.sum(0)[at], self.keys.sum(0)
        edges, before = self._edges()[at], self.attention[at]
        rows: list[dict[str, Any]] = []
        for writer, own_query, own_key in zip(self.writers, self.queries, self.keys, strict=True):
            part = own_query[at] @ key.T if side == "query" else query @ own_key.T
            after = self.attention_of(at, query @ key.T - part)
            if self.key is None:
                change = (after - before).abs().sum(-1).mean() / 2
                rows.append({"part": str(writer), "change": float(change)})
                continue
            first = before * self.slope(query @ key.T)
            first = first * part - before * (first * part).sum(-1, keepdim=True)
            kept = [float((x * edges).sum() / len(at)) for x in (before, after, -first)]
            rows.append(
                {
                    "part": str(writer),
                    "attention": kept[0],
                    "without": kept[1],
                    "change": kept[1] - kept[0],
                    "first_order": kept[2],
                }
            )
        rows.sort(key=lambda row: -abs(float(row["change"])))
        return Table.of(
            rows, name="without", computed_from=self._asked(), notes=self.notes, side=side
        )

    # Seeing it

    def _asked(self, contrast: int | str | None = None) -> str:
        """Say what it was computed from, which edges are asked about, and beside what."""
        key = "" if self.key is None else f" to {_named(self, self.key)}"
        beside = ""
        if contrast is not None:
            other = "the mean key" if contrast == "mean" else _named(self, [self._other(contrast)])
            beside = f", less that of {other}"
        return f"{self.computed_from}, from {_named(self, self.query)}{key}{beside}"

    def _other(self, contrast: int | str) -> int:
        return find_token(contrast, range(len(self.tokens)), self.tokens, "contrast")

    @property
    def notes(self) -> list[str]:
        """What to mind."""
        is_of_stream = Writer("bias") in self.writers
        found = ["norms are held as they are in this run"] * is_of_stream
        if self.softcap is not None:
            found.append(f"scores are those before the soft cap of {self.softcap:g}")
        return found

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return a graph of parts: an edge from each part to the head, with its two sides.

        Edges have ``query`` and ``key``, the sums over all pairs in which the part is on that side,
        as in `table` without a contrast; nodes have ``kind``, ``layer`` and ``head``.
        """
        terms = self.matrix()
        graph: nx.DiGraph[str] = nx.DiGraph(computed_from=self._asked())
        name = f"{self.layer}.{self.head}"
        graph.add_node(name, kind="head", layer=self.layer, head=self.head)
        query, key = terms.sum("key_part").to_numpy(), terms.sum("query_part").to_numpy()
        for writer, one, other in zip(self.writers, query, key, strict=True):
            facts: dict[str, Any] = {"kind": writer.kind}
            facts |= {n: x for n in ("layer", "head") if (x := getattr(writer, n)) is not None}
            graph.add_node(str(writer), **facts)
            graph.add_edge(str(writer), name, query=float(one), key=float(other))
        return graph

    def draw(
        self,
        contrast: int | str | None = None,
        *,
        most: int = _SHOWN,
        ax: Axes | None = None,
        **options: Any,
    ) -> Axes:
        """Draw parts of queries against parts of keys: those with the largest numbers.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            As in `table`.
        most : int
            How many parts each side shows; the others are summed up as one.
        ax, options
            As in `gattn.drawing.results.arrays_and_tables.draw_array`.

        Raises
        ------
        SelectionError
            As in `table`, or if `most` is no number of parts.
        """
        most = whole("most", most, 1, SelectionError)
        terms = summed(summed(self.matrix(contrast), 0, most), 1, most)
        return terms.draw(ax=ax, **options)

    def __repr__(self) -> str:
        asked = "all keys" if self.key is None else _named(self, self.key)
        first = (
            f"Why head {self.layer}.{self.head} attends from {_named(self, self.query)} to {asked}"
        )
        return f"{first}\n{self.table().head(8).to_string(float_format='{:.2f}'.format)}"


def _named(why: Why, places: Sequence[int]) -> str:
    if len(places) == len(why.tokens) > 3:
        return "all tokens"
    return ", ".join(f"{why.tokens[n]!r} ({n})" for n in places)
