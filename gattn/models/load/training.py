"""Refuses models whose attention is random, since they are in training mode."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from textwrap import dedent
from types import CodeType, FunctionType

import torch
from torch import nn

from gattn.errors import ModelError
from gattn.models.load.scripts import is_training

_CHANGING = (nn.modules.batchnorm._BatchNorm, nn.RReLU)
_DROPOUTS = frozenset(
    value
    for of in (torch, nn.functional)
    for name, value in vars(of).items()
    if "dropout" in name and name[0] != "_" and callable(value)
)
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def refuse_training(model: nn.Module) -> None:
    """Refuse a model in training mode, unless no module of it does anything else in that mode."""
    if not model.training:
        return
    for name, module in model.named_modules():
        if is_training(module) and _differs(module):
            kind = type(module).__name__
            where = "" if module is model else f" ({name}, {kind}, behaves differently in it)"
            raise ModelError(
                f"The model is in training mode{where}, where dropout is random: call model.eval()."
            )


def _differs(module: nn.Module) -> bool:
    """Return whether a module may do something else in training mode than in evaluation."""
    if isinstance(module, _WRAPPERS):
        return False
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return module.dropout > 0
    if isinstance(module, _CHANGING) or getattr(module, "track_running_stats", False):
        return True
    asking = [
        method
        for method in _methods(module)
        if any("training" in code.co_names for code in _within(method.__code__))
    ]
    return not all(_only_drops_nothing(method, module) for method in asking)


def _only_drops_nothing(method: FunctionType, module: nn.Module) -> bool:
    """Return whether a method asks for the mode only for dropout, of which none drops anything."""
    try:
        tree = ast.parse(dedent(inspect.getsource(method.__code__)))
    except (OSError, TypeError, SyntaxError):  # Nobody knows what it does.
        return False
    dropping: set[ast.AST] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _named_in(method, call.func) in _DROPOUTS:
            given = dict(zip(("input", "p", "training"), call.args, strict=False))
            given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
            if "p" in given and "training" in given and _is_zero(given["p"], method, module):
                dropping.add(given["training"])
    asking = (x for x in ast.walk(tree) if isinstance(x, ast.Attribute) and x.attr == "training")
    return all(x in dropping for x in asking)


def _named_in(method: FunctionType, name: ast.expr) -> object:
    """Return what a name in a method stands for, such as F.dropout; None if only a run tells."""
    first, *parts = ast.unparse(name).split(".")
    codes = [*_within(method.__code__)]
    if any(first in (*x.co_varnames, *x.co_cellvars, *x.co_freevars) for x in codes):
        return None
    found = method.__globals__.get(first)
    for part in parts:
        found = getattr(found, part, None)
    return found


def _is_zero(p: ast.expr, method: FunctionType, module: nn.Module) -> bool:
    found = p.value if isinstance(p, ast.Constant) else None
    own = method.__code__.co_varnames[:1]
    if isinstance(p, ast.Attribute) and (ast.unparse(p.value),) == own:
        found = vars(module).get(p.attr)
    return isinstance(found, int | float) and found == 0


def _methods(module: nn.Module) -> Iterator[FunctionType]:
    """List a module's own methods; torch's modules without parts have none."""
    for kind in type(module).__mro__:
        if kind is nn.Module or kind.__module__.startswith("torch."):
            continue
        for value in vars(kind).values():
            if isinstance(value, FunctionType):
                yield value


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _within(one)
