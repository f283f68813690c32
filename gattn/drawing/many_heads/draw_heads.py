"""Pictures of all heads of a trace at a glance, and of chosen ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure

from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import Place, by_place
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import edits_said, shown_text
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.shown import all_of, kept_by, share_of
from gattn.drawing.many_heads.grid import Block, Grid, Panel
from gattn.drawing.many_heads.grid_drawing import draw_grids
from gattn.drawing.many_heads.order import Graphs, Order, strip_columns
from gattn.drawing.many_heads.scores import HeadScore
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.names.choices import HeadChoice, heads_among, stack_and_heads

Groups: TypeAlias = "tuple[tuple[int, int, int], ...]"


def draw_heads(
    attention: Heads,
    *,
    tokens: Sequence[str] = (),
    heads: HeadChoice = None,
    stack: str | None = None,
    sort: HeadScore | None = None,
    label: HeadScore | None = None,
    within_layers: bool = False,
    cmap: str | Colormap | None = None,
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw every head as a small heatmap: layers are rows, heads are columns.

    In each matrix rows are queries and columns keys, a sink on the right, and every kept edge is
    shown. All share one scale from 0 to 1 (further if attention exceeds 1, and from -1 if it is
    signed). A long text is shown in blocks, each by its largest attention; the caption says so.
    With grouped queries, a line above the heads that share a key-value head names it; lines
    beside the rows and above the columns mark generated tokens.

    Parameters
    ----------
    attention : Heads
        A trace, a stack, or anything else that holds attention, as in `gattn.analysis.head_table`.
    tokens : sequence of str
        The texts of an array's tokens, which traces know.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads: some of each layer, or single ones, also as text such as ``"1.1,2.0"``. They
        are drawn as a strip of larger matrices with their tokens.
    stack : str, optional
        The stack to draw; by default all of them, one below the other.
    sort : str, mapping or Series, optional
        A score to sort heads by, the largest first: the name of a column of
        `gattn.analysis.head_table`, or numbers by (layer, head).
    label : str, mapping or Series, optional
        A score to write above each head, such as ``"label"``, which says in words what it does; by
        default the score that sorts them.
    within_layers : bool
        Whether layers stay rows, and `sort` sorts the heads of each.
    cmap : str or Colormap, optional
        The colours.
    figure : Figure or SubFigure, optional
        Where to draw. By default a new figure that pyplot does not know: a notebook shows it as the
        last value of a cell, and it need not be closed. Give ``plt.figure()`` for a window with
        ``plt.show()``.

    Raises
    ------
    SelectionError
        If there is no such stack, head or score, or nothing to draw, or a trace is given tokens.
    ShapeError
        If the given figure is too small, or there is not one text per token.
    """
    chosen = Chosen.of(attention, by_place(named(attention, tokens)), heads, stack)
    order = Order.of(chosen.graphs, sort, label, within_layers=within_layers)
    scale = Scale.of(*chosen.graphs.values())
    pen = Pen(scale, colour_map(cmap, is_signed=scale.is_signed, is_area=True))
    grids = []
    for graphs in chosen.stacks():
        places = order.arrange(graphs, strip_columns(graphs) if chosen.is_strip else 0)
        panels = {
            spot: Panel(graphs[one], order.labelled(one, places.names[one]))
            for spot, one in places.spots.items()
        }
        block = Block(panels, pen, columns=places.columns)
        groups = key_value_groups(graphs) if places.columns else ()
        edits = union(head.edits for head in graphs.values())
        said = [edges_shown(graphs.values()), *what_is_shown(graphs), *order.said]
        title, caption = chosen.title(graphs), "; ".join(filter(None, [*said, edits_said(edits)]))
        grids.append(Grid(title, caption, (block,), places.rows, groups, chosen.is_strip))
    return draw_grids(grids, figure)


def edges_shown(heads: Iterable[AttentionGraph]) -> str:
    """Say how many edges are shown, and if not all, by which rule and how much of the attention."""
    heads = list(heads)
    kept = sum(head.graph.num_edges for head in heads)
    total = sum(int(head.total_edges.sum()) for head in heads)
    if kept == total:
        return all_of(total)
    mass = sum(float(head.kept_mass.sum()) for head in heads)
    whole = sum(float(head.total_mass.sum()) for head in heads)
    some = f"{kept:,} of {total:,} edges{share_of(mass, whole, what_of(heads))}"
    return ": ".join(filter(None, [kept_by(heads), some]))


def what_is_shown(*sides: Graphs) -> list[str]:
    """Return what rows, columns and marks of small matrices are."""
    heads = [head for side in sides for head in side.values()]
    said = ["rows are queries, columns keys"]
    if any(head.sink is not None for head in heads):
        said[0] += ", the last one the sink"
    if any(head.generated for head in heads):
        said.append("lines mark generated tokens")
    is_grouped = any(head.key_value_head is not None for head in heads)
    if is_grouped and not key_value_groups(sides[0]):
        said.append("key-value heads differ between layers")
    return said


