"""How far rankings agree with the exact effects of single cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

from gattn.analysis.faithfulness.edge_rankings import Ranking
from gattn.analysis.faithfulness.experiment import ANY_ANSWER, CutOptions, Experiment
from gattn.analysis.faithfulness.rankings import check_edits
from gattn.analysis.faithfulness.token_rankings import Scores
from gattn.analysis.reading.results import Table
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.heads.head import Ints
from gattn.models.run.functions import Runnable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


_RESAMPLES = 1000
_LEAST = 3
"""The fewest effects that can be correlated."""


class Agreement(Table):
    """How rankings correlate with effects: one row per ranking."""


def rank_agreement(
    rankings: Ranking | Mapping[str, Ranking],
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    sample: int = 200,
    effects: pd.DataFrame | None = None,
    **options: Unpack[CutOptions],
) -> Agreement:
    r"""Correlate rankings with the exact effects of single cuts.

    Spearman's correlation is Pearson's of the ranks. It is taken of sizes,
    :math:`\rho(|r|, |e|)`: does the ranking say what matters? And with signs,
    :math:`\rho(r, -e)`, or :math:`\rho(r, e)` for a loss: does it say what raises the metric, and
    what lowers it?

    Parameters
    ----------
    rankings, text, model, tokenizer, **options
        As in `deletion_curve`.
    sample : int
        For how many edges or tokens, drawn uniformly, the effect is computed; for all if there are
        no more.
    effects : DataFrame, optional
        Known effects: a table of `gattn.effect`, or of `gattn.estimate` with its sample. Then no
        others are computed, and the metric is that of the table.

    Returns
    -------
    Table
        By ``ranking``: ``correlation`` of sizes; ``low`` and ``high``, its bootstrapped 95 %
        interval; ``p_value``, if they were uncorrelated; ``signed_correlation``, NaN if no cut
        lowers the metric, as with a divergence; and ``number`` of effects. NaN if all are equal.

    Raises
    ------
    SelectionError
        As `deletion_curve` does; also if `effects` holds fewer than three of what is ranked, or
        one twice.
    ShapeError, CaptureError, ModelError, ContractError
        As `deletion_curve` does.

    References
    ----------
    Abnar and Zuidema (2020), Quantifying attention flow in transformers, compare rollout and flow
    with ablations this way. Jain and Wallace (2019), Attention is not explanation.
    """
    whole("sample", sample, _LEAST, SelectionError)
    if effects is not None:
        options = options | ANY_ANSWER  # nothing is measured
    test = Experiment(rankings, text, model, tokenizer, **options)
    ranked = test.ranked
    some, known = _sampled(test, sample) if effects is None else _known(test, effects)
    if len(some) < _LEAST:
        raise SelectionError(
            f"There are {len(some)} effects of what is ranked; a correlation needs at least three."
        )
    is_cost = bool((test.facts_of_metric if effects is None else effects.attrs).get("is_cost"))
    rows = [
        {"ranking": name, **_correlations(scores[some], known, test.generator, is_cost)}
        for name, scores in ranked.scores.items()
    ]
    made = Agreement(rows).set_index("ranking")
    part = "" if len(some) == len(ranked) else f" of {len(ranked)}"
    metric = test.metric if effects is None else "known effects"
    notes = [f"effects of {len(some)}{part} {ranked.unit}s"]
    made.attrs = test.facts("rank agreement", metric, notes)
    return made


def _sampled(test: Experiment, sample: int) -> tuple[Ints, Scores]:
    """Draw some of what is ranked, and measure the effect of cutting each."""
    count = min(sample, len(test.ranked))
    some = np.sort(test.generator.choice(len(test.ranked), count, replace=False))
    cuts = [[test.ranked.cut(int(n), test.renormalize)] for n in some]
    plain, edited = test.measured(cuts, "fewer: sample=")
    return some, edited - plain


def _known(test: Experiment, effects: pd.DataFrame) -> tuple[Ints, Scores]:
    """Find in a table what is ranked, and its effects."""
    check_edits({"effects": effects}, test.edits, "The table")
    needed = {"layer", "head", "query", "key", "effect"}
    if not isinstance(effects, pd.DataFrame) or not needed <= set(effects.columns):
        raise SelectionError(
            "effects is a table of gattn.effect or gattn.estimate, with the columns layer, head, "
            f"query, key and effect, not {type(effects).__name__}."
        )
    every = test.ranked.effects(effects)
    some = np.flatnonzero(~np.isnan(every))
    return some, every[some]


def _correlations(
    scores: Scores, effects: Scores, generator: np.random.Generator, is_cost: bool
) -> dict[str, float]:
    """Correlate one ranking; what it leaves out ranks last."""
    sizes = np.where(np.isnan(scores), -1.0, np.abs(scores))
    low = high = p_value = correlation = signed = np.nan
    if np.ptp(sizes) and np.ptp(np.abs(effects)):
        result = spearmanr(sizes, np.abs(effects))
        correlation, p_value = float(result.statistic), float(result.pvalue)
        low, high = _interval(sizes, np.abs(effects), generator)
    least = np.where(np.isnan(scores), -np.finfo(np.float64).max, scores)
    if np.ptp(rankdata(least)) and np.ptp(effects) and effects.min() < 0:
        signed = float(spearmanr(least, effects if is_cost else -effects).statistic)
    return {
        "correlation": correlation,
        "low": low,
        "high": high,
        "p_value": p_value,
        "signed_correlation": signed,
        "number": len(effects),
    }


def _interval(one: Scores, other: Scores, generator: np.random.Generator) -> tuple[float, float]:
    """Bootstrap a 95 % interval of Spearman's correlation."""
    drawn: NDArray[np.int64] = generator.integers(len(one), size=(_RESAMPLES, len(one)))
    ranks = [rankdata(values[drawn], axis=1) for values in (one, other)]
    x, y = (some - some.mean(1, keepdims=True) for some in ranks)
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    found = (x * y).sum(1)[scale > 0] / scale[scale > 0]
    if not len(found):
        return np.nan, np.nan
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
