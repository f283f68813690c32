"""Explains why an edit had nothing to edit: what was missing, and what there is instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from gattn.graph.rules.edges import Edges
from gattn.models.edit.base import Edit
from gattn.models.edit.where.tokens import chosen
from gattn.models.read.places import Place
from gattn.names.tokens import described

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading

_SHOWN = 5
_FEW_ROWS = 256


class Absence(Enum):
    """Why a call has none of the edges from some keys to some queries."""

    LATER = "in a causal model a token reads only itself and earlier tokens"
    MASKED = "masked"
    NOT_IN_GRAPH = "not among the edges that a layer was given"


@dataclass(eq=False)
class Seen:
    """What was seen while a context was open: layers of each stack, and the texts' tokens."""

    was_called: bool = False
    sequences: int = 0
    layers: dict[str, int] = field(default_factory=dict)
    order: dict[tuple[str, int], None] = field(default_factory=dict)
    """The stacks and layers in the order in which they ran."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    names: dict[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """The tokens of the longest text."""
    known: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    """The different tokens of all texts."""
    misfits: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why the user's texts do not name the tokens of a side, which have other names."""
    unknown_nodes: list[str] = field(default_factory=list)
    """The stacks of layers over nodes of which it is not known which they are."""

    def note(self, place: Place) -> None:
        """Note a call."""
        stack, queries, keys = place.stack, place.queries, place.keys
        self.order[stack, place.layer] = None
        self.sequences = max(self.sequences, 1 + max(place.sequences, default=-1))
        self.layers[stack] = max(self.layers.get(stack, 0), place.layer + 1)
        most = max([side.end for side in queries], default=0)
        self.counts[stack, "query"] = max(self.counts.get((stack, "query"), 0), most)
        if keys is not queries:
            most = max([side.end for side in keys], default=0)
        self.counts[stack, "key"] = max(self.counts.get((stack, "key"), 0), most)

    def note_names(
        self,
        stack: str,
        names: Mapping[str, Sequence[str] | None],
        misfits: Mapping[str, str],
    ) -> None:
        """Note the tokens of a call, and why the user's texts do not name them."""
        self.misfits.update({(stack, name): why for name, why in misfits.items()})
        for name, tokens in names.items():
            self.known.setdefault((stack, name), {}).update(dict.fromkeys(tokens or ()))
            if tokens and len(tokens) >= len(self.names.get((stack, name), ())):
                self.names[stack, name] = tokens

    def missing(self, stack: str, name: str, text: str) -> str:
        """Say that no token of a side is this one, and which there are."""
        tokens = self.names.get((stack, name), ())
        known = list(self.known.get((stack, name), ()))
        if len(known) == len(set(tokens)):
            return f"no {name} is {text!r}, {described(tokens, text)}"
        return f"no {name} of any text is {text!r}, {described(known, text)}"

    @property
    def stacks(self) -> str:
        """The stacks with their layers, in words."""
        return " and ".join(
            f"{stack!r} (layer{'s' * (count > 1)} 0{f' .. {count - 1}' if count > 1 else ''})"
            for stack, count in self.layers.items()
        )


def nodes_not_known(stack: str) -> str:
    """Say why a layer is a stack of its own in a run, and what to do."""
    return (
        f"{stack!r} is a stack of its own in this run, as it is not known which nodes it is given: "
        "the model picks or moves nodes by their values, and edits before may change which. Edit "
        "only layers after it picks nodes, or call the part of the model after that by itself"
    )


