"""The commands that write files and lists: export, tokens, models."""

from __future__ import annotations

import argparse

from gattn.cli.arguments.captures import chosen, is_one_head, load
from gattn.cli.terminal.output import say
from gattn.errors import SelectionError


def run_export(options: argparse.Namespace) -> None:
    """Save one head, or all of them."""
    is_whole = options.output.suffix.lower() == ".gattn"
    if not is_whole and not is_one_head(options):
        raise SelectionError(
            f"A {options.output.suffix} file holds one head: choose it with --layer and --head, or "
            "export all heads to a .gattn file."
        )
    exported = chosen(options)
    exported.save(options.output)
    print(f"{options.output}: {exported!r}")


def run_tokens(options: argparse.Namespace) -> None:
    """List the tokens of a text and their positions."""
    from gattn.models.load.encoding import encode
    from gattn.names.text import visible

    encoding = encode(*load(options))
    say("")
    for position, token in enumerate(encoding.tokens):
        print(position, visible(token))


def run_models(options: argparse.Namespace) -> None:
    """List the models that load without a network."""
    from gattn.models.load.offline import offline_models

    print("\n".join(offline_models()))
