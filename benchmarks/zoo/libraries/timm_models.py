"""timm: of each architecture, the smallest model made of the same attention classes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case, LeftOutError
from benchmarks.zoo.libraries.randomizing import largest_score, randomized, with_its_own

NOT_TOKENS = {
    "XCA": "channels",
    "ChannelAttention": "channels",
    "ChannelAttentionV2": "channels",
    "CrossCovarianceAttn": "channels",
    "RadixSoftmax": "branches",
    "SelectiveKernelAttn": "branches",
    "LambdaLayer": "keys, for linear attention",
}
_ATTENTION = re.compile("attn|atten|transformer|block|MSA|mixer", re.I)
_MOST_PARAMETERS = 140_000_000
_MOST_PIXELS = 512
_OPTIONS: list[dict[str, Any]] = [{}, {"depth": 3}, *({"depths": (2,) * n} for n in (3, 4))]
_MOST_SCORE = 1000.0
"""Scores as far from zero as the numbers that mask come from random weights alone."""


def names() -> list[str]:
    """List the smallest model for each file and each set of classes that may hold attention."""
    import timm

    smallest: dict[tuple[str, frozenset[str]], tuple[int, str]] = {}
    for file in timm.list_modules():
        for name in timm.list_models(module=file):
            with torch.device("meta"):
                model = timm.create_model(name)
            kinds = {type(module).__name__ for module in model.modules()}
            key = file, frozenset(kind for kind in kinds if _ATTENTION.search(kind))
            size = sum(p.numel() for p in model.parameters())
            smallest[key] = min(smallest.get(key, (size, name)), (size, name))
    return sorted(name for _, name in smallest.values())


def build(name: str) -> Case:
    import timm

    options = _fewer_layers(name)
    if not _runs(name, options):
        options = {}
    torch.manual_seed(0)
    with torch.device("meta"):
        size = _size(timm.create_model(name, **options))
    image = torch.randn(2, *size)
    make = partial(timm.create_model, name, **options)
    model = randomized(make, image)
    if largest_score(model, image) > _MOST_SCORE:
        model = with_its_own(make)
    return Case(name, model, (image,), own=dropped, not_tokens=NOT_TOKENS)


def _runs(name: str, options: dict[str, Any]) -> bool:
    """Return whether a model runs: stages may not fit together; one too large is left out."""
    import timm

    with torch.device("meta"):
        model = timm.create_model(name, **options)
    if sum(p.numel() for p in model.parameters()) > _MOST_PARAMETERS:
        raise LeftOutError(f"{name} has too many parameters, even with few layers")
    model = timm.create_model(name, **options).eval()
    with suppress(Exception):
        model(torch.randn(1, *_size(model)))
        return True
    return False


def _size(model: nn.Module) -> tuple[int, ...]:
    """Return the size of an image: the model's, or a smaller one if it may have any."""
    size: tuple[int, ...] = model.default_cfg["input_size"]
    is_any = not model.default_cfg.get("fixed_input_size")
    return (3, 224, 224) if is_any and size[-1] > _MOST_PIXELS else size


def _fewer_layers(name: str) -> dict[str, Any]:
    """Return options of a model with fewer layers, made of the same classes."""
    import timm

    made = {}
    for options in _OPTIONS:
        with torch.device("meta"), suppress(Exception):  # Most models take only some.
            model = timm.create_model(name, **options)
            kinds = frozenset(map(type, model.modules()))
            made[sum(p.numel() for p in model.parameters())] = options, kinds
    whole = max(made)
    return next(made[size][0] for size in sorted(made) if made[size][1] == made[whole][1])


def dropped(case: Case) -> list[Tensor]:
    """Return what enters the dropouts of attention when no kernel is fused."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any) -> None:
        found.append(args[0].detach())

    drops = [
        module
        for name, module in case.model.named_modules()
        if name.endswith("attn_drop") and not _is_other(case, name)
    ]
    with unfused(case.model):
        handles = [drop.register_forward_pre_hook(note) for drop in drops]
        try:
            case.run()
        finally:
            for handle in handles:
                handle.remove()
    return found


def _is_other(case: Case, name: str) -> bool:
    parent = case.model.get_submodule(name.rpartition(".")[0])
    return type(parent).__name__ in case.not_tokens


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    fused = [module for module in model.modules() if getattr(module, "fused_attn", False)]
    for module in fused:
        module.fused_attn = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in fused:
            module.fused_attn = True  # type: ignore[assignment]
