"""Counts the attention kernels of a model below all doors, to prove that these missed none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.graphs.observing import is_own
from gattn.models.doors.proof.events import Event, Part, softmax_of
from gattn.models.doors.proof.nodes.keeping import KeptRows
from gattn.models.doors.proof.probing.integers import Integers
from gattn.models.doors.proof.probing.moving import Moves
from gattn.models.doors.proof.probing.one_run.constants import Constants
from gattn.models.doors.proof.probing.one_run.origins import Origins, is_sized_by_numbers
from gattn.models.doors.proof.probing.one_run.parameters import Parameters
from gattn.models.doors.proof.probing.one_run.picking import Picks, tensors_in
from gattn.models.doors.proof.probing.one_run.sampling import Places
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.probing.one_run.walking import Walk
from gattn.models.doors.proof.silent import Products
from gattn.models.doors.proof.taking import Takings

_WHOLES = (
    "_scaled_dot_product_",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    "flex_attention",
)
_NAMESPACES = frozenset(("aten", "prim", "prims", "higher_order"))
_SOFTMAXES = frozenset(("_softmax", "_safe_softmax", "_masked_softmax"))
_SPARSE = "_sparse_softmax"
_RANKS = frozenset(("topk", "sort", "kthvalue"))
_PARTS = frozenset(("slice", "select", "split", "split_with_sizes", "unbind", "narrow"))
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"))


class Kernels(TorchDispatchMode):
    """Notes in which module each attention kernel runs.

    A softmax over the last dimension is one if a product takes its numbers and no parameter.

    Parameters
    ----------
    model : nn.Module
        The model, whose parameters are known.
    walk : Walk
        The runs of its modules; it keeps what kernels write to.

    Attributes
    ----------
    products : Products
        What was multiplied by other kernels.
    takings : Takings
        What multiplied softmaxes.
    picks : Picks
        Where numbers were moved by indices that are not always the same.
    origins : Origins
        Of which inputs numbers were made alone.
    integers : Integers
        Which integers that the model is given are ids.
    moves : Moves
        Where tokens may have been moved.
    nodes : KeptRows, optional
        Which tensors have the nodes of the data as rows, if there may be layers on graphs.
    across : set of str
        The modules that multiply a softmax, and sum over another dimension than it does.
    images : set of tuple of int
        The shapes of what convolutions took and gave, (elements, channels, rows, columns, ...).
    ranking : set of (str, tuple of int)
        The modules that rank numbers, and of how many rows and columns.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, walk: Walk) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._walk = walk
        self._parameters = Parameters(model, walk)
        matrices = {place_of(x) for x in model.buffers() if x.dim() == 2} - {0}
        self.products = Products(self._parameters, matrices)
        self.takings = Takings(self._parameters)
        constants = self._parameters.places | ({place_of(x) for x in model.buffers()} - {0})
        self.picks = Picks(lambda: walk.running, constants, Constants(model))
        self._places = Places()
        self.origins = Origins(model)
        self.integers = Integers(constants)
        self.images: set[tuple[int, ...]] = set()
        self.ranking: set[tuple[str, tuple[int, ...]]] = set()
        self._last: Part | None = None
        self._spread: Any = WeakTensorKeyDictionary()
        self._summed: Part | None = None
        self.across: set[str] = set()
        self.moves = Moves()
        self._softmaxes: Any = WeakTensorKeyDictionary()
        self.nodes = KeptRows(model, constants)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a kernel, and note it if it is attention."""
        given = dict(kwargs or {})
        self._walk.state.note(func, args, given)
        result = func(*args, **given)
        name = getattr(getattr(func, "overloadpacket", func), "__name__", str(func))
        tensors = tensors_in((args, given))
        is_empty = all(not x.numel() for x in tensors_in((result,)) or tensors)  # As texts may be.
        if name.startswith(_WHOLES) and not is_empty:
            event = Event(self._walk.innermost, is_own=is_own())
            self.events.append(event)
            self._last = Part(event)
            self._last.take()
            self.takings.forget()
            for x in tensors_in((result,))[:1]:
                self.products.totals.attend(x)
        elif name == _SPARSE:
            self.events.append(Event(self._walk.innermost))
            Part(self.events[-1]).take()
        elif name in _SOFTMAXES and not is_empty:
            self._begin(args[0], args[1:], given, result)
        elif self._softmaxes:
            self._follow(name, args, tensors, result)
        if name in _RANKS and tensors:
            self.ranking.add((self._walk.innermost, tuple(tensors[0].shape[-2:])))
        if name == "convolution":
            self.images |= {tuple(x.shape) for x in (args[0], result) if x.dim() > 2}
        self._parameters.note(name, tensors, result)
        if not self.picks.looks_up_weights(name, tensors):
            self.moves.note(name, self._walk.running)
        if self._walk.running:
            self.nodes.note(func, name, args, given, result, self._walk.running[-1].place)
        is_theirs = getattr(func, "namespace", "aten") not in _NAMESPACES
        if not is_empty:
            self.products.note(self._walk.innermost, name, args, result)
            everything = (*args, *given.values())
            self.takings.note(self._walk.innermost, name, everything, result, is_own=is_theirs)
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        is_sized = is_sized_by_numbers(func, tensors)
        how = {"is_random": is_random, "is_sized": is_sized, "is_own": is_theirs}
        # As it runs, torch.jit compares constants, too.
        is_equal = name == "equal" and self.origins.are_given(tensors)
        how["compares"] = is_equal or name == "allclose"
        samples = self._places.decided(name, tensors)
        self._places.note(name, tensors, result, is_random=is_random)
        self.picks.note(name, args, given, result, samples=samples, **how)
        if not self.picks.is_ignoring:
            self.origins.note(func, tensors, result, is_random=is_random)
        is_lookup = self.integers.note(name, tensors, result)
        for run in self._walk.running[-1:]:
            run.looks_up = run.looks_up if run.looks_up is None else run.looks_up or is_lookup
        return result

    def begin(self, given: Any) -> None:
        """Note what the model is given."""
        self.picks.begin(given)
        self._places.begin(given)
        self.origins.begin(given)
        self.integers.begin(given)
        self.nodes.begin(given)

    def claim(self) -> None:
        """Note that a door saw the kernel that ran last."""
        if self._last is not None:
            self._last.claim()

    def claim_sum(self) -> None:
        """Note that a door saw a softmax meet its values in a sum, which is no kernel of its own.

        It is seen, then, also if a product takes it later.
        """
        if self._summed is not None:
            self._summed.claim()

    @property
    def missed(self) -> list[str]:
        """The modules in which kernels ran that no door saw."""
        return [one.where for one in self.events if one.is_attention and one.is_missed]

    def _begin(self, scores: Tensor, rest: Any, given: Mapping[str, Any], result: Tensor) -> None:
        if scores.dim() > 1:
            dim = rest[0] if rest else given.get("dim", -1)
            is_last = dim % scores.dim() == scores.dim() - 1
            event = Event(self._walk.innermost, is_last, is_own(), result.numel())
            self._softmaxes[result] = softmax_of(event, result, result.stride(dim))

    def _follow(
        self, name: str, args: Sequence[Any], tensors: Sequence[Tensor], result: Any
    ) -> None:
        softmax = next((self._softmaxes[x] for x in tensors if x in self._softmaxes), None)
        if name == "sum":
            self._summed = self._spread.get(tensors[0])
        if softmax is None:
            return
        if name == "mul":
            self._spread[result] = softmax.part
        if name in _PRODUCTS:
            self._last = None
            others = [x for x in tensors if not self._is_of(x, softmax.part.event)]
            if others and not any(map(self._parameters.holds, others)):
                if not any(self._is_summed_over_keys(x, dim) for x, dim in _summed(tensors)):
                    self.across.add(self._walk.innermost)
                    return
                if not softmax.part.event.taken:
                    self.events.append(softmax.part.event)
                self._last = softmax.part
                self._last.take()
                return
        if name == "sum" and not self._sums_keys_up(*args[:2]):
            is_attention = softmax.part.event.is_attention
            event = Event(self._walk.innermost, is_attention, is_own(), result.numel())
            self._softmaxes[result] = softmax_of(event, result, softmax.stride)
            return
        for x in tensors_in((result,)):
            size = x.numel() if x.is_floating_point() else 0
            if size == softmax.part.size:
                self._softmaxes[x] = softmax
            elif name in _PARTS and 0 < size < softmax.part.size:
                place = (*softmax.part.place, x.storage_offset(), size)
                self._softmaxes[x] = replace(softmax, part=Part(softmax.part.event, size, place))

    def _is_of(self, x: Tensor, event: Event) -> bool:
        found = self._softmaxes.get(x)
        return found is not None and found.part.event is event

    def _sums_keys_up(self, x: Tensor, dims: Any = ()) -> bool:
        """Return whether a sum is over the keys of a softmax: of all numbers, it is."""
        known = self._softmaxes.get(x)
        return known is None or not dims or any(x.stride(dim) == known.stride for dim in dims)

    def _is_summed_over_keys(self, x: Tensor, dim: int) -> bool:
        """Return whether a product sums over the keys of a softmax, or may: of a copy."""
        known = self._softmaxes.get(x)
        if known is None:
            return False
        is_copy = memory_of(x) != known.memory
        return is_copy or x.shape[dim] == 1 or x.stride(dim) == known.stride


def _summed(tensors: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Return the factors of a product, and over which dimension of each it sums."""
    first, second = tensors[-2:]
    return [(first, -1), (second, max(-2, -second.dim()))]


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let torch run its modules step by step, as they are written."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def unseen(model: nn.Module, missed: list[str]) -> str:
    """Name a module in which attention ran that was not seen."""
    kind = type(model.get_submodule(missed[0])).__name__
    where = f"{missed[0]} ({kind})" if missed[0] else kind
    return (
        f"{where} computes attention that cannot be seen, in {len(missed)} places: code that is "
        "scripted, traced or inside a custom autograd function hides it, and so do sparse tensors "
        "(torch.sparse.softmax), products of single vectors (dot, vecdot), and what changes "
        "attention before it meets its values"
    )
