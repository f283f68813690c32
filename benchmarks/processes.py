"""Runs functions in fresh processes where that matters, and says how busy the machine is."""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class CpuTime:
    """CPU time so far: the whole machine's busy time, all that there was, and this process's own.

    What it started and waited for is its own, too.
    """

    own: float
    busy: float
    all: float

    @classmethod
    def now(cls) -> "CpuTime":
        own = sum(os.times()[:4])
        try:
            ticks = [
                int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
            ]
        except OSError:  # not Linux: the load average must do
            wall = time.monotonic()
            cpus = os.cpu_count() or 1
            return cls(0.0, wall * min(cpus, os.getloadavg()[0]), wall * cpus)
        idle = ticks[3] + ticks[4]
        per_second = os.sysconf("SC_CLK_TCK")
        return cls(own, (sum(ticks) - idle) / per_second, sum(ticks) / per_second)

    def others_since(self, before: "CpuTime") -> float:
        """Return the share of the machine's CPUs that other processes have used since."""
        taken = (self.busy - before.busy) - (self.own - before.own)
        return max(0.0, taken) / max(self.all - before.all, 0.01)


def calibrate(seconds: float = 1.0) -> float:
    """Do nothing for a while, and return the share of the CPUs that other processes used."""
    before = CpuTime.now()
    time.sleep(seconds)
    return CpuTime.now().others_since(before)


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.rows", "torch_geometric.nn", "gattn.module"])


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process.

    Where there is a GPU, it is called in this one: torch counts the GPU's memory, whatever was
    allocated before, and starting CUDA anew takes longer than most rows.
    """
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        try:
            return function(*arguments)
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        kind, value = receiver.recv()
    except EOFError:
        process.join()
        kind, value = "error", f"the process ended with code {process.exitcode}"
    finally:
        receiver.close()
    process.join()
    if kind == "error":
        raise RuntimeError(value)
    return value


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        sender.send(("value", function(*arguments)))
    except Exception as error:
        sender.send(("error", f"{type(error).__name__}: {error}"))
