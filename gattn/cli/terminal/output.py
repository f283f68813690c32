"""Progress messages, printed tables and output files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gattn.errors import SelectionError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gattn.analysis.reading.results import Table
    from gattn.models.effects.effect_tables import Effects

PICTURES = (".svg", ".png", ".pdf", ".ps", ".eps")
PAGES = (".html", ".htm")
EXPORTS = (".gattn", ".json", ".graphml", ".gexf", ".dot", ".gv", ".csv")


def say(message: str) -> None:
    """Show progress on a terminal, in one line that the next message replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print a line in place of a progress message."""
    say("")
    print(message)


def print_table(table: pd.DataFrame, numbers: str = ".3f") -> None:
    """Print a table, its floats in one format."""
    print(table.to_string(index=False, float_format=lambda number: format(number, numbers)))


def print_notes(notes: Sequence[str]) -> None:
    """Print one note per line."""
    for line in notes:
        print(line)


def without_single_stack(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the index level of stacks if there is only one."""
    is_single = table.index.get_level_values("stack").nunique() == 1
    return table.droplevel("stack") if is_single else table


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Check a file's name before the model runs, so that the result can be written."""
    if path.suffix.lower() not in suffixes:
        raise SelectionError(f"{path}: the suffix must be one of {', '.join(suffixes)}.")
    folder = path.absolute().parent
    is_there = _exists(path)
    if not _exists(folder) or not folder.is_dir():
        raise SelectionError(f"{path}: the folder {folder} does not exist; make it first.")
    if is_there and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise SelectionError(f"{path} is {kind}: expected the name of a file.")
    if not os.access(path if is_there else folder, os.W_OK):
        what = "this file" if is_there else f"the folder {folder}"
        raise SelectionError(f"{path}: {what} is not writable; choose another.")


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return False
    except (OSError, ValueError) as error:  # too long, links in a circle, NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise SelectionError(
            f"{path} is not a valid file name ({reason}): expected one such as attention.svg."
        ) from error
    return True


def save_drawing(
    draw: Callable[..., Figure | Axes],
    path: Path,
    style: str | None = None,
    figsize: tuple[float, float] | None = None,
) -> None:
    """Draw without a screen, in a style of gattn's and of a size if given, and write the figure."""
    import matplotlib as mpl

    mpl.use("agg")
    from gattn.drawing.styles.style import style as style_sheet
    from gattn.files.whole_files import whole_file

    kind = path.suffix[1:].lower()
    with style_sheet(style) if style else nullcontext():
        figure = cast("Figure", (draw(figsize=figsize) if figsize else draw()).figure)
        with whole_file(path) as part:
            cut = None if figsize else "tight"
            figure.savefig(part, format=kind, bbox_inches=cut, dpi=300 if style else 200)


def save_table(table: Table | Effects, path: Path, *, index: bool = True) -> None:
    """Write the whole table as CSV, or draw it."""
    if path.suffix.lower() != ".csv":
        save_drawing(table.draw, path)
        return
    from gattn.files.whole_files import whole_file

    with whole_file(path) as part:
        table.to_csv(part, index=index)
