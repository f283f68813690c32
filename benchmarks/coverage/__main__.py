"""The command `python -m benchmarks.coverage`."""

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import coverage, zoo
from benchmarks.coverage import verdicts as of_transformers
from benchmarks.coverage.libraries import judging, results
from benchmarks.coverage.libraries.verdict import WRONG, Verdict
from benchmarks.coverage.page import page, with_libraries
from benchmarks.zoo.libraries import FILES


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage",
        description=(coverage.__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "--library", choices=["transformers", *FILES], default="transformers", metavar="NAME"
    )
    parser.add_argument("--models", nargs="+", metavar="NAME", help="all by default")
    parser.add_argument("--list", action="store_true", help="list the models, try none")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="write what was found; with --models, into what this file holds",
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="PATH", help="write the page, or this library's part of it"
    )
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    is_transformers = options.library == "transformers"
    earlier = options.json if is_transformers and options.models else None
    if (
        is_transformers
        and options.models
        and options.markdown
        and not (earlier and earlier.exists())
    ):
        parser.error(
            "the part on transformers is written from all its models: leave out --models, or name "
            "by --json the file of a run of all, in which these models are replaced"
        )
    names = options.models
    if names is None:
        names = (
            list(zoo.MODEL_TYPES) if is_transformers else judging.models(options.library).names()
        )
    if options.list:
        print("\n".join(names))
        return
    if is_transformers:
        found = _told(of_transformers.judge_all(names), len(names) < 50)
        found = _merged(earlier, found) if earlier and earlier.exists() else found
    else:
        verdicts = judging.judge_all(options.library, names)
        found = _told(_kept(options.library, verdicts) if options.markdown else verdicts, True)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    if options.markdown and is_transformers:
        options.markdown.write_text(with_libraries(page(found)))
    elif options.markdown:
        if options.models is None:
            results.keep_only(options.library, names)
        options.markdown.write_text(with_libraries(options.markdown.read_text()))


def _merged(earlier: Path, found: list[Any]) -> list[Any]:
    """Replace verdicts of an earlier run by those found now."""
    known = {one["model_type"]: one for one in json.loads(earlier.read_text())}
    known |= {one.model_type: asdict(one) for one in found}
    return [of_transformers.Verdict(**one) for one in known.values()]


def _kept(library: str, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Keep each verdict as soon as it is known, since a library may take hours."""
    for one in verdicts:
        results.put(library, [one])
        yield one


def _told(verdicts: Iterable[Any], tells_all: bool) -> list[Any]:
    """Print each verdict, or only those that are wrong, and how many there are of each."""
    found = []
    for one in verdicts:
        found.append(one)
        if tells_all or one.verdict == WRONG:
            name = getattr(one, "model_type", None) or one.name
            print(f"{name}: {one.verdict} {one.reason}", flush=True)
    counts = Counter(one.verdict for one in found)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return found


if __name__ == "__main__":
    main()
