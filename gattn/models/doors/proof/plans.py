"""Remembers what was proved of models, once for each kind of inputs.

Where sizes do not tell which of two dimensions are heads and which queries, and nothing is proved,
the other way is tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from gattn.errors import CaptureError
from gattn.models.doors.attaching import attached
from gattn.models.doors.functions.calling.arranging import Arrangement, arranging
from gattn.models.doors.functions.mode import paused
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept
from gattn.models.doors.proof.copying.twins import Twins
from gattn.models.doors.proof.layouts.plan import Place, Plan
from gattn.models.doors.proof.nodes.numbering import integers_of
from gattn.models.doors.proof.probing.alike import shapes, state_of
from gattn.models.doors.proof.probing.around import around
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.doors.proof.probing.one_run.constants import are_as_before
from gattn.models.doors.proof.probing.one_run.hooks import keep_acting
from gattn.models.doors.proof.probing.one_run.inputs import digests_of, leaves
from gattn.models.doors.proof.probing.one_run.walking import Given
from gattn.models.doors.proof.proving import Proof, called
from gattn.models.watch.contexts import Context, without_contexts
from gattn.models.watch.inside import inside, outside
from gattn.models.watch.taking_part import TRANSFORMED, is_transformed

_MOST_PLANS = 64
_MAKES_CLASS = "Creating a new Tensor subclass"
_MADE_AS_IT_RUNS = (
    "it makes tensors of a class of their own as it runs, such as torch's CausalBias, which torch "
    "cannot do while its kernels are watched: make them once before, as in the module's __init__"
)
_OF_QUANTIZATION = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
_QUANTIZED = (
    "is quantized by torch, which rounds numbers by a scale that it may take of all tokens, and "
    "fails on NaN, by which tokens are told apart: capture the model as it was before"
)
_lock = RLock()
_plans: WeakKeyDictionary[nn.Module, list[tuple[object, Plan]]] = WeakKeyDictionary()


def plan_of(
    model: nn.Module, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Plan:
    """Prove what the attention calls of a model mean, once for each kind of inputs.

    Parameters
    ----------
    model : nn.Module
        The model.
    module : nn.Module
        The model, or the part of it that is called.
    args, kwargs
        What it is called with.

    Notes
    -----
    A copy of the model, which shares its parameters, runs twice on these inputs, and parts of it
    run again, with NaN in chosen tokens, up to their first attention.
    """
    if is_transformed():
        return Plan(refused=TRANSFORMED, is_stale=True)
    given: Given = args, dict(kwargs)
    with _lock:
        name = next(name for name, part in model.named_modules() if part is module)
        is_nested = any(isinstance(x, Tensor) and x.is_nested for x in leaves(given))
        sizes = "nested" if is_nested else shapes(given)
        kind = name, state_of(model), sizes, torch.is_grad_enabled()  # Code may ask for it.
        known = _plans.setdefault(model, [])
        # They are compared, the last one first: hashing all that a kind says takes longer.
        number = next((n for n, (one, _) in enumerate(known) if one == kind), None)
        plan = None if number is None else known.pop(number)[1]
        if plan is None or not _holds(plan, model, given):
            plan = _proved(model, name, given)
        known.insert(0, (kind, plan))
        del known[_MOST_PLANS:]
        return plan


def _holds(plan: Plan, model: nn.Module, given: Given) -> bool:
    """Return whether what was proved of such inputs holds of these."""
    if plan.is_stale or not are_as_before(model, plan.read):
        return False
    if plan.inputs and digests_of(given, plan.inputs) != plan.inputs:
        return False
    return not plan.integers or plan.integers == integers_of(given)


def _proved(model: nn.Module, name: str, given: Given) -> Plan:
    tensors = [x for x in leaves(given) if isinstance(x, Tensor)]
    if lazy := _lazy(model):
        reason = f"{lazy} has no size before its first call: call the model once, then capture"
        return Plan(refused=reason, is_stale=True)
    if any(x.is_meta for x in tensors):
        return Plan(refused="it runs without numbers, on the meta device")
    if any(x.is_nested for x in tensors):
        return Plan(is_nested=True)
    try:
        plan, open_modules = _of_copy(model, name, given)
    except CaptureError as error:
        return Plan(refused=str(error).rstrip("."))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        refused_as = f"a copy of it, run to prove what its attention means, failed ({said})"
        if _MAKES_CLASS in said:
            refused_as = _MADE_AS_IT_RUNS
        if "torch.func" in said:
            refused_as = TRANSFORMED
        elif quantized := _quantized(model):
            refused_as = f"{quantized} {_QUANTIZED}"
        return Plan(refused=refused_as, has_failed=True, is_stale=True)
    if not plan.layouts and plan.reasons and (quantized := _quantized(model)):
        return Plan(refused=f"{quantized} {_QUANTIZED}")
    refused = {where for where, _ in (*plan.reasons, *plan.untold)} & open_modules
    unsure = {place for place in _of_others(plan) if place[0] in open_modules - refused}
    if not refused and not unsure:
        return plan
    try:
        turned = refused or {where for where, _ in unsure}
        other, _ = _of_copy(model, name, given, turned)
    except Exception as error:  # The other way does not run, so that it proves nothing.
        if is_out_of_memory(error):
            raise
        return plan
    if other.layouts.keys() > plan.layouts.keys():
        return other
    return replace(plan, exchangeable=sorted({one[0] for one in unsure & other.layouts.keys()}))


def _lazy(model: nn.Module) -> str:
    """Name a parameter that has no size before its module was called; "" if all have one."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return next((name for name, one in tensors if is_lazy(one)), "")


def _quantized(model: nn.Module) -> str:
    """Name a module that torch has quantized; "" if there is none."""
    kinds = {name: type(one) for name, one in model.named_modules()}
    found = (name for name, kind in kinds.items() if kind.__module__.startswith(_OF_QUANTIZATION))
    return next((f"{name} ({kinds[name].__name__})" for name in found), "")


def _of_others(plan: Plan) -> set[Place]:
    """Return the calls whose queries are not the tokens that are keys: they may be learned."""
    return {
        place
        for place, found in plan.layouts.items()
        if any(layout.tokens is None or layout.tokens.is_cross for _, layout in found)
    }


def _of_copy(
    model: nn.Module, name: str, given: Given, turned: Collection[str] = ()
) -> tuple[Plan, set[str]]:
    """Prove a copy of a model; also name the modules where sizes do not tell heads from queries.

    In those `turned`, it is the other way than elsewhere.
    """
    apart = saved_tensors_hooks(Tensor.detach, lambda x: x)  # Checkpoints count what is saved.
    with without_contexts(), outside(), random_numbers_kept(model), paused(), apart:
        with inside():  # The model may hold attention that is being edited.
            twin, others = copied(model, with_hooks=True), around(model)
        twins = Twins(model, twin)
        given = twins.given(given)
        names = {module: path for path, module in twin.named_modules()}
        arrangement = Arrangement({one for one, path in names.items() if path in turned})
        with arranging(arrangement), twins.lent(others):
            run = partial(called, twin.get_submodule(name), given)
            idle, is_kept = keep_acting(twin, name, run, others)
            with attached(twin, Context(), is_any=True), paused(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The user's call gives them.
                plan = Proof(twin, name, given, original=model, around=others).plan()
    keeps_nothing = plan.keeps_nothing and not is_kept
    plan = replace(plan, idle_hooks=idle, turned=turned, keeps_nothing=keeps_nothing)
    return plan, {names[one] for one in arrangement.asked if one in names}
