"""Pictures of attention, and of the results of analyses.

Everything that gattn returns draws itself: ``head.draw()``, ``trace.draw()``, ``table.draw()``.
These parameters mean the same in all pictures, and are explained here alone:

ax : Axes, optional
    Where to draw. By default a new pyplot figure with room for all names, yours to show and close.
cmap : str or Colormap, optional
    The colours; by default some that stand out from the style's background, in grey too.
labels : bool
    Whether to write the tokens.
legend : bool
    Whether to explain widths and colours.
**options
    Passed on to the method of matplotlib that draws: ``imshow`` for a heatmap, ``plot`` for lines,
    ``errorbar`` for intervals, ``barh`` for bars, ``scatter`` for points, ``hlines`` for barcodes.

Pictures return their Axes, those of many heads their Figure, which is never shown, saved or closed
here. The title stands above, the caption below: what the result was computed from, what the
picture leaves out, and what to mind. In all pictures attention has one scale, from 0 to 1.
"""

from gattn.drawing.canvas import layouts
from gattn.drawing.layers.why import draw_why
from gattn.drawing.located.circuit_graphs import draw_circuit_graph
from gattn.drawing.located.draw_graph import draw_graph
from gattn.drawing.located.draw_time import draw_time
from gattn.drawing.many_heads.compare import draw_compare
from gattn.drawing.many_heads.draw_heads import draw_heads
from gattn.drawing.many_heads.notebook import notebook_svg
from gattn.drawing.one_head.draw_head import draw_head
from gattn.drawing.one_head.passage import draw_text
from gattn.drawing.one_head.token_graphs import draw_token_graph
from gattn.drawing.over_image.draw_image import draw_image
from gattn.drawing.over_image.draw_images import draw_images
from gattn.drawing.page import page_bytes

__all__ = [
    "draw_circuit_graph",
    "draw_compare",
    "draw_graph",
    "draw_head",
    "draw_heads",
    "draw_image",
    "draw_images",
    "draw_text",
    "draw_time",
    "draw_token_graph",
    "draw_why",
    "layouts",
    "notebook_svg",
    "page_bytes",
]
