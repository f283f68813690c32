"""Pictures of attention graphs: the tokens as nodes, or as the rows and columns of a matrix."""

from gattn.drawing import layouts
from gattn.drawing.heads import draw_heads
from gattn.drawing.notebook import notebook_svg
from gattn.drawing.one_head import draw_head

__all__ = ["draw_head", "draw_heads", "layouts", "notebook_svg"]
