"""Runs a command and reports errors in one line."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gattn.cli.parser import make_parser
from gattn.cli.terminal.collecting import none_collected
from gattn.cli.terminal.consoles import any_console, drop_output
from gattn.cli.terminal.output import check_output, say
from gattn.errors import GattnError, SelectionError

_LONG_WORD = re.compile(r"(\S{100})\S{150,}(\S{50})")
_NO_OPTIONS = ("command", "folder", "inputs", "run", "score", "suffixes", "text")
"""What a command knows besides its options."""
_FIRST, _LAST = 600, 300
"""How many characters of a long message to show; it is long because it quotes an argument."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, print any error in one line, and return the exit status.

    The status is 0 for success, 2 for a bad request, 1 for a failure, 130 if interrupted.
    """
    with any_console(), _short_warnings(), none_collected():
        try:
            _run(arguments)
            sys.stdout.flush()
        except BrokenPipeError:  # The reader, such as head, has seen enough.
            drop_output()
            return 1
        except OSError as error:
            drop_output()
            name = error.filename or "cannot write the output"
            return _failed(f"{name!s}: {error.strerror or error}", 1)
        except GattnError as error:
            return _failed(str(error), 2)
        except KeyboardInterrupt as stop:
            return _failed(str(stop) or "stopped", 130)
        except Exception as error:
            return _failed(_fault(error), 1)
    return 0


def _run(arguments: Sequence[str] | None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if empty := [word for word in words if re.fullmatch(r"--?[\w-]+=--", word)]:
        raise SelectionError(f"{empty[0]}: expected a value after =, not --.")
    try:
        options, rest = make_parser().parse_known_args(words)
    except SystemExit:  # --help and --version
        return
    if rest:
        name = f"gattn {options.command}"
        raise SelectionError(f"{name} does not take {' '.join(rest)}. See {name} --help.")
    _check_unicode(options)
    if options.output is not None:
        check_output(options.output, options.suffixes)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except GattnError as error:
        raise type(error)(_in_options(str(error), vars(options))) from error


def _in_options(message: str, options: Mapping[str, object]) -> str:
    """Write arguments of Python, as in "pass target=", as options of the command line."""
    names = "|".join(re.escape(name) for name in options if name not in _NO_OPTIONS)
    # Calls such as Cut(layer=1) stay as they are.
    argument = rf"\w\([^()]*\)|(?<![\w.])({names})=(?:(?=['\"])|(?![\w\[(]))"

    def option(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        is_followed = message[found.end() : found.end() + 1] in ("'", '"')
        return f"--{found[1].replace('_', '-')}{' ' * is_followed}"

    return re.sub(argument, option, message)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print warnings in one line, without the place in the code; not what libraries deprecate."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UserWarning):
            print(f"gattn: warning: {_one_line(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _check_unicode(options: argparse.Namespace) -> None:
    """Refuse NUL in file names, and invalid Unicode except in the name of the output."""
    for name, value in vars(options).items():
        if isinstance(value, Path) and "\0" in str(value):
            raise SelectionError(f"{value} is not a valid file name: it contains a NUL.")
        for text in () if name == "output" else _texts(value):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SelectionError(
                    f"The argument for {name} is not valid Unicode at character {error.start}: "
                    f"expected the terminal's encoding, {sys.getfilesystemencoding()}, not "
                    f"{text!r}."
                ) from error


def _texts(value: object) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for one in value for text in _texts(one)]
    return [str(value)] if isinstance(value, str | Path) else []


def _fault(error: Exception) -> str:
    """Describe an unexpected error."""
    reason = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "allocate memory" in reason or "out of memory" in reason:
        return (
            "Out of memory: ask for less, such as a shorter text, one --layer, or --keep topk:8. "
            f"The error was: {reason}"
        )
    if sys.flags.dev_mode:
        raise error
    places = [at for at in traceback.extract_tb(error.__traceback__) if "gattn" in at.filename]
    place = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return (
        f"A bug in gattn: {type(error).__name__}{place}: {reason}. Please report it; "
        "python -X dev -m gattn.cli, with the same arguments, prints the traceback."
    )


def _failed(message: str, status: int) -> int:
    with suppress(OSError):
        say("")
        print(f"gattn: {_one_line(message)}", file=sys.stderr)
    return status


def _one_line(message: str) -> str:
    """Write a message as one line of bounded length, without control characters."""
    line = _LONG_WORD.sub(r"\1 ... \2", " ".join(message.split()))
    if len(line) > _FIRST + _LAST:
        line = f"{line[:_FIRST]} ... {line[-_LAST:]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
