"""Proves that a model's softmaxes are its attention, before any is trusted.

Routed models need no such proof: each call's attention, times its values, must be the output. If
only a softmax is seen, a small input runs first, and what is seen must be what the model returns.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.attaching import attached
from gattn.models.doors.proofs import Kinds, proved_kinds, refuse
from gattn.models.edit.base import Edit
from gattn.models.edit.edges import Cut
from gattn.models.load.loading import input_device
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.tracking import Tracker
from gattn.models.watch.contexts import Context

_TOKENS = 7
_FEW_TOKENS = 50
_SIDE = 64
_SAMPLES = 4000
_TOLERANCE = 1e-5

_lock = RLock()  # A model that is being proved may call another.


class _Seen(Context):
    """Collects the attention of each call with its type of module, and applies a cut."""

    reads_one_call = True

    def __init__(self, cut: Edit | None = None) -> None:
        self.attention: list[tuple[Tensor, type[nn.Module]]] = []
        self._cut = cut

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        cut = self._cut
        return [[cut]] * len(call.query) if cut is not None and cut.applies(place) else []

    def wants(self, place: Place) -> bool:
        return True

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        assert call.weights is not None
        self.attention.append((call.weights.detach(), type(call.module)))


def prove(model: nn.Module) -> None:
    """Prove a model once: it returns its softmaxes as attention, and cuts have an effect."""
    with _lock:
        found = proved_kinds.get(model)
        if found is None and model.training:
            found = "in training mode its softmaxes cannot be proved to be attention: call eval()"
        elif found is None:
            found = _found(model)
    if isinstance(found, str):
        refuse(model, found)


def _found(model: nn.Module) -> str | Kinds:
    """Return why a model cannot be trusted, or which types of its modules can."""
    try:
        with _random_numbers_kept(model), torch.no_grad():
            inputs = _small_input(model)
            if inputs is None:
                found: str | Kinds = (
                    "gattn cannot make a small input for it, to prove its softmaxes are attention"
                )
            else:
                found = _difference(_like(model), inputs)
    except CaptureError as error:
        found = f"its softmaxes are not attention: {error}".rstrip(".")
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # Models fail on small inputs in many ways, and some may pass.
        reason = " ".join(str(error).split())[:200]
        return f"it did not run on a small input to prove its softmaxes ({reason})"
    proved_kinds[model] = found
    return found


@contextmanager
def _random_numbers_kept(model: nn.Module) -> Iterator[None]:
    devices = {x.device.index for x in model.parameters() if x.device.type == "cuda"}
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _like(model: nn.Module) -> nn.Module:
    """Copy a model except its parameters: running may change its modules, hooks and buffers."""
    memory: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for module in model.modules():
        for value in (*module._buffers.values(), *vars(module).values()):
            if isinstance(value, Tensor) and id(value) not in memory:
                memory[id(value)] = value.detach().clone()
    twin = copy.deepcopy(model, memory)
    for module in twin.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number in [number for number, hook in hooks.items() if _is_users(hook)]:
                del hooks[number]  # The user has not called the model.
    return twin


def _is_users(hook: Any) -> bool:
    """Return whether a hook is the user's; torch's and transformers' own are parts of a model."""
    home = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return not home.startswith(("torch.", "transformers."))


def _difference(model: nn.Module, inputs: dict[str, Tensor]) -> str | Kinds:
    said = model(**inputs, output_attentions=True)
    given = list(_attentions(said))
    if not given:
        return "it returns no attentions to compare its softmaxes with"
    plain, seen = model(**inputs), _Seen()
    with attached(model, seen):
        watched = model(**inputs)
    if not _are_same(plain, watched):
        return "its output changes while its softmaxes are watched"
    proved: Kinds = set()
    for attention in given:
        kinds = {kind for other, kind in seen.attention if _are_equal(attention, other)}
        if not kinds:
            return "an attention that it returns is not among the softmaxes that were seen"
        proved |= kinds
    # Models may return one attention of several; one type of module has one kind of softmax.
    if strange := {kind for _, kind in seen.attention} - proved:
        return f"the softmax of a {strange.pop().__name__} is not among the attentions it returns"
    with attached(model, _Seen(Cut(layer=0, renormalize=False))):
        cut = model(**inputs)
    if _are_same(plain, cut):
        return "cutting the edges of a layer does not change its output"
    return proved


def _small_input(model: nn.Module) -> dict[str, Tensor] | None:
    """Make an input of each kind that the model takes, if it takes any of these."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    names = inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "input_ids" in names:
        vocabulary = getattr(config.get_text_config(), "vocab_size", _FEW_TOKENS)
        inputs["input_ids"] = torch.randperm(vocabulary, generator=generator)[:_TOKENS][None]
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :-2].flip(1)
    if "pixel_values" in names:
        size = _setting(config, "image_size", "input_size", "img_size") or _SIDE
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (1, _setting(config, "num_channels", "in_channels", "in_chans") or 3, *sides)
        inputs["pixel_values"] = torch.randn(shape, generator=generator)
    if "input_values" in names:
        inputs["input_values"] = torch.randn(1, _SAMPLES, generator=generator)
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


def _all(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple, Mapping)):
        for part in nested.values() if isinstance(nested, Mapping) else nested:
            yield from _all(part)


def _attentions(output: Any) -> Iterator[Tensor]:
    """Walk the attentions that a model returns, including those of models inside it."""
    for name, some in output.items() if isinstance(output, Mapping) else ():
        if isinstance(some, Mapping):
            yield from _attentions(some)
        elif name.endswith("attentions"):
            yield from _all(some)


def _are_equal(given: Tensor, seen: Tensor) -> bool:
    # Models may round what they return, not what they compute.
    tolerance = max(_TOLERANCE, torch.finfo(given.dtype).eps)
    return given.shape == seen.shape and _largest(given.float() - seen.float()) < tolerance


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _are_same(one: Any, other: Any) -> bool:
    tensors = [list(_all(tuple(result.values()))) for result in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
