"""Runs a command, and says in one line what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from gattn.cli.output import check_output, say
from gattn.cli.parser import make_parser
from gattn.errors import GattnError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; say what went wrong in one line, and return the exit status."""
    options = make_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        if options.output:
            check_output(options.output, options.suffixes)
        run(options)
        sys.stdout.flush()
    except GattnError as error:
        return _failed(str(error))
    except BrokenPipeError:
        # Nobody reads on: what is left of the output goes nowhere, without a word at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(f"{error.filename or 'file'}: {error.strerror or error}")
    except KeyboardInterrupt as stop:
        return _failed(str(stop) or "stopped", 130)
    return 0


def _failed(message: str, status: int = 2) -> int:
    say("")
    print(f"gattn: {' '.join(message.split())}", file=sys.stderr)
    return status
