"""Measures one thing and prints what it found as JSON: `children` starts this."""

import json
import sys
from pathlib import Path

from benchmarks.surveys.runs import RUNS


def main() -> None:
    name, work, quick = sys.argv[1:]
    found = RUNS[name].measure(Path(work), bool(int(quick)))
    found.setdefault("mib", peak_mib())
    print(json.dumps(found))


def peak_mib() -> float:
    """Read the most memory that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
