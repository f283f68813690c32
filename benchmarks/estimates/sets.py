"""Predicts what cutting many edges together changes, by gradients along the way to that cut."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import pandas as pd
import torch

import gattn
from benchmarks.estimates import models
from gattn.analysis.circuits.edge_lists import EdgeList, Grouping
from gattn.analysis.circuits.finding import plain_run
from gattn.analysis.circuits.measuring.runs import Runs
from gattn.models.effects.asking import asked

SHARES = (0.01, 0.05, 0.2)
NEAR = 0.2


def along_the_cut(
    given: tuple[Any, Any, Any], answer: dict[str, Any], points: list[int]
) -> dict[str, float]:
    """Divide predictions by effects, for the largest estimates of each share.

    The attention of a set is 1 - t times what it was. The prediction is the integral over t of the
    metric's derivative, by Gauss and Legendre's rule, one backward pass for each of its points.
    """
    options = {"metric": None, "target": None, "other": None} | answer
    runner, measure = asked(
        *given, options["metric"], None, options["target"], options["other"], "kl"
    )
    edges = EdgeList.of(plain_run(runner))
    runs = Runs(runner, measure, Grouping.of(edges, "edges"))
    found = gattn.estimate(
        *given, sample=0, renormalize=False, progress=False, keep=gattn.All(), **answer
    )
    estimates = found["estimate"].to_numpy()
    order, ratios = np.argsort(-np.abs(estimates), kind="stable"), {}
    for share in SHARES:
        some = order[: max(round(share * len(order)), 1)]
        kept = np.ones((1, len(order)), dtype=bool)
        kept[0, some] = False
        (cut,) = runs.values(kept)
        ratios[f"{share:.0%}, sum"] = float(estimates[some].sum() / (cut - runs.full))
        for count in points:
            places, weights = np.polynomial.legendre.leggauss(count)
            total = 0.0
            for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
                shares = torch.ones(1, len(order), dtype=torch.float64)
                shares[0, some] = 1 - place
                slopes = runs.slopes_at(shares)
                assert slopes is not None
                total -= weight * slopes[some].sum()
            ratios[f"{share:.0%}, {count} points"] = float(total / (cut - runs.full))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimates.sets", description=(__doc__ or "").strip()
    )
    parser.add_argument("--models", nargs="+", choices=models.NAMES, default=("embedded", "minilm"))
    parser.add_argument("--texts", type=int, default=3, help="texts of each kind")
    parser.add_argument("--points", type=int, nargs="+", default=[3, 9])
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = []
    for name in options.models:
        for metric, given, answer in models.cases(name, options.texts):
            ratios = along_the_cut(given, answer, options.points)
            near = {what: abs(ratio - 1) <= NEAR for what, ratio in ratios.items()}
            rows.append({"model": name, "metric": metric, **near})
            print(
                name, metric, {what: round(ratio, 2) for what, ratio in ratios.items()}, flush=True
            )
    print("Predicted within 20 % of the effect, the share of texts:")
    print(pd.DataFrame(rows).groupby(["model", "metric"], sort=False).mean().round(2).T.to_string())


if __name__ == "__main__":
    main()
