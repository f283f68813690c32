"""The `gattn` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gattn import __version__
from gattn.errors import CaptureError, GattnError, SelectionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gattn.head import AttentionGraph
    from gattn.keep import Keep
    from gattn.trace import AttentionTrace

LAYOUTS = ("arcs", "columns", "circle", "matrix")
PICTURES = (".svg", ".png", ".pdf")
EXPORTS = (".gattn", ".json", ".graphml", ".gexf", ".dot", ".gv", ".csv")
KEEPS = "all, threshold:T, topk:K, topmass:P"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; say what went wrong in one line, and return the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
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
    except KeyboardInterrupt:
        return _failed("stopped", 130)
    return 0


def _failed(message: str, status: int = 2) -> int:
    _say("")
    print(f"gattn: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gattn", description="Read the self-attention of a model as graphs."
    )
    parser.add_argument("--version", action="version", version=f"gattn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    draw = commands.add_parser("draw", help="draw all heads of a text, or one head")
    _add_text(draw)
    draw.add_argument("--layout", choices=LAYOUTS, help="how to draw one head (default: arcs)")
    _add_output(draw, "attention.svg", PICTURES)
    draw.set_defaults(run=_draw)

    heads = commands.add_parser("heads", help="describe every head in one row of a table")
    _add_text(heads)
    heads.set_defaults(run=_heads)

    export = commands.add_parser("export", help="write one head, or with .gattn all of them")
    _add_text(export)
    _add_output(export, None, EXPORTS)
    export.set_defaults(run=_export)

    models = commands.add_parser("models", help="list the models that load without network")
    models.set_defaults(run=_models)
    return parser


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text; - reads it from standard input")
    parser.add_argument(
        "--model", metavar="NAME", help="a folder or a hub name (default: the embedded model)"
    )
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer, counted from 0")
    parser.add_argument("--head", type=int, metavar="N", help="only this head, counted from 0")
    parser.add_argument(
        "--keep", metavar="RULE", help=f"which edges to keep: {KEEPS} (default: all)"
    )


def _add_output(
    parser: argparse.ArgumentParser, default: str | None, suffixes: Sequence[str]
) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=default is None,
        default=default,
        metavar="FILE",
        help=f"where to write: {', '.join(suffixes)}"
        + (f" (default: {default})" if default else ""),
    )


def _draw(options: argparse.Namespace) -> None:
    _check_output(options.output, PICTURES)
    if options.layout and (options.layer is None or options.head is None):
        raise SelectionError(
            "--layout draws one head: choose it with --layer and --head; `gattn heads TEXT` "
            "describes them all."
        )
    import matplotlib as mpl

    mpl.use("agg")
    from gattn.files.paths import whole_file

    shown = _chosen(options)
    figure = _figure(shown, options.layout)

    with mpl.rc_context({"svg.fonttype": "none"}), whole_file(options.output) as part:
        kind = options.output.suffix[1:].lower()
        figure.savefig(part, format=kind, bbox_inches="tight", dpi=200)
    print(f"{options.output}: {shown!r}")


def _figure(shown: AttentionTrace | AttentionGraph, layout: str | None) -> Figure:
    from gattn.trace import AttentionTrace

    if isinstance(shown, AttentionTrace):
        return shown.draw()
    return cast("Figure", shown.draw(layout or "arcs").figure)


def _heads(options: argparse.Namespace) -> None:
    table = _captured(options).summary()
    if table.index.get_level_values("stack").nunique() == 1:
        table = table.droplevel("stack")
    print(table.round(3).reset_index().to_string(index=False))


def _export(options: argparse.Namespace) -> None:
    _check_output(options.output, EXPORTS)
    is_whole = options.output.suffix.lower() == ".gattn"
    if not is_whole and (options.layer is None or options.head is None):
        raise SelectionError(
            f"{options.output.suffix} holds one head: choose it with --layer and --head, or "
            "export all heads to a .gattn file."
        )
    exported = _chosen(options)
    exported.save(options.output)
    print(f"{options.output}: {exported!r}")


def _models(options: argparse.Namespace) -> None:
    from gattn.models.loading import offline_models

    print("\n".join(offline_models()))


def _chosen(options: argparse.Namespace) -> AttentionTrace | AttentionGraph:
    """Capture, and take the one head where one is chosen."""
    trace = _captured(options)
    if options.layer is None or options.head is None:
        return trace
    return trace[options.layer, options.head]


def _captured(options: argparse.Namespace) -> AttentionTrace:
    keep = _keep(options.keep) if options.keep else None
    text = _standard_input() if options.text == "-" else options.text
    _say("loading the libraries ...")
    from huggingface_hub.utils.logging import set_verbosity

    set_verbosity(logging.ERROR)
    from gattn.models.capturing import capture
    from gattn.models.loading import EMBEDDED, load_model

    _say(f"loading the model {options.model or EMBEDDED} ...")
    model, tokenizer = load_model(options.model)
    _say("capturing ...")
    trace = capture(
        text,
        model,
        tokenizer,
        keep=keep,
        layers=None if options.layer is None else [options.layer],
        heads=None if options.head is None else [options.head],
    )
    _say("")
    return trace


def _standard_input() -> str:
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise CaptureError(f"Standard input is not valid text: {error}.") from error


def _say(message: str) -> None:
    """Show what takes long, on a terminal, in one line that the next message replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def _keep(rule: str) -> Keep:
    from gattn.keep import All, Threshold, TopK, TopMass

    name, _, number = rule.partition(":")
    try:
        if name == "threshold":
            return Threshold(float(number))
        if name == "topk":
            return TopK(int(number))
        if name == "topmass":
            return TopMass(float(number))
    except ValueError as error:
        if isinstance(error, GattnError):
            raise
        name = ""
    if name != "all" or number:
        raise SelectionError(f"--keep is one of {KEEPS}, not {rule!r}.")
    return All()


def _check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse before the model runs what could not be written after it."""
    if path.suffix.lower() not in suffixes:
        raise SelectionError(f"{path}: the suffix must be one of {', '.join(suffixes)}.")
    if not path.absolute().parent.is_dir():
        raise SelectionError(f"{path}: there is no folder {path.absolute().parent}.")


if __name__ == "__main__":
    sys.exit(main())
