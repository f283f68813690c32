"""Describes heads by their weights alone: one row per head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.analysis.from_weights.composition import centred, stream_notes
from gattn.analysis.from_weights.head_weights import share
from gattn.analysis.heads.head_table import head_table
from gattn.analysis.reading.results import Table
from gattn.models.load.loading import input_device
from gattn.models.run.capturing import capture
from gattn.models.stream.fixed_norms import inputs_replaced, outputs_replaced
from gattn.models.stream.layer_weights import LayerWeights, layer_weights
from gattn.models.stream.linear_runs import LinearRuns
from gattn.models.stream.vocabulary import Vocabulary
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_LENGTH = 32


def weight_table(
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    stack: str | None = None,
    progress: bool = True,
) -> Table:
    r"""Describe every head by its weights: what it would do on any text.

    Parameters
    ----------
    model, tokenizer, stack
        As in `gattn.compose`.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per head, by ``layer`` and ``head``, with

        - ``previous_token``: the mean attention to the token before where all tokens are alike, 32
          of the mean embedding: what positions alone do. The model's own norms and positions take
          part, and each layer reads the embeddings;
        - ``copying``: the share of positive eigenvalues of the full OV circuit
          :math:`W_E W_{OV} W_U`, as in `HeadWeights.copying`; NaN if the model has no linear logits;
        - ``matching``: the same of the full QK circuit :math:`W_E W_{QK} W_E^\top`;
        - ``induction``: ``matching`` where the keys are read through the OV circuit of the head of
          an earlier layer with the highest ``previous_token``, times that number; NaN in the first
          layer.

    Raises
    ------
    CaptureError, ModelError, SelectionError
        As in `gattn.compose`.

    References
    ----------
    Elhage et al. (2021), A mathematical framework for transformer circuits.
    """
    runs = LinearRuns(model, tokenizer, stack)
    layers, vocabulary = centred(layer_weights(runs)), Vocabulary(runs)
    before = previous_tokens(runs)
    logits = vocabulary.read_and_written if runs.has_logits else None
    rows, best, writer = [], float("nan"), None
    for one in walk(layers, "weights", "layer", progress=progress):
        for head in range(len(one.query)):
            row = {"layer": one.layer, "head": head, "previous_token": before[one.layer, head]}
            row["copying"] = _copying(one, head, logits)
            row["matching"] = _matching(one, head, vocabulary.products)
            row["induction"] = best * _matching(one, head, vocabulary.products, writer)
            rows.append(row)
        strongest = max(range(len(one.query)), key=lambda head: before[one.layer, head])
        if writer is None or before[one.layer, strongest] > best:
            best = before[one.layer, strongest]
            writer = one.value[strongest], one.output[strongest]
    return Table.of(
        rows,
        name="weights",
        computed_from=f"the weights of {runs.name}, {runs.stack} stack",
        notes=stream_notes(runs),
        index=("layer", "head"),
    )


def _copying(layer: LayerWeights, head: int, logits: Tensor | None) -> float:
    """Return the share of positive eigenvalues of a full OV circuit."""
    if logits is None:
        return float("nan")
    return share(layer.output[head] @ logits @ layer.value[head])


def _matching(
    layer: LayerWeights, head: int, products: Tensor, writer: tuple[Tensor, Tensor] | None = None
) -> float:
    """Return the share of positive eigenvalues of a full QK circuit, its keys those of a writer."""
    key = layer.key[head]
    if writer is not None:
        value, output = writer
        key = value @ (output @ key)
    return share(key.T @ products @ layer.query[head])


def previous_tokens(runs: LinearRuns) -> dict[tuple[int, int], float]:
    """Return each head's mean attention to the token before, where all tokens are alike."""
    embedding = runs.model.get_input_embeddings()
    known = getattr(runs.model.config.get_text_config(), "max_position_embeddings", None)
    length = min(_LENGTH, known or _LENGTH)
    streams: list[Tensor] = []

    def put_in(module: nn.Module, given: Tensor) -> Tensor:
        streams.append(given)
        return streams[0].to(given)

    inputs = runs.inputs(1, length)
    with torch.no_grad():
        ids = torch.arange(len(embedding.weight), device=input_device(runs.model))
        mean = embedding(ids).mean(0)
    with (
        outputs_replaced(embedding, lambda given: mean.expand_as(given)),
        inputs_replaced(dict.fromkeys(runs.modules), put_in),
    ):
        trace = capture(inputs, runs.model, runs.tokenizer)
    table = head_table(trace.stacks[runs.stack], progress=False)
    numbers = table["previous_token"].to_numpy()
    layers, heads = (table.index.get_level_values(name) for name in ("layer", "head"))
    return dict(zip(zip(layers, heads, strict=True), numbers.tolist(), strict=True))
