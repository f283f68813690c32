"""The command `python -m benchmarks`: its options, and what they do."""

import argparse
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.measure import Row, calibrate, measure

RESULTS = Path(__file__).with_name("results.json")
BUSY = 0.05
"""The share of the CPUs that other processes may use before a warning."""


def main() -> int:
    options = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    from benchmarks.rows import rows

    available = rows(options.quick, device)
    chosen = [row for row in available if _is_chosen(row, options.rows)]
    if options.list:
        print("\n".join(report.described(row) for row in chosen))
        return 0
    if not chosen:
        print("No such row: --list shows them all.", file=sys.stderr)
        return 2
    path = options.json or (None if options.quick else RESULTS)
    results = report.read(path, _machine(device))
    if not options.draw:
        _warn_where_busy(calibrate(), "before the first row")
        _measure_all(chosen, device, options.quick, results, path)
    if path:
        report.sort(results, [row.name for row in available])
        report.publish(results, path, path.resolve() == RESULTS.resolve())
    return any("failed" in row for row in results["rows"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=report.DESCRIPTION)
    parser.add_argument("--quick", action="store_true", help="small sizes, about three minutes")
    parser.add_argument("--list", action="store_true", help="list the rows, measure nothing")
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", default=[], help="a row's name, or how it begins"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="the file for results; table and picture go next to it. By default (but not with "
        f"--quick) {RESULTS.parent.name}/{RESULTS.name}, docs/speed.md and docs/pictures. Earlier "
        "rows of the same machine are kept",
    )
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing, write table and picture again"
    )
    return parser.parse_args()


def _is_chosen(row: Row, names: list[str]) -> bool:
    return not names or any((row.name + "/").startswith(name.rstrip("/") + "/") for name in names)


def _measure_all(
    chosen: list[Row], device: str, quick: bool, results: dict[str, Any], path: Path | None
) -> None:
    print(report.heading())
    for row in chosen:
        found = _about(row)
        try:
            found |= measure(row, device, seconds=0.5 if quick else 6.0, with_growth=not quick)
        except RuntimeError as error:
            found["failed"] = str(error)
        print(report.line(found), flush=True)
        _warn_where_busy(found.get("others", 0.0), f"during {row.name}")
        report.put(results, found)
        if path:
            report.write(results, path)


def _about(row: Row) -> dict[str, Any]:
    fields = ("name", "work", "peer", "size", "time_bar", "memory_bar")
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {name: getattr(row, name) for name in fields} | {"date": now}


def _warn_where_busy(others: float, when: str) -> None:
    if others > BUSY:
        print(f"warning: other processes used {others:.0%} of the CPUs {when}", flush=True)


def _machine(device: str) -> dict[str, Any]:
    packages = ("torch", "torch-geometric", "transformers")
    machine = {
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "python": platform.python_version(),
    }
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    return machine | {name: version(name) for name in packages}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
