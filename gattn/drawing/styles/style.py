"""Style sheets for papers, talks and dark grounds."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any, cast

import matplotlib as mpl

from gattn.drawing.styles.figures import load_backend
from gattn.errors import SelectionError

NAMES = ("paper", "talk", "dark")


class Style(dict[str, Any]):
    """Settings of matplotlib, which hold in a ``with`` block, or from ``plt.style.use`` on."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._open: list[Any] = []

    def __enter__(self) -> Style:
        load_backend()
        context = mpl.rc_context(cast("Any", self))
        context.__enter__()
        self._open.append(context)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.pop().__exit__(None, None, None)


def style(name: str) -> Style:
    """Return a matplotlib style sheet that suits pictures of attention.

    Parameters
    ----------
    name : {"paper", "talk", "dark"}
        "paper": text of 8 points and thin lines, for a column 3.3 inches wide, at 300 dots per
        inch. "talk": text of 16 points and thick lines. "dark": light on a dark ground, which
        changes no sizes, so that it goes with either. In all three, PDF and PS hold TrueType fonts
        (Type 42), and SVG holds text, on figures of your own, too.

    Returns
    -------
    Style
        A dict of settings. It holds in a ``with`` block, or for good with ``plt.style.use``. The
        sheets are matplotlib's own kind of file, so ``plt.style.use("gattn.drawing.styles.paper")``
        does the same without gattn's function.

    Raises
    ------
    SelectionError
        If there is no such style.

    Examples
    --------
    >>> with gattn.style("paper"):
    ...     head.draw("arcs", figsize=(3.3, 2.2)).figure.savefig("head.pdf")
    """
    if name not in NAMES:
        known = ", ".join(map(repr, NAMES))
        raise SelectionError(f"There is no style {name!r:.80}; there are {known}.")
    with as_file(files(__package__) / f"{name}.mplstyle") as path:
        return Style(mpl.rc_params_from_file(path, use_default_template=False))
