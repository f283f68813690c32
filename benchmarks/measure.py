"""Measures one row: times in rounds of peer and gattn, memory in a fresh process for each side.

A row's work is built by `Row.build(side, size, device)`, once for "peer" and once for "gattn", from
the same seed. Every measurement runs in a process forked from a server that has imported everything
and computed nothing; on a machine with a GPU, in this one.
"""

import ctypes
import gc
import math
import resource
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import CpuTime, in_a_process
from benchmarks.row import Row, Side

MIB = 2**20
"""How far gattn's numbers may be from the peer's, relative to the largest of them."""
SLOW_ROUND = 4.0
"""Rounds that take longer than this (in seconds) are run at least twice, others five times."""
MOST_ROUNDS = 201


def measure(row: Row, device: str, seconds: float, with_growth: bool) -> dict[str, Any]:
    """Measure a row: about `seconds` of rounds, then each side's memory, then growth."""
    result: dict[str, Any] = {}
    if row.device not in (None, device):
        return {"skipped": "it needs a GPU"}
    if row.peer_bytes > 0.9 * in_a_process(available_bytes, device):
        result["skipped"] = f"the peer needs about {row.peer_bytes / 2**30:.0f} GiB, so gattn alone"
        found = in_a_process(alone, row, "gattn", row.size, device, seconds)
        return result | {"seconds": {"gattn": found["seconds"]}, "mib": {"gattn": found["mib"]}}
    result |= in_a_process(alternate, row, device, seconds)
    if row.start_processes:
        del result["faults"]
        return result
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
