"""Finds the layers of a model, and the tensor that one is given."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gattn.errors import CaptureError


def layers_of(model: nn.Module) -> set[int]:
    """Find the modules that are layers: those in lists of modules, and torch's own.

    Of lists within lists, only those of one type hold layers: T5's sublayers are lists, too, but of
    different types of modules. A sequence is a list if its modules are alike, and have parts. Norms
    in a list, one for each layer, are no layers.
    """
    lists = {n: m for n, m in model.named_modules() if _is_list(m)}
    found = {id(x) for x in model.modules() if isinstance(x, _LAYERS)}
    for name, one in lists.items():
        is_inside = any(name.startswith(f"{other}.") for other in lists)
        kinds = {type(module) for module in one.children()}
        is_several = isinstance(one, nn.ModuleList) or len(list(one.children())) > 1
        if not is_inside or (len(kinds) == 1 and is_several):
            found |= {id(module) for module in one.children() if not _is_norm(module)}
    return found


_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def _is_list(module: nn.Module) -> bool:
    """Return whether a module is a list of modules that may be layers."""
    if isinstance(module, nn.ModuleList):
        return True
    kinds = {type(one) for one in module.children()}
    has_parts = all(any(True for _ in one.children()) for one in module.children())
    return isinstance(module, nn.Sequential) and len(kinds) == 1 and has_parts


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module has no modules in it, and vectors alone."""
    is_leaf = not any(True for _ in module.children())
    vectors = [x.dim() == 1 for x in module.parameters()]
    return is_leaf and bool(vectors) and all(vectors)


def first_of(values: Any) -> Tensor | None:
    """Find the first floating-point tensor."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else None
    if isinstance(values, dict):
        values = tuple(values.values())
    some = values if isinstance(values, (tuple, list)) else ()
    return next((x for x in some if isinstance(x, Tensor) and x.is_floating_point()), None)


def with_first(values: Any, first: Tensor) -> Any:
    """Put another tensor in place of the first floating-point tensor, as `first_of` finds it."""
    old = first_of(values)
    return tree_map(lambda x: first if x is old else x, values)


def other_tokens(name: str, given: Tensor, slots: int) -> CaptureError:
    """Say that a layer takes other tokens than its attention."""
    several, rest = divmod(given.shape[:-1].numel(), slots)
    shape = tuple(given.shape)
    if several > 1 and not rest:
        return CaptureError(
            f"The layer around {name} takes {shape}, which are {several} residual streams or "
            f"sequences, and its attention {slots} tokens: what it reads of which is not known. "
            "Expected one stream of one sequence; models with several streams, such as Gemma 3n, "
            "are not supported."
        )
    return CaptureError(
        f"The layer around {name} takes {shape}, but its attention {slots} tokens: expected the "
        "same sequence throughout."
    )


def several_groups(name: str, groups: int) -> CaptureError:
    """Say that a call attends in several groups of tokens."""
    return CaptureError(
        f"{name} attends in {groups} groups of tokens at once, which are several texts, or windows "
        "of an image: expected one sequence, all of whose tokens are in its residual stream. Run "
        "texts one by one; layers that attend in windows, as Swin's, are not supported."
    )
