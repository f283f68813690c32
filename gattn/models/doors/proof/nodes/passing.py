"""Marks nodes as a graph model runs: what comes from other nodes, along edges, carries no marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.engines.call import AttentionCall, EdgeList
from gattn.models.doors.graphs.frames import is_a, plain
from gattn.models.doors.graphs.landing import SUMS
from gattn.models.doors.graphs.written_out import carry
from gattn.models.doors.proof.nodes.ends_given import (
    counts_up,
    is_own,
    is_trusted,
    nodes_of,
    passing_of,
)
from gattn.models.doors.proof.probing.failing import Stop
from gattn.models.doors.proof.probing.one_run.deciding import Deciding
from gattn.models.read.on_graphs.seen_edges import Ends
from gattn.models.watch.hooks import Uncopied
from gattn.models.watch.inside import is_inside

_GATHERS = frozenset(("__getitem__", "index_select"))
_MOST_GATHERS = 64
_OF_SUMS = "input", "dim", "index", "source"
"""What functions that sum take, in order; scatter_add and scatter_reduce call the last src."""
_SUMMED = frozenset(("source", "src"))


@dataclass(frozen=True, eq=False)
class Marked:
    """A call of attention over edges in a run: which of its nodes are marked.

    `place` is its module and how many of its calls came before, `orders` how many times values had
    decided before. Marks are None where nothing tells. A call of a layer of gattn `is_own`; over
    tokens, not nodes of one graph, its marks are those of all sequences, one after another.
    """

    place: tuple[str, int]
    ends: Ends
    keys: Tensor | None
    queries: Tensor | None
    orders: int
    is_own: bool = False
    has_tokens: bool = False


class Passing(Deciding):
    """Lets marks, which are NaN, stay with their nodes in one run of a model.

    Sums over edges give a node nothing of others' marks; what passes messages to a node keeps its
    mark. Values decide as in the first run, whose decisions are noted.

    Parameters
    ----------
    names : mapping
        The names of the model's modules.
    count : int
        How many calls of attention over edges end the run.
    decided : list, optional
        What values decided in the first run; None for that run itself.
    """

    def __init__(
        self, names: Mapping[nn.Module, str], count: int, decided: list[Any] | None = None
    ) -> None:
        super().__init__(decided)
        self._count = count
        self.calls: list[Marked] = []
        self._names = names
        self._gathered: list[tuple[Tensor, Tensor]] = []
        self._landing: list[tuple[Tensor, Tensor]] = []
        self._counts: dict[str, int] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow what the model's layers pass to each node, and what mixes nodes in place."""
        with ExitStack() as stack:
            layers: list[Any] = [x for x in self._names if is_a(x, "MessagePassing")]
            for layer in layers:
                if is_own(layer):  # It would run in another way if its messages were looked at.
                    continue
                stack.callback(layer.register_propagate_forward_hook(Uncopied(self._passed)).remove)
            for module in filter(is_trusted, self._names):
                stack.callback(module.register_forward_hook(Uncopied(self._mixed)).remove)
            yield

    # Calls of attention over edges

    def softmax(
        self, module: nn.Module, ends: Ends | None, frame: FrameType, scores: Tensor, given: Tensor
    ) -> Tensor:
        """Note a softmax over segments; each edge's attention keeps its own mark alone."""
        with torch._C.DisableTorchFunction():
            if ends is not None:
                keys, queries = self._marks(ends, frame, scores)
                self._note(module, ends, keys, queries)
                if ends.is_listed and queries is not None:
                    self._landing.append((ends.query, queries))
            if self.wanted is None:
                return given
            return torch.where(scores.isnan(), torch.nan, given.nan_to_num(0.0))

    def values(self, query: Tensor, some: Sequence[Tensor], order: Tensor | None) -> None:
        """Need no values: their keys were proved before."""

    def own(self, module: nn.Module, call: AttentionCall, output: Tensor) -> Tensor:
        """Note a call of a layer of gattn."""
        with torch._C.DisableTorchFunction():
            queries, keys = (x.isnan().any(-1).any(1) for x in (call.query, call.key))
            is_graph = isinstance(call.graph, EdgeList) and len(queries) == 1
            key, query = call.graph.edge_index if is_graph else torch.empty(2, 0, device="cpu")
            sizes = keys.shape[1], queries.shape[1]
            ends = Ends(module, key, query, *sizes, call.graph.is_bipartite)
            how = {"is_own": True, "has_tokens": not is_graph}
            self._note(module, ends, keys.flatten(), queries.flatten(), **how)
            if self.wanted is None:
                return output
            return torch.where(queries[:, None, :, None], torch.nan, output.nan_to_num(0.0))

    def _note(
        self,
        module: nn.Module,
        ends: Ends,
        keys: Tensor | None,
        queries: Tensor | None,
        **how: bool,
    ) -> None:
        name = self._names[module]
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        orders = len(self.decided)
        self.calls.append(Marked((name, number), ends, keys, queries, orders, **how))
        if len(self.calls) == self._count:
            raise Stop

    def _marks(
        self, ends: Ends, frame: FrameType, scores: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Find which nodes at the ends of a call's edges are marked."""
        if (passing := passing_of(frame)) is not None:
            sources, targets = _nodes(*passing)
            return _joined(sources, ends.num_keys), _joined(targets, ends.num_queries)
        key, query = self._of_gathered(ends.key), self._of_gathered(ends.query)
        if key is None and ends.is_bipartite and counts_up(ends.key):  # A readout.
            key = scores.isnan().flatten(1).any(1) if len(scores) == len(ends.key) else None
        return _sized(key, ends.num_keys), _sized(query, ends.num_queries)

    def _of_gathered(self, index: Tensor) -> Tensor | None:
        found = [x for one, x in self._gathered if torch.equal(one, index)]
        if not found or any(len(x) != len(found[0]) for x in found):
            return None
        return torch.stack(found).any(0)

    # All that a model calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; sums take no marks, and what values decided stays."""
        given = kwargs or {}
        if is_inside():
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        is_sum = name in SUMS and self.wanted is not None
        if is_sum:
            args, given = _without_marks(args, given)
        result = func(*args, **given)
        with torch._C.DisableTorchFunction():
            if is_sum:
                return self._landed(args, given, result)
            if name in _GATHERS:
                self._gather(args, given)
        return self.settled(func, args, given, result)

    def _landed(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Tensor:
        """Mark the nodes at which the messages of a layer without message passing are summed."""
        named = {**dict(zip(_OF_SUMS, args, strict=False)), **kwargs}
        dim, index = named.get("dim"), named.get("index")
        if not isinstance(dim, int) or not isinstance(index, Tensor):
            return result
        nodes = plain(index)
        if nodes.dim() > 1:
            nodes = nodes.movedim(dim, 0).flatten(1)[:, :1].flatten()
        for query, marks in self._landing:
            if torch.equal(nodes, query) and len(marks) == result.shape[dim]:
                shape = [-1 if n == dim % result.dim() else 1 for n in range(result.dim())]
                result.masked_fill_(marks.reshape(shape), torch.nan)
        return result

    def _gather(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        x = args[0]
        index = args[1] if len(args) == 2 else kwargs.get("index", args[-1])
        if not isinstance(x, Tensor) or not isinstance(index, Tensor) or x.dim() < 1:
            return
        if x.is_floating_point() and index.dim() == 1 and index.dtype == torch.long:
            self._gathered.append((plain(index), _rows(x, 0)))
            del self._gathered[:-_MOST_GATHERS]

    # Modules

    def _mixed(self, module: nn.Module, given: Sequence[Any], out: Any) -> Any:
        """Let each node that is normalized, or attends to all others, keep its own mark alone."""
        first = next((x for x in given if isinstance(x, Tensor)), None)
        if self.wanted is None or first is None or not isinstance(out, Tensor):
            return None
        with torch._C.DisableTorchFunction():
            if out.shape != first.shape:
                return None
            marks = first.isnan().any(-1, keepdim=True)
            return torch.where(marks, torch.nan, out.nan_to_num(0.0))

    def _passed(self, conv: Any, given: Sequence[Any], out: Any) -> Any:
        """Let each node that is passed messages keep its own mark, and take no others."""
        if self.wanted is None or not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        with torch._C.DisableTorchFunction():
            _, targets = _nodes(conv, given[2])
            out = torch.where(out.isnan(), 0.0, out)
            marks = _joined(targets, out.shape[conv.node_dim])
            if marks is None:
                return out
            dim = conv.node_dim % out.dim()
            shape = [-1 if n == dim else 1 for n in range(out.dim())]
            return out.masked_fill(marks.reshape(shape), torch.nan)


def _nodes(conv: Any, known: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Find which nodes are marked in what message passing takes of keys and of queries."""
    keys, queries = nodes_of(conv, known)
    dim = conv.node_dim
    return [_rows(x, dim) for x in keys], [_rows(x, dim) for x in queries]


def _rows(x: Tensor, dim: int) -> Tensor:
    """Say in which rows of a tensor NaN is."""
    dim = dim if -x.dim() <= dim < x.dim() else 0
    return x.detach().isnan().movedim(dim, 0).flatten(1).any(1) if x.dim() > 1 else x.isnan()


def _joined(marks: Sequence[Tensor], count: int) -> Tensor | None:
    some = [x for x in marks if len(x) == count]
    return torch.stack(some).any(0) if some else None


def _sized(marks: Tensor | None, count: int) -> Tensor | None:
    return marks if marks is not None and len(marks) == count else None


def _without_marks(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take the marks out of what is summed."""
    summed = len(_OF_SUMS) - 1

    def clean(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        without = torch.where(x.isnan(), 0.0, x)
        carry(x, without)
        return without

    with torch._C.DisableTorchFunction():
        args = tuple(clean(x) if n == summed else x for n, x in enumerate(args))
        return args, {name: clean(x) if name in _SUMMED else x for name, x in kwargs.items()}
