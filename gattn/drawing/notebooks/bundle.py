"""What a notebook shows of a thing: HTML that follows its theme, and a picture for paper."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any

import networkx as nx
import pandas as pd
import xarray as xr

from gattn.door import Pictured
from gattn.drawing.many_heads.notebook import Picture, notebook_picture
from gattn.drawing.page.document import plain
from gattn.drawing.page.page import page_in_frame
from gattn.drawing.page.payload import estimated_bytes
from gattn.errors import GattnError, SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.text import writable

_LARGEST_FRAME = 4_000_000
"""The most characters of a page in a notebook."""
_MOST_EDGES = 20_000
_MOST_PAIRS = 1 << 24
_MOST_NUMBERS = 1 << 20
"""How large a graph, a token graph and an array may be, so that a cell is drawn in a second."""

_HIGH, _HIGH_ALONE = 770, 690
"""The pixels that the page of a trace and that of one head take in a notebook."""

_TOO_LARGE = (
    "The page of all its numbers is too large for a notebook: "
    "<code>.to_html(&quot;attention.html&quot;)</code> writes it to a file."
)

_THEMES = """<style>
:is([data-jp-theme-light="true"], [theme="light"], [data-theme="light"], .vscode-light,
.vscode-high-contrast-light) .gattn { color-scheme: light }
:is([data-jp-theme-light="false"], [theme="dark"], [data-theme="dark"], .vscode-dark,
.vscode-high-contrast:not(.vscode-high-contrast-light)) .gattn { color-scheme: dark }
</style>"""
"""How JupyterLab, Colab, sites and VS Code mark their theme.

A frame and a picture take the color scheme of the place where they stand for the one that is
preferred, so no script has to tell them.
"""


def mime_bundle(shown: object) -> dict[str, Any]:
    """Return what a notebook shows of a thing, by MIME type.

    HTML is shown in notebooks and what nbconvert makes of them for browsers; the picture as PNG in
    PDF files. A table has no PNG, in whose place its numbers would be missing there.
    """
    picture, html = _drawn(shown)
    if html is None:
        return {}
    bundle = {"text/html": html}
    if picture is not None and not isinstance(shown, pd.DataFrame):
        bundle["image/png"] = b64encode(picture.png).decode("ascii")
    return bundle


def notebook_html(shown: object) -> str | None:
    """Make the HTML that a notebook shows of a thing, or None without anything to show.

    A head or a trace is its page in a sandboxed frame. Behind it is a picture, for places that
    remove frames, such as GitHub. If the page would be too large for a notebook, or heads differ in
    their tokens, there is only the picture, and the reason. Anything else is its picture; below it
    a table or an array has its numbers.

    Parameters
    ----------
    shown : object
        A head, a trace, or anything else that has a picture.
    """
    return _drawn(shown)[1]


def _drawn(shown: object) -> tuple[Picture | None, str | None]:
    """Draw a thing, and make its HTML."""
    if isinstance(shown, AttentionTrace | Stack) and not len(shown):
        return None, None
    if isinstance(shown, AttentionGraph | AttentionTrace):
        picture = notebook_picture(shown)
        return picture, _themed(_page(shown, _image(picture, repr(shown))))
    own = _own_html(shown)
    if _is_too_large(shown):
        return None, own
    try:
        picture = notebook_picture(shown)
    except GattnError as error:
        return None, own or f"<pre>{plain(repr(shown))}</pre><p>{plain(str(error))}</p>"
    except Exception:  # such as a table without the columns of its picture
        if own is None:
            raise
        return None, own
    said = f"{type(shown).__name__}: {picture.said}"
    return picture, _themed(f'<div class="gattn">{_image(picture, said)}</div>') + (own or "")


def _page(graphs: AttentionGraph | AttentionTrace, image: str) -> str:
    """Put the page in a frame over its picture."""
    text, reason = None, _TOO_LARGE
    heads = [graphs] if isinstance(graphs, AttentionGraph) else list(graphs.heads())
    if estimated_bytes(heads) * 4 / 3 <= _LARGEST_FRAME:
        try:
            text = page_in_frame(graphs)
        except SelectionError as error:
            reason = plain(str(error))
    if text is None or len(text) > _LARGEST_FRAME:
        return f'<div class="gattn">{image}</div><p>{reason}</p>'
    high = _HIGH if isinstance(graphs, AttentionTrace) else _HIGH_ALONE
    style = f"position: relative; height: {high}px; overflow: hidden; resize: vertical"
    return f"""<div class="gattn" style="{style}">
{image}
<iframe title="{plain(writable(repr(graphs)))}" sandbox="allow-scripts allow-downloads"
srcdoc="{escape(text)}"
style="position: absolute; inset: 0; width: 100%; height: 100%; border: 0; background: Canvas">
</iframe></div>"""


def _image(picture: Picture, said: str) -> str:
    data = b64encode(picture.svg.encode()).decode("ascii")
    style = "max-width: 100%; max-height: 100%"
    alt = plain(writable(said))
    return f'<img alt="{alt}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def _themed(html: str) -> str:
    return f"{_THEMES}\n{html}"


def _own_html(shown: object) -> str | None:
    """Return what a table or an array shows of itself."""
    if isinstance(shown, Pictured) and isinstance(shown, pd.DataFrame | xr.DataArray):
        own: str | None = super(Pictured, shown)._repr_html_()  # type: ignore[misc]
        # pandas heads columns of an index with empty cells, which screen readers announce.
        return own.replace("<th></th>", "<td></td>") if own else own
    return None


def _is_too_large(shown: object) -> bool:
    """Return whether a picture would take more than about a second."""
    if isinstance(shown, TokenGraph):
        return shown.num_queries * shown.num_keys > _MOST_PAIRS
    if isinstance(shown, nx.Graph):
        return shown.number_of_edges() > _MOST_EDGES
    return isinstance(shown, xr.DataArray) and shown.size > _MOST_NUMBERS
