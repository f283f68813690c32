"""Gradient rollout: which tokens matter for a metric of the answer, through all layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array, array
from gattn.engines import tiles
from gattn.engines.call import AttentionCall
from gattn.errors import SelectionError
from gattn.graph.rules.keys import list_keys
from gattn.heads import steps
from gattn.keep import TopK
from gattn.models.edit.applying import parts
from gattn.models.effects.gradients import (
    Backward,
    LayerOutput,
    Outputs,
    is_of_output,
)
from gattn.models.effects.layer_edges import LayerEdges
from gattn.models.effects.metrics import Metric, Position, Token
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.run.capturing import capturing
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_FEWEST = TopK(1)
"""What is captured for the names of layers and tokens alone."""


def gradient_rollout(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric | None = None,
    position: Position = None,
    target: Token = None,
    other: Token = None,
    from_layer: int | None = None,
    stack: str | None = None,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Array:
    r"""Roll out attention weighted by the gradient of a metric: which tokens raise it.

    .. math::

        R_l = R_{l-1} + \bar C_l R_{l-1}, \quad R_{\text{from\_layer}-1} = I, \quad
        \bar C_{ij} = \frac1H \sum_h \Bigl(\frac{\partial m}{\partial A^h_{ij}}
        A^h_{ij}\Bigr)^+, \quad
        \frac{\partial m}{\partial A^h_{ij}} = \langle g^h_i, v^h_j \rangle

    with g the gradient of the metric m at a head's output, from one backward pass. Gradients
    multiply before heads are averaged, and nothing is renormalized. The row of the token whose
    prediction is measured, at the last layer, says how relevant each token is; its own entry holds
    1 for itself.

    Parameters
    ----------
    text, model, tokenizer, metric, position, target, other
        As in `gattn.estimate`.
    from_layer : int, optional
        The layer to start from, by default the first.
    stack : str, optional
        Which stack of self-attention, such as "encoder", if the model has several.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

    Returns
    -------
    Array (layer, query, key)
        R after each layer from `from_layer` on.

    Raises
    ------
    SelectionError, ModelError, EditError, CaptureError, ContractError
        As in `gattn.estimate`; also if there is no such layer or stack, or it is not
        self-attention.

    References
    ----------
    Chefer, Gur and Wolf (2021), Generic attention-model explainability for interpreting bi-modal
    and encoder-decoder transformers.
    """
    if metric == "kl":
        raise SelectionError(
            "The divergence from the plain model is at its minimum, 0, for the plain model, so its "
            "gradient there is zero: use metric='logit_difference', 'probability' or 'loss'."
        )
    naming = Naming(tokens, grid)
    backward = Backward(text, model, tokenizer, metric, position, target, other, naming)
    outputs = Outputs(_read, lambda place: stack is None or place.stack == stack)
    known = backward.model, backward.tokenizer
    with capturing(*known, keep=_FEWEST, tokens=tokens, grid=grid) as run:
        run.encodings = backward.runner.prompt.encodings
        (number,) = backward.run(outputs)
    chosen = run.trace.only_stack if stack is None else run.trace[stack]
    layers = layers_of(chosen, differing=True).square()
    first = layers.layers[0] if from_layer is None else from_layer
    if first not in layers.layers:
        raise SelectionError(f"No layer {first} to start from; there are {list(layers.layers)}.")
    found = outputs.differentiate(number)
    state = torch.eye(len(layers.positions), device="cpu")
    rolled = []
    for layer in layers.layers[layers.layers.index(first) :]:
        relevance = found[chosen.name, layer].relevance()
        state = state.to(relevance)
        state = state + relevance @ state
        rolled.append(state)
    wanted = {"target": target, "other": other}
    return array(
        torch.stack(rolled),
        layers.axes("layer", "query", "key") | {"layer": range(first, layers.layers[-1] + 1)},
        name="gradient_rollout",
        computed_from=str(replace(layers.read_from, kept_by=steps.ALL)),
        edits=layers.read_from.edits,
        notes=["not renormalized: rows do not sum to 1"],
        tokens={"query": layers.tokens, "key": layers.tokens},
        geometry=layers.places(("query", "key")),
        is_rolled_out=True,
        holds_residual=True,
        metric=backward.measure.name,
        **{name: value for name, value in wanted.items() if value is not None},
    )


def _read(reading: Reading, place: Place) -> _Layer | _Edges:
    heads = list(range(reading.heads))
    if is_of_output(reading) and not reading.lists_edges:
        return _Layer.read(reading)
    return _Edges.read(reading, heads)


class _Edges(LayerEdges):
    """A layer that lists its edges, or whose values are not seen."""

    def relevance(self) -> Tensor:
        """Average over heads what of each edge raises the metric, (queries, keys)."""
        assert self.gradient is not None
        key, query = self.graph.edge_index
        found = (self.gradient * self.attention).clamp_min(0).mean(0).cpu()
        whole = found.new_zeros(self.graph.num_queries, self.graph.num_keys)
        return whole.index_put((query, key), found)


@dataclass(eq=False)
class _Layer(LayerOutput):
    """A layer's attention, to be computed once more, a block at a time."""

    call: AttentionCall

    @classmethod
    def read(cls, reading: Reading) -> _Layer:
        """Read a call."""
        heads = list(range(reading.heads))
        call = parts(reading, heads)[0].attention
        return cls(heads, reading.queries.slots, call)

    @torch.no_grad()
    def relevance(self) -> Tensor:
        """Average over heads what of each edge raises the metric, (queries, keys)."""
        assert self.gradient is not None
        assert self.call.value is not None
        value = self.call.value[0]
        gradient = self.gradient.to(value)
        relevance = value.new_zeros(gradient.shape[1], value.shape[1])
        for block in tiles.row_blocks(self.call, scores=False):
            keys = list_keys(block.columns, value.device)
            slope = gradient[:, block.rows] @ value[:, keys].transpose(1, 2)
            relevance[block.rows, keys] = (slope * block.attention[0]).clamp_min(0).mean(0)
        return relevance
