"""Measures rankings on texts, and sums them up with intervals over texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, spearmanr

import gattn
from benchmarks.faithfulness import models, rankings, texts
from benchmarks.faithfulness.models import Case
from gattn.analysis import deletion_curve, insertion_curve, rank_agreement

_STEPS = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]
_SAMPLE = 200
"""How many edges of a text are cut one by one."""


def study(names: Sequence[str], number: int, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Measure each ranking on `number` texts of each kind: one row per text, unit and ranking."""
    for name in names:
        found = models.loaded(name)
        if found is None:
            print(f"{name}: left out, GATTN_MINILM names no folder", flush=True)
            continue
        for kind in kinds or texts.KINDS:
            for n, case in enumerate(models.cases(*found, texts.KINDS[kind](number))):
                for row in _measured(case):
                    yield {"model": name, "kind": kind, "text": n, **row}


def _measured(case: Case) -> Iterator[dict[str, Any]]:
    of_edges, seconds = rankings.edges_of(case)
    yield from _ranked(case, "edge", of_edges, seconds)
    of_tokens, seconds = rankings.tokens_of(case, of_edges)
    yield from _ranked(case, "token", of_tokens, seconds)
    of_heads = rankings.heads_of(of_edges)
    places = list(of_heads["attention"].index)
    cuts = [gattn.Cut(layer=layer, head=head, renormalize=False) for layer, head in places]
    effects = gattn.effect(
        case.run, cuts, case.model, case.tokenizer, progress=False, **case.answer
    )["effect"]
    for name, scores in of_heads.items():
        found = spearmanr(scores.to_numpy(), np.abs(effects.to_numpy()))
        yield {"unit": "head", "ranking": name, "correlation": float(found.statistic)}


def _ranked(
    case: Case, unit: str, ranked: dict[str, Any], seconds: dict[str, float]
) -> Iterator[dict[str, Any]]:
    options: dict[str, Any] = rankings.QUIET | {"renormalize": False}
    agreement = rank_agreement(ranked, *case.given, sample=_SAMPLE, **options | case.answer)
    run, metric = case.distance
    sizes = {name: _unsigned(ranking) for name, ranking in ranked.items()}
    curves = {
        name: make(
            sizes, run, case.model, case.tokenizer, steps=_STEPS, random=3, **options | metric
        )
        for name, make in (("deletion", deletion_curve), ("insertion", insertion_curve))
    }
    farthest = float(curves["deletion"].iloc[-1][next(iter(ranked))])
    for name in [*ranked, "random"]:
        areas = {curve: float(one.attrs["area"][name]) / farthest for curve, one in curves.items()}
        known = agreement.loc[name, "correlation"] if name in agreement.index else np.nan
        yield {
            "unit": unit,
            "ranking": name,
            "correlation": float(known),
            **areas,
            "seconds": seconds.get(name, np.nan),
        }


def _unsigned(ranking: Any) -> Any:
    """Rank by size what says, too, whether an edge or token raises or lowers the answer."""
    if isinstance(ranking, pd.DataFrame) and "estimate" in ranking.columns:
        return ranking.assign(estimate=-ranking["estimate"].abs())
    return np.abs(ranking) if isinstance(ranking, list) else ranking


def summed_up(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Average over texts: each mean with its bootstrapped 95 % interval."""
    table = pd.DataFrame(rows)
    found = []
    for place, some in table.groupby(["model", "unit", "ranking"], sort=False):
        row = dict(zip(("model", "unit", "ranking"), place, strict=True))
        for name in ("correlation", "deletion", "insertion"):
            numbers = pd.to_numeric(some[name]).dropna().to_numpy()
            row |= _mean(name, numbers)
        found.append(
            row | {"seconds": float(pd.to_numeric(some["seconds"]).median()), "texts": len(some)}
        )
    return pd.DataFrame(found)


def _mean(name: str, values: Any) -> dict[str, float]:
    if len(values) < 2:
        return {name: np.nan, f"{name}_low": np.nan, f"{name}_high": np.nan}
    interval = bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    return {
        name: float(values.mean()),
        f"{name}_low": float(interval.low),
        f"{name}_high": float(interval.high),
    }
