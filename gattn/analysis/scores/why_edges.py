"""Says of each edge of attention in a circuit, or in routes, who wrote its query and its key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gattn.analysis.circuits.found import Circuit, ends_in
from gattn.analysis.circuits.measuring.measured import percent
from gattn.analysis.scores.taken_apart import Why
from gattn.analysis.scores.why import why
from gattn.analysis.vectors.route_graphs import Routes, heads_of_edge
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Tokens
from gattn.names.text import visible
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

G = TypeVar("G", Circuit, Routes)
_ROUGH = 1e-2


def why_edges(
    graph: G,
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    most: int = 3,
    stack: str | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> G:
    r"""Say of each edge of attention in a circuit, or in routes, who wrote its query and its key.

    The score of each edge and head is taken apart, as `gattn.why` does for one head.

    Parameters
    ----------
    graph : Circuit or Routes
        From `gattn.circuit` or `gattn.analysis.routes`.
    text, model, tokenizer, tokens, grid
        What the graph was made from.
    most : int
        How many pairs of parts are named, the largest ones.
    stack : str, optional
        Which stack routes go through, if the model has several. A circuit knows.
    progress : bool
        Whether to show a progress bar: it takes three runs of the model for each head.

    Returns
    -------
    Circuit or Routes
        A copy whose edges have, for head 0, ``why_0``: the pairs in words, the query's part first,
        as in "mlp 1 × 1.1 52 %"; ``score_0``, the model's; and of the largest pair
        ``query_part_0``, ``key_part_0`` and ``share_0``, its share :math:`q^a \cdot k^b / s` of the
        score. ``table()`` of a circuit and ``attention_edges()`` of routes have ``why`` as a
        column. Edges of cross-attention have none of these.

    Raises
    ------
    SelectionError
        If it is another graph, or one of other tokens or of another run.
    CaptureError, ModelError
        As in `gattn.why`.

    Examples
    --------
    >>> found = gattn.circuit(text, target=" lamp")
    >>> gattn.analysis.why_edges(found, text).table()[["layer", "head", "key_token", "why"]]
    """
    most = whole("most", most, 1, SelectionError)
    if not isinstance(graph, (Circuit, Routes)):
        raise SelectionError(
            "why_edges takes a circuit of edges, from gattn.circuit, or routes, from "
            f"gattn.analysis.routes, not {type(graph).__name__}."
        )
    made = graph.copy()
    if isinstance(graph, Circuit) and isinstance(made, Circuit):
        made.trace = graph.trace
    asked: dict[tuple[str | None, int, int], list[tuple[Any, int, int, float | None]]] = {}
    for place, edge in _edges(graph, stack):
        asked.setdefault(place, []).append(edge)
    for place in walk(sorted(asked, key=str), "why", "head", progress=progress):
        name, layer, head = place
        where: dict[str, Any] = {"layer": layer, "head": head, "stack": name}
        found = why(text, model, tokenizer, **where, tokens=tokens, grid=grid)
        _check(graph, found)
        for ends, query, key, attention in asked[place]:
            _check_attention(found, query, key, attention)
            made.edges[ends].update(_said(found, query, key, most))
    return made


def _edges(
    graph: Circuit | Routes, stack: str | None
) -> Iterator[tuple[tuple[str | None, int, int], tuple[Any, int, int, float | None]]]:
    """List a graph's edges by head: their two nodes, query, key and, if known, attention."""
    if isinstance(graph, Circuit):
        ends, names = ends_in(graph), json.loads(graph.graph["names"])
        apart = json.loads(graph.graph["bipartite"])
        for name, layer, head, query, key, attention in json.loads(graph.graph["rows"]):
            if name in names and name not in apart:
                edge = ends(name, layer, query, key), query, key, attention
                yield (name, layer, head), edge
        return
    graph.check()
    for source, target, facts in graph.edges(data=True):
        if facts["kind"] in ("attention", "self"):
            for head in heads_of_edge(facts):
                yield (stack, source[0], head), ((source, target), target[1], source[1], None)


def _check(graph: Circuit | Routes, found: Why) -> None:
    """Refuse a text with other tokens than the graph."""
    known: Sequence[str]
    if isinstance(graph, Circuit):
        known = json.loads(graph.graph["names"])[found.stack][1]
    else:
        known = graph.tokens
    if list(known) != list(found.tokens):
        raise SelectionError(
            f"The graph is of other tokens than the text: it has {len(known)}, beginning with "
            f"{visible(' '.join(known[:6]), limit=80)}, and the text {len(found.tokens)}. Pass the "
            "text that it was made from."
        )


def _check_attention(found: Why, query: int, key: int, attention: float | None) -> None:
    """Refuse an edge that has other attention in this run."""
    now = float(found.attention[query, key])
    if attention is not None and abs(now - attention) > _ROUGH:
        raise SelectionError(
            f"The graph is of another run: query {query} of head {found.layer}.{found.head} gives "
            f"key {key} the attention {attention:.3g} there, and {now:.3g} here. Pass the model "
            "that it was made from, with the same edits."
        )


def _said(found: Why, query: int, key: int, most: int) -> dict[str, Any]:
    """Name the largest pairs of parts of an edge's score."""
    matrix = found.among([query], [key]).matrix()
    values, score = matrix.to_numpy(), float(found.scores[query, key])
    parts = [matrix[axis].to_numpy() for axis in ("query_part", "key_part")]
    order = np.argsort(-abs(values), axis=None, kind="stable")[:most].tolist()
    pairs = []
    for a, b in (divmod(place, values.shape[1]) for place in order):
        pairs.append((str(parts[0][a]), str(parts[1][b]), float(values[a, b]) / (score or 1.0)))
    facts = {
        "why": ", ".join(f"{one} × {other} {percent(share, 0)}" for one, other, share in pairs),
        "score": score,
        "query_part": pairs[0][0],
        "key_part": pairs[0][1],
        "share": pairs[0][2],
    }
    return {f"{name}_{found.head}": value for name, value in facts.items()}
