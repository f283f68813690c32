"""Makes a small input for a transformers model, of each kind that its configuration tells of."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.load.limits import text_config
from gattn.models.load.loading import input_device

_TOKENS = 7
_FEW_TOKENS = 50
_SIDE = 64
_SAMPLES = 4000
_IMAGES = ("pixel_values", "pixel_values_videos")


def small_input(model: nn.Module, pictures: int = 1) -> dict[str, Tensor] | None:
    """Make an input of each kind that the model takes; None if it takes none of these.

    Of several `pictures`, or of the frames of a video, one input is made.
    """
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    names = inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "input_ids" in names:
        vocabulary = getattr(text_config(config), "vocab_size", _FEW_TOKENS)
        inputs["input_ids"] = torch.randperm(vocabulary, generator=generator, device="cpu")[
            :_TOKENS
        ][None]
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :-2].flip(1)
    images = next((name for name in _IMAGES if name in names), None)
    if images is not None:
        size = _setting(config, "image_size", "input_size", "img_size") or _SIDE
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        channels = _setting(config, "num_channels", "in_channels", "in_chans") or 3
        frames = [pictures] if pictures > 1 else []
        frames = [number] if (number := getattr(config, "num_frames", None)) else frames
        shape = (1, *frames, channels, *sides)
        inputs[images] = torch.randn(shape, generator=generator, device="cpu")
    if "input_values" in names:
        inputs["input_values"] = torch.randn(1, _SAMPLES, generator=generator, device="cpu")
    channels = getattr(config, "num_input_channels", None)
    if "past_values" in names and channels is not None:
        shape = (1, config.context_length, channels)
        inputs["past_values"] = torch.randn(shape, generator=generator, device="cpu")
    weight = next(x for x in model.parameters() if x.is_floating_point())
    device = input_device(model)
    return {
        name: values.to(device, weight.dtype if values.is_floating_point() else None)
        for name, values in inputs.items()
    } or None


def _setting(config: Any, *names: str) -> Any:
    """Find a setting by any of its names, in a configuration or its configuration of images."""
    for one in (config, getattr(config, "vision_config", None)):
        for name in names:
            if (value := getattr(one, name, None)) is not None:
                return value
    return None
