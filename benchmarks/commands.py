"""Commands from start to end, each in a process of its own, beside the libraries that they need."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.row import Row, Side

TEXT = "The keys to the cabinet are on the table"
_GATTN = "import sys; from gattn.cli import main; sys.exit(main(sys.argv[1:]))"
_SQL = "select count(*) from edges"
_DRAW = f"""
import matplotlib.pyplot, torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from gattn.models.load.loading import EMBEDDED_PATH
model = LlamaForCausalLM.from_pretrained(EMBEDDED_PATH).eval()
tokens = PreTrainedTokenizerFast.from_pretrained(EMBEDDED_PATH)({TEXT!r}, return_tensors="pt")
with torch.no_grad():
    model(**tokens)
"""
_QUERY = """
import sys
import duckdb
print(duckdb.sql(f"select count(*) from read_parquet('{sys.argv[1]}/edges/*.parquet')"))
"""


def rows() -> list[Row]:
    """List the rows."""
    needs = "a Python process that {}"
    return [
        Row(
            "cli-draw",
            "gattn draw TEXT: the embedded model, all heads, a PNG",
            needs.format("imports torch, Llama and pyplot, loads the embedded model and runs it"),
            0,
            partial(_build, "draw"),
            time_bar=1.05,
            check=_both_ran,
            start_processes=True,
        ),
        Row(
            "cli-query",
            "gattn query SURVEY, a count over all edges",
            needs.format("imports duckdb and asks the same of the Parquet files"),
            0,
            partial(_build, "query"),
            check=_both_ran,
            start_processes=True,
        ),
        Row(
            "cli-models",
            "gattn models",
            needs.format("imports nothing"),
            0,
            partial(_build, "models"),
            check=_both_ran,
            start_processes=True,
        ),
    ]


def _build(command: str, side: str, size: int, device: str) -> Side:
    folder = tempfile.TemporaryDirectory()
    survey = Path(folder.name) / "survey"
    if command == "query":
        import gattn

        gattn.survey([TEXT], out=survey, progress=False)
    words = {
        "draw": [TEXT, "-o", str(Path(folder.name) / "drawn.png")],
        "query": [str(survey), _SQL],
        "models": [],
    }[command]
    ours = ["-c", _GATTN, command, *words]
    theirs = {"draw": ["-c", _DRAW], "query": ["-c", _QUERY, str(survey)], "models": ["-c", ""]}
    return Side(partial(_run, ours if side == "gattn" else theirs[command], folder))


def _run(arguments: list[str], folder: Any) -> int:
    """Run Python; `folder` is kept as long as the work is."""
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["HF_HUB_OFFLINE"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, check=True
    ).returncode


def _both_ran(peer: Side, theirs: int, gattn: Side, ours: int) -> dict[str, float]:
    if theirs or ours:
        raise AssertionError(f"the commands ended with {ours} and {theirs}")
    return {}
