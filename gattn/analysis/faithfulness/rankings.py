"""Rankings of edges or of tokens, and the edits that cut edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from gattn.analysis.faithfulness.token_rankings import (
    PLACE,
    Scores,
    TokenSet,
    check_texts,
    check_unique,
    other_text,
    read_tokens,
    text_order,
    token_numbers,
)
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import edits_of
from gattn.analysis.vectors.route_graphs import Routes
from gattn.edit_records import identities, in_words
from gattn.engines.tiles import RowBlock
from gattn.errors import SelectionError, ShapeError
from gattn.graph.rules.keys import list_keys
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.trace import AttentionTrace, Stack
from gattn.models.edit.base import Edit
from gattn.models.edit.edges import Cut
from gattn.models.edit.swap import ModelScore, Swap
from gattn.models.read.reading import Reading
from gattn.weights.base import Pairs, PositionWeight, Tree

Ranking: TypeAlias = Attention | pd.DataFrame | pd.Series | Routes
"""What ranks edges or tokens: the largest number is the most important.

Edges are ranked by a trace, a stack or a head, by their attention; by an array with the axes
(layer, head, query, key), of which layer and head may be missing: an edge then ranks alike in all
of them, or, where one was selected, is that one's; by the tables of `gattn.estimate` and
`gattn.effect`, by how far the metric falls where the edge is cut; and by `routes`, by the strength
of the paths over it. Tokens are ranked by one number per token."""

_SIGN_OF = {"estimate": -1.0, "effect": -1.0, "strength": 1.0}
"""The columns of tables that rank edges: an edge that the metric falls without is important."""


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """Edges of a model's heads that may be cut.

    Parameters
    ----------
    heads : sequence of AttentionGraph
        The heads, all of their edges kept.
    chosen : sequence of array of int
        Which edges of each head.
    stack : str, optional
        Their stack, where the model has several.
    scores : mapping of str to array
        What each ranking says of them.
    """

    heads: Sequence[AttentionGraph]
    chosen: Sequence[Ints]
    stack: str | None
    scores: Mapping[str, Scores]

    unit = "edge"

    def __len__(self) -> int:
        return sum(map(len, self.chosen))

    @property
    def units(self) -> Ints:
        """Number the edges alike that are the same in several heads of a layer."""
        codes = [
            ((head.layer or 0) * head.graph.num_queries + head.query[some]) * head.graph.num_keys
            + head.key[some]
            for head, some in zip(self.heads, self.chosen, strict=True)
        ]
        return np.unique(np.concatenate(codes), return_inverse=True)[1]

    def without(self, cut: NDArray[np.bool_], renormalize: bool) -> list[Edit]:
        """Give the edits that cut some of the edges, one per layer: one per head would be slow."""
        graph, shape = self.heads[0].graph, 1 + max(head.head or 0 for head in self.heads)
        lost: dict[int, NDArray[np.bool_]] = {}
        start = 0
        for head, some in zip(self.heads, self.chosen, strict=True):
            edges = some[cut[start : start + len(some)]]
            start += len(some)
            if len(edges):
                empty = np.zeros((graph.num_queries, graph.num_keys, shape), dtype=bool)
                layer = lost.setdefault(head.layer or 0, empty)
                layer[head.query[edges], head.key[edges], head.head or 0] = True
        return [
            _barring(torch.from_numpy(pairs), layer, renormalize, self.stack)
            for layer, pairs in lost.items()
        ]

    def cut(self, number: int, renormalize: bool) -> Cut:
        """Cut one edge."""
        starts = np.cumsum([0, *map(len, self.chosen)])
        place = int(np.searchsorted(starts, number, side="right")) - 1
        head, edge = self.heads[place], self.chosen[place][number - starts[place]]
        query, key = int(head.query[edge]), int(head.key[edge])
        return Cut(head.layer, head.head, query, key, renormalize=renormalize, stack=self.stack)

    def effects(self, table: pd.DataFrame) -> Scores:
        """Find the edges' effects in a table."""
        known = table[table["effect"].notna()]
        reader = _of_table("effects", known, "effect", 1.0, self.heads[0], self.stack)
        return np.concatenate(
            [reader(head)[some] for head, some in zip(self.heads, self.chosen, strict=True)]
        )


