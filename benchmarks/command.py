"""The command `python -m benchmarks`: its options, and what they do."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.measure import measure
from benchmarks.processes import calibrate
from benchmarks.row import Row

RESULTS = {
    "cpu": Path(__file__).with_name("results.json"),
    "cuda": Path(__file__).with_name("results_gpu.json"),
}
SECONDS = {"cpu": 6.0, "cuda": 2.0}
"""About how long a row's rounds take together."""
BUSY = 0.05
"""The share of the CPUs that other processes may use before a warning."""


def main() -> int:
    options = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    from benchmarks.rows import rows

    available = rows(options.quick, device)
    try:
        names = choose((row.name for row in available), options.names)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = [row for row in available if row.name in names]
    if options.list:
        print("\n".join(report.described(row) for row in chosen))
        return 0
    results_here = RESULTS[device]
    path = options.json or (None if options.quick else results_here)
    results = report.read(path, machine(device))
    if not options.draw:
        _warn_where_busy(calibrate(), "before the first row")
        _measure_all(chosen, device, options.quick, results, path)
    if path:
        report.sort(results, [row.name for row in available])
        report.publish(results, path, path.resolve() == results_here.resolve())
    return any("failed" in row for row in results["rows"])


def _options() -> argparse.Namespace:
    defaults = "benchmarks/results.json (results_gpu.json on a GPU), docs/speed.md, docs/pictures"
    return read_options("benchmarks", report.DESCRIPTION, "--rows", defaults)


def read_options(module: str, description: str, choice: str, defaults: str) -> argparse.Namespace:
    """Read a command's options: `choice` selects names, `defaults` are the files it writes."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--list", action="store_true", help="list the names, measure nothing")
    parser.add_argument(
        choice, dest="names", nargs="+", metavar="NAME", default=[], help="a name, or its beginning"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="the file for results; page and picture go next to it. By default (but not with "
        f"--quick) {defaults}. Earlier results of the same machine are kept",
    )
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing, write page and picture again"
    )
    return parser.parse_args()


def choose(names: Iterable[str], asked: list[str]) -> set[str]:
    """Find the names that are `asked` for, each whole or by its beginning; all, if none is.

    Raises
    ------
    LookupError
        A word is the beginning of no name.
    """
    names = set(names)
    found = {
        word: {word} if word in names else {name for name in names if name.startswith(word)}
        for word in asked
    }
    if unknown := [word for word, those in found.items() if not those]:
        raise LookupError(f"Nothing is named {', '.join(unknown)}: --list shows all names.")
    return set().union(*found.values()) if asked else names


def _measure_all(
    chosen: list[Row], device: str, quick: bool, results: dict[str, Any], path: Path | None
) -> None:
    print(report.heading())
    began = time.monotonic()
    for row in chosen:
        found = _about(row)
        try:
            found |= measure(
                row, device, seconds=0.5 if quick else SECONDS[device], with_growth=not quick
            )
        except RuntimeError as error:
            found["failed"] = str(error)
        print(report.line(found), flush=True)
        _warn_where_busy(found.get("others", 0.0), f"during {row.name}")
        report.put(results, found)
        if path:
            report.write(results, path)
    count = f"{len(chosen)} row{'s' * (len(chosen) > 1)}"
    print(f"{count} in {time.monotonic() - began:.0f} s", flush=True)


def _about(row: Row) -> dict[str, Any]:
    fields = ("name", "work", "peer", "size", "time_bar", "memory_bar")
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {name: getattr(row, name) for name in fields} | {"date": now}


def _warn_where_busy(others: float, when: str) -> None:
    if others > BUSY:
        print(f"warning: other processes used {others:.0%} of the CPUs {when}", flush=True)


def machine(device: str) -> dict[str, Any]:
    """Describe the machine and the versions of what is measured."""
    packages = ("torch", "torch-geometric", "transformers")
    found = {
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "python": platform.python_version(),
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found | {name: version(name) for name in packages}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
