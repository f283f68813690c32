"""Pictures of attention graphs: the tokens as nodes, or as the rows and columns of a matrix."""

from gattn.drawing import layouts
from gattn.drawing.heads import draw_heads
from gattn.drawing.notebook import notebook_svg
from gattn.drawing.one_head import draw_head
from gattn.drawing.passage import draw_text

__all__ = ["draw_head", "draw_heads", "draw_text", "layouts", "notebook_svg"]
