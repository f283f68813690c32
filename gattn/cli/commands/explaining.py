"""The command that takes the scores of a head apart: why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gattn.cli.arguments.captures import load
from gattn.cli.arguments.values import written_token
from gattn.cli.terminal.output import print_notes, print_table, save_drawing, save_table, say

if TYPE_CHECKING:
    from gattn.analysis.reading.results import Table

_PAIRS, _PARTS = 20, 10
"""How many rows of each table are printed."""


def run_why(options: argparse.Namespace) -> None:
    """Say who wrote the queries and keys that a head's scores are made of."""
    query, key = (_tokens(some) for some in (options.query, options.key))
    contrast = None if options.contrast is None else written_token(options.contrast)
    loaded = load(options)
    from gattn.analysis.scores.why import why

    say("taking scores apart ...")
    found = why(
        *loaded,
        layer=options.layer,
        head=options.head,
        query=query,
        key=key,
        stack=options.stack,
    )
    table = found.table(contrast)
    say("")
    print(table.computed_from)
    print(f"score {table.attrs['total']:.4g}, the sum over these pairs of parts:")
    _print_rows(table, _PAIRS)
    if found.key is not None:
        print("\nattention without a part of the keys:")
        _print_rows(found.without("key"), _PARTS)
        print("\nattention without a part of the queries:")
        _print_rows(found.without("query"), _PARTS)
    print_notes(table.notes)
    if options.output:
        if options.output.suffix.lower() == ".csv":
            save_table(table, options.output, index=False)
        else:
            save_drawing(lambda: found.draw(contrast), options.output)
        print(f"{options.output}: {len(table)} pairs")


def _tokens(written: list[str] | None) -> list[int | str] | None:
    return None if written is None else [written_token(one) for one in written]


def _print_rows(table: Table, most: int) -> None:
    print_table(table.head(most))
    if len(table) > most:
        print(f"and {len(table) - most} more, which gattn.why(...) lists")