class Unmet:
    """What an edit names and has not met so far."""

    def __init__(self, edit: Edit) -> None:
        self._edit, self._named, self._is_met = edit, edit.named(), False
        self._absence: Absence | None = None

    def find(self, found: set[tuple[str, Any]]) -> None:
        """Note which texts and negative positions were found."""
        for name, wanted in found:
            self._named[name].discard(wanted)

    def meet(self, edit: Edit, layer: int, reading: Reading) -> None:
        """Note what a call of a layer has; the edit's tokens are located."""
        for name, side in (("query", reading.queries), ("key", reading.keys)):
            if named := self._named.get(name):
                named.difference_update(side.at.tolist())
        layers = self._named["layer"]
        if (layer in layers or not self._is_met) and edit.meets(reading):
            self._is_met = True
            layers.discard(layer)
        elif self._absence is None:
            self._absence = _absence(edit, reading)

    @property
    def is_met(self) -> bool:
        """Whether everything was met."""
        return self._is_met and not any(self._named.values())

    def said(self, seen: Seen) -> str:
        """Return what was not met, and what there is."""
        missing = [
            f"{'in' if name == 'layer' else 'at'} {name} {number!r}"
            for name, some in self._named.items()
            for number in sorted(some, key=lambda one: (isinstance(one, str), one))
        ]
        where = " " + ", ".join(missing[:_SHOWN]) if missing else ""
        more = ", ..." if len(missing) > _SHOWN else ""
        return f"{self._edit} had nothing to edit{where}{more}: {'; '.join(self._reasons(seen))}"

    def _reasons(self, seen: Seen) -> list[str]:
        if not seen.was_called:
            return ["the model was not called: call it inside the context"]
        if not seen.layers:
            return ["every call of the model failed, or showed no attention"]
        if self._edit.stack is not None and self._edit.stack not in seen.layers:
            missing = f"the model has no stack {self._edit.stack!r}; it has {seen.stacks}"
            return [missing, *map(nodes_not_known, seen.unknown_nodes[:1])]
        stack = self._edit.stack or next(iter(seen.layers))
        reasons = []
        wrong = [n for n in self._named["layer"] if n >= seen.layers[stack]]
        if wrong:
            reasons.append(f"there is no layer {min(wrong)}; the model has {seen.stacks}")
            reasons += map(nodes_not_known, seen.unknown_nodes[:1])
        for name in ("query", "key"):
            reasons += self._reasons_of(name, stack, seen)
        return reasons or [self._no_edge(seen.counts.get((stack, "key"), 0))]

    def _reasons_of(self, name: str, stack: str, seen: Seen) -> list[str]:
        """Return which of its queries or keys are missing."""
        some = self._named.get(name, set())
        count = seen.counts.get((stack, name), 0)
        texts = [one for one in some if isinstance(one, str)]
        far = [one for one in some if not isinstance(one, str) and not -count <= one < count]
        reasons = [seen.missing(stack, name, text) for text in texts]
        if texts and (stack, name) in seen.misfits:
            reasons.append(seen.misfits[stack, name])
        if far:
            n = "queries" if name == "query" else "keys"
            reasons.append(f"the {n} are 0 .. {count - 1}")
        where = getattr(self._edit, name, None)
        if isinstance(where, (slice, range)) and (where.start or 0) >= count:
            reasons.append(f"the tokens are 0 .. {count - 1}")
        return reasons

    def _no_edge(self, count: int) -> str:
        query, key = (getattr(self._edit, name, None) for name in ("query", "key"))
        if self._absence is None or (query is None and key is None):
            return f"in a layer with {count} tokens it changes no edge"
        is_key_one, is_query_one = isinstance(key, (int, str)), isinstance(query, (int, str))
        from_key = f"from key {key!r}" if is_key_one else "from any of these keys"
        if self._absence is Absence.NOT_IN_GRAPH:
            to_query = f"to query {query!r}" if is_query_one else "to any of these queries"
            ends = [end for end, of in ((from_key, key), (to_query, query)) if of is not None]
            return f"the graph has no edge {' '.join(ends)}"
        lacks = (
            f"query {query!r} has no edge" if is_query_one else "none of these queries has an edge"
        )
        if self._absence is Absence.LATER:
            comes = "comes" if is_key_one else "come"
            return f"{lacks} {from_key}, which {comes} later: {Absence.LATER.value}"
        return f"{lacks} {from_key}: the model masks that"


def _absence(edit: Edit, reading: Reading) -> Absence | None:
    """Return why a call has none of an edit's edges, though it has its queries and keys."""
    query, key = (getattr(edit, name, None) for name in ("query", "key"))
    rows = chosen(reading.queries, query).nonzero()[:_FEW_ROWS, 0]
    columns = chosen(reading.keys, key).nonzero()[:, 0]
    if not len(rows) or not len(columns):
        return None
    graph = reading.graph
    if reading.lists_edges or isinstance(graph.rule, Edges):
        return Absence.NOT_IN_GRAPH
    at = reading.keys.at
    is_later = at > reading.queries.at[rows][:, None]
    every = graph.allowed(rows, torch.arange(len(at), device="cpu")).cpu()
    is_causal = not graph.is_bipartite and not bool((every & is_later).any())
    return Absence.LATER if is_causal and bool(is_later[:, columns].all()) else Absence.MASKED
