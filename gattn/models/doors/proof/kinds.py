"""Proves which modules of a transformers model attend that does not route its attention.

A small input runs first, or the user's if none can be made. A softmax is attention if the model
returns it among its attentions, or if its layout is proved as that of any model.

Nothing more is asked of the first, by NaN or otherwise: gattn shows, number by number, what the
library itself gives as attentions[layer][text, head, query, key], so its positions are those of the
library. Each call is still compared with the output of its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from threading import RLock
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.attaching import attached
from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept
from gattn.models.doors.proof.copying.small_inputs import small_input
from gattn.models.doors.proof.layouts.plan import Plan
from gattn.models.doors.proof.probing.alike import state_of
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.doors.proof.proving import proof_of_copy
from gattn.models.hugging_face.given import arguments
from gattn.models.read.layouts import Layout
from gattn.models.read.track.unrouted import of_heads
from gattn.models.watch.contexts import Context, without_contexts
from gattn.models.watch.inside import outside

_TOLERANCE = 1e-5
_MOST_KNOWN = 16
_CACHES = ("past_key_values", "mems", "cache", "cache_position")
_FORMS = ("return_dict", "output_hidden_states", "output_attentions", "labels")

_lock = RLock()  # A model that is being proved may call another.


@dataclass(eq=False)
class Kinds:
    """The types of modules that were proved to attend, and why others were not.

    `refused` says why nothing of the model can be trusted, and `failed` why it did not run; the
    `silent` modules seem to attend by functions that show nothing, and so do those whose softmax is
    `unmet`.
    """

    model: ref[nn.Module]
    proved: set[type[nn.Module]] = field(default_factory=set)
    reasons: dict[type[nn.Module], str] = field(default_factory=dict)
    refused: str = ""
    failed: str = ""
    silent: Sequence[str] = ()
    unmet: Sequence[str] = ()

    @property
    def is_read(self) -> bool:
        """Whether all modules that were seen to attend were proved."""
        return bool(self.proved) and not (self.reasons.keys() - self.proved or self.refused)

    def check(self, module: nn.Module) -> None:
        """Refuse a module whose type was not proved."""
        kind = type(module)
        if self.refused or self.failed:
            self._refuse(self.refused or self.failed)
        if kind in self.proved:
            return
        if kind in self.reasons:
            self._refuse(f"the attention of a {kind.__name__} cannot be read: {self.reasons[kind]}")
        self._refuse(
            f"the attention of a {kind.__name__} did not run on the input that proved the others"
        )

    def _refuse(self, reason: str) -> NoReturn:
        model = self.model()
        raise CaptureError(
            f"{type(model).__name__} does not route its attention through transformers' "
            f"attention interface, and {reason}. It is refused, since what gattn would show could "
            "be wrong."
        )


_known: WeakKeyDictionary[nn.Module, dict[object, Kinds]] = WeakKeyDictionary()


def kinds_of(
    model: nn.Module,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    batch: int | None,
) -> Kinds:
    """Prove once which types of a model's modules attend.

    `module` is the model, or the part of it that is called with `args` and `kwargs`; `batch` is the
    number of its sequences.
    """
    if model.training:
        return Kinds(ref(model), refused="in training mode it cannot be proved: call eval()")
    with _lock:
        known = _known.setdefault(model, {})
        general = (state_of(model),)  # Its configuration says how it attends.
        if general in known:
            return known[general]
        given = _without_cache(module, arguments(module, args, kwargs))
        name = next(name for name, part in model.named_modules() if part is module)
        special = *general, name, frozenset(given)
        if special in known:
            return known[special]
        found = known_kinds(model)
        if found.failed:
            found = _found(model, name, lambda: given, batch)
            if not found.failed:
                known[special] = found
        return found


def known_kinds(model: nn.Module) -> Kinds:
    """Prove once which types of a model's modules attend, on a small input."""
    with _lock:
        known = _known.setdefault(model, {})
        general = (state_of(model),)
        if general in known:
            return known[general]
        found = _found(model, "", partial(small_input, model), 1)
        if not found.failed:
            known[general] = found
        while len(known) > _MOST_KNOWN:
            del known[next(iter(known))]
        return found


