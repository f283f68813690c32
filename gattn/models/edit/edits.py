"""Edits: changes to the graph inside a live model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.edit_records import Described, EditRecord
from gattn.engines.tiles import RowBlock
from gattn.errors import ContractError, EditError, SelectionError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.graph.rules.simple import Crossing
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.models.edit.digests import ADDRESS, digest_of
from gattn.models.read.places import Place, Side
from gattn.normalizers import Normalizer
from gattn.place_names import Named, list_places, read_heads
from gattn.token_names import find_text
from gattn.weights.base import (
    PairFunction,
    Pairs,
    PositionWeight,
    Scaled,
    Sum,
    Tree,
    WeightFunction,
    as_weight_function,
)
from gattn.weights.rotary import Rotary
from gattn.weights.softcap import Softcap

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading

Numbers: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int] | str] | None
Tokens: TypeAlias = int | str | slice | range | Sequence[int | str] | None

_FEW_PAIRS = 1 << 22


class ModelScore(WeightFunction):
    """What the model itself computes at an edge: its score with scaling, softcap and bias.

    It stands for the model's own weight function inside `Swap`: ``2 * ModelScore()`` doubles the
    scores, ``ModelScore() + ALiBi(12)`` adds a bias to them.
    """

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Refuse to score outside of a model."""
        raise ContractError("ModelScore() has a meaning only inside Swap(weight=...).")


class Edit(Described):
    """The base of edits, which are frozen dataclasses; `layer`, `head` and `stack` say where."""

    layer: Numbers
    head: Numbers
    stack: str | None

    is_after = False
    """Whether it changes attention after normalizing."""

    def __post_init__(self) -> None:
        if (named := named_by(self.layer)) is not None:
            self._take(named)
        for name in ("layer", "head"):
            given = getattr(self, name)
            if name == "layer" and places_of(given) is not None:
                continue
            numbers = _numbers(name, given)
            if numbers is not None and not isinstance(given, Sequence):
                object.__setattr__(self, name, numbers[0])
            elif isinstance(given, (list, tuple)):
                object.__setattr__(self, name, type(given)(numbers or ()))

    def _take(self, named: Named) -> None:
        """Take the heads, and the stack, that its layer names."""
        names_heads = bool(named.heads) or named.head is not None
        if names_heads and self.head is not None:
            raise SelectionError(
                f"layer={self.layer!r} names heads already, so head={self.head!r} may not be "
                "given; for several layers write a list, as in layer=[2, 1]."
            )
        if named.stack is not None and self.stack not in (None, named.stack):
            raise SelectionError(
                f"layer={self.layer!r} names a stack already, so stack={self.stack!r} may not be "
                "given."
            )
        values = {"layer": named.heads or named.layer, "stack": named.stack or self.stack}
        if names_heads:
            values["head"] = named.head
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Show what differs from the defaults."""
        shown = [
            f"{one.name}={_shown(value)}"
            for one in fields(cast("Any", self))
            if (value := getattr(self, one.name)) is not one.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def record(self) -> EditRecord:
        """What it says of itself."""
        values = {one.name: getattr(self, one.name) for one in fields(cast("Any", self))}
        held = [value for value in values.values() if not _is_plain(value)]
        where = ("layer", "head", "query", "key")
        return EditRecord(
            ADDRESS.sub("", repr(self)),
            type(self).__name__,
            self.stack,
            **{name: _recorded(values.get(name)) for name in where},
            factor=values.get("factor"),
            digest=digest_of(held) if held else "",
        )

    def applies(self, place: Place) -> bool:
        """Say whether it edits a stack's layer."""
        if self.stack not in (None, place.stack):
            return False
        layers = self.layers()
        return layers is None or place.layer in layers

    def layers(self) -> list[int] | None:
        """List its layers; None for all."""
        if (places := places_of(self.layer)) is not None:
            return sorted({layer for layer, _ in places})
        return _numbers("layer", self.layer)

    def named(self) -> dict[str, set[Any]]:
        """Give the layers that it names, and the tokens that it names one by one."""
        return {"layer": set(self.layers() or ())}

    def heads(self, count: int) -> list[int]:
        """List its heads out of so many."""
        heads = _numbers("head", self.head)
        if heads is None:
            return list(range(count))
        if missing := [head for head in heads if head >= count]:
            raise SelectionError(
                f"{self} names head {missing[0]}, but the heads are 0 .. {count - 1}."
            )
        return heads

    def in_layer(self, layer: int) -> Edit:
        """Give what it is in a layer, where it names places."""
        places = places_of(self.layer)
        if places is None:
            return self
        heads = [head for at, head in places if at == layer]
        return replace(self, layer=layer, head=heads)  # type: ignore[type-var]

    @property
    def needs_tokens(self) -> bool:
        """Whether a call's tokens say which positions it means."""
        return False

    def located(self, query: KnownTokens, key: KnownTokens) -> tuple[Edit, set[tuple[str, Any]]]:
        """Replace tokens' texts, and what counts from the end, by positions.

        Also gives which of them were found.
        """
        return self, set()

    def changes(self, reading: Reading) -> Tensor | None:
        """Say which queries of a call it changes, as booleans; None for all of them."""
        return None

    def meets(self, reading: Reading) -> bool:
        """Say whether there is anything for it to edit in a call."""
        return bool(len(reading.queries) and len(reading.keys))

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Change who may attend to whom."""
        return graph

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Change the attention of some rows, (elements, heads, rows, columns)."""
        return attention


