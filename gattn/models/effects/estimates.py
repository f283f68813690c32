"""Estimates the effect of cutting each edge, for all edges from one backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.models.edit.edges import Cut
from gattn.models.effects.cutting import CutEdges, CutOutputs, read_cuts
from gattn.models.effects.effect import measured, told_edits
from gattn.models.effects.effect_tables import Effects
from gattn.models.effects.gradients import Backward, Outputs
from gattn.models.effects.metrics import Measure, Metric, Position, Token
from gattn.models.effects.runner import Runner
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.run.capturing import capturing
from gattn.models.run.functions import Runnable
from gattn.models.run.naming import Naming, Tokens
from gattn.names.choices import Chosen, HeadChoice, LayerChoice

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_ONLY = "is_only"


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
    sample: int = 50,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
) -> Effects:
    r"""Estimate what cutting each kept edge changes in a model's answer, from one backward pass.

    With :math:`g_i = \partial\,\text{metric} / \partial o_i` at the head's output :math:`o_i` of
    query i, the estimate is :math:`\langle g_i, \Delta o_i \rangle`, where
    :math:`\Delta o_i = \frac{A_{ij}}{1 - A_{ij}} (o_i - v_j)` is the exact change of the output,
    with a sink too, or :math:`-A_{ij} v_j` if the other edges do not share out what the cut edge
    had. Cutting a query's only edge leaves zero: :math:`\Delta o_i = -o_i`. Only the effect on
    later layers is approximated, to first order. Where a model shows its attention, but not its
    values, :math:`\langle g_i, v_j \rangle` is the gradient at the attention :math:`A_{ij}`.

    Parameters
    ----------
    text, model, tokenizer
        As in `effect`; a function must call the model once, on one sequence, with gradients.
    metric, position, target, other
        As in `effect`, but for "kl": at the plain model its gradient is zero. The default is
        "logit_difference", or the number that a function returns. Functions must be made of
        torch's operations.
    keep, layers, heads
        Which edges, as in `capture`.
    renormalize : bool
        Which cut: that of ``Cut(renormalize=True)``, or of ``Cut(renormalize=False)``.
    sample : int
        For how many edges the exact effect is measured too, by running the model with them cut,
        to show how good the estimates are. Half of an edge's probability of being drawn is the
        same for all edges, half is proportional to the size of its estimate, so that large ones
        are included. If cuts renormalize, the effect of each query's only edge (A = 1), for which
        a first-order estimate is poor, is measured as well. 0 measures none.
    seed : int
        Seed for drawing the sample.
    batch_size, progress
        As in `effect`, for these runs.
    tokens : sequence of str, or mapping of str to sequence of str, optional
        The tokens' texts, which the table shows, as in `capturing`.

    Returns
    -------
    Effects
        A `pandas.DataFrame` that draws itself, one row per edge: ``stack``, ``layer``, ``head``,
        ``query``, ``key``, ``query_token``, ``key_token``, ``attention``, ``estimate``;
        ``effect``, the exact effect, NaN if it was not measured; and ``sampled``, whether it was
        drawn. ``attrs["correlation"]`` (Pearson) and
        ``attrs["rank_correlation"]`` (Spearman) compare estimates with effects on the sample.

    Raises
    ------
    SelectionError
        If the metric is "kl", or there is no such metric, position, token, layer or head.
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
    associations: attention knockout.
    """
    sample = whole("sample, a number of edges,", sample, 0, SelectionError)
    chosen = Chosen.of(layers, heads)
    backward = Backward(text, model, tokenizer, metric, position, target, other)
    runner = backward.runner
    runner.naming = Naming(tokens)

    def read(reading: Reading, place: Place) -> CutOutputs | CutEdges:
        some = chosen.in_layer(place.layer, reading.heads)
        return read_cuts(reading, some, renormalize, f"Layer {place.layer} of {place.stack!r}")

    outputs = Outputs(read, lambda place: chosen.has_layer(place.layer))
    with capturing(
        runner.model, runner.tokenizer, keep=keep, layers=layers, heads=heads, tokens=tokens
    ) as run:
        run.encodings = runner.prompt.encodings
        number = backward.run(outputs)
    table = Effects(_table(run.trace, outputs.differentiate(number)))
    facts = {"metric": str(backward.measure), "tokens": runner.tokens}
    table.attrs = facts | told_edits(runner.model)
    _add_effects(table, runner, backward.measure, renormalize, sample, seed, batch_size, progress)
    return table


def _table(
    trace: AttentionTrace, layers: Mapping[tuple[str, int], CutOutputs | CutEdges]
) -> pd.DataFrame:
    """Make one row per kept edge."""
    import pandas as pd

    tables = [
        _rows(name, graph, layers[name, layer])
        for name, stack in trace.stacks.items()
        for (layer, _), graph in stack.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _rows(stack: str, graph: AttentionGraph, layer: CutOutputs | CutEdges) -> pd.DataFrame:
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
            "estimate": layer.estimates(graph).double().numpy(),
            "effect": np.nan,
            "sampled": False,
            _ONLY: (graph.total_edges[graph.query] == 1) & (graph.sink is None),
        }
    )


def _add_effects(
    table: pd.DataFrame,
    runner: Runner,
    measure: Measure,
    renormalize: bool,
    sample: int,
    seed: int,
    batch_size: int | None,
    progress: bool,
) -> None:
    """Measure the exact effects of a sample of edges, and compare."""
    drawn = _drawn(table["estimate"].to_numpy(), sample, seed)
    chosen = drawn | (table.pop(_ONLY).to_numpy() & renormalize & (sample > 0))
    table["sampled"] = drawn
    places = table.loc[chosen, ["stack", "layer", "head", "query", "key"]]
    cuts = [
        [Cut(layer, head, query, key, renormalize=renormalize, stack=stack)]
        for stack, layer, head, query, key in places.itertuples(index=False)
    ]
    if cuts:
        plain, edited = measured(runner, measure, cuts, batch_size, progress)
        table.loc[chosen, "effect"] = edited - plain
    pairs = table.loc[drawn, ["estimate", "effect"]].to_numpy().T
    table.attrs |= _correlations(*pairs)


def _drawn(estimates: NDArray[np.float64], sample: int, seed: int) -> NDArray[np.bool_]:
    drawn = np.zeros(len(estimates), dtype=bool)
    if not sample or not len(estimates):
        return drawn
    even = np.full(len(estimates), 1 / len(estimates))
    sizes = np.abs(estimates)
    chance = (even + sizes / sizes.sum()) / 2 if sizes.any() else even
    count = min(sample, len(estimates))
    drawn[np.random.default_rng(seed).choice(len(drawn), count, replace=False, p=chance)] = True
    return drawn


def _correlations(estimates: NDArray[np.float64], effects: NDArray[np.float64]) -> dict[str, float]:
    from scipy import stats

    if len(estimates) < 2 or not np.ptp(estimates) or not np.ptp(effects):
        return {"correlation": np.nan, "rank_correlation": np.nan}
    return {
        "correlation": float(stats.pearsonr(estimates, effects).statistic),
        "rank_correlation": float(stats.spearmanr(estimates, effects).statistic),
    }
