"""Valid inputs for a model, found by the names that its forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

BATCH, TOKENS = 2, 8


def find(config: PreTrainedConfig, *names: str, default: Any = None) -> Any:
    """Find a field by any of its names, in the configuration or in the ones below it."""
    below = [c for c in vars(config).values() if isinstance(c, PreTrainedConfig)]
    for name in names:
        if (value := getattr(config, name, None)) is not None:
            return value
    for part in below:
        if (value := find(part, *names)) is not None:
            return value
    return default


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value[-2:]) if isinstance(value, (list, tuple)) else (value, value)  # type: ignore[return-value]


class Inputs:
    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.config = model, model.config
        self.parameters = inspect.signature(model.forward).parameters
        self.random = torch.Generator().manual_seed(1)

    def variants(self) -> Iterator[dict[str, Any]]:
        names = set(self.parameters)
        everything = {}
        for name in self.parameters:
            value = self.make(name)
            if value is not None:
                everything[name] = value
        yield everything
        yield {k: v for k, v in everything.items() if k in ("input_ids", "attention_mask", "decoder_input_ids")}
        main = self.model.main_input_name
        if main in everything:
            yield {main: everything[main]}

    def make(self, name: str) -> Any:
        maker = getattr(self, name, None)
        return None if maker is None else maker()

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def ids(self, length: int) -> Tensor:
        return torch.randint(10, 60, (BATCH, length), generator=self.random)

    def mask(self, length: int, padding: int) -> Tensor:
        mask = torch.ones(BATCH, length, dtype=torch.long)
        mask[1, length - padding :] = 0
        return mask

    # --- text
    def input_ids(self): return self.ids(TOKENS)
    def attention_mask(self): return self.mask(TOKENS, 3) if "input_ids" in self.parameters else None
    def decoder_input_ids(self): return self.ids(6)
    def decoder_attention_mask(self): return self.mask(6, 2)
    def bbox(self): return torch.tensor([1, 2, 8, 9]).expand(BATCH, TOKENS, 4).contiguous()
    def token_type_ids(self): return None
    # --- images
    def pixel_values(self):
        c = find(self.config, "num_channels", "in_channels", "in_chans", default=3)
        h, w = _pair(find(self.config, "image_size", default=64))
        return self.normal(BATCH, c, h, w)
    # --- audio
    def input_features(self):
        return self.normal(BATCH, find(self.config, "num_mel_bins", default=16), 128)
    def input_values(self): return self.normal(BATCH, 2000)
