"""What a picture of many heads shows: small matrices in rows and columns, with their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from gattn.drawing.canvas.labels import width_of
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.matrices.cells import Pool
from gattn.drawing.matrices.minus import first_marked
from gattn.heads.head import AttentionGraph


@dataclass(frozen=True)
class Panel:
    """One head as a small matrix.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    names : tuple of str
        What may stand above it, the longest first; a block takes the form that fits all its panels.
    bar : float, optional
        A share that a bar above the matrix shows.
    """

    head: AttentionGraph
    names: tuple[str, ...] = ("",)
    bar: float | None = None


@dataclass(frozen=True)
class Block:
    """Panels by (row, column), which share their colours.

    Parameters
    ----------
    panels : dict of (int, int) to Panel
        The panels.
    pen : Pen
        Their colours.
    name : str
        What stands above the block.
    columns : tuple of str
        The numbers of the heads, if each column is one.
    """

    panels: dict[tuple[int, int], Panel]
    pen: Pen
    name: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """What is drawn of one stack: blocks side by side, with a title and a caption.

    Parameters
    ----------
    title, caption : str
        What stands above, and below; the size of cells is added to the caption.
    unlabelled : str
        The caption where the labels of heads have no room.
    blocks : tuple of Block
        The blocks, with the same places of panels.
    rows : tuple of str
        The names of rows.
    firsts : tuple of str
        The names of the first head of each row, where others follow in order: they stand beside
        rows if there is no room above heads.
    groups : tuple of (int, int, int)
        The runs of columns that share a key-value head: its number, the first and last column.
    is_strip : bool
        Whether matrices are large, with their tokens where all have the same.
    pool : {"mean", "max"}
        What a pixel shows that holds several cells.
    has_places : bool
        Whether heads stand in no row of their layer: their names say which it is.
    said_by_user : bool
        Whether the caption is the user's, to which nothing is added.
    continues : bool
        Whether it continues the grid above, which has the labels that the caption tells of.
    """

    title: str
    caption: str
    unlabelled: str
    blocks: tuple[Block, ...]
    rows: tuple[str, ...] = ()
    groups: tuple[tuple[int, int, int], ...] = ()
    is_strip: bool = False
    pool: Pool = "mean"
    has_places: bool = False
    said_by_user: bool = False
    continues: bool = False
    firsts: tuple[str, ...] = ()

    @cached_property
    def size(self) -> tuple[int, int]:
        """Count the rows, and the columns of a block."""
        rows, columns = zip(*self.blocks[0].panels, strict=True)
        return 1 + max(rows), 1 + max(columns)

    @cached_property
    def _heads(self) -> list[AttentionGraph]:
        return [panel.head for block in self.blocks for panel in block.panels.values()]

    @cached_property
    def head(self) -> AttentionGraph:
        """The head with the most tokens and a sink, where heads differ in these."""
        return max(self._heads, key=lambda head: (head.graph.num_keys, head.sink is not None))

    @cached_property
    def is_labelled(self) -> bool:
        """Whether tokens are written: where matrices are large and have the same tokens."""
        if not self.is_strip:
            return False
        texts = {(*head.labels(), "", *head.query_labels()) for head in self._heads}
        return len(texts) == 1

    @cached_property
    def shape(self) -> tuple[float, float]:
        """The width and height of a matrix, the longer of them 1."""
        return shape_of(self.head)

    @cached_property
    def measure(self) -> Callable[[str], float]:
        """Measure texts in font sizes, each once while the grid is planned."""
        return cache(width_of)

    @cached_property
    def has_bars(self) -> bool:
        """Whether there are bars above matrices."""
        return any(panel.bar is not None for b in self.blocks for panel in b.panels.values())

    @cached_property
    def keys(self) -> list[Pen]:
        """The colours that are to be explained."""
        return list({id(block.pen): block.pen for block in self.blocks}.values())

    @cached_property
    def top_of_marked(self) -> float | None:
        """The end of the scale on which matrices have signs, if they are large enough."""
        for block in self.blocks:
            top = block.pen.scale.top
            if block.pen.scale.is_signed and any(
                bool((numbers < first_marked(top)).any())
                for panel in block.panels.values()
                for numbers in (panel.head.attention, panel.head.sink)
                if numbers is not None
            ):
                return top
        return None

    def stacked(self, *counts: int) -> list[Grid]:
        """Put blocks one below the other, so many beside each other, with one title and caption."""
        ends = list(accumulate(counts))
        return [
            replace(
                self,
                blocks=self.blocks[end - count : end],
                title="" if number else self.title,
                caption=self.caption if end == ends[-1] else "",
                unlabelled=self.unlabelled if end == ends[-1] else "",
                continues=number > 0,
            )
            for number, (count, end) in enumerate(zip(counts, ends, strict=True))
        ]


def shape_of(head: AttentionGraph) -> tuple[float, float]:
    """Return the width and height of a matrix, the longer of them 1, and none too narrow."""
    sides = head.graph.num_keys, head.graph.num_queries
    across, down = (max(side / max(*sides, 1), 1 / 3) for side in sides)
    return across, down
