"""Refuses models whose attention is random, since they are in training mode."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from textwrap import dedent
from types import CodeType, FunctionType

from torch import nn

from gattn.errors import ModelError
from gattn.models.load.scripts import is_training

_CHANGING = (nn.modules.batchnorm._BatchNorm, nn.RReLU)
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
    some = [code for code in _codes(module) if any("training" in x.co_names for x in _within(code))]
    return not all(_only_drops_nothing(code, module) for code in some)


def _only_drops_nothing(code: CodeType, module: nn.Module) -> bool:
    """Return whether a method asks for the mode only for dropout, of which none drops anything."""
    try:
        tree = ast.parse(dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):  # Nobody knows what it does.
        return False
    dropping: set[ast.AST] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _is_dropout(call.func):
            given = dict(zip(("input", "p", "training"), call.args, strict=False))
            given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
            if "p" in given and "training" in given and _is_zero(given["p"], module):
                dropping.add(given["training"])
    asking = (x for x in ast.walk(tree) if isinstance(x, ast.Attribute) and x.attr == "training")
    return all(x in dropping for x in asking)


def _is_dropout(function: ast.expr) -> bool:
    before, _, name = ast.unparse(function).rpartition(".")
    return name == "dropout" and before.partition(".")[0] != "self"


def _is_zero(p: ast.expr, module: nn.Module) -> bool:
    found = p.value if isinstance(p, ast.Constant) else None
    if isinstance(p, ast.Attribute) and ast.unparse(p.value) == "self":
        found = vars(module).get(p.attr)
    return isinstance(found, int | float) and found == 0


def _codes(module: nn.Module) -> Iterator[CodeType]:
    """List the code of a module's own methods; torch's modules without parts have none."""
    for kind in type(module).__mro__:
        if kind is nn.Module or kind.__module__.startswith("torch."):
            continue
        for value in vars(kind).values():
            if isinstance(value, FunctionType):
                yield value.__code__


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _within(one)