def _without_cache(module: nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """Name what a call is given, but for what it continues and the form in which it answers."""
    given = {name: x for name, x in named.items() if name not in (*_CACHES, *_FORMS)}
    return given | _where_known(module, use_cache=False)


def _where_known(module: nn.Module, **options: Any) -> dict[str, Any]:
    names = inspect.signature(module.forward).parameters
    return {name: value for name, value in options.items() if name in names}


def _found(
    model: nn.Module, name: str, inputs: Callable[[], dict[str, Any] | None], batch: int | None
) -> Kinds:
    """Prove types by a call of a model, or of the part of it with some name."""
    kinds = Kinds(ref(model))
    try:
        given = inputs()
        if given is None:
            return replace(kinds, failed="gattn can make no small input for it")
        with without_contexts(), outside(), random_numbers_kept(model), torch.no_grad():
            twin = copied(model)
            with attached(twin, Context()):
                _prove(kinds, twin, name, given, batch)
    except CaptureError as error:
        kinds.refused = str(error).rstrip(".")
    except Exception as error:  # Models fail on small inputs in many ways, and some may pass.
        if is_out_of_memory(error):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        kinds.failed = f"a copy of it failed, run to prove what its attention means ({said})"
    return kinds


def _prove(
    kinds: Kinds, model: nn.Module, name: str, given: dict[str, Any], batch: int | None
) -> None:
    called = model.get_submodule(name)
    unmatched = _told(kinds, called, given, batch)

    unread: set[type[nn.Module]] = set()

    def is_open(call: RawCall) -> bool:
        kind, is_read = type(call.module), _layout(call, batch) is not None
        if call.over_last and not is_read:
            unread.add(kind)
        return is_read and kind not in kinds.proved

    plan, sites = proof_of_copy(model, name, ((), given), is_open)
    kinds.refused, kinds.silent, kinds.unmet = plan.refused, plan.silent, plan.unmet
    if unmatched > len(sites):
        kinds.refused = "an attention that it returns is not among those that were seen"
    for module, place in sites:
        reason = _difference(plan, place, batch)
        if reason:
            kinds.reasons.setdefault(type(module), reason)
        else:
            kinds.proved.add(type(module))
    for kind in unread & (kinds.proved | kinds.reasons.keys()):
        kinds.reasons[kind] = "it attends several times, to more than tokens by heads"
    kinds.proved -= kinds.reasons.keys()  # Of a type, all calls have to be proved.


def _told(kinds: Kinds, called: nn.Module, given: dict[str, Any], batch: int | None) -> int:
    """Prove types by the attentions that a model returns; count those that were not seen."""
    seen: list[tuple[type[nn.Module], Tensor]] = []

    def see(call: RawCall) -> None:
        if call.weights is not None and (layout := _layout(call, batch)) is not None:
            weights = layout.fold(call.weights, call.lead)
            seen.append((type(call.module), weights.detach().clone()))

    try:
        with observed(see):
            said = called(**given, **_where_known(called, return_dict=True), output_attentions=True)
    except TypeError:  # It takes no such option.
        return 0
    unmatched, windowed = 0, set[type[nn.Module]]()
    for one in (x for x in _attentions(said) if x.dim() == 4):
        alike = {kind for kind, weights in seen if _are_equal(one, weights)}
        unmatched += not alike
        known = kinds.proved if len(one) == batch else windowed
        known |= alike
    kinds.proved -= windowed
    return unmatched


def _layout(call: RawCall, batch: int | None) -> Layout | None:
    return of_heads(call.lead, batch) if call.over_last else None


def _difference(plan: Plan, place: tuple[str, int], batch: int | None) -> str:
    """Say why a call does not attend from (batch, heads, tokens) to tokens in order, if so."""
    if place not in plan.layouts:
        return plan.reasons.get(place) or plan.untold.get(place, "its keys are no tokens")
    for lead, layout in plan.layouts[place]:
        usual = of_heads(lead, batch)
        tokens = layout.tokens
        if usual is None or not _is_same(layout, usual, lead):
            return f"of its leading dimensions {lead}, other ones are heads than usual"
        if tokens is None or tokens.is_told or list(tokens.sequences) != sorted(tokens.sequences):
            return (
                "its slots are not each text's tokens in order, as where it attends along the "
                "batch, or along time and space in turn"
            )
    return ""


def _is_same(one: Layout, other: Layout, lead: tuple[int, ...]) -> bool:
    numbers = torch.arange(prod(lead), device="cpu").reshape(*lead, 1, 1)
    return torch.equal(*(x.fold(numbers, lead) for x in (one, other)))


def _attentions(output: Any) -> Iterator[Tensor]:
    """Walk the attentions that a model returns, including those of models inside it."""
    for name, some in output.items() if isinstance(output, Mapping) else ():
        if isinstance(some, Mapping):
            yield from _attentions(some)
        elif name.endswith("attentions"):
            yield from _all(some)


def _all(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple, Mapping)):
        for part in nested.values() if isinstance(nested, Mapping) else nested:
            yield from _all(part)


def _are_equal(given: Tensor, seen: Tensor) -> bool:
    # Models may round what they return, not what they compute.
    tolerance = max(_TOLERANCE, torch.finfo(given.dtype).eps)
    if given.shape != seen.shape or not given.numel():
        return False
    return float((given.float() - seen.float()).abs().max()) < tolerance
