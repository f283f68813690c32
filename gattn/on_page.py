"""What can be shown as a page in a browser, and how it is asked for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from gattn.door import Pictured, checked, save, to_html
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from os import PathLike

    from gattn.analysis.circuits.found import Circuit
    from gattn.analysis.scores.taken_apart import Why
    from gattn.heads.head import AttentionGraph
    from gattn.heads.stack import Stack
    from gattn.heads.trace import AttentionTrace
    from gattn.keep import Keep
    from gattn.names.choices import HeadChoice


class OnPage:
    """What can be shown as a page in a browser."""

    __slots__ = ()

    @overload
    def to_html(
        self,
        path: None = None,
        *,
        other: AttentionTrace | Stack | AttentionGraph | None = None,
        edits: str = "",
        heads: HeadChoice = None,
        keep: Keep | None = None,
        image: Any = None,
        fit: Literal["stretch", "crop"] | None = None,
        circuit: Circuit | None = None,
        why: Why | Sequence[Why] | None = None,
        spans: Iterable[tuple[int, int]] | None = None,
        colour: Any = None,
    ) -> str: ...
    @overload
    def to_html(
        self,
        path: str | PathLike[str],
        *,
        other: AttentionTrace | Stack | AttentionGraph | None = None,
        edits: str = "",
        heads: HeadChoice = None,
        keep: Keep | None = None,
        image: Any = None,
        fit: Literal["stretch", "crop"] | None = None,
        circuit: Circuit | None = None,
        why: Why | Sequence[Why] | None = None,
        spans: Iterable[tuple[int, int]] | None = None,
        colour: Any = None,
    ) -> None: ...
    @checked()
    def to_html(
        self,
        path: str | PathLike[str] | None = None,
        *,
        other: AttentionTrace | Stack | AttentionGraph | None = None,
        edits: str = "",
        heads: HeadChoice = None,
        keep: Keep | None = None,
        image: Any = None,
        fit: Literal["stretch", "crop"] | None = None,
        circuit: Circuit | None = None,
        why: Why | Sequence[Why] | None = None,
        spans: Iterable[tuple[int, int]] | None = None,
        colour: Any = None,
    ) -> str | None:
        """Write an interactive page: one HTML file that needs only a browser.

        Parameters
        ----------
        path : path, optional
            The file to write; by default the text of the page is returned.
        other : AttentionTrace, Stack or AttentionGraph, optional
            A second run on the same tokens to compare with, shown as "after".
        edits : str
            What was edited between the two, in your words.
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads to show, such as ``"2.1"``; all by default.
        keep : Keep, optional
            Which of the edges to keep, such as ``gattn.TopK(5)``; by default all.
        image : PIL image, array, Tensor or path, optional
            The image that the model read, for tokens that lie on a grid.
        fit : {"stretch", "crop"}, optional
            How the image became what the model read, if their shapes differ.
        circuit : Circuit, optional
            A circuit of the same run, whose heads and edges are marked.
        why : Why or list of Why, optional
            Answers to `gattn.why`: heads whose edges can be asked why.
        spans : iterable of (start, stop), optional
            Parts of the text, such as sentences, which the page compares.
        colour : array (tokens,), or mapping of str to array, optional
            Numbers by which the page can colour the tokens, by name.

        Notes
        -----
        `gattn.drawing.page.to_html` says more of each, with the same errors. What a circuit, or the
        answer to `gattn.why`, shows of itself is not given again.
        """
        graphs, own = self._on_page()
        options: dict[str, Any] = {
            "other": other, "edits": edits, "heads": heads, "keep": keep, "image": image,
            "fit": fit, "circuit": circuit, "why": why, "spans": spans, "colour": colour,
        }  # fmt: skip
        if given := [name for name in own if options[name] is not None]:
            raise SelectionError(
                f"{given[0]}= is what this page shows already: leave it out; to show several, "
                "write trace.to_html(path, circuit=..., why=...)."
            )
        return to_html(graphs, path, **options | own)

    def _on_page(self) -> tuple[object, dict[str, Any]]:
        """Return the trace or head that the page shows, and what it shows of this besides."""
        return self, {}


class Shown(Pictured, OnPage):
    """What can be saved to a file, and shown as a page in a browser or notebook."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file in the format of its suffix; see `gattn.files.save`."""
        save(self, path)
