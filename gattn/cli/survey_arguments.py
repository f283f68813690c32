"""The arguments of `gattn survey`, except edits, which other commands take too."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from gattn.cli.arguments.captures import KEEPS
from gattn.cli.arguments.values import real, whole
from gattn.cli.commands.surveying import ANALYSES
from gattn.cli.shared_arguments import add_model


def add_survey(parser: argparse.ArgumentParser) -> None:
    """Add what `run_survey` reads."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files of texts (.jsonl, .csv, .tsv, .txt, .parquet, .arrow; files of lines may be "
        "compressed), folders, globs or URIs such as s3://",
    )
    parser.add_argument(
        "-o",
        "--output",
        dest="out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the survey's folder: new, empty, or that of an interrupted run, which then resumes",
    )
    add_model(parser)
    _add_what(parser)
    _add_texts(parser)
    _add_ray(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        default="threshold:0.02",
        metavar="RULE",
        help=f"which edges to keep: {KEEPS} (default: threshold:0.02)",
    )
    parser.add_argument(
        "--analyses",
        default="heads",
        metavar="NAMES",
        help=f"which scores to compute for each head, separated by commas: {', '.join(ANALYSES)} "
        "(default: heads, which has induction, entropy, previous token and more)",
    )
    parser.add_argument(
        "--analyse",
        choices=("all", "kept"),
        default="all",
        help="compute scores from all edges (default) or only from those kept, which is faster for "
        "all analyses but heads",
    )
    parser.add_argument("--layers", metavar="N", help="only these layers, such as 0,2-4")
    parser.add_argument(
        "--heads",
        metavar="HEADS",
        help="only these heads: numbers in each layer, as in 0,2, or LAYER.HEAD, as in 1.1,2.0",
    )
    parser.add_argument(
        "--scores", action="store_true", help="also store each edge's score before the softmax"
    )
    parser.add_argument(
        "--contributions",
        choices=("output", "value"),
        help="also store the norm of what each edge adds to the layer's output, or of its value",
    )


def _add_texts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--column", default="text", metavar="NAME", help="the column of texts (default: text)"
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="only the first N texts")
    parser.add_argument("--sample", type=whole, metavar="N", help="only N texts, drawn at random")
    parser.add_argument(
        "--seed",
        type=partial(whole, least=0),
        default=0,
        metavar="N",
        help="the random seed of --sample (default: 0)",
    )
    parser.add_argument(
        "--most-tokens",
        type=whole,
        default=4096,
        metavar="N",
        help="run texts in batches of at most N tokens (default: 4096); fewer take less memory",
    )


def _add_ray(parser: argparse.ArgumentParser) -> None:
    ray = parser.add_argument_group("on a Ray cluster")
    ray.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="auto, an address, or local to start a cluster on this machine",
    )
    ray.add_argument(
        "--workers",
        type=partial(whole, least=1),
        metavar="N",
        help="how many workers, each with its own model (default: all CPUs but one, or as many as "
        "the GPUs allow)",
    )
    ray.add_argument("--num-gpus", type=real, metavar="X", help="the GPUs per worker (default: 0)")
