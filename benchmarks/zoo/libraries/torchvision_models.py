"""torchvision: the smallest model of each family with attention, and some of the others."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized
from benchmarks.zoo.libraries.torch_modules import needed

_SIZES: dict[str, tuple[int, ...]] = {
    "vit_b_32": (224, 224),
    "swin_t": (224, 224),
    "swin_v2_t": (256, 256),
    "maxvit_t": (224, 224),
    "swin3d_t": (8, 112, 112),
    "mvit_v1_b": (16, 224, 224),
    "mvit_v2_s": (16, 224, 224),
    "resnet18": (64, 64),
    "convnext_tiny": (64, 64),
    "mobilenet_v3_small": (64, 64),
    "efficientnet_b0": (64, 64),
}


def names() -> list[str]:
    return list(_SIZES)


def build(name: str) -> Case:
    import torchvision

    size = _SIZES[name]
    models: Any = torchvision.models if len(size) == 2 else torchvision.models.video
    torch.manual_seed(0)
    x = torch.randn(2 if len(size) == 2 else 1, 3, *size)
    model = randomized(getattr(models, name), x)
    return Case(name, model, (x,), own=needed if name.startswith("vit") else None)
