"""The command that takes the scores of a head apart: why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gattn.cli.arguments.captures import Loaded, load
from gattn.cli.arguments.values import written_token
from gattn.cli.terminal.output import (
    PAGES,
    PICTURES,
    note,
    print_notes,
    print_table,
    save_drawing,
    save_table,
    say,
)
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from pathlib import Path

    from gattn.analysis.reading.results import Table
    from gattn.analysis.scores.taken_apart import Why

_PAIRS, _PARTS = 20, 10
"""How many rows of each table are printed."""


def run_why(options: argparse.Namespace) -> None:
    """Say who wrote the queries and keys that a head's scores are made of."""
    query, key = (_tokens(some) for some in (options.query, options.key))
    contrast = None if options.contrast is None else written_token(options.contrast)
    if options.paths and (
        contrast is not None or not options.output or options.output.suffix.lower() not in PICTURES
    ):
        raise SelectionError(
            "--paths draws scores in the text: expected -o FILE with one of "
            f"{', '.join(PICTURES)}, and no --contrast."
        )
    loaded = load(options)
    from gattn.analysis.scores.why import why

    say("taking scores apart ...")
    found = why(
        *loaded,
        layer=options.layer,
        head=options.head,
        query=query,
        key=key,
        split=options.split,
        stack=options.stack,
    )
    table = found.table(contrast)
    say("")
    print(table.computed_from)
    edges = 1 if found.key is None else int(found.edges().sum())
    score = f"mean score of {edges} edges" if edges > 1 else "score"
    print(f"{score} {table.attrs['total']:.4g}, the sum over these pairs of parts:")
    _print_rows(table, _PAIRS)
    if found.key is not None:
        attention = "attention"
        if edges > 1:
            attention = "attention of these edges (the sum over keys, a mean over queries)"
        print(f"\n{attention} without a part of the keys:")
        _print_rows(found.without("key"), _PARTS)
        print(f"\n{attention} without a part of the queries:")
        _print_rows(found.without("query"), _PARTS)
    print_notes(table.notes)
    if options.output:
        _write(found, options, loaded, contrast)


def _write(
    found: Why, options: argparse.Namespace, loaded: Loaded, contrast: int | str | None
) -> None:
    """Write the table, its picture, or a page on which all edges of the queries can be asked."""
    path: Path = options.output
    if path.suffix.lower() in PAGES:
        from gattn.drawing.page import page_bytes
        from gattn.models.run.capturing import capture

        every = found.among(found.query, None)
        note(f"the parts of head {found.layer}.{found.head}: {page_bytes(every) / 1e3:,.0f} kB")
        capture(*loaded).to_html(path, why=every)
        asked = "" if found.key is None else f"#why={found.query[-1]}-{found.key[-1]}"
        print(f"{path}{asked}: {path.stat().st_size / 1e6:.1f} MB")
        return
    table = found.table(contrast)
    if path.suffix.lower() == ".csv":
        save_table(table, path, index=False)
    elif options.paths:
        save_drawing(found.draw_paths, path)
    else:
        save_drawing(lambda: found.draw(contrast), path)
    print(f"{path}: {len(table)} pairs")


def _tokens(written: list[str] | None) -> list[int | str] | None:
    return None if written is None else [written_token(one) for one in written]


def _print_rows(table: Table, most: int) -> None:
    print_table(table.head(most))
    if len(table) > most:
        print(f"and {len(table) - most} more, which gattn.why(...) lists")
