"""Formulas as MathML, which browsers render without a script, a font or the network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def mathml(tex: str, *, as_block: bool) -> str:
    """Convert a formula; bars and tildes stand above letters, and their subscripts beside."""
    tex = re.sub(r"\\(bar|tilde|hat) ?(\w|\{\w\})", r"{\\\1{\2}{}}", tex)
    tex = re.sub(r"\\text\{[^}]*\}", lambda text: text[0].replace(r"\_", "_"), tex)
    # Without a font for formulas, browsers draw what is called an accent on the letter itself.
    return tex2mathml(tex, as_block=as_block).replace(' accent="true"', "")


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Add the renderer, `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
