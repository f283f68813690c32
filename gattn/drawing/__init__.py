"""Pictures of attention, and of the results of analyses.

Everything that gattn returns draws itself: ``head.draw()``, ``trace.draw()``, ``table.draw()``.
These parameters mean the same in all pictures, and are explained here alone:

figsize : (float, float), optional
    The width and height in inches of the new figure.
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

import lazy_loader

from gattn.drawing.canvas import layouts  # noqa: F401 - a module, which stubs do not load

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
