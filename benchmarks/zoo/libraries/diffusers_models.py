"""diffusers: UNets, diffusion transformers and autoencoders, small, and ways to attend in them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.diffusers_sizes import SIZES
from benchmarks.zoo.libraries.randomizing import randomized

_WAYS = {
    "unet-condition": ("eager", "sliced", "fused"),
    "unet-condition-added-keys": ("eager", "sliced"),
    "autoencoder-kl": ("eager", "tiled"),
    "dit": ("eager",),
    "pixart-masked": ("eager",),
}
_NEVER_EAGER = ("hunyuan-video",)
"""Models with masks that the eager processor does not take."""


def names() -> list[str]:
    """List the models, and some of them with other processors of attention than their own."""
    return [
        name for model in SIZES for name in (model, *(f"{model}/{w}" for w in _WAYS.get(model, ())))
    ]


def build(name: str) -> Case:
    import diffusers

    model, _, way = name.partition("/")
    sizes = SIZES[model]
    torch.manual_seed(0)
    inputs = {key: _input(value) for key, value in sizes.inputs.items()}

    def make() -> nn.Module:
        made = getattr(diffusers, sizes.kind)(**sizes.config)
        _choose(made, way)
        return made

    in_slices = way == "sliced"
    own = None if model in _NEVER_EAGER or in_slices else eager_scores
    return Case(name, randomized(make, **inputs), (), inputs, own=own, in_slices=in_slices)


def _input(value: Any) -> Any:
    is_shape = isinstance(value, tuple) and all(isinstance(one, int) for one in value)
    return torch.randn(value) if is_shape else value


def _choose(model: Any, way: str) -> None:
    """Choose how a model attends."""
    if way == "eager":
        _set_eager(model)
    elif way == "sliced":
        model.set_attention_slice(1)
    elif way == "fused":
        model.fuse_qkv_projections()
    elif way == "tiled":
        model.enable_slicing()


def _set_eager(model: nn.Module) -> None:
    """Choose products and a softmax instead of a kernel where the library has both."""
    from diffusers.models import attention_processor as library

    eager = {
        library.AttnProcessor2_0: library.AttnProcessor,
        library.AttnAddedKVProcessor2_0: library.AttnAddedKVProcessor,
    }
    for module in model.modules():
        if isinstance(module, library.Attention) and type(module.processor) in eager:
            module.set_processor(eager[type(module.processor)]())


def eager_scores(case: Case) -> list[Tensor]:
    """Return what `get_attention_scores` gives to the eager processors."""
    from diffusers.models.attention_processor import Attention

    found: list[Tensor] = []
    computed = Attention.get_attention_scores

    def noted(module: Any, *args: Any, **kwargs: Any) -> Tensor:
        scores = computed(module, *args, **kwargs)
        found.append(scores.detach())
        return scores

    model = copy.deepcopy(case.model)
    _set_eager(model)
    Attention.get_attention_scores = noted
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            model(*case.args, **case.kwargs)
    finally:
        Attention.get_attention_scores = computed
    return found
