"""Runs a survey's parts in this process, and finishes those that ran anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from gattn.surveys.store import queue
from gattn.surveys.store.columns import tables_of
from gattn.surveys.store.holding import writing
from gattn.surveys.store.parts import write_part

if TYPE_CHECKING:
    import pyarrow as pa

    Capture = Callable[[pa.Table], pa.Table]


class Done(NamedTuple):
    """A part that is in the survey."""

    first: int
    texts: int
    reasons: tuple[str, ...]
    """Why texts failed, one each."""
    faults: int = 0
    """How many of these failed in the model or an analysis."""


def run_here(folder: Path, parts: Sequence[int], capture: Capture) -> Iterator[Done]:
    """Capture one part after the other, while the one before is written; yield what is written.

    No more than these two are in memory.
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
    """Write a part that was captured, and take it from the queue.

    Raises
    ------
    FileError
        Where the disk is full, or the folder cannot be written for another reason.
    """
    tables = tables_of(rows)
    with writing(folder):
        write_part(folder, first, tables)
        queue.done(folder, first)
    texts, failures = tables["texts"], tables.get("failures")
    reasons = () if failures is None else tuple(failures["reason"].to_pylist())
    faults = pc.sum(pc.and_(pc.is_valid(rows["reason"]), pc.is_valid(rows["num_tokens"])))
    return Done(first, len(texts), reasons, faults.as_py() or 0)
