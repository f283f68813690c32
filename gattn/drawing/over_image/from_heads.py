"""Numbers of patches, from what heads' queries read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.frame import edits_said, heads_title, marked_edited
from gattn.drawing.canvas.labels import in_percent
from gattn.drawing.chosen.queries import Tokens, check_same_tokens, rows_of, sides
from gattn.drawing.chosen.shown import kept_by
from gattn.drawing.one_head.look import check_values
from gattn.drawing.over_image.patches import Patches, grid_of
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.geometry import Grid
from gattn.heads.head import AttentionGraph
from gattn.names.text import quoted, worded

ON_IMAGE = "on the image"


def of_heads(
    heads: Sequence[AttentionGraph], query: Any, key: Any, grid: Any, values: str
) -> Patches:
    """Read the mean of heads; see `gattn.drawing.draw_image`."""
    check_same_tokens(heads)
    for head in heads:
        check_values(head, values)
    queries, keys = sides(heads[0])
    asked, shaded = (queries, keys) if key is None else (keys, queries)
    found = grid_of(shaded.geometry, grid, len(shaded.positions), *_who(shaded, asked))
    if not isinstance(asked.geometry, Grid) and not heads[0].graph.is_bipartite:
        asked = Tokens(asked.positions, asked.labels, found, asked.name)
    wanted = query if key is None else key
    chosen = asked.usual() if wanted is None else asked.find(wanted)
    if not chosen:
        raise SelectionError(f"There is nothing to draw: there are no {asked.plural}.")
    parts = [rows_of(head, chosen, values, by_key=key is not None) for head in heads]
    amounts = np.stack([amount for amount, _ in parts]).mean(0)
    has_edge = np.any([has for _, has in parts], axis=0)
    called, mean = asked.called(chosen), ", on average" * (len(chosen) > 1)
    reads = "reads" if len(chosen) == 1 else "read"
    said = [f"what {called} {reads}{mean}" if key is None else f"who reads {called}{mean}"]
    shares = _shares(heads, chosen, amounts, found) if values == "attention" and key is None else {}
    if shares:
        listed = (f"{in_percent(share)} {where}" for where, share in shares.items())
        said[0] += f": {', '.join(listed)}"
    dropped = any(head.graph.num_edges < int(head.total_edges.sum()) for head in heads)
    said += [kept_by(heads)] * dropped
    edits = union(head.edits for head in heads)
    is_same_side = not heads[0].graph.is_bipartite
    outlined = [
        divmod(int(found.cells[token]), found.columns)
        for token in chosen
        if is_same_side and token < len(found.cells) and found.cells[token] >= 0
    ]
    return Patches(
        found.spread(np.where(has_edge, amounts, np.nan)),
        found,
        worded(values),
        marked_edited(heads_title(heads), edits),
        tuple(filter(None, [*said, edits_said(edits)])),
        tuple(outlined) if len(outlined) < len(found.cells[found.cells >= 0]) else (),
        shares.get(ON_IMAGE),
    )


def _shares(
    heads: Sequence[AttentionGraph],
    chosen: Sequence[int],
    amounts: NDArray[np.float64],
    grid: Grid,
) -> dict[str, float]:
    """Return which share of the attention lies on the picture, and which elsewhere."""
    rows = sorted(set(chosen))
    sinks = [0.0 if head.sink is None else float(np.abs(head.sink[rows]).mean()) for head in heads]
    sink = float(np.mean(sinks))
    whole = float(np.mean([head.total_mass[rows].mean() for head in heads])) + sink
    if not whole:
        return {}
    is_patch = grid.cells >= 0
    parts = {ON_IMAGE: float(np.abs(amounts[is_patch]).sum())}
    if others := int((~is_patch).sum()):
        name = quoted(heads[0].labels()[int(np.argmin(is_patch))], has_glyph=fonts.has_glyph)
        where = f"on {name}" if others == 1 else f"on {others} special tokens"
        parts[where] = float(np.abs(amounts[~is_patch]).sum())
    if sink:
        parts["on the sink"] = sink
    missing = whole - sum(parts.values())
    if missing > 1e-3 * whole:
        parts["on edges not kept"] = missing
    return {where: part / whole for where, part in parts.items()}


def _who(shaded: Tokens, asked: Tokens) -> tuple[str, str]:
    """Say why it is not known where tokens lie, and what else can be done."""
    if isinstance(asked.geometry, Grid) and not isinstance(shaded.geometry, Grid):
        other = f"draw_image(image, {asked.name}=...)" if shaded.name == "query" else ""
        other = other or "draw_image(image, key=...)"
        return f"{shaded.plural} are not patches here, but {asked.plural} are", f"{other}, or "
    return (
        f"it is not known which patches the {shaded.plural} are",
        "say so, as in head.on_grid(14, 14, prefix=1), or ",
    )
