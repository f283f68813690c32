"""Writes the page: one HTML file with its style, its script and its data, and leave for no more."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path

from gattn.drawing.many_heads.notebook import notebook_svg
from gattn.drawing.page.payload import Payload, estimated_bytes, payload
from gattn.errors import SelectionError
from gattn.files.paths import whole_file
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep

_LARGEST_FRAME = 4_000_000
"""The characters up to which a notebook holds a page."""

_TOO_LARGE = (
    "The page of all its numbers is too large for a notebook: "
    "<code>.to_html(&quot;attention.html&quot;)</code> writes it to a file."
)


def to_html(
    graphs: AttentionTrace | AttentionGraph,
    path: str | PathLike[str] | None = None,
    *,
    other: AttentionTrace | AttentionGraph | None = None,
    edits: str = "",
    keep: Keep | None = None,
) -> str | None:
    """Write a trace or a head as a page to look at: one HTML file that needs nothing but a browser.

    Parameters
    ----------
    graphs : AttentionTrace or AttentionGraph
        What to look at.
    path : path, optional
        The file to write. The file appears whole or not at all.
    other : AttentionTrace or AttentionGraph, optional
        A second run on the same tokens to compare with: what came after the first.
    edits : str
        What was edited between the two, in your words; by default the page names the edits that
        the runs know of.
    keep : Keep, optional
        Which edges the page keeps, of those that the graphs have; by default all.

    Returns
    -------
    str or None
        The page's text, where no path is given.

    Raises
    ------
    SelectionError
        Where there is no head, or the graphs of a stack, or of both runs, differ in their tokens;
        where there are edits, and no second run.
    FileError
        Where no browser would open the page, or the file cannot be written.
    """
    if edits and other is None:
        raise SelectionError(
            f"edits says what was changed between two runs, but here is one: {edits!r}. Pass the "
            "second run as other=."
        )
    runs = [_as_trace(one) for one in (graphs, other) if one is not None]
    if keep is not None:
        runs = [_kept(one, keep) for one in runs]
    text = page(payload(runs, edits))
    if path is None:
        return text
    with whole_file(Path(path)) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return None


def page(made: Payload) -> str:
    """Put the parts of a page together.

    The policy allows this one script and this one style, by their hashes, no request at all, and no
    text that becomes markup.
    """
    style, script, skeleton = _asset("viewer.css"), viewer_script(), _asset("skeleton.html")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    blocks = "\n".join(
        f'<script type="text/plain" id="gattn-block-{number}">{text}</script>'
        for number, text in enumerate(made.blocks)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="gattn {made.header["version"]}">
<title>{_plain(made.title)}</title>
<style>{style}</style>
</head>
<body>
{skeleton}
<script type="application/json" id="gattn-header">{made.header_text()}</script>
{blocks}
<script type="module">{script}</script>
</body>
</html>
"""


MODULES = (
    "heads/texts.js",
    "heads/state.js",
    "heads/decoding.js",
    "heads/regrouping.js",
    "heads/readings.js",
    "heads/edges.js",
    "heads/layers.js",
    "heads/search.js",
    "scenes/colours.js",
    "scenes/marks.js",
    "scenes/lines.js",
    "scenes/arcs.js",
    "scenes/columns.js",
    "scenes/matrix.js",
    "scenes/passage.js",
    "scenes/layered.js",
    "scenes/grid.js",
    "scenes/frames.js",
    "scenes/drawing.js",
    "page/elements.js",
    "page/page.js",
    "page/describing.js",
    "page/finding.js",
    "page/numbers.js",
    "page/view.js",
    "page/thumbnails.js",
    "page/controls.js",
    "page/rendering.js",
    "page/saving.js",
    "page/keyboard.js",
    "page/pointer.js",
    "page/start.js",
)
"""The modules of the page's script, each after those that it imports.

Heads and scenes run without a document: a scene is a picture as data, {width, height, marks, hit},
which is drawn on a canvas or written as SVG.
"""

_IMPORTS = re.compile(r"(?:^import \{[^}]*\} from \"[./a-z]+\";\n)+\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) )", re.MULTILINE)


@cache
def viewer_script() -> str:
    """Join the modules to one script, without their imports and exports: they share one scope."""
    modules = (_EXPORT.sub("", _IMPORTS.sub("", _asset(f"viewer/{name}"))) for name in MODULES)
    return "\n".join(modules)


def notebook_html(graphs: AttentionTrace | AttentionGraph) -> str | None:
    """Give what a notebook shows: the page in a frame that reaches nothing outside of it.

    Behind the frame lies a picture, for places that drop frames, such as GitHub. Of what is too
    large for a notebook, and of heads with other tokens, which no page shows together, the picture
    alone is shown, and why. None where there is nothing to look at.
    """
    heads = list(_as_trace(graphs).heads())
    if not heads:
        return None
    picture = b64encode(notebook_svg(graphs).encode()).decode("ascii")
    name = _plain(repr(graphs))
    style = "max-width: 100%; max-height: 100%"
    image = f'<img alt="{name}" style="{style}" src="data:image/svg+xml;base64,{picture}">'
    text, reason = None, _TOO_LARGE
    if estimated_bytes(heads) * 4 / 3 <= _LARGEST_FRAME:
        try:
            text = to_html(graphs)
        except SelectionError as error:
            reason = _plain(str(error))
    if text is None or len(text) > _LARGEST_FRAME:
        return f"{image}<p>{reason}</p>"
    return f"""<div style="position: relative; height: 680px; overflow: hidden; resize: vertical">
{image}
<iframe title="{name}" sandbox="allow-scripts allow-downloads" srcdoc="{escape(text)}"
style="position: absolute; inset: 0; width: 100%; height: 100%; border: 0; background: Canvas">
</iframe></div>"""


def _asset(name: str) -> str:
    return files("gattn.drawing.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def _plain(text: str) -> str:
    """Write text that can be encoded and holds no NUL."""
    text = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return escape(text)


def _as_trace(graphs: AttentionTrace | AttentionGraph) -> AttentionTrace:
    if isinstance(graphs, AttentionTrace):
        return graphs
    if not isinstance(graphs, AttentionGraph):
        raise SelectionError(
            f"A page shows a trace or a head, not {type(graphs).__name__}: pass one that "
            "gattn.capture or gattn.attention_graphs gave."
        )
    place = graphs.layer or 0, graphs.head or 0
    name = "cross" if graphs.graph.is_bipartite else "heads"
    return AttentionTrace({name: Stack(name, {place: graphs})}, graphs.model, graphs.generated)


def _kept(trace: AttentionTrace, keep: Keep) -> AttentionTrace:
    stacks = {
        name: Stack(name, {place: head.keep(keep) for place, head in stack.items()})
        for name, stack in trace.stacks.items()
    }
    return replace(trace, stacks=stacks)
