"""Runs the parts of a survey in this process, and writes parts from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from gattn.surveys.store import queue
from gattn.surveys.store.holding import writing
from gattn.surveys.store.parts import write_part
from gattn.surveys.store.text_rows import tables_of

if TYPE_CHECKING:
    import pyarrow as pa

    Capture = Callable[[pa.Table], pa.Table]


class Done(NamedTuple):
    """A part that is now in the survey."""

    first: int
    texts: int
    reasons: tuple[str, ...]
    """Why texts failed, one reason each."""
    faults: int = 0
    """How many of them failed in the model or in an analysis."""


def run_here(folder: Path, parts: Sequence[int], capture: Capture) -> Iterator[Done]:
    """Capture one part while the one before it is written; yield each part once it is written.

    Only these two parts are in memory.
    """
    with ThreadPoolExecutor(1) as writer:
        written: Future[Done] | None = None
        for first in parts:
            rows = capture(queue.read(folder, first))
            if written is not None:
                yield written.result()
            written = writer.submit(finish, folder, first, rows)
        if written is not None:
            yield written.result()


def finish(folder: Path, first: int, rows: pa.Table) -> Done:
    """Write a captured part, and remove it from the queue."""
    tables = tables_of(rows)
    with writing(folder):
        write_part(folder, first, tables)
        queue.done(folder, first)
    texts, failures = tables["texts"], tables.get("failures")
    reasons = () if failures is None else tuple(failures["reason"].to_pylist())
    faults = pc.sum(pc.and_(pc.is_valid(rows["reason"]), pc.is_valid(rows["num_tokens"])))
    return Done(first, len(texts), reasons, faults.as_py() or 0)
