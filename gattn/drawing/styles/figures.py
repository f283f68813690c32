"""Figures whose files keep text as text."""

from __future__ import annotations

import io
import os
from math import isfinite
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure, SubFigure

from gattn.errors import FileError, SelectionError
from gattn.files.whole_files import reason_of, shown_path, whole_file

TEXT_AS_TEXT: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Fonts in PDF and PS that journals accept and editors read (TrueType), and text in SVG."""

_PAGE = 2.0, 2.7
"""The width and height of a page, in widths of a column."""


class TextFigure(Figure):
    """A figure that writes text as text, whatever the settings: it can be searched and edited.

    A notebook shows it once, if it is the value of a cell.
    """

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """Save the figure, as matplotlib does, with fonts in place of outlines.

        A file appears whole or not at all. What is no file, such as a pipe or ``/dev/null``, is
        written to.

        Raises
        ------
        FileError
            If matplotlib does not write such files, or the file cannot be written.
        """
        with mpl.rc_context(TEXT_AS_TEXT):
            if not isinstance(fname, str | PathLike):
                super().savefig(fname, **kwargs)
                return
            path, kind = self._named(Path(fsdecode(fname)), kwargs.pop("format", None))
            if _is_device(path):
                buffer = io.BytesIO()
                super().savefig(buffer, format=kind, **kwargs)
                _write_to(path, buffer.getvalue())
                return
            with whole_file(path) as part:
                super().savefig(part, format=kind, **kwargs)

    def _named(self, path: Path, kind: str | None) -> tuple[Path, str]:
        """Complete a file's name as matplotlib does, and find the kind of the file."""
        if not (kind := kind or path.suffix[1:]):
            kind = mpl.rcParams["savefig.format"]
            if path.name and not _is_device(path):
                path = path.with_name(f"{path.name.rstrip('.')}.{kind}")
        known = self.canvas.get_supported_filetypes()
        if not isinstance(kind, str) or kind.lower() not in known:
            raise FileError(
                f"{shown_path(path)}: matplotlib writes no files of the kind {kind!r:.80}; name it "
                f".pdf, .svg or .png, or pass format=, one of {', '.join(sorted(known))}."
            )
        return path, kind.lower()

    def _ipython_display_(self) -> None:
        """Leave a figure that has a window to its window, and take one from pyplot to show it here.

        At the end of a cell a notebook displays, and closes, the figures that pyplot has.
        """
        number = getattr(self, "number", None)
        if number is not None and plt.isinteractive() and plt.fignum_exists(number):
            if not _is_inline():
                return
            plt.close(self)
        raise NotImplementedError  # IPython then shows the picture itself

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def _is_device(path: Path) -> bool:
    """Return whether something is there that can be written to, but not replaced."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _write_to(device: Path, written: bytes) -> None:
    try:
        with device.open("wb") as opened:
            opened.write(written)
    except OSError as error:
        raise FileError(
            f"{shown_path(device)} cannot be written: {reason_of(error)}. Save elsewhere."
        ) from error


def _is_inline() -> bool:
    """Whether pyplot shows its figures in a notebook, below their cells."""
    return str(dict.__getitem__(mpl.rcParams, "backend")).endswith("inline")  # loads no backend


def load_backend() -> None:
    """Let a notebook's backend turn interactive mode on before a context that would undo it."""
    if _is_inline() and not plt.isinteractive():
        load: Any = plt.draw_if_interactive  # matplotlib gives it no types
        load()


def within_page(width: float, height: float) -> tuple[float, float]:
    """Limit a size in inches to a page of two columns, each as wide as `figure.figsize`."""
    column = float(mpl.rcParams["figure.figsize"][0])
    return min(width, _PAGE[0] * column), min(height, _PAGE[1] * column)


def check_size(size: object) -> None:
    """Refuse what is no width and height in inches, two finite numbers above 0.

    Raises
    ------
    SelectionError
        With what was given.
    """
    try:
        wide, tall = (float(side) for side in cast("tuple[float, float]", size))
        if isfinite(wide) and isfinite(tall) and min(wide, tall) > 0:
            return
    except (TypeError, ValueError):
        pass
    raise SelectionError(
        "figsize is the width and height of the figure in inches, two numbers above 0, such as "
        f"(3.3, 2.4), not {size!r}."
    )


def check_one_size(figure: Figure | SubFigure | None, figsize: tuple[float, float] | None) -> None:
    """Refuse a size beside a figure, which has its own, and what is no size."""
    if figure is not None and figsize is not None:
        raise SelectionError("Give figure= or figsize=, not both: a figure has a size of its own.")
    if figsize is not None:
        check_size(figsize)


def new_figure(size: tuple[float, float], layout: str = "none") -> Figure:
    """Make a figure that pyplot knows, and shows with ``plt.show()``; the size is in inches."""
    check_size(size)
    return plt.figure(figsize=size, layout=layout, FigureClass=TextFigure)
