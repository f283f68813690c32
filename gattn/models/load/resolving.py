"""Takes what a caller names as the model: a name, a folder, a model, or a compiled one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import nn

from gattn.errors import ModelError
from gattn.models.load.loading import find_tokenizer, load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Model: TypeAlias = str | Path | PreTrainedModel | None


def resolved(
    model: Model, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model and its tokenizer, or take those that were given."""
    from transformers import PreTrainedTokenizerBase

    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelError(
            "tokenizer must be a transformers tokenizer, such as "
            f"AutoTokenizer.from_pretrained(name), not {tokenizer!r:.60}."
        )
    if model is None or isinstance(model, (str, Path)):
        loaded, found = load_model(model)
        return loaded, tokenizer or found
    if isinstance(model, nn.Module):
        model = cast("PreTrainedModel", as_written(model))
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ModelError(
            "model must be a hub name, a folder or a transformers model, not "
            f"{type(model).__name__}."
        )
    return model, tokenizer or find_tokenizer(model)


def as_written(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` wrapped, or the model itself."""
    while "_orig_mod" in model._modules:
        model = model.get_submodule("_orig_mod")
    for name, module in model.named_modules():
        if isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule)):
            what = f"{name} in the model" if name else "The model"
            raise ModelError(
                f"{what} was scripted, traced or exported: its code is now a graph of operations, "
                "which never asks how to compute attention. Pass the model as it was before; "
                "torch.compile is fine."
            )
    return model


def refuse_training(model: nn.Module) -> None:
    """Refuse a model whose attention is random."""
    if model.training:
        raise ModelError(
            "The model is in training mode, where dropout is random: call model.eval()."
        )
