"""Runs checks in processes of their own, which may not take too long or too much memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

BYTES = 12 << 30
_WAITS = 20
"""How many times longer than it may compute a process may take, beside others."""


def each_apart(
    names: Sequence[str], judge: Callable[[str], Any], *, workers: int, seconds: float
) -> Iterator[tuple[str, Any]]:
    """Yield each name and what `judge` says of it, or, as text, why it says nothing.

    `seconds` are of computing, so that a busy machine changes no verdict.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < workers:
            name, queue = waiting.pop(0), context.SimpleQueue()
            process = context.Process(target=_work, args=(judge, name, queue, seconds))
            process.start()
            running[name] = process, queue, time.monotonic()
        time.sleep(0.01)
        for name, (process, queue, start) in list(running.items()):
            late = time.monotonic() - start > _WAITS * seconds
            if queue.empty() and process.is_alive() and not late:
                continue
            late |= process.exitcode == -signal.SIGXCPU
            reason = "took too long" if late else "the process ended"
            yield name, reason if queue.empty() else queue.get()
            process.kill()
            process.join()
            del running[name]


def _work(judge: Callable[[str], Any], name: str, queue: Any, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 10))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    queue.put(judge(name))
