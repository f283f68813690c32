"""The arguments of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from gattn import __version__
from gattn.cli.arguments import Parser, real, whole
from gattn.cli.captures import KEEPS
from gattn.cli.drawing import run_compare, run_draw, run_heads, run_view
from gattn.cli.edits import GRAMMAR, GRAPHS, NORMALIZERS, WEIGHTS
from gattn.cli.listing import run_export, run_models, run_tokens
from gattn.cli.measuring import run_effect, run_flow, run_routes
from gattn.cli.output import EXPORTS, PAGES, PICTURES
from gattn.cli.querying import TABLES, run_query, run_statistics
from gattn.cli.survey_arguments import add_survey
from gattn.cli.surveying import run_survey

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

LAYOUTS = ("arcs", "columns", "circle", "matrix")
METRICS = ("kl", "logit_difference", "probability")
EDITS = {
    "--cut": ("EDIT", "cut edges"),
    "--scale": ("FACTOR:EDIT", "multiply the attention of edges"),
    "--swap": ("WEIGHT[@PLACE]", f"swap the weight function: {', '.join(WEIGHTS)}"),
    "--normalizer": ("NAME[@PLACE]", f"swap the normalizer: {', '.join(NORMALIZERS)}"),
    "--restrict": (
        "GRAPH[@PLACE]",
        f"keep only the edges of a graph: {', '.join(GRAPHS)} (window: the last N keys, the "
        "query's own among them, and the next; longformer: N tokens away at most, and token 0)",
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser: each command sets `run`, and `suffixes` where it writes to files."""
    parser = Parser(prog="gattn", description="Read the self-attention of a model as graphs.")
    parser.add_argument("--version", action="version", version=f"gattn {__version__}")
    # What a command has no argument for.
    parser.set_defaults(output=None, layer=None, head=None, keep=None, generate=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _draw,
        _view,
        _heads,
        _export,
        _compare,
        _effect,
        _routes,
        _flow,
        _tokens,
        _survey,
        _query,
        _statistics,
        _models,
    ):
        add(commands)
    return parser


def _draw(commands: Commands) -> None:
    parser = commands.add_parser("draw", help="draw all heads of a text, or one head")
    _add_capture(parser)
    parser.add_argument("--layout", choices=LAYOUTS, help="how to draw one head (default: arcs)")
    _add_order(parser)
    _add_output(parser, PICTURES, "attention.svg")
    parser.set_defaults(run=run_draw)


def _view(commands: Commands) -> None:
    parser = commands.add_parser(
        "view",
        help="write a page for the browser, and open it; with edits, before and after",
    )
    _add_capture(parser)
    _add_edits(parser)
    parser.add_argument(
        "--generate", type=whole, metavar="N", help="let the model go on with the text for N tokens"
    )
    parser.add_argument(
        "--no-open", dest="opens", action="store_false", help="write the page alone"
    )
    _add_output(parser, PAGES, "attention.html")
    parser.set_defaults(run=run_view)


def _heads(commands: Commands) -> None:
    parser = commands.add_parser("heads", help="describe every head in one row of a table")
    _add_capture(parser)
    parser.add_argument("--all", action="store_true", help="print all columns")
    _add_output(parser, (".csv", *PICTURES))
    parser.set_defaults(run=run_heads)


def _export(commands: Commands) -> None:
    parser = commands.add_parser("export", help="write one head, or with .gattn all of them")
    _add_capture(parser)
    _add_output(parser, EXPORTS, required=True)
    parser.set_defaults(run=run_export)


def _compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare", help="show what edits change, in every head or in one; or match two models"
    )
    _add_capture(parser)
    _add_edits(parser)
    _add_order(parser)
    parser.add_argument(
        "--with",
        dest="other_model",
        metavar="NAME",
        help="another model, instead of edits: which of its heads is each head nearest?",
    )
    _add_output(parser, PICTURES, "compare.svg")
    parser.set_defaults(run=run_compare)


def _effect(commands: Commands) -> None:
    parser = commands.add_parser("effect", help="measure what edits do to the prediction")
    _add_text(parser)
    _add_edits(parser)
    parser.add_argument(
        "--together", action="store_true", help="apply all edits at once, as one row"
    )
    parser.add_argument("--each-head", action="store_true", help="cut each head, one per row")
    parser.add_argument("--metric", choices=METRICS, default="kl", help="default: kl")
    parser.add_argument(
        "--position",
        default="-1",
        metavar="TOKEN",
        help="the token whose prediction is measured, by position or text (default: -1, the last)",
    )
    parser.add_argument("--target", metavar="TOKEN", help='a token such as " cat"')
    parser.add_argument("--other", metavar="TOKEN", help="the one it is compared with")
    _add_output(parser, (".csv", *PICTURES))
    parser.set_defaults(run=run_effect)


