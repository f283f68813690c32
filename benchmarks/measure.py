"""Runs each case in a process of its own, and measures its time and its peak memory."""

import argparse
import gc
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def peak_mib() -> float:
    """Read the largest resident size so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Run once to warm up, and report the median of some more runs and the memory they took."""
    before = peak_mib()
    run()
    seconds = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "mib": peak_mib() - before}


def main(script: str, title: str, cases: dict[str, Callable[[int, int], dict[str, float]]]) -> None:
    """Compare cases over sizes; the first case is what the others are divided by."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(cases[options.case](options.sizes[0], options.repeats)))
        return
    import torch

    print(f"## {title}\n")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, ", end="")
    print(
        f"{torch.get_num_threads()} threads, median of {options.repeats} runs; memory is the ",
        end="",
    )
    print("peak above what was resident before the first run.\n")
    print("| tokens | case | seconds | ratio | MiB | ratio |\n|---|---|---|---|---|---|")
    for size in options.sizes:
        first: dict[str, float] | None = None
        for name in cases:
            found = _in_a_process(script, name, size, options.repeats)
            first = first or found
            time_ratio = found["seconds"] / first["seconds"]
            memory_ratio = found["mib"] / max(first["mib"], 1.0)
            row = f"{found['seconds']:.4f} | {time_ratio:.2f} | {found['mib']:.0f} | "
            print(f"| {size} | {name} | {row}{memory_ratio:.2f} |", flush=True)
    print()


def _in_a_process(script: str, case: str, size: int, repeats: int) -> dict[str, float]:
    command = [sys.executable, script, "--case", case, "--sizes", str(size)]
    done = subprocess.run(
        [*command, "--repeats", str(repeats)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(script).parent,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
