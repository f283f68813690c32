"""Compares two surveys of the same texts, head by head, such as before and after an edit."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from gattn.analysis.reading.results import Table
from gattn.edit_records import between
from gattn.errors import SelectionError
from gattn.surveys.ask.definitions import definition_notes
from gattn.surveys.ask.resampling import mean_intervals, means, spreads
from gattn.surveys.ask.statistics import Scores, of_texts

Test: TypeAlias = Literal["wilcoxon", "t"]
Correction: TypeAlias = Literal["holm", "fdr"]

_TESTS = {"wilcoxon": "Wilcoxon's signed-rank test", "t": "paired t-test"}
_CORRECTIONS = {"holm": "Holm's correction", "fdr": "false discovery rate of Benjamini-Hochberg"}
_MOST_NAMED = 8
_ROUNDING = 1e-12
"""A spread below this share of the difference is rounding."""


class HeadComparison(Table):
    """The result of `compare_heads`: a `Table` whose pictures mark the heads that differ."""


def compare_heads(
    before: pd.DataFrame,
    after: pd.DataFrame,
    score: str,
    *,
    test: Test = "wilcoxon",
    correction: Correction = "holm",
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> HeadComparison:
    """Compare a score of two surveys, text by text, with one test per head.

    Parameters
    ----------
    before, after : DataFrame
        As `head_statistics` takes them, with the same heads. Texts are paired by ``text_id``.
    score : str
        The column of the score.
    test : {"wilcoxon", "t"}
        Wilcoxon's signed-rank test, or the paired t-test.
    correction : {"holm", "fdr"}
        How p is corrected for the number of heads: "holm" controls the risk that any head is
        found by chance, "fdr" (Benjamini and Hochberg) the share of such heads among those found.
    confidence, resamples, seed
        As in `head_statistics`, for the interval of the mean difference.

    Returns
    -------
    HeadComparison
        One row per head, by ``stack``, ``layer`` and ``head``, over texts that have the score in
        both, with

        - ``before``, ``after``: the means;
        - ``difference``: the mean of after - before, and its interval ``low``, ``high``;
        - ``effect_size``: ``difference`` divided by the standard deviation of after - before;
          infinite if all texts change alike, 0 if nothing changed;
        - ``p``, ``p_corrected``: 1 if nothing changed, NaN for fewer than two texts;
        - ``texts``: how many.

    Raises
    ------
    SelectionError
        If the heads differ, no text is in both, or there is no such test or correction.
    ShapeError
        As in `head_statistics`.

    References
    ----------
    Wilcoxon (1945), Individual comparisons by ranking methods. Holm (1979), A simple sequentially
    rejective multiple test procedure. Benjamini & Hochberg (1995), Controlling the false discovery
    rate.
    """
    _refuse_unknown("test", test, _TESTS)
    _refuse_unknown("correction", correction, _CORRECTIONS)
    sides = Scores.of(before, score), Scores.of(after, score)
    _refuse_other_heads(*sides)
    texts = sides[0].texts.intersection(sides[1].texts)
    if not len(texts):
        raise SelectionError(
            f"No text is in both surveys, of {len(sides[0].texts):,} and {len(sides[1].texts):,}: "
            "compare surveys of the same texts, with the same text_id."
        )
    places = sides[0].places
    one, other = (
        side.values[np.ix_(side.texts.get_indexer(texts), side.places.get_indexer(places))]
        for side in sides
    )
    change = other - one
    one[np.isnan(change)] = other[np.isnan(change)] = np.nan
    low, high = mean_intervals(change, confidence=confidence, resamples=resamples, seed=seed)
    difference = means(change)
    p = np.array([_p(column[~np.isnan(column)], test) for column in change.T])
    columns = {
        "before": means(one),
        "after": means(other),
        "difference": difference,
        "low": low,
        "high": high,
        "effect_size": _effect_sizes(difference, spreads(change)),
        "p": p,
        "p_corrected": _corrected(p, correction),
        "texts": (~np.isnan(change)).sum(0),
    }
    tested = int((~np.isnan(p)).sum())
    edits = between(*(side.edits for side in sides))
    return HeadComparison.of(
        pd.DataFrame(columns, index=places),
        name=score,
        computed_from=", ".join(filter(None, [f"after − before, {of_texts(len(texts))}", edits])),
        notes=[
            f"mean over texts, with its {confidence * 100:.3g} % interval",
            f"{_TESTS[test]}, {_CORRECTIONS[correction]} for {tested:,} heads",
            *definition_notes(score, *(side.definitions for side in sides)),
            *_left_out(*sides, len(texts)),
        ],
    )


def _refuse_unknown(what: str, name: str, known: dict[str, str]) -> None:
    if name not in known:
        raise SelectionError(
            f"{what} must be one of {', '.join(map(repr, known))}, not {name!r:.200}."
        )


def _refuse_other_heads(before: Scores, after: Scores) -> None:
    """Check that both surveys have the same heads."""
    lone = {
        "before": before.places.difference(after.places),
        "after": after.places.difference(before.places),
    }
    said = [
        f"only {side} has {', '.join(f'{stack} {n}.{m}' for stack, n, m in some[:_MOST_NAMED])}"
        + f" and {len(some) - _MOST_NAMED:,} more" * (len(some) > _MOST_NAMED)
        for side, some in lone.items()
        if len(some)
    ]
    if said:
        raise SelectionError(
            f"The two surveys have different heads: {'; '.join(said)}. Compare the heads that both "
            "have, as in heads[heads.layer < 6]."
        )


def _left_out(before: Scores, after: Scores, paired: int) -> list[str]:
    """Note the texts and scores that were left out."""
    alone = [len(side.texts) - paired for side in (before, after)]
    said = []
    if any(alone):
        said.append(f"texts left out: {alone[0]:,} only before, {alone[1]:,} only after")
    return [*said, *dict.fromkeys([*before.notes, *after.notes])]


def _p(change: NDArray[np.float64], test: Test) -> float:
    """Test whether changes differ from 0."""
    if len(change) < 2:
        return np.nan
    if not change.any():
        return 1.0
    if test == "wilcoxon":
        return float(stats.wilcoxon(change).pvalue)
    error = change.std(ddof=1) / len(change) ** 0.5
    size = np.divide(abs(change.mean()), error) if error > 0 else np.inf
    return float(2 * stats.t.sf(size, len(change) - 1))


def _effect_sizes(
    difference: NDArray[np.float64], spread: NDArray[np.float64]
) -> NDArray[np.float64]:
    spread = np.where(spread <= _ROUNDING * np.abs(difference), 0.0, spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((difference == 0) & (spread == 0), 0.0, difference / spread)


def _corrected(p: NDArray[np.float64], correction: Correction) -> NDArray[np.float64]:
    """Correct p for the number of tests; NaN is not a test."""
    corrected = np.full(len(p), np.nan)
    tested = ~np.isnan(p)
    if tested.any():
        correct = _holm if correction == "holm" else stats.false_discovery_control
        corrected[tested] = correct(p[tested])
    return corrected


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply the smallest p by the number of tests, the next by one less, and so on."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(steps, 1.0)
    return corrected
