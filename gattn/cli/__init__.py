"""The `gattn` command."""

from gattn.cli.command import main

__all__ = ["main"]
