"""Notes where a model may move, pick or relabel nodes before a graph layer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.engines.call import AttentionCall
from gattn.engines.edge_list import EdgeList
from gattn.models.doors.graphs.frames import PROPAGATES, frames, is_a, plain
from gattn.models.doors.graphs.landing import SUMS
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.read.on_graphs.seen_edges import Ends

_TAKES = frozenset(("index", "_unsafe_index", "index_select", "gather", "take", "masked_select"))
_PUTS = frozenset(("index_put", "index_put_", "_index_put_impl_", "index_copy", "index_copy_"))
_PUTS |= {"scatter", "scatter_", "masked_scatter", "masked_scatter_", "_unsafe_index_put"}
_LAYS = frozenset(("flip", "roll", "rot90", "cat", "stack", "constant_pad_nd", "repeat"))
_PARTS = frozenset(("slice", "split", "split_with_sizes", "unsafe_split", "unbind", "as_strided"))
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "_sparse_mm", "_sparse_addmm", "spmm"))
_NORMS_AND_READOUTS = ("torch_geometric.nn.norm", "torch_geometric.nn.aggr")


class MovesOfNodes:
    """Where kernels ran that may give the nodes of later layers other numbers.

    Messages move along edges, which moves no nodes; whatever else takes rows of a tensor in another
    order, or some of them, may do so. Without any, all layers have the nodes of the data.

    Parameters
    ----------
    model : nn.Module
        The model.
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    """

    def __init__(self, model: nn.Module, constants: Collection[int]) -> None:
        self._constants = constants
        self._names = {module: name for name, module in model.named_modules()}
        self._given: list[Tensor] = []
        self._found: list[tuple[int, Tensor | None]] = []
        self._rows: list[Tensor] = []
        self.places: list[tuple[str, int]] = []
        """The calls of attention over edges: the module, and how many of its calls came before."""
        self.lookups: set[tuple[str, int]] = set()
        """The runs of embeddings that look up ids as they are given."""

    def begin(self, given: Any) -> None:
        """Note what the model is given."""
        self._given = [x for x in leaves(given) if isinstance(x, Tensor) and _is_integer(x)]

    def softmax(
        self, module: nn.Module, ends: Ends | None, frame: FrameType, scores: Tensor, given: Tensor
    ) -> Tensor:
        """Note a call of attention over edges."""
        if ends is not None:
            self._attended(module, ends.key, ends.query)
        return given

    def own(self, module: nn.Module, call: AttentionCall, output: Tensor) -> Tensor:
        """Note a call of a layer of gattn."""
        if isinstance(call.graph, EdgeList) and len(call.query) == 1:
            self._attended(module, *call.graph.edge_index)
        return output

    def _attended(self, module: nn.Module, *rows: Tensor) -> None:
        name = self._names[module]
        self.places.append((name, sum(name == one for one, _ in self.places)))
        self._rows += rows

    @property
    def count(self) -> int:
        """How many calls of attention over edges there were."""
        return len(self.places)

    def note(
        self, kernel: str, args: Sequence[Any], kwargs: Mapping[str, Any], place: tuple[str, int]
    ) -> None:
        """Look at a kernel that ran in a run of a module."""
        look = _LOOKS.get(kernel)
        if kernel == "embedding":
            if self._is_given(args[1]):
                self.lookups.add(place)
                return
            self._found.append((self.count, None))
        elif kernel in _PRODUCTS:
            right = args[-1] if isinstance(args[-1], Tensor) else args[1]
            if place_of(right) not in self._constants and not _is_passing_on():
                self._found.append((self.count, None))
        elif look is not None and tensors_in((args[:1],)):
            first = tensors_in((args[:1],))[0]
            if first.is_floating_point() and look(args, kwargs) and not _is_passing_on():
                index = _index(kernel, args)
                is_constant = place_of(first) in self._constants
                if index is None or not is_constant or not self._is_given(index):
                    self._found.append((self.count, None if index is None else index.detach()))

    def _is_given(self, index: Tensor) -> bool:
        """Return whether the model is given integers, or has them as a column of features."""
        found = [x for x in self._given if x.dim() and index.dim() and len(x) == len(index)]
        found += [x[:, n] for x in found if x.dim() == 2 for n in range(x.shape[1])]
        return any(_are_same(index, x) for x in found)

    @property
    def first(self) -> int:
        """How many calls of attention over edges come before nodes may have moved."""
        rows = [*self._rows]
        for x in self._given:
            rows += [*plain(x)] if x.dim() == 2 and len(x) == 2 else []
        return next(
            (
                number
                for number, index in self._found
                if index is None or not any(_are_same(index, one) for one in rows)
            ),
            self.count,
        )


def _is_passing_on() -> bool:
    """Return whether messages are passed, or nodes are normalized or read out."""
    for one in frames(sys._getframe(2)):
        module = one.f_locals.get("self")
        if not isinstance(module, nn.Module):
            continue
        if type(module).__module__.startswith(_NORMS_AND_READOUTS):
            return True
        if one.f_code.co_name in PROPAGATES and is_a(module, "MessagePassing"):
            return True
    return False


def _index(kernel: str, args: Sequence[Any]) -> Tensor | None:
    """Return the index by which a kernel takes whole rows of its first dimension, or adds to it."""
    if kernel in SUMS:
        index = args[2].movedim(args[1], 0).flatten(1)[:, 0] if args[2].dim() > 1 else args[2]
    elif kernel == "index" and len(args[1]) == 1:
        index = args[1][0]
    elif kernel == "index_select" and args[1] % args[0].dim() == 0:
        index = args[2]
    else:
        return None
    return index if index is not None and index.dim() == 1 and index.dtype == torch.long else None


def _are_same(one: Any, other: Tensor) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and bool((one == other).all())


def _is_integer(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def _is_row(x: Any, dim: int) -> bool:
    """Return whether a dimension may be that of nodes: any but that of features."""
    return bool(dim % max(x.dim(), 1) < max(x.dim() - 1, 1))


def _takes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    x, where = args[0], args[1]
    if isinstance(where, (list, tuple)):
        return any(one is not None and _is_row(x, n) for n, one in enumerate(where))
    return _is_row(x, where) if isinstance(where, int) else True


def _puts(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(x.is_floating_point() and x.numel() > 1 for x in tensors_in(args[1:]))


def _lays(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    where = kwargs.get("dims", kwargs.get("dim", args[-1] if len(args) > 1 else 0))
    if isinstance(args[0], (list, tuple)):  # Tensors are joined.
        some = [x for x in args[0] if x.numel()]
        return len(some) > 1 and _is_row(some[0], where)
    dims = where if isinstance(where, (list, tuple)) else [where]
    return not dims or any(_is_row(args[0], dim) for dim in dims)


def _turns(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dims = kwargs.get("dims", args[2] if len(args) > 2 else ())
    return not dims or any(_is_row(args[0], dim) for dim in dims)


def _pads(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return args[0].dim() < 2 or any(args[1][2:])


def _repeats(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(n > 1 for n in args[1][:-1])


def _slices(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dim, start, _, step = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])[:4]
    return _is_row(args[0], dim) and (bool(start) or step != 1)


def _splits(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    return _is_row(args[0], dim)


def _unbinds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return _is_row(args[0], args[1] if len(args) > 1 else 0)


_LOOKS: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], bool]] = {
    **dict.fromkeys(_TAKES, _takes),
    **dict.fromkeys(_PUTS, _puts),
    **dict.fromkeys(SUMS, _puts),
    **dict.fromkeys(_LAYS, _lays),
    **dict.fromkeys(_PARTS, _splits),
    "roll": _turns,
    "rot90": _turns,
    "constant_pad_nd": _pads,
    "repeat": _repeats,
    "slice": _slices,
    "unbind": _unbinds,
    "as_strided": lambda args, kwargs: True,
}
