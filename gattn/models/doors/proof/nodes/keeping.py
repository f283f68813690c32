"""Follows which tensors have the nodes of the data as their rows, in the order of the data.

Only kernels that are known to keep rows do; what comes from any other is to be proved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.engines.call import AttentionCall
from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.graphs.frames import is_a, plain
from gattn.models.doors.graphs.landing import SUMS
from gattn.models.doors.proof.nodes.along_edges import AlongEdges
from gattn.models.doors.proof.nodes.ends_given import (
    counts_up,
    is_own,
    is_trusted,
    nodes_of,
    passing_of,
)
from gattn.models.doors.proof.nodes.graphs_apart import Edges, are_same, graphs_apart
from gattn.models.doors.proof.nodes.rules import Rules
from gattn.models.doors.proof.probing.moving import MOVES
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.read.on_graphs.seen_edges import Ends
from gattn.models.watch.hooks import Uncopied

Rows = tuple[Tensor, ...]
"""Indices that must be ends of edges, lest the rows of a tensor are other than nodes."""
_GATHERS = frozenset(("index", "index_select"))
_FILLS = frozenset(("fill_", "zero_", "bernoulli_", "uniform_", "normal_"))
_MOST_GATHERS = 64


class KeptRows:
    """Which calls of attention over edges have the nodes of the data, in their order.

    Messages move along edges, which moves no nodes; numbers that come from no node may be anywhere.

    Parameters
    ----------
    model : nn.Module
        The model.
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    """

    def __init__(self, model: nn.Module, constants: Collection[int]) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._rules = Rules(constants, self._of)
        self.along = AlongEdges(constants)
        self._constants = constants
        self._rows: Any = WeakTensorKeyDictionary()
        self._spoiled: set[Memory | None] = set()
        self._gathered: list[tuple[Tensor, Rows | None]] = []
        self._ends: list[Tensor] = []
        self._calls: list[Rows | None] = []
        self._edges: list[Edges | None] = []
        self._given_rows: set[Tensor] = set()
        self._own: dict[nn.Module, Rows | None] = {}
        self._own_names = tuple(f"{x}." for module, x in self._names.items() if is_own(module))
        self._may_move = False
        self.places: list[tuple[str, int]] = []
        """The calls of attention over edges: the module, and how many of its calls came before."""
        self.choosing: set[str] = set()
        """The modules that choose nodes or edges by a softmax, which is no attention."""
        self.lookups: set[tuple[str, int]] = set()
        """The runs of embeddings that look up ids as they are given."""

    @property
    def count(self) -> int:
        """How many calls of attention over edges there were."""
        return len(self.places)

    @property
    def unknown(self) -> set[int]:
        """The numbers of the calls of which it is to be proved what their nodes are."""
        return {n for n, rows in enumerate(self._calls) if not self._are_kept(rows)}

    def _are_kept(self, rows: Rows | None) -> bool:
        ends = [one for one in self._ends if one.dim() == 1]
        return rows is not None and all(
            x in self._given_rows or any(are_same(x, one) for one in ends) for x in rows
        )

    def graphs(self) -> dict[tuple[str, int], int]:
        """Give numbers to the graphs that calls attend over, if there are several."""
        given = [{x for x in rows or () if x in self._given_rows} for rows in self._calls]
        return graphs_apart(self.places, given, self._edges)

    def begin(self, given: Any) -> None:
        """Note what the model is given."""
        self.along.begin(leaves(given))
        for x in leaves(given):
            if isinstance(x, Tensor) and x.dim():
                self._rows[x] = (x,)
                self._given_rows.add(x)
                if x.dim() == 2 and len(x) == 2 and not x.is_floating_point():
                    self._ends += [*plain(x).clone()]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow what the model's layers pass to each node, and what normalizes nodes."""
        with ExitStack() as stack:
            layers: list[Any] = [x for x in self._names if is_a(x, "MessagePassing")]
            for layer in layers:
                if is_own(layer):  # It would run in another way if its messages were looked at.
                    stack.callback(layer.register_forward_pre_hook(Uncopied(self._given)).remove)
                    stack.callback(layer.register_forward_hook(Uncopied(self._left)).remove)
                else:
                    stack.callback(
                        layer.register_propagate_forward_hook(Uncopied(self._passed)).remove
                    )
            for module in filter(is_trusted, self._names):
                stack.callback(module.register_forward_hook(Uncopied(self._left)).remove)
            yield

    # Calls of attention over edges

    def softmax(
        self, module: nn.Module, ends: Ends | None, frame: FrameType, scores: Tensor, given: Tensor
    ) -> Tensor:
        """Note a call of attention over edges, or a softmax by which nodes are chosen."""
        if ends is None:
            self.choosing.add(self._names[module])
        else:
            with torch._C.DisableTorchFunction():
                self._ends += [ends.key, ends.query]
                rows = None if ends.names else self._of_call(ends, frame, scores)
                self._note(module, rows, (ends.key.clone(), ends.query.clone()))
                if ends.is_listed:
                    self.along.expect(self.places[-1], ends, are_others=self._are_others(ends))
        return given

    def values(self, query: Tensor, some: Sequence[Tensor], order: Tensor | None) -> None:
        """Note what attention over listed edges is multiplied with."""
        with torch._C.DisableTorchFunction():
            self.along.values(query, some, order)

    def own(self, module: nn.Module, call: AttentionCall, output: Tensor) -> Tensor:
        """Note a call of a layer of gattn."""
        from gattn.engines.call import EdgeList

        if isinstance(call.graph, EdgeList) and len(call.query) == 1:
            self._ends += [*call.graph.edge_index]
            key, query = call.graph.edge_index
            self._note(module, self._own.get(module), (key, query))
        else:
            self._note(module, None if self._may_move else (), None)
        return output

    def _note(self, module: nn.Module, rows: Rows | None, edges: Edges | None) -> None:
        name = self._names[module]
        self.places.append((name, sum(name == one for one, _ in self.places)))
        self._calls.append(rows)
        self._edges.append(edges)

    def _of_call(self, ends: Ends, frame: FrameType, scores: Tensor) -> Rows | None:
        passing = passing_of(frame)
        if passing is not None:
            conv, known = passing
            keys, queries = nodes_of(conv, known)
            dim = conv.node_dim
            sides = [
                self._all_of([x for x in some if x.shape[dim] == count], dim)
                for some, count in ((keys, ends.num_keys), (queries, ends.num_queries))
            ]
        else:
            sides = [self._of_gathered(ends.key), self._of_gathered(ends.query)]
            if ends.is_bipartite and counts_up(ends.key):  # A readout, whose queries are no nodes.
                sides = [self._of(scores)] if len(scores) == len(ends.key) else [None]
        return _joined(sides)

    def _all_of(self, some: Sequence[Tensor], dim: int = 0) -> Rows | None:
        if not some or any(dim % x.dim() for x in some):
            return None
        return _joined([self._of(x) for x in some])

    def _are_others(self, ends: Ends) -> bool:
        """Return whether keys and queries come from different nodes that the model is given."""
        sides = [set(self._of_gathered(x) or ()) for x in (ends.key, ends.query)]
        key, query = (side & self._given_rows for side in sides)
        return bool(key and query) and not key & query

    def _of_gathered(self, index: Tensor) -> Rows | None:
        found = [rows for one, rows in self._gathered if are_same(one, index)]
        return _joined(found) if found else None

    # Kernels

    def note(
        self,
        func: Any,
        kernel: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        place: tuple[str, int],
    ) -> None:
        """Look at a kernel that ran in a run of a module."""
        is_written = getattr(getattr(func, "_schema", None), "is_mutable", False)
        if is_written and kernel in _FILLS:
            return
        self.along.note(func, kernel, args, kwargs, result)
        given = tensors_in((args, kwargs))
        if kernel in MOVES and not f"{place[0]}.".startswith(self._own_names):
            self._may_move = True
        if kernel in _GATHERS:
            self._gather(kernel, args)
        if kernel == "embedding" and self._of(args[1]) is not None:
            self.lookups.add(place)
        rows = self._rules.rows(func, kernel, args, kwargs, result)
        if kernel.rstrip("_") in SUMS:
            rows = self._summed(args, result)
        found = tensors_in((result,))
        if is_written and given:
            if rows is None or (_is_part(given[0]) and (rows or self._of(given[0]) is None)):
                self._spoiled.add(memory_of(given[0]))
                return
            self._rows[given[0]] = rows
        before = {memory_of(x) for x in given}
        for x in found:
            if (memory := memory_of(x)) not in before:
                self._spoiled.discard(memory)
            if rows is not None and self._rules.has_rows(x, kernel, found):
                self._rows[x] = rows

    def _of(self, x: Tensor) -> Rows | None:
        """Return of what it depends that a tensor's rows are nodes; None if it is not known."""
        if self._spoiled and memory_of(x) in self._spoiled:
            return None
        found: Rows | None = self._rows.get(x)
        if found is None and place_of(x) in self._constants and x.is_contiguous():
            return () if x.storage_offset() == 0 else None
        return found

    def _gather(self, kernel: str, args: Sequence[Any]) -> None:
        """Note where rows are gathered along edges, in a layer without message passing."""
        index = args[1][0] if kernel == "index" and len(args[1]) == 1 else args[-1]
        is_first = kernel == "index" or args[1] % max(args[0].dim(), 1) == 0
        if not isinstance(index, Tensor) or index.dtype != torch.long or not is_first:
            return
        if index.dim() == 1 and args[0].is_floating_point():
            self._gathered.append((plain(index).clone(), self._of(args[0])))
            del self._gathered[:-_MOST_GATHERS]

    def _summed(self, args: Sequence[Any], result: Tensor) -> Rows | None:
        """Let sums over edges, of which there are not as many as nodes, belong to these."""
        dim, index, own = args[1], args[2], self._of(args[0])
        if own is None or dim % max(result.dim(), 1):
            return None
        index = index.flatten(1)[:, 0] if index.dim() > 1 else index
        return None if len(index) == len(result) else (*own, index.clone())

    # Modules

    def _passed(self, conv: Any, given: Sequence[Any], out: Any) -> None:
        """Let what is passed to nodes belong to them."""
        if isinstance(out, Tensor) and out.dim():
            keys, queries = nodes_of(conv, given[2])
            some = [x for x in queries or keys if not queries or len(x) == len(out)]
            rows = None if conv.node_dim % out.dim() else self._all_of(some, conv.node_dim)
            self._set(out, rows)

    def _given(self, module: nn.Module, given: Sequence[Any]) -> None:
        """Note whether a layer of gattn is given nodes, of one type or at both ends of edges."""
        some = _nodes_given(given)
        is_flat = all(x.dim() == 2 for x in some)
        self._own[module] = self._all_of(some) if is_flat else None

    def _left(self, module: nn.Module, given: Sequence[Any], out: Any) -> None:
        """Let what a module made of each node belong to it."""
        some = _nodes_given(given)
        if some and isinstance(out, Tensor) and out.dim() and len(out) == len(some[-1]):
            self._set(out, self._of(some[-1]))

    def _set(self, x: Tensor, rows: Rows | None) -> None:
        if rows is None:
            self._rows.pop(x, None)
        else:
            self._rows[x] = rows
            self._spoiled.discard(memory_of(x))


def _nodes_given(given: Sequence[Any]) -> list[Tensor]:
    """Return the nodes that a module is given first: the keys, then the queries if others."""
    first = given[0] if given else None
    some = first if isinstance(first, (tuple, list)) else [first]
    return [x for x in some if isinstance(x, Tensor)]


def _joined(some: Sequence[Rows | None]) -> Rows | None:
    found: Rows = ()
    for rows in some:
        if rows is None:
            return None
        found += rows
    return tuple(dict.fromkeys(found))


def _is_part(x: Tensor) -> bool:
    """Return whether a tensor may be a view of a larger one."""
    return not place_of(x) or x.numel() * x.itemsize < x.untyped_storage().nbytes()
