"""Several heads in one view, a colour each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from gattn.drawing.canvas.colours import KINDS, KINDS_ON_DARK, Scale, is_dark
from gattn.drawing.canvas.frame import edits_said, marked_edited
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.hidden import hidden_said, without_hidden
from gattn.drawing.chosen.mean import mean_of
from gattn.drawing.chosen.queries import check_same_tokens, names_said
from gattn.drawing.chosen.shown import Shown, check_reached, said_together
from gattn.drawing.one_head.draw_head import (
    Layout,
    axes_for,
    chosen_edges,
    drawing,
    where_queries_are,
    write_around,
)
from gattn.drawing.one_head.look import Look, Options
from gattn.drawing.one_head.marks import said as generated_said
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of
from gattn.names.shortening import short_names

_FEW = 4
"""How many heads a caption describes one by one."""
_STACK = 16.0
"""To how many font sizes the names of several stacks are shortened."""


@checks_given
def draw_overlay(
    heads: Iterable[AttentionGraph],
    layout: Layout = "arcs",
    *,
    query: Any = None,
    key: Any = None,
    hide: Any = None,
    self_loops: bool = True,
    threshold: float | None = None,
    vmax: float | None = None,
    linewidth: float | None = None,
    title: str | None = None,
    caption: str | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw several heads of one text in one view, a colour each.

    Width is attention, on one scale for all. Lines of several heads lie side by side, the thinner
    on the wider ones, so that an edge that they share shows all their colours. Lines whose colours
    are about the same grey have different dashes, unless attention has signs. The key names the
    heads, and the caption says of each which edges are shown; of more than four, how many in all.

    Parameters
    ----------
    heads : iterable of AttentionGraph
        Up to eight heads of the same tokens.
    layout : str, mapping or callable
        As in `AttentionGraph.draw`, but no matrix.
    query, key, hide, self_loops, threshold, vmax, linewidth
        As in `AttentionGraph.draw`.
    title, caption, figsize, ax, labels, legend
        As in `AttentionGraph.draw`.

    Raises
    ------
    SelectionError
        If there are no heads or too many, they are of several texts, or the layout is a matrix.
    """
    chosen = list(heads)
    _check(chosen, layout)
    check_reached(threshold, chosen)
    options = Options(
        query, key, hide, self_loops, threshold, vmax=vmax, linewidth=linewidth, title=title,
        caption=caption, figsize=figsize, ax=ax, labels=labels, legend=legend,
    )  # fmt: skip
    shown_heads = [without_hidden(one, hide, self_loops=self_loops) for one in chosen]
    together = mean_of(shown_heads)
    draw = drawing(together, layout)
    names = _names(chosen)
    called = [f"head {name}" if _is_number(name) else name for name in names]
    scale = Scale.of(*shown_heads, vmax=vmax, linewidth=linewidth)
    ink = ListedColormap([mpl.rcParams["text.color"]])
    pen = Pen(
        scale, ink, kinds=dict(zip(called, KINDS_ON_DARK if is_dark() else KINDS, strict=False))
    )
    parts = [
        chosen_edges(one, whole, options, is_matrix=False)
        for one, whole in zip(shown_heads, chosen, strict=True)
    ]
    shown = replace(parts[0], caption="", parts=tuple(zip(shown_heads, parts, strict=True)))
    ax = axes_for(together, layout, options)
    draw(ax, together, shown, Look(pen, labels, legend))
    edits = union(one.edits for one in chosen)
    said = [
        *_said_of_edges(called, shown_heads, parts, options),
        (where_queries_are(together, layout) + generated_said(together)).removeprefix("; "),
        names_said(together) if labels else "",
        hidden_said(hide, noun_of(chosen[0].geometry, chosen[0].stack)),
        scale.beyond(shown_heads),
        edits_said(edits),
    ]
    write_around(ax, marked_edited(_title(chosen, names), edits), said, layout, options)
    return ax


def _check(heads: Sequence[AttentionGraph], layout: Layout) -> None:
    if not heads or not all(isinstance(one, AttentionGraph) for one in heads):
        raise SelectionError(
            "Give several heads of one text, as in draw_overlay([trace[2, 0], trace[2, 1]])."
        )
    if len(heads) > len(KINDS):
        raise SelectionError(
            f"At most {len(KINDS)} heads have colours that can be told apart, not {len(heads)}: "
            "draw fewer, or all of them side by side with trace.draw(heads=...)."
        )
    if isinstance(layout, str) and layout == "matrix":
        raise SelectionError(
            "A matrix shows one head: trace.draw(heads=...) puts the matrices of several side by "
            "side."
        )
    check_same_tokens(heads)


def _names(heads: Sequence[AttentionGraph]) -> list[str]:
    """Name heads as in "1.3", or by what tells them apart where they come from no model."""
    names = [f"{one.layer}.{one.head}" for one in heads]
    if any(one.layer is None or one.head is None for one in heads):
        names = [" · ".join(one.place()) or one.weight_function for one in heads]
    stacks = list(dict.fromkeys(one.stack for one in heads))
    if len(stacks) > 1:
        short = dict(zip(stacks, short_names(stacks, _STACK), strict=True))
        names = [f"{short[one.stack]}:{name}" for one, name in zip(heads, names, strict=True)]
    if len(set(names)) < len(names) or not all(names):
        names = [f"{name} ({n})" if name else str(n) for n, name in enumerate(names)]
    return names


def _is_number(name: str) -> bool:
    """Whether a name would read as an amount of attention."""
    return name.partition(" ")[0].replace(".", "", 1).isdecimal()


def _said_of_edges(
    names: Sequence[str],
    heads: Sequence[AttentionGraph],
    parts: Sequence[Shown],
    options: Options,
) -> list[str]:
    """Say which edges each head shows, once where all show the same; of many, how many."""
    captions = [part.caption for part in parts]
    if len(names) > 1 and len(set(captions)) == 1:
        return [f"each head shows {captions[0]}"]
    is_whole = options.query is None and options.key is None
    if len(names) > _FEW and is_whole and all(one.sink is None for one in heads):
        return [_said_of_many(names, heads, parts)]
    return [f"{name} shows {said}" for name, said in zip(names, captions, strict=True)]


def _said_of_many(
    names: Sequence[str], heads: Sequence[AttentionGraph], parts: Sequence[Shown]
) -> str:
    """Say how many edges are shown of all heads together, and by which rule of which heads."""
    rules: dict[str, list[str]] = {}
    for name, part in zip(names, parts, strict=True):
        rules.setdefault(part.rule, []).append(name.removeprefix("head "))
    together = said_together(heads, parts)
    if len(rules) == 1:
        return f"the heads show {': '.join(filter(None, [*rules, together]))}"
    each = [f"{rule or 'all kept edges'} in {', '.join(of)}" for rule, of in rules.items()]
    return f"the heads show {together}: {'; '.join(each)}"


def _title(heads: Sequence[AttentionGraph], names: Sequence[str]) -> str:
    layers, stacks = ({getattr(one, name) for one in heads} for name in ("layer", "stack"))
    if (
        len(layers) == len(stacks) == 1
        and None not in layers
        and all(one.head is not None for one in heads)
    ):
        return f"layer {layers.pop()} · heads {', '.join(str(one.head) for one in heads)}"
    return f"heads {', '.join(names)}"
