"""The arguments of `gattn estimate`, `circuit`, `flow` and `why`, and of what is measured."""

from __future__ import annotations

import argparse

from gattn.cli.arguments.values import REDUCTIONS, place_number, real, whole
from gattn.cli.shared_arguments import (
    add_capture,
    add_output,
    add_position,
    add_style,
    add_text,
)
from gattn.cli.terminal.output import EXPORTS, PAGES, PICTURES

METRICS = ("kl", "logit_difference", "probability", "loss")
DEFAULT_METRIC = (
    "default: logit_difference with --target and --other, probability with --target, otherwise kl"
)
UNITS = ("edges", "pairs", "tokens", "heads", "paths", "all paths")


def add_answer(parser: argparse.ArgumentParser, what: str = "what to measure") -> None:
    """Add --metric, --position, --target and --other."""
    parser.add_argument("--metric", choices=METRICS, help=f"{what} ({DEFAULT_METRIC})")
    add_position(parser, "the last; for the loss, all that have a next token")
    for option, what in (
        ("--target", 'the predicted token, such as " cat", for probability and logit_difference'),
        ("--other", "the token to compare the target with, for logit_difference"),
    ):
        parser.add_argument(
            option, action="append", metavar="TOKEN", help=f"{what}; repeat it for several"
        )


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add what `run_estimate` reads."""
    add_capture(parser)
    add_answer(parser)
    parser.add_argument(
        "--no-renormalize",
        dest="renormalize",
        action="store_false",
        help="cut edges after normalizing, so that the others keep their attention",
    )
    parser.add_argument(
        "--sample",
        type=whole,
        default=50,
        metavar="N",
        help="the number of edges that are also cut, to check the estimates (default: 50)",
    )
    add_style(parser)
    add_output(parser, (".csv", *PICTURES))


def add_circuit(parser: argparse.ArgumentParser) -> None:
    """Add what `run_circuit` reads."""
    add_text(parser)
    add_answer(parser, "what to keep")
    parser.add_argument(
        "--keep",
        type=real,
        default=0.9,
        metavar="SHARE",
        help="the share of the metric to keep, from the value without attention (default: 0.9)",
    )
    parser.add_argument(
        "--units",
        choices=UNITS,
        default="edges",
        help="what is kept or left out as a whole: an edge, all edges of a pair of tokens, all "
        "from a token, a head, or a path from head to head; all paths are also those from "
        "embeddings and MLPs (default: edges)",
    )
    parser.add_argument(
        "--ablation",
        default="zero",
        metavar="WHAT",
        help="what takes the place of messages that are left out: zero, mean (the head's mean "
        "value), or a text of as many tokens, whose messages do (default: zero)",
    )
    parser.add_argument("--max-edges", type=whole, metavar="N", help="keep at most N edges")
    parser.add_argument("--seconds", type=real, metavar="S", help="stop the search after S seconds")
    add_output(parser, (*PICTURES, *PAGES, *EXPORTS[1:]))


def add_flow(parser: argparse.ArgumentParser) -> None:
    """Add what `run_flow` reads."""
    add_text(parser)
    parser.add_argument(
        "--query",
        default="-1",
        metavar="TOKEN",
        help="the token to which it flows: a position, or text, whose last match counts (default: "
        "-1, the last)",
    )
    parser.add_argument(
        "--heads",
        metavar="HEADS",
        help="only these heads: numbers in each layer, as in 0,2, or [STACK:]LAYER.HEAD, as in "
        "1.1,2.0",
    )
    parser.add_argument(
        "--reduce",
        default="mean",
        choices=REDUCTIONS,
        help="how to combine the heads of a layer (default: mean)",
    )
    parser.add_argument(
        "--residual",
        type=real,
        metavar="R",
        help="the residual stream's share of a layer's output (default: 0.5)",
    )
    add_output(parser, (*PICTURES, ".csv"))


def add_why(parser: argparse.ArgumentParser) -> None:
    """Add what `run_why` reads."""
    add_text(parser)
    for option in ("layer", "head"):
        parser.add_argument(
            f"--{option}", type=place_number, required=True, metavar="N", help="counted from 0"
        )
    for option, what, default in (
        ("--query", "that attends", "all"),
        ("--key", "to which it attends", "whatever queries attend to, next to all that they may"),
    ):
        parser.add_argument(
            option,
            action="append",
            metavar="TOKEN",
            help=f"the token {what}: a position, or text, which names every such token; repeat it "
            f"for several (default: {default})",
        )
    parser.add_argument(
        "--contrast",
        metavar="TOKEN",
        help="another key, whose score is taken away; or mean, all keys by their attention",
    )
    parser.add_argument(
        "--stack", metavar="STACK", help="which stack, such as encoder, if the model has several"
    )
    parser.add_argument(
        "--split",
        metavar="HEADS",
        help="earlier heads whose parts are split by the token that they read, as in 1.1,0.3",
    )
    parser.add_argument(
        "--paths",
        action="store_true",
        help="draw the largest pairs of parts as paths in the text, in place of a matrix",
    )
    add_output(parser, (".csv", *PICTURES, *PAGES))
