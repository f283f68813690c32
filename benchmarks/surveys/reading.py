"""Memory against the number of texts, and how long reading takes."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gattn
from benchmarks.surveys import corpus

COUNTS = (100, 1_000, 5_000)
_QUICK = 100
_ROUNDS = 15
_QUERY = "select layer, head, avg(induction) from heads group by all order by 3 desc limit 10"


def write(work: Path, quick: bool, *, count: int) -> dict[str, Any]:
    """Write a survey of short texts."""
    count = min(count, _QUICK) if quick else count
    folder = work / f"short-{count}"
    start = time.perf_counter()
    done = gattn.survey(corpus.sentences(work, count), out=folder, progress=False)
    seconds = time.perf_counter() - start
    return {"texts": len(done), "failures": len(done.failures), "seconds": seconds}


def measure(work: Path, quick: bool) -> dict[str, Any]:
    """Read from the largest of these surveys, which is written first if it is not there."""
    count = _QUICK if quick else COUNTS[-1]
    folder = work / f"short-{count}"
    gattn.survey(corpus.sentences(work, count), out=folder, progress=False)
    done = gattn.open_survey(folder)
    draw = random.Random(0)
    steps: dict[str, Callable[[], Any]] = {
        "open_survey(folder)": lambda: gattn.open_survey(folder),
        "len(survey)": lambda: len(done),
        "survey.trace(n)": lambda: done.trace(draw.randrange(count)),
        "survey.graph(n, 1, 3)": lambda: done.graph(draw.randrange(count), 1, 3),
        "survey.edges(layer=1, head=3, text_id=n)": lambda: done.edges(
            layer=1, head=3, text_id=draw.randrange(count)
        ),
        f'survey.sql("{_QUERY}")': lambda: done.sql(_QUERY),
    }
    found = {name: _times(step) for name, step in steps.items()}
    edges = int(done.texts["num_edges"].sum())
    return {"texts": len(done), "edges": edges, "parts": len(list(folder.glob("texts/*")))} | {
        "median_ms": {name: statistics.median(times) for name, times in found.items()},
        "most_ms": {name: max(times) for name, times in found.items()},
    }


def _times(step: Callable[[], Any]) -> list[float]:
    step()
    found = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        step()
        found.append(1000 * (time.perf_counter() - start))
    return found
