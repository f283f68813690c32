"""The commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from gattn import __version__
from gattn.cli.arguments.values import Parser, real, whole
from gattn.cli.commands.drawing import run_compare, run_draw, run_heads, run_view
from gattn.cli.commands.effects import run_effect, run_estimate
from gattn.cli.commands.explaining import run_why
from gattn.cli.commands.listing import run_export, run_models, run_tokens
from gattn.cli.commands.measuring import run_circuit, run_flow, run_routes
from gattn.cli.commands.querying import TABLES, run_examples, run_query, run_statistics
from gattn.cli.commands.surveying import run_survey
from gattn.cli.measuring_arguments import (
    add_answer,
    add_circuit,
    add_estimate,
    add_flow,
    add_why,
)
from gattn.cli.shared_arguments import (
    add_capture,
    add_edits,
    add_folder,
    add_order,
    add_output,
    add_position,
    add_style,
    add_text,
)
from gattn.cli.survey_arguments import add_survey
from gattn.cli.terminal.output import EXPORTS, PAGES, PICTURES

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

LAYOUTS = ("arcs", "columns", "circle", "matrix")


def make_parser() -> argparse.ArgumentParser:
    """Make the parser: each command sets `run`, and `suffixes` if it writes a file."""
    parser = Parser(prog="gattn", description="Read a model's self-attention as graphs.")
    parser.add_argument("--version", action="version", version=f"gattn {__version__}")
    # For commands without these arguments.
    parser.set_defaults(output=None, layer=None, head=None, keep=None, generate=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _draw,
        _view,
        _heads,
        _export,
        _compare,
        _effect,
        _estimate,
        _circuit,
        _routes,
        _flow,
        _why,
        _tokens,
        _survey,
        _query,
        _statistics,
        _examples,
        _models,
    ):
        add(commands)
    return parser


def _command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], what: str
) -> Parser:
    parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    parser.set_defaults(run=run)
    return parser


def _draw(commands: Commands) -> None:
    parser = _command(commands, "draw", run_draw, "draw all heads on a text, or one head")
    add_capture(parser)
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="how to draw one head (default: arcs), or those of --heads in one view",
    )
    add_order(parser)
    add_style(parser)
    add_output(parser, PICTURES, "attention.svg")


def _view(commands: Commands) -> None:
    parser = _command(
        commands,
        "view",
        run_view,
        "write a page of all heads and open it in the browser; with edits, before and after",
    )
    add_capture(parser)
    add_edits(parser)
    parser.add_argument(
        "--generate", type=whole, metavar="N", help="let the model generate N more tokens"
    )
    parser.add_argument("--no-open", dest="opens", action="store_false", help="only write the page")
    add_output(parser, PAGES, "attention.html")


def _heads(commands: Commands) -> None:
    parser = _command(commands, "heads", run_heads, "print a table of scores, one row per head")
    add_capture(parser)
    parser.add_argument("--all", action="store_true", help="print all columns")
    add_output(parser, (".csv", *PICTURES))


def _export(commands: Commands) -> None:
    parser = _command(commands, "export", run_export, "save one head, or all heads as .gattn")
    add_capture(parser)
    add_output(parser, EXPORTS, required=True)


def _compare(commands: Commands) -> None:
    parser = _command(
        commands,
        "compare",
        run_compare,
        "show what edits change in each head, or match the heads of two models",
    )
    add_capture(parser)
    add_edits(parser)
    add_order(parser)
    add_style(parser)
    parser.add_argument(
        "--with",
        dest="other_model",
        metavar="NAME",
        help="another model, instead of edits: find its most similar head for each head",
    )
    add_output(parser, PICTURES, "compare.svg")


def _effect(commands: Commands) -> None:
    parser = _command(commands, "effect", run_effect, "measure how edits change the prediction")
    add_text(parser)
    add_edits(parser)
    parser.add_argument(
        "--together", action="store_true", help="apply all edits at once, for one row"
    )
    parser.add_argument(
        "--each-head", action="store_true", help="cut (ablate) each head in turn, one row per head"
    )
    add_answer(parser)
    add_output(parser, (".csv", *PICTURES))


def _estimate(commands: Commands) -> None:
    parser = _command(
        commands,
        "estimate",
        run_estimate,
        "estimate what cutting each edge changes in the prediction, from one backward pass",
    )
    add_estimate(parser)


def _circuit(commands: Commands) -> None:
    parser = _command(
        commands,
        "circuit",
        run_circuit,
        "find the fewest edges of attention on which alone the model keeps its prediction",
    )
    add_circuit(parser)


def _routes(commands: Commands) -> None:
    parser = _command(
        commands, "routes", run_routes, "find the paths by which a prediction gets its information"
    )
    add_text(parser)
    add_position(parser, "the one that the answer is read from, in a text the last")
    parser.add_argument(
        "--threshold",
        type=real,
        default=0.04,
        metavar="T",
        help="drop edges of importance T or less (default: 0.04)",
    )
    add_output(parser, (*PICTURES, *EXPORTS[1:]))


def _flow(commands: Commands) -> None:
    parser = _command(
        commands, "flow", run_flow, "rank tokens by how much flows from them to one token"
    )
    add_flow(parser)


def _why(commands: Commands) -> None:
    parser = _command(
        commands,
        "why",
        run_why,
        "say who wrote the queries and keys of a head: embeddings, heads, MLPs",
    )
    add_why(parser)


def _tokens(commands: Commands) -> None:
    parser = _command(
        commands, "tokens", run_tokens, "list the tokens of a text and their positions"
    )
    add_text(parser)


def _survey(commands: Commands) -> None:
    parser = _command(
        commands,
        "survey",
        run_survey,
        "capture many texts into a folder of Parquet files; interrupted runs resume",
    )
    add_survey(parser)
    add_edits(parser)


def _query(commands: Commands) -> None:
    parser = _command(commands, "query", run_query, "query a survey with SQL")
    add_folder(parser)
    parser.add_argument(
        "query",
        metavar="SQL",
        help="a query of the tables texts, edges, queries, heads, tokens and failures",
    )
    add_output(parser, TABLES)


def _statistics(commands: Commands) -> None:
    parser = _command(
        commands,
        "statistics",
        run_statistics,
        "average a score over a survey, head by head, or compare two surveys",
    )
    add_folder(parser)
    parser.add_argument(
        "score", metavar="SCORE", help="a column of the table heads, such as induction"
    )
    parser.add_argument(
        "--with",
        dest="other_folder",
        type=Path,
        metavar="FOLDER",
        help="another survey of the same texts: test which heads differ",
    )
    add_output(parser, (".csv", *PICTURES))


def _examples(commands: Commands) -> None:
    parser = _command(
        commands,
        "examples",
        run_examples,
        "list the texts of a survey in which a head has the most of a score, or write their page",
    )
    add_folder(parser)
    parser.add_argument("head", metavar="HEAD", help="the head, such as 5.1 or decoder:5.1")
    parser.add_argument(
        "score", metavar="SCORE", help="a column of the table heads, such as induction"
    )
    parser.add_argument(
        "--most", type=whole, default=10, metavar="N", help="how many texts (default: 10)"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the model of the survey, run again so that the page shows what it predicted",
    )
    add_output(parser, (*PAGES, ".csv"))


def _models(commands: Commands) -> None:
    _command(commands, "models", run_models, "list the models that load without a network")
