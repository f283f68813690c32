"""Rows of the analyses compared with NetworkX and other libraries: one file per group."""

from importlib import import_module
from pathlib import Path

from benchmarks.row import Row


def rows(quick: bool) -> list[Row]:
    """List the rows of every file here, in order of their names; small ones if `quick`."""
    files = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return [
        row for name in files for row in import_module(f"benchmarks.analyses.{name}").rows(quick)
    ]
