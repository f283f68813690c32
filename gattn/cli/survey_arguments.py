"""The arguments of the command survey, but for edits, which other commands take as well."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from gattn.cli.arguments import real, whole
from gattn.cli.captures import KEEPS
from gattn.cli.surveying import ANALYSES


def add_survey(parser: argparse.ArgumentParser) -> None:
    """Add what `run_survey` reads."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files with texts (.jsonl, .csv, .tsv, .txt, .parquet, .arrow; lines also packed), "
        "folders, globs and URIs such as s3://",
    )
    parser.add_argument(
        "-o",
        "--output",
        dest="out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the survey's folder: new, empty, or that of this survey, to go on where it stopped",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="a folder or a hub name (default: the embedded model)"
    )
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
        help=f"what to compute of each head, separated by commas: {', '.join(ANALYSES)} "
        "(default: heads: induction, entropy, previous token and others)",
    )
    parser.add_argument(
        "--analyse",
        choices=("all", "kept"),
        default="all",
        help="compute it from all edges (default), or faster from those that are kept",
    )
    parser.add_argument("--layers", metavar="N", help="only these layers, such as 0,2-4")
    parser.add_argument(
        "--heads", metavar="HEADS", help="only these heads: of each layer as in 0,2, or 1.1,2.0"
    )
    parser.add_argument(
        "--scores", action="store_true", help="store what each edge scored before the softmax, too"
    )
    parser.add_argument(
        "--contributions",
        choices=("output", "value"),
        help="store the length of what each edge adds to the layer's output, or of its value",
    )


def _add_texts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--column", default="text", metavar="NAME", help="the column with the texts (default: text)"
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="only the first N texts")
    parser.add_argument(
        "--sample", type=whole, metavar="N", help="only N texts, drawn by chance from all"
    )
    parser.add_argument(
        "--seed",
        type=partial(whole, least=0),
        default=0,
        metavar="N",
        help="another number draws another sample",
    )
    parser.add_argument(
        "--most-tokens",
        type=whole,
        default=4096,
        metavar="N",
        help="run texts together up to N tokens (default: 4096); fewer take less memory",
    )


def _add_ray(parser: argparse.ArgumentParser) -> None:
    ray = parser.add_argument_group("on a Ray cluster")
    ray.add_argument(
        "--ray", metavar="ADDRESS", help="auto, an address, or local: a cluster on this machine"
    )
    ray.add_argument(
        "--workers",
        type=partial(whole, least=1),
        metavar="N",
        help="how many, each with a model (default: the CPUs - 1, or as many as the GPUs allow)",
    )
    ray.add_argument(
        "--num-gpus", type=real, metavar="X", help="the GPUs of each worker (default: 0)"
    )
