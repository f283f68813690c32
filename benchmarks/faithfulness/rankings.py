"""The rankings that are studied: of edges, of tokens and of heads."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import pandas as pd

import gattn
from benchmarks.faithfulness.models import Case
from gattn.analysis import (
    alti,
    contributions,
    flow,
    gradient_rollout,
    rollout,
    routes,
    value_zeroing,
)
from gattn.errors import GattnError

Rankings = dict[str, Any]
QUIET: dict[str, Any] = {"progress": False}


def edges_of(case: Case) -> tuple[Rankings, dict[str, float]]:
    """Rank edges, and say how many seconds each ranking took; leave out what a model refuses."""
    makers: dict[str, Callable[[], Any]] = {
        "attention": lambda: gattn.capture(*case.given),
        "contribution": lambda: contributions(*case.given, of="head", **QUIET),
        "value zeroing": lambda: value_zeroing(*case.given, **QUIET),
        "ALTI": lambda: alti(*case.given, **QUIET),
        "routes": lambda: routes(*case.given, threshold=0, **QUIET),
        "estimate": lambda: gattn.estimate(*case.given, sample=0, renormalize=False, **case.answer),
    }
    if not case.is_causal:
        del makers["routes"]  # They lead to one prediction.
    return _made(makers)


def tokens_of(case: Case, edges: Rankings) -> tuple[Rankings, dict[str, float]]:
    """Rank tokens for the last one's prediction, or for the mean of all."""

    def read(found: Any) -> Any:
        last = found.isel(layer=-1) if "layer" in found.dims else found
        return last.isel(query=-1) if case.is_causal else last.mean("query")

    trace = edges["attention"]
    makers: dict[str, Callable[[], Any]] = {
        "attention": lambda: read(rollout(trace, from_layer=max(trace.only_stack.layers))),
        "rollout": lambda: read(rollout(trace)),
        "flow": lambda: read(flow(trace, queries=-1 if case.is_causal else None, **QUIET)),
        "gradient rollout": lambda: read(gradient_rollout(*case.given, **case.answer)),
        "ALTI, rolled out": lambda: read(rollout(edges["ALTI"], residual=0)),
        "estimate": lambda: _by_key(edges["estimate"], len(trace.tokens)),
    }
    return _made(makers)


def heads_of(edges: Rankings) -> dict[str, pd.Series]:
    """Rank heads by sums over their edges; by attention, by the mean of each query's largest."""
    found: dict[str, pd.Series] = {}
    largest = {
        place: float(head.to_dense().max(1).mean())
        for place, head in edges["attention"].only_stack.items()
    }
    found["attention"] = pd.Series(largest)
    found["contribution"] = edges["contribution"].sum(["query", "key"]).to_series()
    if "routes" in edges:
        table = edges["routes"].attention_edges()
        found["routes"] = table.groupby(["layer", "head"])["strength"].sum()
    found["estimate"] = edges["estimate"].groupby(["layer", "head"])["estimate"].sum().abs()
    return {name: some.reindex(found["attention"].index).fillna(0) for name, some in found.items()}


def _by_key(table: pd.DataFrame, size: int) -> list[float]:
    """Add up the estimates of all edges of a token."""
    sums = -table.groupby("key")["estimate"].sum()
    return [float(x) for x in sums.reindex(range(size)).fillna(0).to_numpy(dtype=np.float64)]


def _made(makers: dict[str, Callable[[], Any]]) -> tuple[Rankings, dict[str, float]]:
    found: Rankings = {}
    seconds: dict[str, float] = {}
    for name, make in makers.items():
        start = process_time()
        try:
            found[name] = make()
        except GattnError as error:
            print(f"{name}: {error}", flush=True)
            continue
        seconds[name] = process_time() - start
    return found, seconds
