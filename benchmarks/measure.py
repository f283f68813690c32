"""Measures one row: times in rounds of peer and gattn, memory in a fresh process for each side.

A row's work is built by `Row.build(side, size, device)`, once for "peer" and once for "gattn", from
the same seed. Every measurement runs in a process forked from a server that has imported everything
and computed nothing.
"""

import ctypes
import gc
import math
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MIB = 2**20
TOLERANCE = 1e-4
"""How far gattn's numbers may be from the peer's, relative to the largest of them."""
SLOW_ROUND = 4.0
"""Rounds that take longer than this (in seconds) are run at least twice, others five times."""
MOST_ROUNDS = 201


@dataclass
class Side:
    """One way to do a row's work: gattn's or the peer's.

    If there is a `cotangent`, `leaves` are differentiated. `common` brings outputs and gradients
    to the layout in which both sides are compared.
    """

    forward: Callable[[], Any]
    leaves: tuple[Tensor, ...] = ()
    cotangent: Tensor | None = None
    common: Callable[[Tensor], Tensor] = lambda x: x

    def run(self) -> Any:
        """Compute the output, and the gradients if the row asks for them."""
        if self.cotangent is None:
            with torch.no_grad():
                return self.forward()
        output = self.forward()
        output.backward(self.cotangent)
        return output

    def forget_gradients(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


def same_numbers(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    """Raise an error if gattn's output or gradients are not the peer's."""
    _close("output", peer.common(theirs), gattn.common(ours))
    for number, (other, leaf) in enumerate(zip(peer.leaves, gattn.leaves, strict=True)):
        if peer.cotangent is not None:
            if other.grad is None or leaf.grad is None:
                raise AssertionError(f"the gradient of input {number} is None")
            _close(f"gradient of input {number}", peer.common(other.grad), gattn.common(leaf.grad))
    return {}


def _close(name: str, theirs: Tensor, ours: Tensor) -> None:
    if theirs.shape != ours.shape:
        raise AssertionError(f"{name}: {tuple(ours.shape)}, but the peer's {tuple(theirs.shape)}")
    error = float((theirs - ours).detach().abs().max() / theirs.detach().abs().max())
    if not error <= TOLERANCE:
        raise AssertionError(f"{name}: gattn differs from the peer by {error:.1e} of its scale")


@dataclass(frozen=True)
class Row:
    """One line of the table. Ratios are gattn's over the peer's; a bar is the largest allowed.

    gattn alone is measured at the sizes in `growth`. `small` is the size of the run that loads the
    code before memory is measured. `peer_bytes` is a guess of the memory that the peer needs.
    """

    name: str
    work: str
    peer: str
    size: int
    build: Callable[[str, int, str], Side]
    time_bar: float | None = None
    memory_bar: float | None = None
    growth: tuple[int, ...] = ()
    small: int = 64
    peer_bytes: int = 0
    check: Callable[[Side, Any, Side, Any], dict[str, float]] = same_numbers


def measure(row: Row, device: str, seconds: float, with_growth: bool) -> dict[str, Any]:
    """Measure a row: about `seconds` of rounds, then each side's memory, then growth."""
    result: dict[str, Any] = {}
    if row.peer_bytes > 0.9 * in_a_process(available_bytes, device):
        result["skipped"] = f"the peer needs about {row.peer_bytes / 2**30:.0f} GiB, so gattn alone"
        found = in_a_process(alone, row, "gattn", row.size, device, seconds)
        return result | {"seconds": {"gattn": found["seconds"]}, "mib": {"gattn": found["mib"]}}
    result |= in_a_process(alternate, row, device, seconds)
    mib = {
        side: in_a_process(alone, row, side, row.size, device, 0.0)["mib"]
        for side in ("peer", "gattn")
    }
    result |= {"mib": mib, "memory_ratio": max(mib["gattn"], 0.1) / max(mib["peer"], 0.1)}
    if with_growth and row.growth:
        result["growth"] = growth(row, device, seconds / 5)
    return result


def growth(row: Row, device: str, seconds: float) -> dict[str, Any]:
    """Measure gattn alone at several sizes: time and memory grow like N to these exponents."""
    found = [in_a_process(alone, row, "gattn", size, device, seconds) for size in row.growth]
    doublings = math.log2(row.growth[-1] / row.growth[0])
    columns = {name: [one[name] for one in found] for name in ("seconds", "mib")}
    exponents = {
        f"{name}_exponent": math.log2(max(values[-1], 1e-9) / max(values[0], 1e-9)) / doublings
        for name, values in columns.items()
    }
    return {"sizes": row.growth, **columns, **exponents}


# In a process of its own


def alternate(row: Row, device: str, seconds: float) -> dict[str, Any]:
    """Check that both sides agree, then time them alternately: peer, gattn, peer, gattn ..."""
    _prepare()
    sides = {side: row.build(side, row.size, device) for side in ("peer", "gattn")}
    outputs = {name: side.run() for name, side in sides.items()}
    notes = row.check(sides["peer"], outputs["peer"], sides["gattn"], outputs["gattn"])
    del outputs
    first = sum(_timed(side, device)[0] for side in sides.values())
    fewest = 2 if first > SLOW_ROUND else 5
    rounds = max(fewest, min(MOST_ROUNDS, int(seconds / first)))
    before = CpuTime.now()
    times: dict[str, list[float]] = {name: [] for name in sides}
    faults: dict[str, list[int]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken, faulted = _timed(side, device)
            times[name].append(taken)
            faults[name].append(faulted)
    ratios = [ours / theirs for ours, theirs in zip(times["gattn"], times["peer"], strict=True)]
    return {
        "rounds": rounds,
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "time_ratio": statistics.median(ratios),
        "time_ratio_range": [min(ratios), max(ratios)],
        "faults": {name: statistics.median(values) for name, values in faults.items()},
        "others": CpuTime.now().others_since(before),
        "notes": notes,
    }


def alone(row: Row, side: str, size: int, device: str, seconds: float) -> dict[str, float]:
    """Measure one side's memory on its first call, and its time if `seconds` is not 0."""
    _prepare()
    row.build(side, row.small, device).run()
    work = row.build(side, size, device)
    before = _resident_after_reset(device)
    work.run()
    result = {"mib": (_peak(device) - before) / MIB}
    if seconds:
        first = _timed(work, device)[0]
        rounds = max(2, min(MOST_ROUNDS, int(seconds / first)))
        result["seconds"] = statistics.median(_timed(work, device)[0] for _ in range(rounds))
    return result


def available_bytes(device: str) -> int:
    """Read how much memory is free."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with suppress(OSError):
        return 1024 * _kib("/proc/meminfo", "MemAvailable")
    return 2**62


def _prepare() -> None:
    """Make glibc keep freed memory, and the garbage collector ignore what was imported."""
    torch.zeros(30 * MIB // 4)  # freeing a large block makes glibc return only larger ones
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()


def _timed(side: Side, device: str) -> tuple[float, int]:
    """Time one call; count its minor page faults."""
    side.forget_gradients()
    gc.collect()
    _wait_for(device)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    output = side.run()
    _wait_for(device)
    taken = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    del output  # giving memory back is not timed
    return taken, faults


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _resident_after_reset(device: str) -> int:
    """Return free memory, reset the peak, and read what is resident."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return 1024 * _kib("/proc/self/status", "VmRSS")
    except OSError:
        return _peak(device)


def _peak(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        return 1024 * _kib("/proc/self/status", "VmHWM")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _kib(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(f"{path} has no {field}")


# Processes, and how busy the machine is


@dataclass(frozen=True)
class CpuTime:
    """CPU time so far: this process's, the whole machine's busy time, and all that there was."""

    own: float
    busy: float
    all: float

    @classmethod
    def now(cls) -> "CpuTime":
        own = time.process_time()
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
    """Call a function in a fresh process."""
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
