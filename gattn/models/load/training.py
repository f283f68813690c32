"""Refuses models whose attention is random, since they are in training mode."""

from __future__ import annotations

from collections.abc import Iterator
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
    return any("training" in code.co_names for code in _codes(module))


def _codes(module: nn.Module) -> Iterator[CodeType]:
    """List the code of a module's own methods; torch's modules without parts have none."""
    for kind in type(module).__mro__:
        if kind is nn.Module or kind.__module__.startswith("torch."):
            continue
        for value in vars(kind).values():
            if isinstance(value, FunctionType):
                yield from _within(value.__code__)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _within(one)
