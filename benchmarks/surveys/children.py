"""Runs one measurement in a process of its own, and watches the memory of all its processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import MIB
from benchmarks.processes import CpuTime

_PAUSE = 0.25
_LIMIT = 600.0


def in_a_child(name: str, work: Path, quick: bool) -> dict[str, Any]:
    """Run the measurement `name`; if it fails, the result has the reason.

    The processes that it starts are Ray's: their proportional set sizes are added up.
    """
    command = [sys.executable, "-m", "benchmarks.surveys.child", name, str(work), str(int(quick))]
    # A survey's own words go to stderr; the last line of stdout is the answer.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as told:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=told, env=_environment())
        peaks = _watched(process)
        seconds = time.perf_counter() - start
        said.seek(0)
        told.seek(0)
        lines, errors = said.read().splitlines(), told.read().splitlines()
    found: dict[str, Any] = {"name": name, "whole_seconds": seconds, "others": peaks.pop("others")}
    found["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if process.returncode or not lines:
        reason = errors[-1] if errors else f"it ended with code {process.returncode}"
        return found | {"failed": reason[:500]}
    return found | peaks | json.loads(lines[-1])


def _environment() -> dict[str, str]:
    return os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false"}


def _watched(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> dict[str, float]:
    """Wait for a process; return the peaks of its children, and the CPU share of all others."""
    root, before = psutil.Process(process.pid), CpuTime.now()
    total = workers = 0.0
    known: dict[int, psutil.Process] = {}
    cpu: dict[int, float] = {}
    end = time.monotonic() + _LIMIT
    while process.poll() is None:
        if time.monotonic() > end:
            process.kill()
        below = _below(root)
        known |= {one.pid: one for one in below}
        sizes = {one: _size(one) for one in [root, *below]} if below else {}
        total = max(total, sum(sizes.values()))
        at_work = sum(size for one, size in sizes.items() if _is_worker(one))
        workers = max(workers, at_work)
        cpu |= {one.pid: seconds for one in [root, *below] if (seconds := _cpu_seconds(one))}
        time.sleep(_PAUSE)
    now = CpuTime.now()
    taken = now.busy - before.busy - sum(cpu.values()) - (now.own - before.own)
    others = max(0.0, taken) / (now.all - before.all)
    for one in known.values():  # What a child that failed left behind; psutil knows reused ids.
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    peaks = {"all_mib": total, "workers_mib": workers} if known else {}
    return {"others": others} | peaks


def _below(root: psutil.Process) -> list[psutil.Process]:
    try:
        return list(root.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _size(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / MIB
    except (psutil.Error, AttributeError):
        return 0.0


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "CapturePart" in " ".join(process.cmdline())
    except psutil.Error:
        return False
