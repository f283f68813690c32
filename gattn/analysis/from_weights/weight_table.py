"""Describes heads by their weights alone: one row per head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.analysis.from_weights.composition import centred, reading, scores, stream_notes, writing
from gattn.analysis.from_weights.head_weights import share
from gattn.analysis.heads.head_table import head_table
from gattn.analysis.reading.results import Table
from gattn.errors import CaptureError
from gattn.models.decompose.fixed_norms import inputs_replaced
from gattn.models.decompose.layer_weights import LayerWeights, layer_weights
from gattn.models.decompose.linear_runs import LinearRuns
from gattn.models.decompose.vocabulary import Vocabulary
from gattn.models.load.limits import longest
from gattn.models.run.capturing import capture
from gattn.models.run.editing import open_edits
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
          part, as do open edits, and each layer reads the embeddings;
        - ``copying``: the share of positive eigenvalues of the full OV circuit
          :math:`W_E W_{OV} W_U`, as in `HeadWeights.copying`; NaN where no logits are linear in
          the stream;
        - ``matching``: the same of the full QK circuit :math:`W_E W_{QK} W_E^\top`;
        - ``induction``: the K-composition (`gattn.compose`) with an earlier head, times the
          ``previous_token`` of that head: the largest such product. Induction heads read in a key
          what came before it, as a previous-token head writes it there. NaN in the first layer.

    Raises
    ------
    CaptureError, ModelError, SelectionError
        As in `gattn.compose`.

    References
    ----------
    Elhage et al. (2021), A mathematical framework for transformer circuits.
    """
    runs = LinearRuns(model, tokenizer, stack)
    layers, vocabulary = centred(runs, layer_weights(runs)), Vocabulary(runs)
    before = previous_tokens(runs, vocabulary).to(layers[0].query)
    notes, logits = stream_notes(runs), None
    try:
        logits = vocabulary.read_and_written
    except CaptureError as error:
        notes.append(f"no copying: {error}")
    rows = []
    for n, one in enumerate(walk(layers, "weights", "layer", progress=progress)):
        sides = reading(one)[1:2]
        read = [scores(writing(earlier), sides)[0] for earlier in layers[:n]]
        best = (torch.cat(read, dim=1) * before[:n].flatten()).amax(1) if n else None
        for head in range(len(one.query)):
            row = {"layer": one.layer, "head": head, "previous_token": float(before[n, head])}
            row["copying"] = _copying(one, head, logits)
            row["matching"] = share(one.key[head].T @ vocabulary.products @ one.query[head])
            row["induction"] = float("nan") if best is None else float(best[head])
            rows.append(row)
    return Table.of(
        rows,
        name="weights",
        computed_from=f"the weights of {runs.name}, {runs.stack} stack",
        notes=notes,
        index=("layer", "head"),
        edits=open_edits(runs.model),
    )


def _copying(layer: LayerWeights, head: int, logits: Tensor | None) -> float:
    """Return the share of positive eigenvalues of a full OV circuit."""
    if logits is None:
        return float("nan")
    return share(layer.output[head] @ logits @ layer.value[head])


def previous_tokens(runs: LinearRuns, vocabulary: Vocabulary) -> Tensor:
    """Return the mean attention to the token before where all are alike: (layers, heads)."""
    length = min(_LENGTH, longest(runs.model) or _LENGTH)
    streams: list[Tensor] = []

    def put_in(module: nn.Module, given: Tensor) -> Tensor:
        streams.append(given)
        return streams[0].to(given)

    inputs = runs.inputs(1, length)
    with (
        vocabulary.replaced(vocabulary.embeddings.mean(0)),
        inputs_replaced(dict.fromkeys(runs.modules), put_in),
    ):
        trace = capture(inputs, runs.model, runs.tokenizer)
    table = head_table(trace.stacks[runs.stack], progress=False)
    return torch.tensor(table["previous_token"].unstack("head").to_numpy(), device="cpu")