@dataclass(frozen=True)
class Chosen:
    """The heads that are drawn.

    Parameters
    ----------
    graphs : mapping of (str, int, int) to AttentionGraph
        By stack, layer and head, in the order to draw them.
    model : str
        The model's name.
    names_stacks : bool
        Whether there are other stacks.
    is_strip : bool
        Whether they were chosen one by one.
    """

    graphs: Graphs
    model: str
    names_stacks: bool
    is_strip: bool

    @classmethod
    def of(
        cls,
        attention: Heads,
        graphs: Graphs,
        heads: HeadChoice,
        stack: str | None,
    ) -> Chosen:
        """Choose from all heads of some attention.

        Raises
        ------
        SelectionError
            If there is no such stack or head, or nothing to draw.
        """
        if not graphs:
            raise SelectionError("There is nothing to draw: this trace holds no heads.")
        names = {place[0] for place in graphs}
        if heads is not None:
            stack = _named_stack(heads, stack)
        if stack is not None and stack not in names:
            raise SelectionError(f"No stack {stack!r} with heads; there are {sorted(names)}.")
        graphs = {place: head for place, head in graphs.items() if stack in (None, place[0])}
        if heads is not None:
            graphs = _picked(graphs, heads)
        is_strip = heads is not None or isinstance(attention, AttentionGraph)
        name = attention.model if isinstance(attention, AttentionTrace) else ""
        name = name or next(iter(graphs.values())).model
        return cls(graphs, name, len(names) > 1, is_strip)

    def stacks(self) -> list[Graphs]:
        """Split the heads by stack."""
        listed = groupby(self.graphs.items(), lambda item: item[0][0])
        return [dict(items) for _, items in listed]

    def title(self, graphs: Graphs) -> str:
        """Name the model and, if there are several, the stack; count the tokens."""
        place, head = next(iter(graphs.items()))
        graph = head.graph
        counts = [(one.graph.num_tokens, one.graph.num_queries) for one in graphs.values()]
        keys, queries = zip(*counts, strict=True)
        tokens = _count(keys, "token", "tokens")
        if graph.is_bipartite or graph.num_queries != graph.num_keys:
            tokens = f"{_count(queries, 'query', 'queries')}, {_count(keys, 'key', 'keys')}"
        if head.generated:
            tokens += f", {head.generated} generated"
        stack = place[0] if self.names_stacks else ""
        edited = "edited" if any(one.edits for one in graphs.values()) else ""
        parts = [shown_text(self.model), shown_text(stack), tokens, edited]
        return " · ".join(filter(None, parts))


def _count(counts: Sequence[int], one: str, several: str) -> str:
    """Write "1 token", "5 tokens", "5 to 7 tokens"."""
    least, most = min(counts), max(counts)
    number = str(least) if least == most else f"{least} to {most}"
    return f"{number} {one if most == 1 else several}"


def _named_stack(heads: HeadChoice, stack: str | None) -> str | None:
    """Return the stack that heads name, or that was given."""
    named, _ = stack_and_heads(heads)
    if named is not None and stack not in (None, named):
        raise SelectionError(f"heads={heads!r:.80} names a stack, but stack={stack!r} is given.")
    return named or stack


def _picked(every: Graphs, heads: HeadChoice) -> Graphs:
    stacks = {place[0] for place in every}
    if len(stacks) > 1:
        raise SelectionError(f"heads= needs a single stack: pass stack=, one of {sorted(stacks)}.")
    name = stacks.pop()
    layers = sorted({layer for _, layer, _ in every})
    numbers = sorted({number for *_, number in every})
    found: dict[Place, AttentionGraph] = {}
    for place in heads_among(heads, layers)[1]:
        if (spot := (name, *place)) not in every:
            raise SelectionError(
                f"No head {place[0]}.{place[1]}; there are layers {layers} with heads {numbers}. "
                f"Name heads as in heads=[{numbers[0]}] or heads=[({layers[0]}, {numbers[0]})]."
            )
        found[spot] = every[spot]
    return found


def key_value_groups(graphs: Graphs) -> Groups:
    """Find the runs of columns that share a key-value head: the head, first and last column.

    There are none where queries are not grouped, or not alike in all layers.
    """
    read: dict[int, set[int | None]] = {}
    for (_, _, head), graph in graphs.items():
        read.setdefault(head, set()).add(graph.key_value_head)
    columns = [read[head] for head in sorted(read)]
    if any(len(found) > 1 for found in columns):
        return ()
    runs = groupby(range(len(columns)), lambda column: next(iter(columns[column])))
    listed = [(number, list(run)) for number, run in runs]
    return tuple((number, run[0], run[-1]) for number, run in listed if number is not None)
