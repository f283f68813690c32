"""The arguments that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gattn.cli.arguments.captures import KEEPS
from gattn.cli.arguments.edits import GRAMMAR, GRAPHS, NORMALIZERS, WEIGHTS
from gattn.cli.arguments.values import place_number, size

EDITS = {
    "--cut": ("EDIT", "cut edges"),
    "--scale": ("FACTOR:EDIT", "multiply the attention of edges by a factor"),
    "--swap": ("WEIGHT[@PLACE]", f"replace the weight function: {', '.join(WEIGHTS)}"),
    "--normalizer": ("NAME[@PLACE]", f"replace the normalizer: {', '.join(NORMALIZERS)}"),
    "--restrict": (
        "GRAPH[@PLACE]",
        f"keep only the edges of a graph: {', '.join(GRAPHS)} (window: keys fewer than N tokens "
        "away; longformer: keys at most N tokens away, and token 0)",
    ),
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a folder, or a name on the Hugging Face Hub (default: the embedded model)",
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add TEXT and --model."""
    parser.add_argument("text", metavar="TEXT", help="the text, or - to read standard input")
    add_model(parser)


def add_position(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --position, where `default` says what is read without it."""
    parser.add_argument(
        "--position",
        metavar="TOKEN",
        help=f"the token that makes the prediction: a position or text (default: {default})",
    )


def add_capture(parser: argparse.ArgumentParser) -> None:
    """Add TEXT, --model, --layer, --head and --keep."""
    add_text(parser)
    parser.add_argument(
        "--layer", type=place_number, metavar="N", help="only this layer, counted from 0"
    )
    parser.add_argument(
        "--head", type=place_number, metavar="N", help="only this head, counted from 0"
    )
    parser.add_argument(
        "--keep", metavar="RULE", help=f"which edges to keep: {KEEPS} (default: all)"
    )


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add --heads, --sort and --label."""
    parser.add_argument(
        "--heads",
        metavar="HEADS",
        help="draw only these heads, larger: numbers in each layer, as in 0,2, or "
        "[STACK:]LAYER.HEAD, as in 1.1,2.0 or decoder:1.1,2.0",
    )
    for option, what in (
        ("--sort", "sort heads by a column of `gattn heads --all`, or of the comparison's table"),
        ("--label", "write such a column above each head; the column label describes it in words"),
    ):
        parser.add_argument(option, metavar="SCORE", help=what)


def add_edits(parser: argparse.ArgumentParser) -> None:
    """Add the edits, which --help lists in a group of their own."""
    edits = parser.add_argument_group(
        "edits",
        f"EDIT is {GRAMMAR}. PLACE is [STACK:]LAYER[.HEAD], by default all heads. Each option can "
        "be repeated. `gattn tokens TEXT` lists token positions.",
    )
    for option, (metavar, what) in EDITS.items():
        edits.add_argument(
            option,
            dest="edits",
            action="append",
            default=[],
            type=partial(_written, option),
            metavar=metavar,
            help=what,
        )
    edits.add_argument(
        "--no-renormalize",
        dest="renormalize",
        action="store_false",
        help="cut edges after normalizing, so that the others keep their attention",
    )


def _written(option: str, text: str) -> tuple[str, str]:
    return option, text


def add_output(
    parser: argparse.ArgumentParser,
    suffixes: Sequence[str],
    default: str | None = None,
    *,
    required: bool = False,
) -> None:
    """Add --output, a file with one of these suffixes."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=required,
        default=default,
        metavar="FILE",
        help=f"the file to write: {', '.join(suffixes)}"
        + (f" (default: {default})" if default else ""),
    )
    parser.set_defaults(suffixes=suffixes)


def add_style(parser: argparse.ArgumentParser) -> None:
    """Add --style and --figsize."""
    parser.add_argument(
        "--style",
        choices=("paper", "talk", "dark"),
        help="the style of the picture, as gattn.style in Python",
    )
    parser.add_argument(
        "--figsize",
        type=size,
        metavar="WxH",
        help="the picture's width and height in inches, as in 3.3x2.4",
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add FOLDER."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the survey's folder")
