"""Writes pages: of a trace, a head, two runs or several texts; as a file, or for a component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

from gattn import __version__
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.scores.taken_apart import Why
from gattn.checks import check_options
from gattn.drawing.over_image.images import Fit
from gattn.drawing.page.document import page
from gattn.drawing.page.payload import Payload, payload
from gattn.drawing.page.script import component_files
from gattn.drawing.page.several import payload_of_several
from gattn.drawing.page.shown import shown
from gattn.drawing.page.still import Shown, stills
from gattn.drawing.page.tokens.telling import Told
from gattn.errors import FileError, SelectionError
from gattn.files.whole_files import as_path, reason_of, shown_path, whole_file
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.names.choices import HeadChoice

Graphs: TypeAlias = AttentionTrace | Stack | AttentionGraph


def to_html(
    graphs: Graphs | Sequence[Graphs] | Mapping[str, Graphs],
    path: str | PathLike[str] | None = None,
    *,
    other: Graphs | None = None,
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
    """Write a trace, a stack or a head as an interactive page, one file for any browser.

    Parameters
    ----------
    graphs : AttentionTrace, Stack or AttentionGraph, or several in a list or by name
        What to show. Of several, which may be of different texts and models, one is shown at a
        time, and chosen on the page; then `heads` and `keep` are the only options.
    path : path, optional
        The file to write. It appears complete or not at all.
    other : AttentionTrace, Stack or AttentionGraph, optional
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
    _check_path(path, "attention.html")
    options = {"other": other, "edits": edits, "heads": heads, "keep": keep, "image": image}
    options |= {"fit": fit, "circuit": circuit, "why": why, "spans": spans, "colour": colour}
    made, texts = _packed(graphs, **options)
    return _written(page(made, stills(texts, circuit)), path)


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
    _check_path(path, "attention.json")
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

    Raises
    ------
    FileError
        If it cannot be made, or a file in it cannot be written.

    Examples
    --------
    >>> import gattn, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> gattn.drawing.write_component(folder)  # then: npm install FOLDER
    """
    to = as_path(folder, "gattn-view")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{shown_path(to)} cannot be made a folder: {reason_of(error)}. Name another one."
        ) from error
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
) -> tuple[Payload, list[Shown]]:
    """Pack what a page shows, and return what its pictures are of, too."""
    if not isinstance(edits, str):
        raise SelectionError(
            f"edits= says in words what was edited, as in edits='cut 1.1', not {edits!r:.200}: "
            "leave it out where the runs record their edits."
        )
    if other is not None and not isinstance(other, Graphs):
        raise SelectionError(
            f"other= is a second run on the same tokens, a trace or a head, not {other!r:.80}."
        )
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
        return payload_of_several(texts), [(name, [trace]) for name, trace in texts]
    runs = [shown(one, heads, keep) for one in [graphs] + [other] * (other is not None)]
    return payload(runs, edits, **options, said=Told(spans, colour)), [("", runs)]


def _check_path(path: Any, example: str) -> None:
    """Refuse what is no path before anything is made; a trace in its place is a second run."""
    if isinstance(path, Graphs):
        raise SelectionError(
            f"The second argument is the path of the file, not {path!r:.80}: pass a second run as "
            "other=, or several runs as a list, gattn.drawing.page.to_html([one, another], path)."
        )
    if path is not None:
        as_path(path, example)


def _written(text: str, path: str | PathLike[str] | None) -> str | None:
    """Write a text to a file, if there is a path, or else return it."""
    if path is None:
        return text
    with whole_file(as_path(path)) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return None
