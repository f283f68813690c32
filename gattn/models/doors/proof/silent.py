"""Finds modules that compute attention in a way that no door sees, so that none is left out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.graphs.landing import SUMS
from gattn.models.doors.proof.probing.one_run.parameters import Parameters
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.totals import Totals

_EXPONENTIALS = frozenset(("exp", "exp_", "exp2", "exp2_"))
_SOFTMAXES = frozenset(("_softmax", "_safe_softmax"))
_NORMALIZED = frozenset(("_log_softmax", "logsumexp"))
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm"))
_PUTS = frozenset(("index_put", "index_put_", "_index_put_impl_"))  # They may add, if told.
_EXTREMES = frozenset(("amax", "amin"))
_DIVIDING = frozenset(("div", "div_", "reciprocal", "log", "log_"))
_NORMS = ("native_layer_norm", "native_batch_norm", "native_group_norm")
_NAMES = ("attention", "attn")


class Products:
    """The modules that multiply matrices, none of them a parameter, as attention does.

    `multiplying` names these modules; `written_out` those that do so with exponentials of which
    sums are taken, too, which is a softmax in other words; `spreading` those that multiply all
    pairs of a softmax's numbers and others, and then take sums; `by_node` those that
    divide by sums of exponentials that were taken by a list of nodes. `totals` follows what is
    made of such sums. `looking_up` names those that multiply a softmax with the parameter that its
    scores were made with, as a codebook. `linear` holds those that multiply what a softmax gave
    with numbers that are no softmax, as linear attention does; `factored` those that multiply it
    with another softmax, as efficient attention does. `chained` names those that multiply what such
    a product gave, its numbers changed one by one, again: as attention by any other function of
    scores, or none, does.

    Parameters
    ----------
    parameters : Parameters
        The memory of the model's parameters.
    matrices : iterable of int
        Where that of buffers begins that may be fixed matrices, as of a cosine transform; one that
        is written to, such as a cache, is none.
    """

    def __init__(self, parameters: Parameters, matrices: Iterable[int] = ()) -> None:
        self.multiplying: set[str] = set()
        self.written_out: list[str] = []
        self.spreading: set[str] = set()
        self.by_node: set[str] = set()
        self.totals = Totals()
        self.looking_up: set[str] = set()
        self.linear: set[str] = set()
        self.factored: set[str] = set()
        self.chained: set[str] = set()
        self._parameters, self._matrices = parameters, set(matrices)
        self._normalized: Any = WeakTensorKeyDictionary()
        self._exponentials: Any = WeakTensorKeyDictionary()
        self._spread: Any = WeakTensorKeyDictionary()
        self._made_with: Any = WeakTensorKeyDictionary()
        self._outputs: Any = WeakTensorKeyDictionary()
        self._products: Any = WeakTensorKeyDictionary()
        self._outer: Any = WeakTensorKeyDictionary()
        self._node_sums: Any = WeakTensorKeyDictionary()

    def note(self, where: str, kernel: str, given: Sequence[Any], result: Any) -> None:
        """Look at a kernel that ran in a module."""
        tensors = [x for x in given if isinstance(x, Tensor)]
        self.totals.note(kernel, given, result, self._exponentials)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        self._note_node_sum(where, kernel, given, tensors, result)
        if kernel.endswith("_"):
            self._matrices.difference_update(map(place_of, tensors[:1]))
        self._look_up(where, kernel, tensors, result)
        self._chain(where, kernel, tensors, result)
        if kernel == "logsumexp":
            self.totals.total(result, where, tensors[0], is_logarithm=True)
        if kernel in _NORMALIZED or (
            kernel == "sub" and any(x in self._normalized for x in tensors)
        ):
            self._normalized[result] = True
        elif kernel in _EXPONENTIALS:
            is_normalized = any(x in self._normalized for x in tensors)
            self._exponentials[result] = _Exponential(result.numel(), is_normalized, where=where)
        elif kernel in _SOFTMAXES:
            self._exponentials[result] = _Exponential(result.numel(), is_softmax=True, where=where)
        elif kernel == "mul" and self._spreads(tensors, result):
            self._spread[result] = self._exponential(tensors)
            self._note_outputs(tensors, result, None, is_product=False)
        else:
            self._note_use(where, kernel, tensors, result)

    def claim(self) -> None:
        """Note that a door saw the softmax that was written out last."""
        if self.written_out:
            self.written_out.pop()

    def _note_node_sum(
        self, where: str, kernel: str, given: Sequence[Any], tensors: list[Tensor], result: Tensor
    ) -> None:
        """Follow sums of exponentials by a list of nodes to what is divided by them."""
        adds = kernel in SUMS or (kernel in _PUTS and len(given) > 3 and given[3] is True)
        found = self._exponential(tensors)
        if adds and not _EXTREMES & {x for x in given if isinstance(x, str)}:
            if found is not None and not found.is_softmax:
                self._node_sums[result] = where
            return
        divides_by = tensors[-1:] if kernel in ("div", "div_") else tensors
        summed = next((self._node_sums[x] for x in divides_by if x in self._node_sums), None)
        if summed is None or kernel in _PRODUCTS:
            return
        if kernel in _DIVIDING:
            self.by_node.add(summed)
        self._node_sums[result] = summed

    def _note_use(self, where: str, kernel: str, tensors: Sequence[Tensor], result: Tensor) -> None:
        is_sum, found = kernel == "sum", self._exponential(tensors)
        spread = [x for x in tensors if x in self._spread]
        if is_sum and spread:
            is_product, found = True, self._spread[spread[0]]
        else:
            is_product = kernel in _PRODUCTS and not self._has_parameter(tensors)
        if is_product:
            self.multiplying.add(where)
        self._note_outputs(tensors, result, found, is_product=is_product)
        if found is not None and found.is_softmax:
            if spread and is_product:
                self.spreading.add(where)
            elif result.numel() == found.size and not is_product:
                self._exponentials[result] = found
        elif found is not None:
            if is_sum or (result.shape[-1:] == (1,) and result.numel() < found.size):
                self.totals.total(result, where, tensors[0], is_logarithm=False)
            found.is_summed |= is_sum and not is_product
            found.is_multiplied |= is_product
            if found.is_summed and found.is_multiplied and not found.is_noted:
                found.is_noted = True
                self.written_out.append(where)
            elif result.numel() == found.size and not is_product:
                self._exponentials[result] = found

    def _note_outputs(
        self,
        tensors: Sequence[Tensor],
        result: Tensor,
        found: _Exponential | None,
        *,
        is_product: bool,
    ) -> None:
        """Follow what products with a softmax give to the next product."""
        taken = [self._outputs[x] for x in tensors if x in self._outputs]
        if is_product and found is not None:
            direct = {one.where for one in taken if one.is_direct}
            self.factored |= direct & {found.where}
            self._outputs[result] = _Output(found.where, result.numel())
            self.totals.attend(result)
        elif is_product:
            self.linear |= {one.where for one in taken if one.is_direct}
        elif taken and not result.numel() % taken[0].size:  # Perhaps once for each head.
            is_projected = any(x.dim() > 1 and self._parameters.holds(x) for x in tensors)
            is_direct = taken[0].is_direct and not is_projected
            self._outputs[result] = replace(taken[0], is_direct=is_direct)

    def _chain(self, where: str, kernel: str, tensors: Sequence[Tensor], result: Tensor) -> None:
        """Follow products of no parameters to the next one."""
        found = any(x in self._products for x in tensors)
        if kernel in _PRODUCTS:
            if self._has_parameter(tensors) or any(place_of(x) in self._matrices for x in tensors):
                return
            if found:
                self.chained.add(where)
            self._products[result] = True
        elif kernel == "mul" and self._spreads(tensors, result):
            self._outer[result] = True
        elif kernel == "cumsum" and tensors[0] in self._outer:
            self._products[result] = True
        elif found and not kernel.startswith(_NORMS):
            size = max(x.numel() for x in tensors if x in self._products)
            if result.numel() == size:
                self._products[result] = True

    def _look_up(self, where: str, kernel: str, tensors: Sequence[Tensor], result: Tensor) -> None:
        """Follow scores that are products with a parameter to a softmax, and to that parameter."""
        own = {name for x in tensors if (name := self._parameters.of(x)) is not None}
        made = next((self._made_with[x] for x in tensors if x in self._made_with), None)
        if kernel in _PRODUCTS and own:
            if made is not None and made.is_softmax and made.parameters & own:
                self.looking_up.add(where)
            self._made_with[result] = _Scores(own, result.numel())
        elif kernel not in _PRODUCTS and made is not None and result.numel() == made.size:
            is_softmax = made.is_softmax or kernel in _SOFTMAXES
            self._made_with[result] = replace(made, is_softmax=is_softmax)

    def _exponential(self, tensors: Iterable[Tensor]) -> _Exponential | None:
        return next((self._exponentials[x] for x in tensors if x in self._exponentials), None)

    def _spreads(self, tensors: Sequence[Tensor], result: Tensor) -> bool:
        """Return whether all pairs of two tensors' numbers are multiplied, to be summed later."""
        larger = len(tensors) == 2 and result.numel() > max(x.numel() for x in tensors)
        return larger and not self._has_parameter(tensors)

    def _has_parameter(self, tensors: Iterable[Tensor]) -> bool:
        return any(map(self._parameters.holds, tensors))


