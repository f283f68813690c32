"""Which picture each kind of thing has.

Kinds are named, and a picture's module is loaded when it is first drawn, so that drawing one kind
loads no other. Subclasses have the picture of their base class, unless they have their own.

A picture is a function ``draw_NAME(shown, *, ax=None, **options)`` that draws on `ax`, or on axes
of its own from `gattn.drawing.canvas.frame.new_axes`, writes title and caption with `describe` from
the same file, and returns the axes. Only gattn's own types are looked up here: a subclass of
`Table` or `Array` elsewhere overrides `draw`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = {
    "AttentionGraph": "one_head.draw_head.draw_head",
    "TokenGraph": "one_head.token_graphs.draw_token_graph",
    "Effects": "results.effects.draw_effects.draw_effects",
    "Array": "results.arrays.draw_array",
    "Table": "results.tables.draw_table",
    "Agreement": "results.faithfulness.draw_agreement",
    "Alignment": "results.syntax.draw_alignment",
    "Barcode": "results.barcodes.draw_barcode",
    "BestEdges": "results.syntax.draw_best_edges",
    "Bottlenecks": "results.bottlenecks.draw_bottlenecks",
    "Circuit": "layers.circuits.draw_circuit",
    "Circuits": "results.circuits.draw_circuits",
    "Composition": "results.of_heads.tables.draw_composition",
    "Curves": "results.faithfulness.draw_curves",
    "HeadClusters": "results.of_heads.maps.draw_head_clusters",
    "HeadComparison": "results.intervals.draw_comparison",
    "HeadMap": "results.of_heads.maps.draw_head_map",
    "HeadStatistics": "results.intervals.draw_statistics",
    "HeadTable": "results.of_heads.tables.draw_head_table",
    "PathCircuit": "layers.path_circuits.draw_path_circuit",
    "Routes": "layers.routes.draw_routes",
    "SharedSubspace": "results.subspaces.draw_shared_subspace",
    "TopologyTable": "results.topology.draw_topology",
    "Tree": "results.syntax.draw_tree",
    "Unrolled": "layers.unrolled.draw_unrolled",
}


def draw(shown: object, *arguments: Any, **options: Any) -> Axes:
    """Draw anything that has one picture, by its kind.

    Raises
    ------
    TypeError
        If it has no picture.
    OptionError
        If the picture has no such option.
    """
    drawn = import_module("gattn.drawing.chosen.given").drawn
    axes: Axes = drawn(picture_of(type(shown)), shown, arguments, options)
    return axes


def picture_of(kind: type) -> Callable[..., Axes]:
    """Load the function that draws a kind of thing.

    Raises
    ------
    TypeError
        If it has no picture.
    """
    for one in kind.__mro__:
        if one.__module__.startswith("gattn.") and one.__name__ in PICTURES:
            module, _, name = PICTURES[one.__name__].rpartition(".")
            picture: Callable[..., Axes] = getattr(import_module(f"gattn.drawing.{module}"), name)
            return picture
    raise TypeError(f"{kind.__name__} has no picture.")
