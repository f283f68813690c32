"""The scores of one head as sums over pairs of parts, and what follows for its attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx
import torch
from torch import Tensor

from gattn.analysis.reading.results import Array, Table, array
from gattn.analysis.scores.asked import AskedScores
from gattn.analysis.scores.pairs import Pairs
from gattn.analysis.scores.removing import changes_without
from gattn.analysis.scores.summed import summed
from gattn.checks import whole
from gattn.door import Pictured, drawn_by
from gattn.errors import SelectionError
from gattn.models.stream.writers.parts import Writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

End = Literal["query", "key"]
_SHOWN = 10
_MOST, _MATRIX = 10_000, 1 << 24
"""How many pairs a table lists, and a matrix has."""
_NEAR_ZERO = 20
"""How often the sum of terms goes into that of their sizes, if it is near zero."""


@dataclass(frozen=True, eq=False)
class Why(Pictured, AskedScores):
    """The scores of one head, taken apart: see `gattn.why`.

    Its fields are those of `AskedScores` and `HeadScores`, and what was `measured`: changes of
    attention by the side that does not hear of a part, and the number of what wrote it.
    """

    measured: Mapping[tuple[str, int], float] = field(default_factory=dict)

    # Numbers

    def _pairs(self, contrast: int | str | None) -> Pairs:
        """Return the sums over edges of the products of parts."""
        return Pairs.of(self.queries, self.keys, self.counted(contrast))

    def _names(self, writers: Tensor) -> list[str]:
        return [str(self.writers[n]) for n in writers.tolist()]

    def matrix(self, contrast: int | str | None = None) -> Array:
        """Return the score as a sum over pairs: one row per part of queries, one column per key's.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            As in `table`.

        Raises
        ------
        SelectionError
            As in `table`, or if there are too many parts, as of features in a whole head.
        """
        pairs = self._pairs(contrast)
        if len(pairs) > _MATRIX:
            raise SelectionError(
                f"{len(pairs.queries.writers):,} × {len(pairs.keys.writers):,} pairs of parts are "
                "too many for a matrix: ask about fewer tokens, or see table()."
            )
        query, key = self._names(pairs.queries.writers), self._names(pairs.keys.writers)
        found = array(
            torch.cat([terms for _, terms in pairs.blocks()]).numpy(),
            {"query_part": query, "key_part": key},
            name="score",
            computed_from=self.asked(contrast),
            notes=self._notes(contrast),
        )
        return found.assign_coords(layer=self.layer, head=self.head)

    def table(self, contrast: int | str | None = None) -> Table:
        r"""List the pairs of parts that the score is a sum of, the largest first.

        Where several edges are asked about, scores are means over them.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            Take another key's score away, :math:`s_{ij} - s_{ik}`: a position or a text. "mean" is
            the mean over all keys, weighted by the attention: :math:`s_{ij} - \sum_k A_{ik}
            s_{ik}`, which is, to first order, how :math:`\log A_{ij}` depends on a part. Without
            keys, another key's score is taken from the mean.

        Returns
        -------
        Table
            Columns ``query_part``, ``key_part``, ``score``, and ``share``, that of the sum, which
            says little where the sum is near zero. What the model adds to scores is a row named
            "added", and what a cap takes off them "soft cap", so that the sum is the model's score.
            Of more than 10,000 pairs, the smaller are one row, "others". Without keys, `score` is
            how much higher the scores of the keys are that the queries attend to than those of all
            keys that they may attend to, a mean over queries: :math:`\sum_j A_{ij} s_{ij} -
            \frac{1}{|N(i)|} \sum_{j \in N(i)} s_{ij}`; or, with a contrast, than that key's.

        Raises
        ------
        SelectionError
            If there is no such key, or there are no edges to compare.
        """
        counted = self.counted(contrast)
        pairs = self._pairs(contrast)
        query, key, scores, total = pairs.largest(_MOST)
        values = scores.tolist()
        rows = list(zip(self._names(query), self._names(key), values, strict=True))
        if len(values) < len(pairs):
            rows.append(("others", "others", total - sum(values)))
        for name, terms in self._added().items():
            rows.append((name, name, float((terms * counted).masked_fill(counted == 0, 0.0).sum())))
        total = sum(row[2] for row in rows)
        rows.sort(key=lambda row: -abs(row[2]))
        names = ("query_part", "key_part", "score")
        some = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        some["share"] = [row[2] / total if total else math.nan for row in rows]
        return Table.of(
            some,
            name="score",
            computed_from=self.asked(contrast),
            notes=self._notes(contrast, sum(abs(row[2]) for row in rows), total),
            total=total,
        )

    def elements(self) -> Table:
        r"""List the products of elements of query and key that sum to the score, largest first.

        :math:`s_{ij} = \sum_d q_{id} k_{jd}`, with positions in both and the scale in the query;
        where several edges are asked about, scores are means over them, as in `table`.

        Returns
        -------
        Table
            Columns ``element``, the place in the vectors, and ``score``; of a single edge also
            ``query`` and ``key``, whose product it is. What the model adds to scores, and what a
            cap takes off them, are rows of their own, named so.
        """
        counted, (query, key) = self.counted(None), self.totals()
        terms = torch.einsum("ij,id,jd->d", counted.to(query.dtype), query, key)
        rows: list[dict[str, Any]] = [
            {"element": n, "score": term} for n, term in enumerate(terms.tolist())
        ]
        if int((counted != 0).sum()) == 1:
            i, j = (counted != 0).nonzero()[0].tolist()
            for row, *ends in zip(rows, query[i].tolist(), key[j].tolist(), strict=True):
                row |= dict(zip(("query", "key"), ends, strict=True))
        for name, added in self._added().items():
            total = float((added * counted).masked_fill(counted == 0, 0.0).sum())
            rows.append({"element": name, "score": total})
        rows.sort(key=lambda row: -abs(row["score"]))
        return Table.of(rows, name="score", computed_from=self.asked(), notes=self._notes(None))

    def _added(self) -> dict[str, Tensor]:
        """Return what scores are made of besides products, by name: (queries, keys)."""
        found = {} if self.bias is None else {"added": self.bias}
        if self.softcap is not None:
            query, key = self.totals()
            raw = query @ key.T
            found["soft cap"] = self.capped(raw) - raw
        return found

    def without(self, side: End = "key") -> Table:
        r"""Say what the attention would be if a part were gone from all queries, or from all keys.

        Norms stay as they are, which `gattn.Without` does not assume: ``measured`` says what it
        changes, if `gattn.why` was told to measure.

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
            :math:`\tfrac{1}{2} \sum_j |A'_{ij} - A_{ij}|`. ``measured`` is that of a run of the
            model in which the queries, or the keys, of this head do not hear of the part; NaN where
            it was not measured.

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
        edges = None if self.key is None else self.edges()[at]
        rows = [
            row | ({"measured": self.measured.get((side, n), math.nan)} if self.measured else {})
            for n, row in changes_without(self, side, at, edges)
        ]
        return Table.of(
            rows, name="without", computed_from=self.asked(), notes=self.notes, side=side
        )

    # Seeing it

    @property
    def notes(self) -> list[str]:
        """What to mind."""
        is_of_stream = Writer("bias") in self.writers
        found = ["norms are held as they are in this run"] * is_of_stream
        if self.sink is not None:
            found.append(f"a sink whose score is {self.sink:.3g} takes a part of the attention")
        return found

    def _notes(
        self, contrast: int | str | None, size: float = 0.0, total: float = 0.0
    ) -> list[str]:
        """Say what to mind of scores that sum to a total, and by their sizes to another."""
        found = self.notes
        if self.key is None:
            less = "the mean over all keys" if contrast is None else "the score of the other key"
            found.append(f"each score is a mean over keys weighted by their attention, less {less}")
        if size > _NEAR_ZERO * abs(total):
            found.append(
                f"terms of opposite sign cancel: they sum to {total:.2g}, their sizes to "
                f"{size:.2g}, so look at scores rather than at shares"
            )
        return found

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return a graph of parts: an edge from each part to the head, with its two sides.

        Edges have ``query`` and ``key``, the sums over all pairs in which the part is on that side,
        as in `table` without a contrast; nodes have ``kind``, ``layer`` and ``head``.
        """
        pairs = self._pairs(None)
        graph: nx.DiGraph[str] = nx.DiGraph(computed_from=self.asked())
        name = f"{self.layer}.{self.head}"
        graph.add_node(name, kind="head", layer=self.layer, head=self.head)
        found: dict[int, dict[str, float]] = {}
        sides = (pairs.queries.writers, pairs.keys.writers)
        for side, some, sums in zip(("query", "key"), sides, pairs.sums(), strict=True):
            for number, value in zip(some.tolist(), sums.tolist(), strict=True):
                found.setdefault(number, {"query": 0.0, "key": 0.0})[side] = value
        for number in sorted(found):
            writer = self.writers[number]
            facts: dict[str, Any] = {"kind": writer.kind}
            facts |= {n: x for n in ("layer", "head") if (x := getattr(writer, n)) is not None}
            graph.add_node(str(writer), **facts)
            graph.add_edge(str(writer), name, **found[number])
        return graph

    def draw(
        self,
        contrast: int | str | None = None,
        *,
        most: int = _SHOWN,
        title: str | None = None,
        pool: Literal["mean", "max"] = "mean",
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
    ) -> Axes:
        """Draw parts of queries against parts of keys: those with the largest numbers.

        Parameters
        ----------
        contrast : int, str or "mean", optional
            As in `table`.
        most : int
            How many parts each side shows; the others are summed up as one.
        title : str, optional
            A title of your own; there is no caption then.
        pool : {"mean", "max"}
            What a pixel shows that stands for several cells.
        figsize, ax, cmap
            See `gattn.drawing`.

        Raises
        ------
        SelectionError
            As in `table`, or if `most` is no number of parts.
        """
        most = whole("most", most, 1, SelectionError)
        terms = summed(summed(self.matrix(contrast), 0, most), 1, most)
        return terms.draw(title=title, pool=pool, figsize=figsize, ax=ax, cmap=cmap)

    @drawn_by("draw_why")
    def draw_paths(
        self,
        *,
        most: int = 4,
        edges: int = 3,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
    ) -> Axes:
        """Draw the largest pairs as paths in the text; see `gattn.drawing.draw_why`.

        There are as many as `most` per edge, of the `edges` with the most attention.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        asked = "all keys" if self.key is None else self.named(self.key)
        attend = "attends" if len(self.query) == 1 else "attend"
        head = f"{self.layer}.{self.head}"
        first = f"Why, in head {head}, {self.named(self.query)} {attend} to {asked}"
        return f"{first}\n{self.table().head(8).to_string(float_format='{:.2f}'.format)}"
