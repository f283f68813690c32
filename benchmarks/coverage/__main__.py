"""The command `python -m benchmarks.coverage`."""

import argparse
import json
import os
from dataclasses import asdict

from benchmarks import coverage, zoo
from benchmarks.coverage.page import page
from benchmarks.coverage.verdicts import WRONG, judge_all


def main() -> None:
    parser = argparse.ArgumentParser(description=(coverage.__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(zoo.MODEL_TYPES), metavar="NAME")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--markdown", metavar="PATH")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    verdicts = []
    for verdict in judge_all(options.models):
        verdicts.append(verdict)
        if len(options.models) < 50 or verdict.verdict == WRONG:
            print(f"{verdict.model_type}: {verdict.verdict} {verdict.reason}", flush=True)
    counts = {v.verdict: sum(w.verdict == v.verdict for w in verdicts) for v in verdicts}
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(verdict) for verdict in verdicts], file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(page(verdicts))


if __name__ == "__main__":
    main()
