"""Captures and writes parts of a survey, in a worker on a Ray cluster."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from traceback import format_exc
from typing import Any

from gattn.errors import CaptureError, FileError, GattnError
from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.run.local import Done, finish
from gattn.surveys.store import queue
from gattn.surveys.store.manifest import read_manifest
from gattn.surveys.store.parts import count_rows, part_path, read_rows

RESUME = "The texts in the survey are complete; run the same survey again to resume."


class Tries:
    """Counts how often each part was begun, and limits it."""

    def __init__(self, most: int) -> None:
        self._most, self._tries = most, Counter[int]()

    def begin(self, first: int) -> int:
        """Count one more attempt; if it is one too many, return how many workers were lost."""
        self._tries[first] += 1
        return self._most if self._tries[first] > self._most else 0


class CapturePart:
    """Captures a part and writes it, in a worker with a model of its own.

    A worker has two parts at a time, and writes one while it captures the other. So only one line
    per part passes through Ray; with a separate writing stage, all edges would pass through its
    object store, where they take ten times the room that they take on disk.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, Any], num_gpus: float, tries: Any
    ) -> None:
        self._folder, self._options, self._tries = folder, options, tries
        self._num_gpus = num_gpus
        self._capturing = Lock()

    @cached_property
    def _capture(self) -> CaptureGraphs:
        if read_manifest(self._folder) is None:
            raise FileError(
                f"The worker on {platform.node()} finds no survey in {self._folder}: choose a "
                "folder that has the same path on all machines of the cluster."
            )
        if not self._num_gpus:  # Ray shows all GPUs to workers that asked for none.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return CaptureGraphs(**self._options)

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
        """Report in JSON, which Ray does not convert, what was done or what failed."""
        try:
            answer = self._finished(int(batch["first"][0]))._asdict()
        except GattnError as error:  # As a row, since Ray would wrap the error in one of its own.
            answer = {"error": type(error).__name__, "message": str(error)}
        except Exception as error:
            answer = {
                "error": "CaptureError",
                "message": f"A worker raised {type(error).__name__}: {error}. {RESUME}",
                "traceback": format_exc(),
            }
        return {"answer": [json.dumps(answer)]}

    def _finished(self, first: int) -> Done:
        if part_path(self._folder, "texts", first).exists():
            return _written(self._folder, first)
        with self._capturing:
            capture = self._capture
            texts = queue.read(self._folder, first)
            self._begin(first, texts["text_id"][-1].as_py())
            rows = capture(texts)
        return finish(self._folder, first, rows)

    def _begin(self, first: int, last: int) -> None:
        import ray

        if lost := ray.get(self._tries.begin.remote(first)):
            raise CaptureError(
                f"{lost} workers were lost on texts {first} to {last}, which may take more memory "
                f"than a worker has: check these texts, or run fewer workers per machine. {RESUME}"
            )


def _written(folder: Path, first: int) -> Done:
    """Report a part whose worker was lost after writing it."""
    queue.done(folder, first)
    texts = count_rows(part_path(folder, "texts", first))
    failures, reasons = part_path(folder, "failures", first), []
    if failures.exists():
        reasons = read_rows(failures, columns=["reason"])["reason"].to_pylist()
    return Done(first, texts, tuple(reasons))