def _barring(pairs: Tensor, layer: int, renormalize: bool, stack: str | None) -> Edit:
    if not renormalize:
        return Zeroed(pairs, layer, stack=stack)
    return Swap(layer=layer, weight=ModelScore() + Barred(pairs), stack=stack)


class Barred(PositionWeight):
    """A score of -inf, which marks no edge, for some pairs of each head, and 0 for all others.

    Parameters
    ----------
    pairs : Tensor
        Booleans (queries, keys, heads).
    """

    def __init__(self, pairs: Tensor) -> None:
        super().__init__()
        self.bias = nn.Buffer(torch.zeros(pairs.shape).masked_fill(pairs, -torch.inf))

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return self.bias.to(pairs.query.device)[pairs.query[..., 0], pairs.key[..., 0]]

    def dot_form(self, query: Tree, key: Tree) -> None:  # type: ignore[override]
        """Have none: torch's fused kernel makes NaN of rows that are all -inf."""
        return


@dataclass(frozen=True, eq=False, repr=False)
class Zeroed(Edit):
    """Zero the attention of some pairs after normalizing: booleans (queries, keys, heads)."""

    pairs: Tensor
    layer: int
    head: None = None
    stack: str | None = None

    is_after = True

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Zero them."""
        inside = self.pairs[block.rows][:, list_keys(block.columns).cpu()].permute(2, 0, 1)
        return attention.masked_fill(inside.to(attention.device), 0.0)


def named(rankings: Ranking | Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Give rankings their names; a single one is called "ranking".

    Raises
    ------
    SelectionError
        Where there is none.
    """
    is_one = isinstance(rankings, Stack) or not isinstance(rankings, Mapping)
    given: Any = {"ranking": rankings} if is_one else rankings
    found: dict[str, Ranking] = dict(given)
    if not found:
        raise SelectionError("There is no ranking: pass one, or a dict of some by name.")
    return found


def check_edits(rankings: Mapping[str, Ranking], open_now: Sequence[str], what: str) -> None:
    """Refuse rankings, or effects, of a model with other edits than those that are open.

    Raises
    ------
    SelectionError
        Where there is one.
    """
    for name, ranking in rankings.items():
        known = _known_edits(ranking)
        if known is not None and known != list(open_now):
            raise SelectionError(
                f"{what} {name!r} is of the model {in_words(known) or 'without edits'}, which runs "
                f"{in_words(open_now) or 'without edits'} now: compute both inside of the same "
                "gattn.edited(...), or both outside."
            )


def _known_edits(ranking: Ranking) -> list[str] | None:
    """Give the edits that a ranking was made under; None where it does not say."""
    if isinstance(ranking, (AttentionTrace, Stack, AttentionGraph)):
        return identities(ranking.edits) if ranking.edits or _of_model(ranking) else None
    if isinstance(ranking, (xr.DataArray, pd.DataFrame, pd.Series, Routes)):
        facts = ranking.graph if isinstance(ranking, Routes) else ranking.attrs
        says = any(fact in facts for fact in ("computed_from", "metric", "edits"))
        return edits_of(ranking) if says else None
    return None


def _of_model(ranking: AttentionTrace | Stack | AttentionGraph) -> bool:
    """Say whether attention was captured from a model."""
    if isinstance(ranking, AttentionGraph):
        return bool(ranking.model)
    heads = ranking.heads() if isinstance(ranking, AttentionTrace) else ranking.values()
    return any(head.model for head in heads)