class _AtTokens(Edit):
    """An edit of the edges from some keys to some queries."""

    query: Tokens
    key: Tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query", "key"):
            _check_tokens(name, getattr(self, name))

    def named(self) -> dict[str, set[Any]]:
        """Give the layers that it names, and the tokens that it names one by one."""
        return {
            **super().named(),
            "query": _one_by_one(self.query),
            "key": _one_by_one(self.key),
        }

    @property
    def needs_tokens(self) -> bool:
        """Whether a call's tokens say which positions it means."""
        return any(map(_is_relative, (self.query, self.key)))

    def located(self, query: KnownTokens, key: KnownTokens) -> tuple[Edit, set[tuple[str, Any]]]:
        """Replace tokens' texts, and what counts from the end, by positions."""
        places: dict[str, Any] = {}
        found: set[tuple[str, Any]] = set()
        for name, tokens in (("query", query), ("key", key)):
            where = getattr(self, name)
            if isinstance(where, slice) and _is_relative(where):
                places[name] = tokens.span(where)
            elif _is_relative(where):
                of = {one: tokens.find(self, one) for one in _listed(where)}
                places[name] = sorted({n for some in of.values() for n in some}) or slice(0, 0)
                found |= {(name, one) for one, some in of.items() if some}
        located = cast("Edit", replace(self, **places)) if places else self  # type: ignore[type-var]
        return located, found

    def changes(self, reading: Reading) -> Tensor | None:
        """Say which queries of a call it changes."""
        changed = _chosen(reading.queries, self.query)
        keys = _chosen(reading.keys, self.key).nonzero()[:, 0]
        if self.key is None:
            return None if self.query is None else changed
        for rows in changed.nonzero()[:, 0].split(max(_FEW_PAIRS // max(len(keys), 1), 1)):
            changed[rows] = reading.graph.allowed(rows, keys).any(1).cpu()
        return changed

    def meets(self, reading: Reading) -> bool:
        """Say whether one of its edges is there."""
        queries = _chosen(reading.queries, self.query).nonzero()[:, 0]
        keys = _chosen(reading.keys, self.key).nonzero()[:, 0]
        if not len(queries) or not len(keys):
            return False
        if self.query is None or self.key is None:
            return True
        return bool(reading.graph.allowed(queries, keys).any())

    def _times(self, factor: float, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        rows = _chosen(reading.queries, self.query)[block.rows]
        keys = _chosen(reading.keys, self.key)[_indices(block.columns)]
        inside = (rows[:, None] & keys).to(attention.device)
        return torch.where(inside, attention * factor, attention)


@dataclass(frozen=True, eq=False, repr=False)
class Cut(_AtTokens):
    """Cut edges: all that run from some keys to some queries, in some heads.

    Parameters
    ----------
    layer, head : int or sequence of int, optional
        Where; all by default. A pair ``(2, 1)`` as the layer, or ``"2.1"``, is head 1 of layer 2,
        and ``[(2, 0), (3, 1)]`` or ``"2.0,3.1"`` two heads; ``layer=[2, 1]`` are two layers. Text
        is what the command line takes: ``"cross:0-2.1"`` names a stack, too.
    query, key : int, str, slice, range or sequence of int or str, optional
        Positions of tokens, a span of them, or a token's text, which stands for each of its
        occurrences; all by default. Texts are those that graphs show, or if it leaves no doubt
        what the tokenizer calls a token. Negative positions count from the end of the text that
        the model is first called with: -1 is the last token of the prompt, also while more are
        generated with a cache. ``Cut(key=4)`` cuts all edges out of token 4, ``Cut(query=4)`` all
        into it, and ``Cut(layer=5, head=1)`` the whole head, which is zero ablation.
    renormalize : bool
        True removes the edges before normalizing, so that the others share out what they had; a
        query without edges gets zero. False zeroes their attention afterwards: for
        ``Cut(key=t, renormalize=False)`` this is value zeroing.
    stack : str, optional
        Which stack, such as "encoder" or "cross"; needed where the model has several.

    References
    ----------
    Geva et al. (2023), Dissecting recall of factual associations: attention knockout.
    Mohebbi et al. (2023), Quantifying context mixing in transformers: value zeroing.
    """

    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    renormalize: bool = True
    stack: str | None = None

    @property
    def is_after(self) -> bool:  # type: ignore[override]
        """Whether it changes attention after normalizing."""
        return not self.renormalize

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Cut edges before normalizing."""
        if not self.renormalize:
            return graph
        shift = reading.queries.first if graph.is_bipartite else reading.keys.first
        rows = None if self.query is None else _places_of(reading.queries, self.query) - shift
        keys = None
        if self.key is not None:
            keys = _places_of(reading.keys, self.key) - reading.keys.first
        return graph - replace(graph, rule=Crossing(rows, keys))

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Cut edges after normalizing."""
        return attention if self.renormalize else self._times(0.0, attention, block, reading)


@dataclass(frozen=True, eq=False, repr=False)
class Scale(_AtTokens):
    """Multiply the attention of edges after normalizing.

    Parameters
    ----------
    factor : float
        By how much.
    layer, head, query, key, stack
        Where, as in `Cut`.
    """

    factor: float
    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    stack: str | None = None

    is_after = True

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            factor = finite_number("The factor of Scale", self.factor)
        except ContractError as error:
            raise EditError(str(error)) from error
        object.__setattr__(self, "factor", factor)

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Multiply."""
        return self._times(self.factor, attention, block, reading)


@dataclass(frozen=True, eq=False, repr=False)
class Restrict(Edit):
    """Let tokens attend only along those of the model's edges that a graph has too.

    Parameters
    ----------
    graph : TokenGraph
        A graph on at least as many tokens as the sequence comes to have.
    layer, head, stack
        Where, as in `Cut`.

    Examples
    --------
    >>> Restrict(TokenGraph.window(512, 64))  # a model with global attention, as a local one
    """

    graph: TokenGraph
    layer: Numbers = None
    head: Numbers = None
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.graph, TokenGraph):
            raise EditError(f"Restrict takes a TokenGraph, not {type(self.graph).__name__}.")
        _check_begins(self, self.graph)

    def changes(self, reading: Reading) -> Tensor:
        """Say which queries of a call lose edges."""
        return self.loses(self.allowed(reading.graph, reading), reading.graph)

    @staticmethod
    def loses(left: TokenGraph, graph: TokenGraph) -> Tensor:
        """Say which queries have fewer edges than in a graph."""
        return (left.in_degree != graph.in_degree).cpu()

    def meets(self, reading: Reading) -> bool:
        """Say whether it removes edges of a call."""
        return super().meets(reading) and bool(self.changes(reading).any())

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Take the edges that are in both."""
        queries, keys, given = reading.queries, reading.keys, self.graph
        if given.is_bipartite != graph.is_bipartite:
            kind = "bipartite" if graph.is_bipartite else "a graph on one sequence"
            raise EditError(f"{self}: the model's graph is {kind}, the given one is not.")
        _check_fits(self, given.num_queries, given.num_keys, reading)
        follows = given.rule.device is None and (not graph.is_bipartite or not queries.first)
        if follows and not keys.first:
            return graph & replace(graph, rule=given.rule)
        rows = slice(queries.first, queries.first + len(queries))
        if given.rule.device is None:
            positions = torch.arange(rows.start, rows.stop)
            inside = given.rule.allowed(positions[:, None], keys.first + torch.arange(len(keys)))
            row, key = inside.nonzero(as_tuple=True)
        else:
            row, key, _ = _edges(given, rows)
            key = key - keys.first
            is_there = (key >= 0) & (key < len(keys))
            row, key = row[is_there], key[is_there]
        return graph & replace(
            graph, rule=Edges.from_pairs(row, key, len(queries), graph.query_offset)
        )


@dataclass(frozen=True, eq=False, repr=False)
class Use(Edit):
    """Let a head run with a given attention graph: one edited in NetworkX, or another run's.

    Its attention is used as it is: where edges were dropped, their mass is missing.

    Parameters
    ----------
    graph : AttentionGraph
        A graph on at least as many tokens as the sequence comes to have.
    layer, head : int or sequence of int
        Which layer and head run with it, as in `Cut`.
    stack : str, optional
        Which stack, where the model has several.
    """

    graph: AttentionGraph
    layer: Numbers
    head: Numbers = None
    stack: str | None = None

    is_after = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.graph, AttentionGraph):
            raise EditError(f"Use takes an AttentionGraph, not {type(self.graph).__name__}.")
        if self.graph.positions is not None or self.graph.query_positions is not None:
            raise EditError("Use takes a graph of all tokens, not a subgraph.")
        _check_begins(self, self.graph.graph)

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Take the graph's own edges."""
        given, first = self.graph.graph, reading.queries.first
        _check_fits(self, given.num_queries, given.num_keys, reading)
        row, key, _ = self._edges(slice(0, len(reading.queries)), reading)
        if len(key) and not 0 <= int(key.min()) <= int(key.max()) < len(reading.keys):
            raise EditError(
                f"{self}: query {int(row[-1]) + first} of the graph reads a key that the sequence "
                f"does not have there; it has the keys {reading.keys.first} .. "
                f"{reading.keys.first + len(reading.keys) - 1}."
            )
        rule = Edges.from_pairs(row, key, len(reading.queries), graph.query_offset)
        return replace(graph, rule=rule)

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Put the graph's attention in place of the model's."""
        row, key, value = self._edges(block.rows, reading)
        columns = _indices(block.columns)
        column = torch.searchsorted(columns, key)
        given = torch.zeros(attention.shape[-2:], dtype=attention.dtype)
        given[row, column] = value.to(attention.dtype)
        return given.to(attention.device).expand_as(attention)

    def _edges(self, rows: slice, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
        """List the edges of some rows of a call: row counted from theirs, key, attention."""
        first = reading.queries.first
        row, key, edges = _edges(self.graph.graph, slice(first + rows.start, first + rows.stop))
        return row, key - reading.keys.first, torch.as_tensor(self.graph.attention[edges])


@dataclass(frozen=True, eq=False, repr=False)
class Swap(Edit):
    """Swap the weight function of heads, their normalizer, or both.

    Parameters
    ----------
    layer, head : int or sequence of int, optional
        Where; all by default.
    weight : WeightFunction or callable, optional
        The new weight function; the model's own by default. It gets queries and keys as the
        model's attention does: after rotary embeddings and norms, before scaling, with keys
        expanded to the query heads. It takes the place of scaling, softcap and position bias; who
        may attend to whom stays. `ModelScore` stands for what it replaces. Parameters train.
    normalizer : Normalizer, optional
        What replaces the softmax and its sink; the model's own by default.
    stack : str, optional
        Which stack, where the model has several.
    """

    layer: Numbers = None
    head: Numbers = None
    weight: WeightFunction | PairFunction | None = None
    normalizer: Normalizer | None = None
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is None and self.normalizer is None:
            raise EditError("Swap takes a weight function, a normalizer, or both; it got neither.")
        if self.weight is not None:
            object.__setattr__(self, "weight", as_weight_function(self.weight))
            if any(isinstance(part, Rotary) for part in self._weight.modules()):
                raise EditError(
                    "Swap gets queries and keys to which the model has already applied its rotary "
                    "embeddings: give the weight function without Rotary(...)."
                )
        if self.normalizer is not None and not isinstance(self.normalizer, Normalizer):
            raise EditError(f"normalizer must be a Normalizer, not {self.normalizer!r:.60}.")

    @property
    def _weight(self) -> WeightFunction:
        return cast("WeightFunction", self.weight)

    def scored_by(self, own: WeightFunction, has_vectors: bool) -> WeightFunction:
        """Give the weight function, with the model's own in the place of `ModelScore`."""
        if self.weight is None:
            return own
        if not has_vectors and not _reads_no_vectors(self._weight):
            raise EditError(
                f"{self._weight!r} reads queries and keys, but this model does not route its "
                "attention through transformers' interface and shows its scores alone: use "
                "ModelScore() and weight functions of positions."
            )
        return _bound(self._weight, own)


def _shown(value: object) -> str:
    if isinstance(value, slice) and value.step is None:
        return f"slice({value.start}, {value.stop})"
    return repr(value)


def _is_plain(value: object) -> bool:
    """Say whether an edit's text says all of a value."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, slice, range))


def _recorded(where: Any) -> Any:
    """Give layers, heads or tokens as a record has them."""
    if where is None or isinstance(where, (int, str, slice)):
        return where
    if isinstance(where, range) and where.step == 1:
        return slice(where.start, where.stop)
    if isinstance(where, (Tensor, np.ndarray)):
        where = where.tolist()
    return tuple(where) if isinstance(where, Sequence) else None


def _reads_no_vectors(weight: WeightFunction) -> bool:
    if isinstance(weight, (Sum, Scaled, Softcap)):
        return all(
            _reads_no_vectors(part)
            for part in weight.modules()
            if part is not weight and isinstance(part, WeightFunction)
        )
    return isinstance(weight, (ModelScore, PositionWeight))


def _bound(weight: WeightFunction, own: WeightFunction) -> WeightFunction:
    """Copy a weight function with `own` in the place of `ModelScore`; parameters are shared."""
    if isinstance(weight, ModelScore):
        return own
    if not any(isinstance(part, ModelScore) for part in weight.modules()):
        return weight
    if isinstance(weight, Sum):
        return Sum(*(_bound(cast("WeightFunction", term), own) for term in weight.terms))
    bound = copy.copy(weight)
    bound._modules = {
        name: _bound(part, own) if isinstance(part, WeightFunction) else part
        for name, part in weight._modules.items()
    }
    return bound


def _numbers(name: str, chosen: Numbers) -> list[int] | None:
    """Check which layers or heads were named."""
    if chosen is None:
        return None
    try:
        listed: Any = chosen if isinstance(chosen, Sequence) else [chosen]
        numbers = [index(n) for n in listed]
    except TypeError:
        numbers = [-1]
    if not numbers or min(numbers) < 0 or isinstance(chosen, (bool, np.bool_, str)):
        place = ", a head such as (2, 1) or '2.1'" if name == "layer" else ""
        raise SelectionError(
            f"{name} is a number that counts from 0, several of them{place}, or None for all; not "
            f"{chosen!r}."
        )
    return numbers


def named_by(layer: Any) -> Named | None:
    """Read (layer, head), text such as "2.1", or several of these; None where it is else."""
    if isinstance(layer, str):
        try:
            return read_heads(layer)
        except ValueError as error:
            hint = "; tokens are named by query= and key=" if "<-" in layer else ""
            raise SelectionError(f"layer is {error}; not {layer!r:.80}{hint}.") from error
    if isinstance(layer, tuple) and len(layer) == 2 and all(map(_is_whole, layer)):
        layer = [layer]
    if not isinstance(layer, (list, tuple)) or all(map(_is_whole, layer)):
        return None
    if not any(isinstance(one, (str, tuple)) for one in layer):
        return None
    try:
        stack, heads = list_places(layer)
    except ValueError as error:
        raise SelectionError(
            f"A list names layers, such as [2, 3], or heads, such as [(2, 1), '3.0'], not "
            f"{layer!r:.80}: it takes {error}."
        ) from error
    return Named(stack, *heads[0]) if len(heads) == 1 else Named(stack, heads=tuple(heads))


def places_of(layer: Any) -> tuple[tuple[int, int], ...] | None:
    """Give the places (layer, head) that an edit's layer holds, where it holds them."""
    holds = isinstance(layer, tuple) and bool(layer) and isinstance(layer[0], tuple)
    return cast("tuple[tuple[int, int], ...]", layer) if holds else None


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


@dataclass(frozen=True)
class KnownTokens:
    """What is known of the tokens on one side of a call.

    Parameters
    ----------
    names : sequence of str, optional
        Their texts, as attention graphs show them.
    spellings : tuple of sequences of str
        What the tokenizer calls them.
    count : int, optional
        From the end of how many tokens negative positions count.
    """

    names: Sequence[str] | None
    spellings: tuple[Sequence[str], ...] = ()
    count: int | None = None

    def find(self, edit: Edit, wanted: int | str) -> list[int]:
        """Find a position, or the tokens of a text; nothing where there is none."""
        if isinstance(wanted, str):
            if self.names is None:
                raise EditError(
                    f"{edit} names a token by its text, but the tokens are not known here: pass "
                    "tokenizer=, call the model with input_ids, or name positions."
                )
            try:
                return find_text(wanted, self.names, self.spellings)
            except SelectionError as error:
                raise EditError(f"{edit}: {error}") from error
        if wanted >= 0:
            return [wanted]
        assert self.count is not None
        return [self.count + wanted] if self.count + wanted >= 0 else []

    def span(self, where: slice) -> slice:
        """Count a span from the start."""
        assert self.count is not None
        return slice(*where.indices(self.count)[:2])


def _is_relative(where: Tokens) -> bool:
    """Say whether it takes a call's tokens to know which positions are meant."""
    if isinstance(where, slice):
        return any(n is not None and index(n) < 0 for n in (where.start, where.stop))
    if where is None or isinstance(where, range):
        return False
    return any(isinstance(one, str) or one < 0 for one in _listed(where))


def counts_from_end(where: Tokens) -> bool:
    """Say whether it counts from the end."""
    if isinstance(where, (slice, range)) or where is None:
        return _is_relative(where)
    return any(not isinstance(one, str) and one < 0 for one in _listed(where))


def _check_tokens(name: str, where: Tokens) -> None:
    if where is None or isinstance(where, str):
        return
    parts: Sequence[Any] = [where]
    if isinstance(where, slice):
        parts = [n for n in (where.start, where.stop) if n is not None]
        is_plain = where.step in (None, 1) and not any(isinstance(n, str) for n in parts)
        parts = parts if is_plain else [None]
    elif isinstance(where, range) and where:
        parts = [where[0], where[-1]]
    elif isinstance(where, (Sequence, Tensor, np.ndarray)):
        parts = list(where) or [None]
    try:
        is_right = all(
            isinstance(n, str)
            or (not isinstance(n, (bool, np.bool_)) and isinstance(index(n), int))
            for n in parts
        )
        is_right &= not (isinstance(where, range) and min(parts) < 0)
    except TypeError:
        is_right = False
    if not is_right:
        raise SelectionError(
            f"{name} is a position that counts from 0, or from the end -1, -2 ..., a token's text, "
            f"several of these, or a slice of step 1; not {where!r}."
        )


def _chosen(side: Side, where: Tokens) -> Tensor:
    """Say which of a side's tokens are meant, as booleans."""
    end = side.first + len(side)  # numbers beyond may be too large for a tensor
    positions = torch.arange(side.first, end)
    if where is None:
        return torch.ones(len(side), dtype=torch.bool)
    if isinstance(where, slice):
        start, stop = (end if n is None else min(n, end) for n in (where.start or 0, where.stop))
        return (positions >= start) & (positions < stop)
    if isinstance(where, range):
        return torch.tensor([n in where for n in range(side.first, end)], dtype=torch.bool)
    there = [n for n in _listed(where) if n < end]
    return torch.isin(positions, torch.tensor(there, dtype=torch.long))


def _one_by_one(where: Tokens) -> set[int | str]:
    if where is None or isinstance(where, (slice, range)):
        return set()
    return set(_listed(where))


def _listed(where: Tokens) -> list[Any]:
    is_list = isinstance(where, (Sequence, Tensor, np.ndarray)) and not isinstance(where, str)
    wanted: Any = where if is_list else [where]
    return [n if isinstance(n, str) else index(n) for n in wanted]


def _places_of(side: Side, where: Tokens) -> Tensor:
    return _chosen(side, where).nonzero()[:, 0] + side.first


def _check_begins(edit: Edit, graph: TokenGraph) -> None:
    if graph.query_offset:
        raise EditError(
            f"{type(edit).__name__} takes a graph of all tokens, but this one's queries begin at "
            f"position {graph.query_offset}."
        )


def _edges(graph: TokenGraph, rows: slice) -> tuple[Tensor, Tensor, slice]:
    """List the edges of some queries: row counted from theirs, key; and which edges they are."""
    pointer = graph.pointer[rows.start : rows.stop + 1].cpu()
    edges = slice(int(pointer[0]), int(pointer[-1]))
    row = torch.repeat_interleave(torch.arange(len(pointer) - 1), pointer.diff())
    return row, graph.edge_index[0, edges].cpu(), edges


def _check_fits(edit: Edit, num_queries: int, num_keys: int, reading: Reading) -> None:
    needed = [side.first + len(side) for side in (reading.queries, reading.keys)]
    if num_queries < needed[0] or num_keys < needed[1]:
        raise EditError(
            f"{edit}: the graph has {num_queries} queries and {num_keys} keys, but the sequence "
            f"has {needed[0]} and {needed[1]} by now; build it for all tokens, generated ones too."
        )


def _indices(columns: slice | Tensor) -> Tensor:
    return list_keys(columns, torch.device("cpu")) if isinstance(columns, slice) else columns.cpu()
