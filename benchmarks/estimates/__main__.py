"""The command `python -m benchmarks.estimates`."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import gattn
from benchmarks import estimates
from benchmarks.estimates import models
from benchmarks.estimates.sets import NEAR


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimates", description=estimates.__doc__
    )
    parser.add_argument("--models", nargs="+", choices=models.NAMES, default=models.NAMES)
    parser.add_argument("--texts", type=int, default=1, help="texts of each kind")
    parser.add_argument("--sample", type=int, default=150, help="edges that are cut one by one")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5], help="as in gattn.estimate")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write what was measured")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    rows = []
    for row in measured(options.models, options.texts, options.sample, options.steps):
        rows.append(row)
        print(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=0))
    table = pd.DataFrame(rows)
    print(
        table.groupby(["model", "metric", "cut", "steps"], sort=False).mean().round(3).to_string()
    )


def measured(
    names: list[str], texts: int, sample: int, steps: list[int]
) -> Iterator[dict[str, Any]]:
    """Compare estimates with exact effects on a sample, and on sets: one row for each."""
    for name in names:
        for metric, given, answer in models.cases(name, texts):
            for renormalize in (True, False):
                for step in steps if metric != "kl" else [1]:
                    found = gattn.estimate(
                        *given,
                        **answer,
                        renormalize=renormalize,
                        steps=step,
                        sample=sample,
                        progress=False,
                    )
                    yield {
                        "model": name,
                        "metric": metric,
                        "cut": "renormalized" if renormalize else "zero",
                        "steps": step,
                        **_agreement(found),
                    }


def _agreement(table: pd.DataFrame) -> dict[str, float]:
    """Correlate estimates with effects, and say which sets are estimated within 20 %."""
    drawn = table[table["sampled"]]
    one, other = drawn["estimate"].to_numpy(), drawn["effect"].to_numpy()
    strong = drawn["attention"].to_numpy() >= 1 / 2
    found = {
        "size": _spearman(np.abs(one), np.abs(other)),
        "signed": _spearman(one, other),
        "signed, A < 1/2": _spearman(one[~strong], other[~strong]),
    }
    for told in table.attrs["sets"]:
        ratio = told["estimate"] / told["effect"]
        found[f"{told['share']:.0%}"] = float(abs(ratio - 1) <= NEAR)
    return found


def _spearman(one: Any, other: Any) -> float:
    return float(spearmanr(one, other).statistic)


if __name__ == "__main__":
    main()
