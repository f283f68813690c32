"""Gradients of a metric at the outputs of all heads, from one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from gattn.errors import CaptureError, ContractError, EditError, ModelError, SelectionError
from gattn.models.doors.attending import routes
from gattn.models.effects.effect import Runner
from gattn.models.effects.metrics import Measure, Metric, Token
from gattn.models.load.encoding import Inputs
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.watch.contexts import Context
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Gradients of less than 6e-8 are zero in float16.
_HALF_SCALE = 1024.0


@dataclass(eq=False)
class LayerOutput:
    """Heads of a layer, and the gradient at their output, (heads, queries, dim)."""

    heads: list[int]
    slots: Tensor
    gradient: Tensor | None = field(default=None, init=False)

    def rows(self, output: Tensor) -> Tensor:
        """Take the real rows of a call's output, as (heads, queries, dim)."""
        some = output[0, self.slots.to(output.device)][:, self.heads]
        return widened(some).transpose(0, 1)


L = TypeVar("L", bound=LayerOutput)


class Outputs(Context, Generic[L]):
    """Keeps the outputs of heads, with their gradient graph, and what `read` makes of each layer.

    `wanted` says which layers.
    """

    reads_one_call = True

    def __init__(
        self, read: Callable[[Reading, Place], L], wanted: Callable[[Place], bool]
    ) -> None:
        self._read, self._wanted = read, wanted
        self._nodes: list[Tensor] = []
        self.found: dict[tuple[str, int], L] = {}

    def wants(self, place: Place) -> bool:
        """Return whether a layer is wanted."""
        return self._wanted(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep the output, and read the layer."""
        if len(readings) > 1:
            raise CaptureError(
                f"{call.name} attends within {len(readings)} windows; gradients are taken of "
                "attention over whole sequences. Measure cuts one by one with gattn.effect."
            )
        (reading,) = readings
        if reading.edits:
            raise EditError(
                f"{call.name} is edited, but gradients are taken of unedited attention: choose "
                "other layers, or measure further cuts with gattn.effect."
            )
        if not call.output.requires_grad:
            call.output.requires_grad_()
        self._nodes.append(call.output)
        with torch.no_grad():
            self.found[place.stack, place.layer] = self._read(reading, place)

    def differentiate(self, number: Tensor) -> dict[tuple[str, int], L]:
        """Take the gradient of a number at all outputs; returns the layers by (stack, layer)."""
        if not number.requires_grad:
            raise ContractError(
                "metric returned a number without a gradient: compute it from the logits by "
                "torch's operations, without .item(), .detach() or NumPy."
            )
        nodes, self._nodes = self._nodes, []
        scale = _HALF_SCALE if any(x.dtype == torch.float16 for x in nodes) else 1.0
        with torch.inference_mode(False), torch.enable_grad():
            gradients = torch.autograd.grad(number * scale, nodes, allow_unused=True)
        for node, gradient, layer in zip(nodes, gradients, self.found.values(), strict=True):
            whole = torch.zeros_like(node) if gradient is None else gradient
            layer.gradient = layer.rows(whole) / scale
            if not bool(layer.gradient.isfinite().all()):
                raise CaptureError(
                    f"The gradient of the metric is infinite or NaN in {whole.dtype}: load the "
                    "model in float32 or bfloat16."
                )
        return self.found


class Backward:
    """A text, a model and a metric to differentiate, as `gattn.estimate` takes them."""

    def __init__(
        self,
        text: Inputs,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        metric: Metric,
        position: int | str,
        target: Token,
        other: Token,
    ) -> None:
        if metric == "kl":
            raise SelectionError(
                "The divergence from the plain model is at its minimum, 0, for the plain model, so "
                "its gradient there is zero: use metric='logit_difference' or 'probability', or "
                "measure single edits with gattn.effect(..., metric='kl')."
            )
        if not routes(model):
            raise ModelError(
                f"{type(model).__name__} does not route its attention through transformers' "
                "interface and shows only its scores, but gradients need values and outputs too: "
                "measure cuts one by one with gattn.effect(text, [gattn.Cut(...), ...], model)."
            )
        self.measure = Measure(metric, target, other, model, tokenizer)
        self.runner = Runner(text, model, tokenizer, self.measure.position(position))

    def run(self, outputs: Outputs[L]) -> Tensor:
        """Run the model and compute the metric, ready to differentiate at these outputs."""
        # Inference mode, which may be on outside, has no gradients.
        with torch.inference_mode(False), torch.enable_grad():
            (logits,) = self.runner.run(outputs)
            return self.measure(logits, logits)
