"""A zoo of tiny random models: one specimen of each model type that transformers knows."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import (
    CONFIG_MAPPING,
    CONFIG_MAPPING_NAMES,
)

from benchmarks.zoo.inputs import repaired, variants
from benchmarks.zoo.sizes import tiny
from benchmarks.zoo.table import CHANGES


@dataclass
class Specimen:
    """A tiny random model and inputs for it."""

    model_type: str
    model: PreTrainedModel
    inputs: dict[str, Any]

    def eager(self) -> Specimen:
        """Return a copy that computes its attention eagerly."""
        model = copy.deepcopy(self.model)
        try:  # some classes choose their modules by it
            model = type(model)._from_config(model.config, attn_implementation="eager").eval()
            model.to(self.model.dtype)
            model.load_state_dict(self.model.state_dict())
        except Exception:
            model.set_attn_implementation("eager")
        return Specimen(self.model_type, model, self.inputs)

    def double(self) -> Specimen:
        """Return a copy in double precision."""
        inputs = {
            name: value.double()
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for name, value in self.inputs.items()
        }
        return Specimen(self.model_type, copy.deepcopy(self.model).double(), inputs)

    def run(self, **options: Any) -> Any:
        torch.manual_seed(0)
        with torch.no_grad():
            return self.model(**self.inputs, **options)


class NotBuiltError(Exception):
    """No class of a model type could be built and run."""


def specimen(model_type: str) -> Specimen:
    reasons = []
    for kind in classes(model_type):
        try:
            return _built(model_type, kind)
        except Exception as error:
            reasons.append(
                f"{kind.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
    raise NotBuiltError(reasons[0] if reasons else "no model class")


def configuration(model_type: str) -> PreTrainedConfig:
    return tiny(CONFIG_MAPPING[model_type](), CHANGES.get(model_type))


def classes(model_type: str) -> list[type[PreTrainedModel]]:
    config = CONFIG_MAPPING[model_type]
    mapped = modeling_auto.MODEL_MAPPING_NAMES.get(model_type, ())
    names = [mapped] if isinstance(mapped, str) else list(mapped)
    found = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    try:
        module = importlib.import_module(config.__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError:
        return found
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, PreTrainedModel)
            and value.__module__ == module.__name__
            and getattr(value, "config_class", None) is config
            and not value.__name__.endswith("PreTrainedModel")
            and value not in found
        ):
            found.append(value)
    return sorted(found, key=lambda kind: kind.__name__.endswith("Backbone"))[:6]


def _built(model_type: str, kind: type[PreTrainedModel]) -> Specimen:
    torch.manual_seed(0)
    config = configuration(model_type)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > 20_000_000:
        raise NotBuiltError(f"{size} parameters are too many")
    torch.manual_seed(0)
    model = kind(configuration(model_type)).eval()
    randomize(model)
    reason: Exception | None = None
    for found in variants(model):
        inputs: dict[str, Any] | None = found
        while inputs is not None:
            one = Specimen(model_type, model, inputs)
            try:
                if finite(one.run()):
                    return one
                error: Exception = ValueError("the output is not finite")
            except Exception as raised:
                error = raised
            reason = reason or error
            inputs = repaired(inputs, error, config)
    raise reason or ValueError("no inputs")


def randomize(model: nn.Module) -> None:
    """Draw weights so large that attention differs clearly from pair to pair."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        if parameter.dim() >= 2:
            parameter.data.normal_(
                0, 1.2 / math.sqrt(max(1, parameter[0].numel())) if parameter.dim() != 3 else 0.2
            )
        else:  # gates and scales that start near zero would hide the attention
            usual = "bias" in name or "norm" in name.lower()
            parameter.data.add_((0.1 if usual else 0.3) * torch.randn_like(parameter))


def tensors(output: Any) -> Iterator[Tensor]:
    """Yield all floating-point tensors of an output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors(value)


def finite(output: Any) -> bool:
    found = list(tensors(output))
    return bool(found) and all(bool(x.isfinite().all()) for x in found)


MODEL_TYPES = tuple(CONFIG_MAPPING_NAMES)
