"""Pictures of attention graphs: the tokens as nodes, or as the rows and columns of a matrix."""

from gattn.drawing.canvas import layouts
from gattn.drawing.many_heads.compare import draw_compare
from gattn.drawing.many_heads.draw_heads import draw_heads
from gattn.drawing.many_heads.notebook import notebook_svg
from gattn.drawing.one_head.draw_head import draw_head
from gattn.drawing.one_head.passage import draw_text
from gattn.drawing.one_head.token_graphs import draw_token_graph

__all__ = [
    "draw_compare",
    "draw_head",
    "draw_heads",
    "draw_text",
    "draw_token_graph",
    "layouts",
    "notebook_svg",
]
