"""Finds a module's linear map: from its weight, or from its outputs for unit vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from gattn.errors import CaptureError
from gattn.models.stream.probing import forward_of
from gattn.models.watch.hooks import Hook
from gattn.normalizers.base import widened

_PROVED, _TOLERANCE, _ROUNDING = 4, 1e-4, 1e-6
_MULTIPLIED = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
"""The types whose matrices torch multiplies on every device."""


def linear_modules() -> tuple[type[nn.Module], ...]:
    """Return the classes of linear modules."""
    from transformers.pytorch_utils import Conv1D

    return nn.Linear, Conv1D


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The linear map of a module: a weight (outputs, inputs), and a bias (outputs,)."""

    weight: Tensor
    bias: Tensor

    def gives(self, given: Tensor, output: Tensor) -> bool:
        """Return whether it maps some rows (rows, inputs) to the outputs (rows, outputs)."""
        if len(self.weight) != output.shape[-1] or self.weight.shape[1] != given.shape[-1]:
            return False
        rows = torch.linspace(0, len(given) - 1, min(_PROVED, len(given)), device="cpu").long()
        wanted, numbers = widened(output[rows.to(output.device)]), given[rows.to(given.device)]
        weight = widened(self.weight)
        found = numbers.to(weight) @ weight.T + self.bias.to(weight)
        limit = max(_TOLERANCE, 2 * torch.finfo(output.dtype).eps)
        size = wanted.abs().amax().clamp_min(torch.finfo(wanted.dtype).tiny)
        return bool(((found - wanted).abs() <= limit * size).all())

    def heads(self, count: int) -> Tensor:
        """Return its part for each head: (heads, outputs, value dim)."""
        parts: Tensor = widened(self.weight).unflatten(1, (count, -1)).transpose(0, 1)
        return parts

    def products(self, count: int) -> Tensor:
        """Return W^T W of the part of each head: (heads, value dim, value dim)."""
        parts = (widened(part) for part in self.weight.chunk(count, dim=1))
        return torch.stack([part.T @ part for part in parts])


def linear_map(module: nn.Module, given: Tensor, output: Tensor) -> LinearMap | None:
    """Find the linear map that a module is, or None if it is not linear.

    That is the module's own weight if nothing else runs; otherwise, with adapters or quantized
    weights, the outputs for unit vectors. Either must map some rows it was `given` to its `output`.
    """
    with torch.no_grad():
        found = _own_map(module) if runs_its_weight(module) else _probed_map(module, given)
        if found is None or not found.gives(given, output):
            return None
        return found if is_unaltered(module, given, output) else None


def weight_map(weight: Tensor, given: Tensor, output: Tensor) -> LinearMap | None:
    """Return the map of a known weight, if it and some bias give what came out."""
    with torch.no_grad():
        bias = (widened(output[:1]) - widened(given[:1]) @ widened(weight).T)[0]
        found = LinearMap(weight.detach(), bias)
        return found if found.gives(given, output) else None


def live_map(module: nn.Module, given: Tensor, output: Tensor) -> LinearMap | None:
    """Find the linear map that a module is, with gradients to its weight if they are taken."""
    found = linear_map(module, given, output)
    if found is None or not torch.is_grad_enabled():
        return found
    if runs_its_weight(module):
        return _own_map(module, is_live=True)
    if any(x.requires_grad for x in module.parameters()):
        raise CaptureError(
            f"What a {type(module).__name__} multiplies is known by its outputs alone, without "
            "gradients to its parameters: run the model under torch.no_grad(), or freeze them."
        )
    return found


def runs_its_weight(module: nn.Module) -> bool:
    """Return whether a module only multiplies its input by its weight."""
    plain = [kind.forward for kind in linear_modules()]
    if type(module).forward not in plain or "forward" in vars(module):
        return False
    weight: Any = module.weight
    is_plain = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
    return is_plain and weight.dim() == 2 and not weight.is_meta


def _own_map(module: nn.Module, *, is_live: bool = False) -> LinearMap:
    weight, bias = cast("Tensor", module.weight), module.bias
    weight = weight if isinstance(module, nn.Linear) else weight.T
    bias = bias if isinstance(bias, Tensor) else weight.new_zeros(len(weight))
    return LinearMap(weight, bias) if is_live else LinearMap(weight.detach(), bias.detach())


def is_unaltered(module: nn.Module, given: Tensor, output: Tensor) -> bool:
    """Return whether an output is the module's own, unchanged by any hook."""
    every = (*module._forward_hooks.values(), *torch_module._global_forward_hooks.values())
    if all(isinstance(hook, Hook) for hook in every):
        return True
    alone = _forward(module, given)
    if alone is None or alone.shape != output.shape:
        return False
    wanted, found = widened(output), widened(alone)
    limit = max(_ROUNDING, torch.finfo(output.dtype).eps / 8)
    return bool(torch.linalg.norm(found - wanted) <= limit * torch.linalg.norm(wanted))


def state_of(module: nn.Module) -> list[object]:
    """Identify a module's numbers, so that changes are noticed.

    Versions do not count what `.data` and NumPy change, which the sums of rows, weighed by random
    numbers, tell.
    """
    return [_state(x) for x in (*module.parameters(), *module.buffers())]


def _state(x: Tensor) -> object:
    version = 0 if x.is_inference() else x._version
    if type(x) not in (Tensor, nn.Parameter) or x.is_meta or x.layout is not torch.strided:
        return version
    with torch.no_grad():
        numbers = x.detach() if x.dtype in _MULTIPLIED else x.detach().float()
        rows = numbers.flatten(1) if x.dim() > 1 else numbers.reshape(1, -1)
        sums = rows @ _random(rows.shape[1]).to(rows)
    return x.data_ptr(), version, tuple(sums.tolist())


@lru_cache(maxsize=16)
def _random(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):
        return torch.rand(count, generator=generator, dtype=torch.double, device="cpu") + 0.5


def _forward(module: nn.Module, rows: Tensor) -> Tensor | None:
    """Return a module's output for rows, or None if it does not take them."""
    try:
        answers = forward_of(module)(rows[None])
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None
    is_alike = isinstance(answers, Tensor) and answers.shape[:2] == (1, len(rows))
    return answers[0] if is_alike else None


def _probed_map(module: nn.Module, given: Tensor) -> LinearMap | None:
    width = given.shape[-1]
    units = torch.eye(width, dtype=given.dtype, device=given.device)
    answers = _forward(module, torch.cat([units.new_zeros(1, width), units]))
    if answers is None:
        return None
    bias, *_ = answers = widened(answers)
    return LinearMap((answers[1:] - bias).T, bias)


def takes(given: Tensor, rows: Tensor) -> bool:
    """Return whether a module was given these rows (tokens, width), in any shape."""
    if given.shape[-1] != rows.shape[-1] or given.numel() != rows.numel():
        return False
    given = given.reshape(rows.shape)
    # Most differ already in the first row.
    return torch.equal(given[:1], rows[:1]) and (len(rows) == 1 or torch.equal(given, rows))
