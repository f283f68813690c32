"""Writes the page: one HTML file with its style, its script and its data, closed to the network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from gattn import __version__
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.scores.taken_apart import Why
from gattn.checks import check_options
from gattn.drawing.over_image.images import Fit
from gattn.drawing.page.payload import Payload, payload
from gattn.drawing.page.script import asset, component_files, viewer_script
from gattn.drawing.page.several import payload_of_several
from gattn.drawing.page.shown import shown
from gattn.drawing.page.still import still
from gattn.drawing.page.tokens.telling import Told
from gattn.errors import SelectionError
from gattn.files.whole_files import whole_file
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.names.choices import HeadChoice
from gattn.names.text import visible

Graphs: TypeAlias = AttentionTrace | AttentionGraph


def to_html(
    graphs: Graphs | Sequence[Graphs] | Mapping[str, Graphs],
    path: str | PathLike[str] | None = None,
    *,
    other: AttentionTrace | AttentionGraph | None = None,
    edits: str = "",
    heads: HeadChoice = None,
    keep: Keep | None = None,
    image: Any = None,
    fit: Fit | None = None,
    circuit: Circuit | None = None,
    why: Why | Sequence[Why] | None = None,
    spans: Iterable[tuple[int, int]] | None = None,
    colour: Any = None,
) -> str | None:
    """Write a trace or a head as an interactive page: one HTML file that needs only a browser.

    Parameters
    ----------
    graphs : AttentionTrace or AttentionGraph, or several in a list or by name
        What to show. Of several, which may be of different texts and models, one is shown at a
        time, and chosen on the page; then `heads` and `keep` are the only options.
    path : path, optional
        The file to write. It appears complete or not at all.
    other : AttentionTrace or AttentionGraph, optional
        A second run on the same tokens to compare with, shown as "after".
    edits : str
        What was edited between the two, in your words; by default, the edits that the runs record.
    heads : int, str, sequence of int, or sequence of (layer, head), optional
        Which heads of a trace to show: one or several of every layer, or single ones, such as
        ``"2.1"``; all by default. Their page knows what the run predicted, which a head by itself
        does not.
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
    spans : iterable of (start, stop), optional
        Parts of the text, such as sentences, half-open and at most 26: the page shows on its own
        what one reads of another. By default those that the tokenizer's ``token_type_ids`` tell
        apart, where the run had several.
    colour : array (tokens,), or mapping of str to array, optional
        Numbers by which the page can colour the tokens, such as their surprisal, by name; NaN for
        none. The probability of each token is among them where the run's `predictions` are known.

    Returns
    -------
    str or None
        The text of the page, if no path is given.

    Raises
    ------
    SelectionError
        If there is no such head, the graphs of a stack, of both runs, of the circuit or of `why`
        differ in their tokens, there are edits but no second run, an image but no tokens on a grid,
        or spans that overlap or end outside of the text.
    ShapeError
        If the image does not fit the grid, or is none, or `colour` is not a number per token.
    FileError
        If the page is too large for a browser, or the file cannot be written.
    """
    options = {"other": other, "edits": edits, "heads": heads, "keep": keep, "image": image}
    options |= {"fit": fit, "circuit": circuit, "why": why, "spans": spans, "colour": colour}
    made, runs = _packed(graphs, **options)
    return _written(page(made, still(runs, circuit)), path)


def page_in_frame(graphs: Graphs) -> str:
    """Write a page to stand before a picture, without one of its own."""
    return page(_packed(graphs)[0])


def to_payload(
    graphs: Graphs | Sequence[Graphs] | Mapping[str, Graphs],
    path: str | PathLike[str] | None = None,
    **options: Any,
) -> str | None:
    """Write what a page shows as JSON, for ``<gattn-view>`` in a page of your own.

    The files of the element come from `gattn.drawing.write_component` of the same version of gattn.

    Parameters
    ----------
    graphs : AttentionTrace or AttentionGraph, or several in a list or by name
        What to show.
    path : path, optional
        The file to write. It appears complete or not at all.
    **options
        ``other``, ``edits``, ``heads``, ``keep``, ``image``, ``fit``, ``circuit``, ``why``,
        ``spans`` and ``colour``, as in `gattn.drawing.page.to_html`, with the same errors.

    Returns
    -------
    str or None
        JSON in ASCII without ``<``, safe within a script of HTML, if no path is given.

    Raises
    ------
    OptionError
        If there is no such option.
    """
    check_options(to_html, options, "to_payload()")
    made, _ = _packed(graphs, **options)
    return _written(made.text(), path)


def write_component(folder: str | PathLike[str]) -> None:
    """Write the files of the npm package ``gattn-view`` into a folder.

    ``gattn-view.js`` is an ES module, ``gattn-view.classic.js`` a plain script for pages that are
    opened from a file. Both define ``<gattn-view>`` and ``mount(element, payload)``; neither makes
    any request.

    Parameters
    ----------
    folder : path
        Where to; it is made if it does not exist.

    Examples
    --------
    >>> import gattn, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> gattn.drawing.write_component(folder)  # then: npm install FOLDER
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    for name, text in component_files(__version__).items():
        _written(text, to / name)


def _packed(
    graphs: Any,
    *,
    other: Any = None,
    edits: str = "",
    heads: HeadChoice = None,
    keep: Keep | None = None,
    spans: Any = None,
    colour: Any = None,
    **options: Any,
) -> tuple[Payload, list[AttentionTrace]]:
    """Pack what a page shows, and return the runs that its picture is of, too."""
    if edits and other is None:
        raise SelectionError(
            f"edits={edits!r:.200} describes the change between two runs, but there is only one: "
            "pass the second run as other=."
        )

    if isinstance(graphs, Mapping | Sequence) and not isinstance(graphs, Stack | str):
        of_one = {"other": other, **options, "spans": spans, "colour": colour}
        if given := [name for name, value in of_one.items() if value is not None]:
            raise SelectionError(
                f"{given[0]}= is of one text, but there are several: make a page of that one."
            )
        pairs = graphs.items() if isinstance(graphs, Mapping) else [("", one) for one in graphs]
        texts = [(name, shown(one, heads, keep)) for name, one in pairs]
        return payload_of_several(texts), [trace for _, trace in texts[:1]]
    runs = [shown(one, heads, keep) for one in (graphs, other) if one is not None]
    return payload(runs, edits, **options, said=Told(spans, colour)), runs


def _written(text: str, path: str | PathLike[str] | None) -> str | None:
    """Write a text to a file, if there is a path, or else return it."""
    if path is None:
        return text
    with whole_file(Path(path)) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return None


def page(made: Payload, picture: str = "") -> str:
    """Join the parts of a page.

    Its policy allows only this script and this style, by their hashes; pictures in the file itself;
    no request; and no text that becomes markup. The picture, given by its address, is there until
    the script has run.
    """
    style, script, skeleton = (
        asset("viewer/viewer.css"),
        viewer_script(),
        asset("viewer/skeleton.html"),
    )
    title = plain(visible(made.title, limit=150))
    shown = f'<img alt="{title}" src="{picture}">' if picture else ""
    for place, text in (("title", title), ("still", shown)):
        skeleton = skeleton.replace(f"<!--{place}-->", text)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
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
<title>{title}</title>
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


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def plain(text: str) -> str:
    """Escape text for HTML, and replace what UTF-8 or HTML cannot hold."""
    text = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return escape(text)
