"""Gradients of a metric at the outputs or the attention of all heads, from one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from gattn.errors import CaptureError, ContractError, EditError
from gattn.models.effects.asking import asked
from gattn.models.effects.metrics import Metric, Position, Token
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming
from gattn.models.watch.contexts import Context
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

# Gradients of less than 6e-8 are zero in float16.
_HALF_SCALE = 1024.0


@dataclass(eq=False)
class LayerOutput:
    """Heads of a layer, and the gradient at their output, (heads, queries, dim)."""

    heads: list[int]
    queries: Tensor
    gradient: Tensor | None = field(default=None, init=False)

    def take(self, gradient: Tensor, call: SeenEdges | None) -> Tensor:
        """Take the gradient of the real rows from that of a call's output."""
        some = gradient[0, self.queries.to(gradient.device)][:, self.heads]
        return widened(some).transpose(0, 1)


def is_of_output(reading: Reading) -> bool:
    """Return whether gradients are taken of a call's output, rather than of its attention.

    All that the attention does is in the output, unless the model may use it a second time.
    """
    return reading.has_values and not reading.is_by_weights


L = TypeVar("L", bound=LayerOutput)


class Outputs(Context, Generic[L]):
    """Keeps the outputs of heads, with their gradient graph, and what `read` makes of each layer.

    `wanted` says which layers; a `share` of what their heads give is left.
    """

    reads_one_call = True

    def __init__(
        self,
        read: Callable[[Reading, Place], L],
        wanted: Callable[[Place], bool],
        share: float = 1.0,
    ) -> None:
        self._read, self._wanted, self._share = read, wanted, share
        self._nodes: list[tuple[Tensor, SeenEdges | None]] = []
        self.found: dict[tuple[str, int], L] = {}
        self._calls = 0

    def begin(self, tracker: Tracker) -> None:
        """Count the calls of the model."""
        self._calls += 1

    def wants(self, place: Place) -> bool:
        """Return whether a layer is wanted."""
        return self._wanted(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep the output, and read the layer."""
        reading = readings[0]
        if len(readings) > 1 or len(reading.elements) > 1:
            count = sum(len(one.elements) for one in readings)
            raise CaptureError(
                f"{call.where} attends in {count} sequences or windows at once; gradients are "
                "taken of attention over one whole sequence. Run one sequence, or measure cuts one "
                "by one with gattn.effect."
            )
        if (place.stack, place.layer) in self.found:
            how = "in several calls of the model" if self._calls > 1 else "part by part, in a loop"
            raise CaptureError(
                f"{call.where} attends {how}, but gradients are taken of one call of "
                "its attention: measure cuts one by one with gattn.effect"
                + (", or run the model once." if self._calls > 1 else ".")
            )
        if reading.edits:
            raise EditError(
                f"{call.where} is edited, but gradients are taken of unedited attention: choose "
                "other layers, or measure further cuts with gattn.effect."
            )
        if not torch.is_grad_enabled():
            raise CaptureError(
                f"{call.where} attends where torch keeps no gradients, as within "
                "torch.no_grad(), a custom autograd function or a reentrant checkpoint, so nothing "
                "is known of what its attention changes: choose other layers, or measure cuts one "
                "by one with gattn.effect."
            )
        # The model goes on with a tensor of ours, whatever the door makes of its own.
        edges = call if isinstance(call, SeenEdges) else None
        if is_of_output(reading):
            node = call.output = _node(call.output, self._share)
        elif edges is not None:
            node = edges.attention = _node(edges.attention, self._share)
        else:
            assert call.weights is not None
            node = call.weights = _node(call.weights, self._share)
            if reading.has_values:
                product = node.to(call.value.dtype) @ _per_head(call.value, node.shape[1])
                call.output = product.transpose(1, 2)
        self._nodes.append((node, edges))
        with torch.no_grad():
            self.found[place.stack, place.layer] = self._read(reading, place)

    def differentiate(self, number: Tensor, *, again: bool = False) -> dict[tuple[str, int], L]:
        """Take the gradient of a number at all outputs; returns the layers by (stack, layer).

        If it will be done `again`, for another number, the run's memory is kept.
        """
        if not number.requires_grad:
            raise ContractError(
                "The metric is a number without a gradient: compute it by torch's operations, "
                "without .item(), .detach(), NumPy or torch.no_grad()."
            )
        nodes, self._nodes = self._nodes, self._nodes if again else []
        scale = _HALF_SCALE if any(x.dtype == torch.float16 for x, _ in nodes) else 1.0
        with torch.inference_mode(False), torch.enable_grad():
            gradients = torch.autograd.grad(
                number * scale, [x for x, _ in nodes], retain_graph=again, allow_unused=True
            )
        if nodes and all(gradient is None for gradient in gradients):
            raise CaptureError(
                "The metric does not depend on any attention that was seen, so there is nothing "
                "to estimate: measure the answer of the model that was run."
            )
        for (node, edges), gradient, layer in zip(
            nodes, gradients, self.found.values(), strict=True
        ):
            whole = torch.zeros_like(node) if gradient is None else gradient
            with torch.no_grad():
                layer.gradient = layer.take(whole, edges) / scale
            if not bool(layer.gradient.isfinite().all()):
                raise CaptureError(
                    f"The gradient of the metric is infinite or NaN in {whole.dtype}: load the "
                    "model in float32 or bfloat16."
                )
        return self.found


def _per_head(value: Tensor, heads: int) -> Tensor:
    """Give each head its values, which several may share."""
    return value.repeat_interleave(heads // value.shape[1], dim=1)


def _node(values: Tensor, share: float) -> Tensor:
    """Copy a share of a tensor, so that gradients are taken of the copy."""
    copied = values.clone() if share == 1 else values * share
    return copied if copied.requires_grad else copied.detach().requires_grad_()


class Backward:
    """A run and a metric to differentiate, as `gattn.estimate` takes them."""

    def __init__(
        self,
        text: Runnable,
        model: Model,
        tokenizer: PreTrainedTokenizerBase | None,
        metric: Metric | None,
        position: Position,
        target: Token,
        other: Token,
        naming: Naming | None = None,
    ) -> None:
        self.runner, self.measure = asked(
            text, model, tokenizer, metric, position, target, other, None, naming
        )
        self.model, self.tokenizer = self.runner.model, self.runner.tokenizer

    def run(self, outputs: Outputs[L]) -> list[Tensor]:
        """Run the model for the metric's `slopes`, ready to differentiate at these outputs."""
        # Inference mode, which may be on outside, has no gradients.
        with torch.inference_mode(False), torch.enable_grad():
            (answer,) = self.runner.run(outputs)
            return self.measure.slopes(answer, answer)