def read(
    rankings: Mapping[str, Ranking], trace: AttentionTrace, stack: str | None
) -> EdgeSet | TokenSet:
    """Read rankings of what a text's trace holds; all edges must be kept in it.

    What at least one of them ranks may be cut.

    Raises
    ------
    SelectionError
        Where some rank edges and others tokens, or they are of other tokens than the text's.
    ShapeError
        Where an array ranks neither.
    """
    inside = trace.only_stack if stack is None else trace[stack]
    numbers = {name: token_numbers(name, ranking) for name, ranking in rankings.items()}
    of_tokens = {name: some for name, some in numbers.items() if some is not None}
    if len(of_tokens) == len(rankings):
        return read_tokens(of_tokens, inside, stack)
    if of_tokens:
        raise SelectionError(
            f"{next(iter(of_tokens))!r} ranks tokens, and other rankings edges: compare rankings "
            "of one kind."
        )
    heads = [inside[place] for place in sorted(inside)]
    found: dict[str, list[Scores]] = {}
    for name, ranking in rankings.items():
        reader = _reader(name, ranking, heads[0], stack)
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


def _reader(
    name: str, ranking: Ranking, first: AttentionGraph, stack: str | None
) -> Callable[[AttentionGraph], Scores]:
    """Give what says how a ranking scores the edges of a head; `first` is one of the text's."""
    if isinstance(ranking, Routes):
        if tokens := ranking.tokens:
            _check_size(name, (len(tokens), len(tokens)), first)
            check_texts(name, tokens, first.labels())
        ranking = ranking.attention_edges()
    if isinstance(ranking, pd.DataFrame):
        column = next((c for c in _SIGN_OF if c in ranking.columns), None)
        if column is None or not set(PLACE) <= set(ranking.columns):
            raise SelectionError(
                f"{name!r} must be a table such as gattn.estimate gives, with the columns layer, "
                f"head, query, key and one of {', '.join(_SIGN_OF)}, not {list(ranking.columns)}."
            )
        return _of_table(name, ranking, column, _SIGN_OF[column], first, stack)
    if isinstance(ranking, AttentionTrace):
        ranking = ranking.only_stack if stack is None else ranking[stack]
    if isinstance(ranking, AttentionGraph):
        ranking = Stack("", {(ranking.layer or 0, ranking.head or 0): ranking})
    if isinstance(ranking, Stack):
        return _of_stack(name, ranking)
    return _of_array(name, ranking, first)


def _of_table(
    name: str,
    table: pd.DataFrame,
    column: str,
    sign: float,
    first: AttentionGraph,
    stack: str | None,
) -> Callable[[AttentionGraph], Scores]:
    if stack is not None and "stack" in table.columns:
        table = table[table["stack"] == stack]
    table = table[table[PLACE].notna().all(axis=1)]
    check_unique(name, table)
    _check_tokens(name, table, first)
    groups = dict(iter(table.groupby(["layer", "head"])))

    def scores(head: AttentionGraph) -> Scores:
        some = groups.get((head.layer, head.head))
        if some is None:
            return np.full(head.graph.num_edges, np.nan)
        query, key = (some[axis].to_numpy(dtype=np.int64) for axis in ("query", "key"))
        return _matched(head, query, key, sign * some[column].to_numpy(dtype=np.float64))

    return scores


