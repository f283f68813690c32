"""Estimates the effect of cutting each edge, for all edges from one backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.models.effects.cutting import CutEdges, CutOutputs, read_cuts
from gattn.models.effects.effect import told_edits
from gattn.models.effects.effect_tables import Effects
from gattn.models.effects.gradients import Backward, Outputs
from gattn.models.effects.metrics import Metric, Position, Token
from gattn.models.effects.sampling import ONLY, Sample
from gattn.models.effects.stack_names import texts_of
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.run.capturing import capturing
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming, Tokens
from gattn.names.choices import Chosen, HeadChoice, LayerChoice

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def estimate(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric | None = None,
    position: Position = None,
    target: Token = None,
    other: Token = None,
    keep: Keep | None = None,
    layers: LayerChoice = None,
    heads: HeadChoice = None,
    renormalize: bool = True,
    steps: int = 1,
    sample: int = 50,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Effects:
    r"""Estimate what cutting each kept edge changes in a model's answer, from few backward passes.

    With :math:`g_i = \partial\,\text{metric} / \partial o_i` at the head's output :math:`o_i` of
    query i, the estimate is :math:`\langle g_i, \Delta o_i \rangle`, where
    :math:`\Delta o_i = \frac{A_{ij}}{1 - A_{ij}} (o_i - v_j)` is the exact change of the output,
    with a sink too, or :math:`-A_{ij} v_j` if the other edges do not share out what the cut edge
    had. Cutting a query's only edge leaves zero: :math:`\Delta o_i = -o_i`. Only the effect on
    later layers is approximated, to first order, from one backward pass. Where a model shows its
    attention, but not its values, :math:`\langle g_i, v_j \rangle` is the gradient at the attention
    :math:`A_{ij}`.

    The gradient of "kl" is zero at the plain model, so that is estimated to second order: as
    :math:`\frac12 \sum_t p_t \langle \partial \ln p_t / \partial o_i, \Delta o_i \rangle^2` over
    the 9 likeliest tokens t and all others together, from ten backward passes for each position.
    The others only share their part, so it is a lower bound of the second-order term, which is
    half of :math:`\delta^T (\text{diag}(p) - p p^T)\, \delta` for the change δ of the logits.

    Parameters
    ----------
    text, model, tokenizer
        As in `effect`; a function must call the model once, on one sequence, with gradients.
    metric, position, target, other
        As in `effect`, but there must be a `metric`, a `target`, or a number that a function
        returns. Functions must be made of torch's operations.
    keep, layers, heads
        Which edges, as in `capture`.
    renormalize : bool
        Which cut: that of ``Cut(renormalize=True)``, or of ``Cut(renormalize=False)``.
    steps : int
        At how many points gradients are taken and averaged: with 1 of the plain model, with more
        also of the model with only a share 1 - n / `steps` of what its heads (of the chosen layers)
        give, n = 1, 2, ..., on the way to the model without edges. On the embedded model such
        estimates tell single edges apart less well than those of one step, and mostly find better
        sets of edges for a logit difference.
    sample : int
        For how many edges the exact effect is measured too, by running the model with them cut,
        to show how good the estimates are. Half of an edge's probability of being drawn is the
        same for all edges, half is proportional to the size of its estimate, so that large ones
        are included. If cuts renormalize, the effect of each query's only edge (A = 1), for which
        a first-order estimate is poor, is measured as well; and that of cutting the largest 1, 5
        and 20 % of the estimates together, since effects of single edges do not add up. 0 measures
        none.
    seed : int
        Seed for drawing the sample.
    batch_size, progress
        As in `effect`, for these runs.
    tokens, grid
        The tokens' texts, which the table shows, and where patches lie, as in `capturing`.

    Returns
    -------
    Effects
        A `pandas.DataFrame` that draws itself, one row per edge: ``stack``, ``layer``, ``head``,
        ``query``, ``key``, ``query_token``, ``key_token``, ``attention``, ``estimate``;
        ``effect``, the exact effect, NaN if it was not measured; and ``sampled``, whether it was
        drawn. ``attrs["correlation"]`` (Pearson), ``attrs["rank_correlation"]`` (Spearman) and
        ``attrs["size_correlation"]`` (Spearman, of sizes) compare estimates with effects on the
        sample. Where a query's attention is mostly on one edge, cutting it is no small change, and
        its estimate may even have the wrong sign.
        ``attrs["sets"]`` compares the estimate for many edges cut together (the sum, but for "kl")
        with the effect, and ``attrs["notes"]`` tell of the largest set in which these differ by
        more than 20 %, or that no effect was measured; pictures show the notes.

    Raises
    ------
    SelectionError
        If there is no such metric, position, token, layer or head; or for "kl" with several steps.
    ModelError
        If the model gives no logits; as `capture` and `effect` do.
    EditError
        Within `edited`, where a layer is edited itself.
    CaptureError
        As `capture` does; also where gradients are infinite or NaN.
    ContractError
        If the metric has no gradient.

    References
    ----------
    Nanda (2023), Attribution patching. Geva et al. (2023), Dissecting recall of factual
    associations: attention knockout. Hanna et al. (2024), Have faith in faithfulness: integrated
    gradients (steps). Schraudolph (2002), Fast curvature matrix-vector products: Gauss and Newton's
    approximation of the second order.
    """
    sample = whole("sample, a number of edges,", sample, 0, SelectionError)
    steps = whole("steps", steps, 1, SelectionError)
    if metric == "kl" and steps > 1:
        raise SelectionError(
            "metric='kl' is estimated to second order at the plain model: leave out steps=."
        )
    chosen = Chosen.of(layers, heads)
    naming = Naming(tokens, grid)
    backward = Backward(text, model, tokenizer, metric, position, target, other, naming)
    runner = backward.runner

    def read(reading: Reading, place: Place) -> CutOutputs | CutEdges:
        some = chosen.in_layer(place.layer, reading.heads)
        return read_cuts(reading, some, renormalize, f"Layer {place.layer} of {place.stack!r}")

    outputs = Outputs(read, lambda place: chosen.has_layer(place.layer))
    chosen_edges: dict[str, Any] = {"keep": keep, "layers": layers, "heads": heads}
    with capturing(runner.model, runner.tokenizer, **chosen_edges, tokens=tokens, grid=grid) as run:
        run.encodings = runner.prompt.encodings
        slopes = backward.run(outputs)
    changes = _changes(run.trace, outputs, slopes)
    for step in range(1, steps):
        scaled = Outputs(
            lambda _, place: outputs.found[place.stack, place.layer],
            outputs.wants,
            1 - step / steps,
        )
        changes += _changes(run.trace, scaled, backward.run(scaled))
    changes /= steps
    table = Effects(_table(run.trace, backward.measure.combined(changes)))
    table.attrs = (
        backward.measure.facts | {"tokens": texts_of(run.trace)} | told_edits(runner.model)
    )
    exact = Sample(runner, backward.measure, renormalize, batch_size, progress)
    exact.add_effects(table, changes, sample, seed)
    return table


def _changes(
    trace: AttentionTrace, outputs: Outputs[CutOutputs | CutEdges], slopes: Sequence[Tensor]
) -> NDArray[np.float64]:
    """Return how cutting each kept edge changes each number, (slopes, edges)."""
    found = []
    for slope in slopes:
        layers = outputs.differentiate(slope, again=slope is not slopes[-1])
        found.append([layers[name, g.layer or 0].estimates(g) for name, g in _heads(trace)])
    return np.stack([torch.cat(some).double().numpy() for some in found])


def _heads(trace: AttentionTrace) -> Iterator[tuple[str, AttentionGraph]]:
    """List all heads with their stacks."""
    for name, stack in trace.stacks.items():
        for graph in stack.values():
            yield name, graph


def _table(trace: AttentionTrace, estimates: NDArray[np.float64]) -> pd.DataFrame:
    """Make one row per kept edge."""
    import pandas as pd

    table = pd.concat([_rows(*head) for head in _heads(trace)], ignore_index=True)
    table["estimate"] = estimates
    return table


def _rows(stack: str, graph: AttentionGraph) -> pd.DataFrame:
    import pandas as pd

    offset = 0 if graph.graph.is_bipartite else graph.graph.query_offset
    return pd.DataFrame(
        {
            "stack": stack,
            "layer": graph.layer,
            "head": graph.head,
            "query": graph.query + offset,
            "key": graph.key,
            "query_token": np.array(graph.query_labels(), dtype=object)[graph.query],
            "key_token": np.array(graph.labels(), dtype=object)[graph.key],
            "attention": graph.attention,
            "estimate": 0.0,
            "effect": np.nan,
            "sampled": False,
            ONLY: (graph.total_edges[graph.query] == 1) & (graph.sink is None),
        }
    )