@dataclass(frozen=True)
class _Output:
    """What a product with a softmax gave: whose it is, and whether no parameter projected it."""

    where: str
    size: int
    is_direct: bool = True


@dataclass(eq=False)
class _Exponential:
    """Exponentials, or a softmax, that are followed to their sum and to a product."""

    size: int
    is_summed: bool = False
    is_multiplied: bool = False
    is_softmax: bool = False
    is_noted: bool = False
    where: str = ""


@dataclass(frozen=True, eq=False)
class _Scores:
    """Numbers made of a product with parameters, perhaps by a softmax."""

    parameters: set[Hashable]
    size: int
    is_softmax: bool = False


def silent(
    model: nn.Module,
    ran: Iterable[str],
    sites: Iterable[Site],
    others: Iterable[str],
    products: Products,
    across: Iterable[str] = (),
    gates: Collection[tuple[str, int]] = (),
) -> list[str]:
    """Name the modules that attend, as far as can be told, and show nothing.

    Parameters
    ----------
    model : nn.Module
        The model.
    ran : iterable of str
        The modules that ran.
    sites : iterable of Site
        The calls of attention that were seen.
    others : iterable of str
        The modules whose attention other doors saw.
    products : Products
        What was multiplied.
    across : iterable of str
        The modules that multiply a softmax, and sum over another dimension than it does.
    gates : collection of (str, int)
        The calls among these that are proved to weigh no tokens.

    Notes
    -----
    A module is named if it writes out a softmax; if it multiplies one, or another function of
    products, with values, or sums exponentials up by nodes, and no door saw that; or if it
    multiplies matrices that are no parameters and is of the class of a module that attends, or its
    class is called attention.
    """
    sites, others = list(sites), list(others)
    showing = {run.name for site in sites for run in site.chain} | set(others)
    kinds = {type(site.module) for site in sites if site.place not in gates}
    unseen = (products.spreading | products.chained | products.by_node) - showing
    found = set(products.written_out) | unseen
    found |= set(across)
    found = {name for name in found if not isinstance(model.get_submodule(name), nn.Linear)}
    for name in set(ran) - showing:
        kind = type(model.get_submodule(name))
        is_named = any(word in kind.__name__.lower() for word in _NAMES)
        if (is_named or kind in kinds) and any(holds(name, one) for one in products.multiplying):
            found.add(name)
    return [
        f"{name or 'the model itself'} ({type(model.get_submodule(name)).__name__})"
        for name in sorted(found)
        if not any(one != name and holds(name, one) for one in found)
        and not any(holds(name, one) or holds(one, name) for one in others)
    ]


def holds(name: str, other: str) -> bool:
    """Return whether a module is another one, or around it."""
    return not name or name == other or other.startswith(f"{name}.")