def _check_tokens(name: str, table: pd.DataFrame, head: AttentionGraph) -> None:
    """Refuse a table of other queries or keys than the text's."""
    for axis, tokens in _tokens_of(head).items():
        found = table[axis].to_numpy(dtype=np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < len(tokens):
            raise SelectionError(
                f"{name!r} ranks edges of {axis} {found.max() if found.min() >= 0 else found.min()}"
                f", but the text has 0 .. {len(tokens) - 1}: rank the edges of the same text."
            )
        if f"{axis}_token" not in table.columns:
            continue
        given = table[f"{axis}_token"].to_numpy(dtype=object)
        wrong = given != np.array(tokens, dtype=object)[found]
        if wrong.any() and (given != found.astype(str)).any():
            row = np.flatnonzero(wrong)[found[wrong].argmin()]
            raise other_text(name, int(found[row]), given[row], tokens[found[row]])


def _tokens_of(head: AttentionGraph) -> dict[str, list[str]]:
    return {"query": head.query_labels(), "key": head.labels()[: head.graph.num_keys]}


def _of_stack(name: str, ranking: Stack) -> Callable[[AttentionGraph], Scores]:
    def scores(head: AttentionGraph) -> Scores:
        place = head.layer or 0, head.head or 0
        if place not in ranking.heads:
            return np.full(head.graph.num_edges, np.nan)
        given = ranking[place]
        _check_size(name, (given.graph.num_queries, given.graph.num_keys), head)
        for axis, tokens in _tokens_of(head).items():
            check_texts(name, _tokens_of(given)[axis], tokens)
        return _matched(head, given.query, given.key, given.attention.astype(np.float64))

    return scores


def _of_array(name: str, ranking: Any, first: AttentionGraph) -> Callable[[AttentionGraph], Scores]:
    fixed: dict[str, int | None] = {"layer": None, "head": None}
    axes: tuple[Any, ...] = ("layer", "head")
    if isinstance(ranking, xr.DataArray):
        ranking = _in_order(name, ranking, first)
        axes = ranking.dims
        for axis in fixed:
            if axis in ranking.coords and ranking[axis].ndim == 0:
                fixed[axis] = int(ranking[axis])
    elif isinstance(ranking, (np.ndarray, Tensor)) and ranking.ndim != 4:
        raise ShapeError(
            f"{name!r} has the shape {tuple(ranking.shape)}: an array without named axes is "
            "(layers, heads, queries, keys), or one number per token."
        )
    layers = layers_of(ranking, signed=True)
    read = lru_cache(maxsize=1)(lambda n: layers.read(n).double().cpu().numpy())

    def scores(head: AttentionGraph) -> Scores:
        left_out = np.full(head.graph.num_edges, np.nan)
        _check_size(name, (len(layers.query_positions), len(layers.positions)), head)
        places = []
        numbers = {
            "layer": (head.layer or 0, layers.layers),
            "head": (head.head or 0, layers.heads),
        }
        for axis, (number, known) in numbers.items():
            if fixed[axis] not in (None, number) or (axis in axes and number not in known):
                return left_out
            places.append(known.index(number) if axis in axes else 0)
        matrix: Scores = read(places[0])[places[1]]
        return matrix[head.query, head.key]

    return scores


def _in_order(name: str, ranking: xr.DataArray, head: AttentionGraph) -> xr.DataArray:
    """Put queries and keys in text order, and compare their tokens."""
    for axis, tokens in _tokens_of(head).items():
        if ranking.sizes.get(axis) != len(tokens):
            continue  # Refused later, where the shape is known.
        if axis in ranking.coords:
            ranking = ranking.isel(
                {axis: text_order(name, ranking[axis].to_numpy().tolist(), tokens)}
            )
        if f"{axis}_token" in ranking.coords:
            check_texts(name, ranking[f"{axis}_token"].to_numpy().tolist(), tokens)
    return ranking


def _matched(head: AttentionGraph, query: Ints, key: Ints, values: Scores) -> Scores:
    """Find the values of a head's edges among those of some pairs."""
    keys = head.graph.num_keys
    own, given = head.query * keys + head.key, query * keys + key
    found = np.full(len(own), np.nan)
    if len(own):
        place = np.searchsorted(own, given).clip(max=len(own) - 1)
        is_there = own[place] == given
        found[place[is_there]] = values[is_there]
    return found


def _check_size(name: str, size: tuple[int, int], head: AttentionGraph) -> None:
    expected = head.graph.num_queries, head.graph.num_keys
    if size != expected:
        raise SelectionError(
            f"{name!r} is of {size[0]} queries and {size[1]} keys, but the text has {expected[0]} "
            f"and {expected[1]}: rank the edges of the same text, tokens not merged."
        )


def order(scores: Scores, units: Ints, generator: np.random.Generator) -> Ints:
    """Put the largest first, ties in random order, and what is not ranked last."""
    ranks = np.where(np.isnan(scores), -np.inf, scores)
    chance = generator.permutation(int(units.max()) + 1)[units]
    return np.lexsort((chance, -ranks))
