"""Writes the page: one HTML file with its style, its script and its data, closed to the network."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from gattn.analysis.circuits.found import Circuit
from gattn.analysis.scores.taken_apart import Why
from gattn.drawing.many_heads.notebook import notebook_svg
from gattn.drawing.over_image.images import Fit
from gattn.drawing.page.payload import Payload, estimated_bytes, payload
from gattn.errors import SelectionError
from gattn.files.whole_files import whole_file
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep

_LARGEST_FRAME = 4_000_000
"""The most characters of a page in a notebook."""

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
    image: Any = None,
    fit: Fit | None = None,
    circuit: Circuit | None = None,
    why: Why | Sequence[Why] | None = None,
) -> str | None:
    """Write a trace or a head as an interactive page: one HTML file that needs only a browser.

    Parameters
    ----------
    graphs : AttentionTrace or AttentionGraph
        What to show.
    path : path, optional
        The file to write. It appears complete or not at all.
    other : AttentionTrace or AttentionGraph, optional
        A second run on the same tokens to compare with, shown as "after".
    edits : str
        What was edited between the two, in your words; by default, the edits that the runs record.
    keep : Keep, optional
        Which of the edges to keep; by default all.
    image : PIL image, array, Tensor or path, optional
        The image that the model read, for tokens that lie on a grid, as in
        `gattn.drawing.draw_image`. The page holds it in grey, with at most 384 pixels along a side.
    fit : {"stretch", "crop"}, optional
        How the image became what the model read, if their shapes differ.
    circuit : Circuit, optional
        A circuit of the same tokens, whose heads and edges are marked. ``found.to_html(path)`` is
        ``found.trace.to_html(path, circuit=found)``.
    why : Why or list of Why, optional
        Heads whose edges can be asked why, from `gattn.why` of the same run, with their parts: all
        edges, or those that each was asked about. `page_bytes` says beforehand how large they are.

    Returns
    -------
    str or None
        The text of the page, if no path is given.

    Raises
    ------
    SelectionError
        If there is no head, the graphs of a stack, of both runs, of the circuit or of `why` differ
        in their tokens, there are edits but no second run, or an image but no tokens on a grid.
    ShapeError
        If the image does not fit the grid, or is none.
    FileError
        If the page is too large for a browser, or the file cannot be written.
    """
    if edits and other is None:
        raise SelectionError(
            f"edits={edits!r:.200} describes the change between two runs, but there is only one: "
            "pass the second run as other=."
        )
    runs = [_as_trace(one) for one in (graphs, other) if one is not None]
    if keep is not None:
        runs = [_kept(one, keep) for one in runs]
    text = page(payload(runs, edits, image, fit, circuit, why))
    if path is None:
        return text
    with whole_file(Path(path)) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return None


def page(made: Payload) -> str:
    """Join the parts of a page.

    Its policy allows only this script and this style, by their hashes; no request; and no text that
    becomes markup.
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
    "scenes/patches.js",
    "scenes/nodes.js",
    "scenes/layered.js",
    "scenes/grid.js",
    "scenes/frames.js",
    "scenes/drawing.js",
    "circuit/edges.js",
    "circuit/scene.js",
    "why/parts.js",
    "page/elements.js",
    "circuit/table.js",
    "why/table.js",
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

Those in heads and scenes run without a document: a scene is a picture as data,
{width, height, marks, hit}, to be drawn on a canvas or written as SVG.
"""

_IMPORTS = re.compile(r"(?:^import \{[^}]*\} from \"[./a-z]+\";\n)+\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) )", re.MULTILINE)


@cache
def viewer_script() -> str:
    """Join the modules into one script; they share a scope, so imports and exports go."""
    modules = (_EXPORT.sub("", _IMPORTS.sub("", _asset(f"viewer/{name}"))) for name in MODULES)
    return "\n".join(modules)


def notebook_html(graphs: AttentionTrace | AttentionGraph) -> str | None:
    """Make what a notebook shows: the page in a sandboxed frame, or None without heads.

    Behind the frame is a picture, for places that remove frames, such as GitHub. If the page would
    be too large for a notebook, or heads differ in their tokens, there is only the picture, and the
    reason.
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
    """Escape text for HTML, and replace what UTF-8 or HTML cannot hold."""
    text = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return escape(text)


def _as_trace(graphs: AttentionTrace | AttentionGraph) -> AttentionTrace:
    if isinstance(graphs, AttentionTrace):
        return graphs
    if not isinstance(graphs, AttentionGraph):
        raise SelectionError(
            f"A page shows a trace or a head, not {type(graphs).__name__}: pass one from "
            "gattn.capture or gattn.attention_graphs."
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