def _routes(commands: Commands) -> None:
    parser = commands.add_parser("routes", help="find the routes of information to a prediction")
    _add_text(parser)
    parser.add_argument(
        "--position",
        default="-1",
        metavar="TOKEN",
        help="the token whose prediction is asked for, by position or text (default: -1, the last)",
    )
    parser.add_argument(
        "--threshold",
        type=real,
        default=0.04,
        metavar="T",
        help="drop what has no larger importance (default: 0.04)",
    )
    _add_output(parser, (*PICTURES, *EXPORTS[1:]))
    parser.set_defaults(run=run_routes)


def _flow(commands: Commands) -> None:
    parser = commands.add_parser("flow", help="rank tokens by what flows from them to one token")
    _add_text(parser)
    parser.add_argument(
        "--query",
        default="-1",
        metavar="TOKEN",
        help="where it flows to: a position, or a text, its last token (default: -1, the last)",
    )
    parser.add_argument(
        "--heads", metavar="HEADS", help="read these alone: numbers, as in 0,2, or 1.1,2.0"
    )
    parser.add_argument(
        "--reduce",
        default="mean",
        choices=("mean", "max", "min"),
        help="how a layer's heads become one (default: mean)",
    )
    parser.add_argument(
        "--residual", type=real, metavar="R", help="the residual stream's share (default: 0.5)"
    )
    _add_output(parser, (*PICTURES, ".csv"))
    parser.set_defaults(run=run_flow)


def _tokens(commands: Commands) -> None:
    parser = commands.add_parser("tokens", help="list the tokens of a text with their positions")
    _add_text(parser)
    parser.set_defaults(run=run_tokens)


def _survey(commands: Commands) -> None:
    parser = commands.add_parser(
        "survey", help="capture many texts into a folder of Parquet files; go on where it stopped"
    )
    add_survey(parser)
    _add_edits(parser)
    parser.set_defaults(run=run_survey)


def _query(commands: Commands) -> None:
    parser = commands.add_parser("query", help="answer a query in SQL over a survey")
    _add_folder(parser)
    parser.add_argument(
        "query",
        metavar="SQL",
        help="over the tables texts, edges, queries, heads, tokens and failures",
    )
    _add_output(parser, TABLES)
    parser.set_defaults(run=run_query)


def _statistics(commands: Commands) -> None:
    parser = commands.add_parser(
        "statistics", help="what each head does on average over a survey; or compare two"
    )
    _add_folder(parser)
    parser.add_argument("score", metavar="SCORE", help="a column of the table heads")
    parser.add_argument(
        "--with",
        dest="other_folder",
        type=Path,
        metavar="FOLDER",
        help="another survey of the same texts: test whether heads differ",
    )
    _add_output(parser, (".csv", *PICTURES))
    parser.set_defaults(run=run_statistics)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the survey's folder")


def _models(commands: Commands) -> None:
    parser = commands.add_parser("models", help="list the models that load without network")
    parser.set_defaults(run=run_models)


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text; - reads it from standard input")
    parser.add_argument(
        "--model", metavar="NAME", help="a folder or a hub name (default: the embedded model)"
    )


def _add_capture(parser: argparse.ArgumentParser) -> None:
    _add_text(parser)
    parser.add_argument("--layer", type=whole, metavar="N", help="only this layer, counted from 0")
    parser.add_argument("--head", type=whole, metavar="N", help="only this head, counted from 0")
    parser.add_argument(
        "--keep", metavar="RULE", help=f"which edges to keep: {KEEPS} (default: all)"
    )


def _add_order(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--heads",
        metavar="HEADS",
        help="draw these, larger: of each layer, as in 0,2, or 1.1,2.0 or decoder:1.1,2.0",
    )
    for option, what in (
        ("--sort", "sort heads by a column of `gattn heads --all` or of the table of a comparison"),
        ("--label", "write such a column above each head; label says in words what it does"),
    ):
        parser.add_argument(option, metavar="SCORE", help=what)


def _add_edits(parser: argparse.ArgumentParser) -> None:
    edits = parser.add_argument_group(
        "edits",
        f"EDIT is {GRAMMAR}. PLACE is [STACK:]LAYER[.HEAD]; all heads by default. Edits may be "
        "given several times; `gattn tokens TEXT` lists the positions of tokens.",
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
        help="--cut after normalizing, so that the other edges keep what they had",
    )


def _written(option: str, text: str) -> tuple[str, str]:
    return option, text


def _add_output(
    parser: argparse.ArgumentParser,
    suffixes: Sequence[str],
    default: str | None = None,
    *,
    required: bool = False,
) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=required,
        default=default,
        metavar="FILE",
        help=f"where to write: {', '.join(suffixes)}"
        + (f" (default: {default})" if default else ""),
    )
    parser.set_defaults(suffixes=suffixes)
