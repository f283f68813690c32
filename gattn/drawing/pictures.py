"""Which picture each kind of thing has.

Kinds are named, and each picture's module is loaded when it is first drawn, so that drawing one
kind loads no other. Subclasses have the picture of their base, unless they have their own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = {
    "AttentionGraph": "one_head.draw_head",
    "TokenGraph": "token_graphs.draw_token_graph",
    "Effects": "effects.draw_effects",
    "Array": "results.draw_array",
    "Table": "results.draw_table",
    "Agreement": "faithful.draw_agreement",
    "Alignment": "syntax.draw_alignment",
    "Barcode": "barcodes.draw_barcode",
    "BestEdges": "syntax.draw_best_edges",
    "Bottlenecks": "bottlenecks.draw_bottlenecks",
    "Curves": "faithful.draw_curves",
    "HeadClusters": "head_maps.draw_head_clusters",
    "HeadComparison": "intervals.draw_comparison",
    "HeadMap": "head_maps.draw_head_map",
    "HeadStatistics": "intervals.draw_statistics",
    "HeadTable": "head_tables.draw_head_table",
    "Routes": "routes.draw_routes",
    "TopologyTable": "topology.draw_topology",
    "Tree": "syntax.draw_tree",
    "Unrolled": "unrolled.draw_unrolled",
}


def draw(shown: object, *arguments: Any, **options: Any) -> Axes:
    """Draw anything that has one picture, by its kind.

    Raises
    ------
    TypeError
        If nothing draws it.
    """
    for kind in type(shown).__mro__:
        if kind.__module__.startswith("gattn.") and kind.__name__ in PICTURES:
            module, _, name = PICTURES[kind.__name__].rpartition(".")
            picture = getattr(import_module(f"gattn.drawing.{module}"), name)
            axes: Axes = picture(shown, *arguments, **options)
            return axes
    raise TypeError(f"{type(shown).__name__} has no picture.")
