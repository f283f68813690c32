"""Rankings by name: of what text and run they are, and what they rank in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from gattn.analysis.faithfulness.edge_rankings import Ranking, edge_reader
from gattn.analysis.faithfulness.edge_sets import EdgeSet
from gattn.analysis.faithfulness.token_rankings import Scores, TokenSet, read_tokens, token_numbers
from gattn.analysis.reading.results import edits_of
from gattn.analysis.vectors.route_graphs import Routes
from gattn.edit_records import identities, in_words
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


def named(rankings: Ranking | Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Give rankings their names; a single one is called "ranking".

    Raises
    ------
    SelectionError
        If there is no ranking.
    """
    is_one = isinstance(rankings, Stack) or not isinstance(rankings, Mapping)
    given: Any = {"ranking": rankings} if is_one else rankings
    found: dict[str, Ranking] = dict(given)
    if not found:
        raise SelectionError("There is no ranking: pass one, or a dict of rankings by name.")
    return found


def check_edits(rankings: Mapping[str, Ranking], open_now: Sequence[str], what: str) -> None:
    """Refuse rankings, or effects, of a model with other edits than those that are open."""
    for name, ranking in rankings.items():
        known = _known_edits(ranking)
        if known is not None and known != list(open_now):
            raise SelectionError(
                f"{what} {name!r} is of the model {in_words(known) or 'without edits'}, which runs "
                f"{in_words(open_now) or 'without edits'} now: compute both inside the same "
                "gattn.edited(...), or both outside."
            )


def _known_edits(ranking: Ranking) -> list[str] | None:
    """Return the edits that a ranking was made under; None if it does not say."""
    if isinstance(ranking, (AttentionTrace, Stack, AttentionGraph)):
        return identities(ranking.edits) if ranking.edits or _of_model(ranking) else None
    if isinstance(ranking, (xr.DataArray, pd.DataFrame, pd.Series, Routes)):
        facts = ranking.graph if isinstance(ranking, Routes) else ranking.attrs
        says = any(fact in facts for fact in ("computed_from", "metric", "edits"))
        return edits_of(ranking) if says else None
    return None


def _of_model(ranking: AttentionTrace | Stack | AttentionGraph) -> bool:
    """Return whether attention was captured from a model."""
    if isinstance(ranking, AttentionGraph):
        return bool(ranking.model)
    heads = ranking.heads() if isinstance(ranking, AttentionTrace) else ranking.values()
    return any(head.model for head in heads)


def read(
    rankings: Mapping[str, Ranking], trace: AttentionTrace, stack: str | None
) -> EdgeSet | TokenSet:
    """Read rankings of the edges or tokens of a trace that keeps all edges.

    Whatever at least one of them ranks may be cut.
    """
    inside = trace.only_stack if stack is None else trace[stack]
    numbers = {name: token_numbers(name, ranking) for name, ranking in rankings.items()}
    of_tokens = {name: some for name, some in numbers.items() if some is not None}
    if len(of_tokens) == len(rankings):
        return read_tokens(of_tokens, inside, stack)
    if of_tokens:
        raise SelectionError(
            f"{next(iter(of_tokens))!r} ranks tokens, and other rankings edges: compare rankings "
            "of one or the other."
        )
    return _read_edges(rankings, inside, stack)


def _read_edges(rankings: Mapping[str, Ranking], inside: Stack, stack: str | None) -> EdgeSet:
    heads = [inside[place] for place in sorted(inside)]
    found: dict[str, list[Scores]] = {}
    for name, ranking in rankings.items():
        reader = edge_reader(name, ranking, heads[0], stack)
        found[name] = [reader(head) for head in heads]
        if all(bool(np.isnan(scores).all()) for scores in found[name]):
            raise SelectionError(f"{name!r} ranks none of the edges that this text has.")
    chosen = [
        np.flatnonzero(~np.isnan(np.stack(some)).all(0))
        for some in zip(*found.values(), strict=True)
    ]
    scores = {
        name: np.concatenate([x[some] for x, some in zip(values, chosen, strict=True)])
        for name, values in found.items()
    }
    return EdgeSet(heads, chosen, stack, scores)


def order(scores: Scores, units: Ints, generator: np.random.Generator) -> Ints:
    """Sort from the largest down: ties in random order, and what is not ranked last."""
    ranks = np.where(np.isnan(scores), -np.inf, scores)
    chance = generator.permutation(int(units.max()) + 1)[units]
    return np.lexsort((chance, -ranks))
