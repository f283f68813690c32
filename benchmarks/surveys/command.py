"""The command `python -m benchmarks.surveys`: its options, and what they do."""

import argparse
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import command, report
from benchmarks.command import BUSY, choose, read_options
from benchmarks.surveys import corpus, page, picture
from benchmarks.surveys.children import in_a_child
from benchmarks.surveys.runs import RUNS

RESULTS = Path(__file__).parents[1] / "surveys.json"


def main() -> int:
    options = _options()
    try:
        asked = choose(RUNS, options.names)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = [name for name in RUNS if name in asked]
    if options.list:
        print("\n".join(f"{name:26}  {RUNS[name].what}" for name in chosen))
        return 0
    path = options.json or (None if options.quick else RESULTS)
    results = report.read(path, machine())
    if not options.draw:
        measure(chosen, options.quick, results, path)
    if path:
        report.sort(results, list(RUNS))
        publish(results, path, path.resolve() == RESULTS.resolve())
    return any("failed" in row for row in results["rows"])


def _options() -> argparse.Namespace:
    about = "Measure what surveys cost: time, memory, disk."
    defaults = "benchmarks/surveys.json, docs/surveys/speed.md and docs/pictures"
    return read_options("benchmarks.surveys", about, "--only", defaults)


def machine() -> dict[str, Any]:
    """Describe the machine, and the versions of what surveys need."""
    found = command.machine("cpu") | {"memory_gib": round(_memory() / 2**30)}
    for name in ("pyarrow", "duckdb", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def measure(names: list[str], quick: bool, results: dict[str, Any], path: Path | None) -> None:
    """Measure one after another, and write each result at once."""
    with tempfile.TemporaryDirectory(prefix="gattn-surveys-") as folder:
        corpus.prepare(Path(folder))
        for name in names:
            found = in_a_child(name, Path(folder), quick)
            print(line(found), flush=True)
            if found["others"] > BUSY:
                share = f"{found['others']:.0%}"
                print(f"warning: other processes used {share} of the CPUs during {name}")
            report.put(results, found)
            if path:
                report.write(results, path)


def line(found: dict[str, Any]) -> str:
    """Write the result of a measurement as a line."""
    said = [f"{found['name']:26}", f"{found['whole_seconds']:6.1f} s"]
    said += [f"{kind}: {found[kind]}" for kind in ("failed", "skipped") if kind in found]
    if "texts_a_second" in found:
        said.append(f"{found['texts_a_second']:.4g} texts/s")
    if "mib" in found:
        said.append(f"{found['mib']:.0f} MiB")
    return "  ".join(said)


def publish(results: dict[str, Any], path: Path, in_docs: bool) -> None:
    """Write page and picture: into the documentation, or next to the JSON file."""
    text = page.written(results)
    if in_docs:
        (report.DOCS / "surveys" / "speed.md").write_text(text, encoding="utf-8")
        picture.draw(results, report.DOCS / "pictures" / "surveys")
    else:
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        picture.draw(results, path.with_suffix(""))
