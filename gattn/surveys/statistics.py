"""Statistics over a corpus: what each head does on average, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from gattn.analysis.results import Table, table
from gattn.errors import SelectionError
from gattn.surveys.resampling import mean_intervals, means, spreads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACE = ["stack", "layer", "head"]
_TEXT = "text_id"


class HeadStatistics(Table):
    """What `head_statistics` gives: a `Table` whose pictures have the intervals."""

    @property
    def _constructor(self) -> type[HeadStatistics]:
        return HeadStatistics

    def draw(
        self, kind: Literal["map", "ranked"] = "map", *, ax: Axes | None = None, **options: Any
    ) -> Axes:
        """Draw all heads as a map, or the largest ones ranked; see `gattn.drawing.intervals`."""
        from gattn.drawing.intervals import draw_statistics

        return draw_statistics(self, kind, ax=ax, **options)


def head_statistics(
    heads: pd.DataFrame,
    score: str,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> HeadStatistics:
    """Take a score's mean over texts, head by head, with a bootstrapped interval.

    Texts are resampled, the same ones for all heads, and intervals are bias-corrected and
    accelerated (BCa). Memory is some 30 bytes a text and head.

    Parameters
    ----------
    heads : DataFrame
        One row a text and head, with ``text_id``, ``stack``, ``layer``, ``head`` and scores: a
        survey's ``heads``. NaN says that there is no such score in that text.
    score : str
        The column of the score.
    confidence : float
        How often such an interval holds the true mean, between 0 and 1.
    resamples : int
        How many times to resample.
    seed : int
        What the resamples are drawn from.

    Returns
    -------
    HeadStatistics
        One row a head, by ``stack``, ``layer`` and ``head``, with

        - ``mean``, and ``spread``, the sample standard deviation (NaN of one text);
        - ``low`` and ``high``, the interval of the mean: NaN of one text, a point where the score
          is the same in all texts;
        - ``texts``: how many have the score.

    Raises
    ------
    SelectionError
        Where a column is missing or holds no numbers, or a text has a head twice.
    ShapeError
        Where the confidence is none, or there are less than 100 resamples.

    References
    ----------
    Efron (1987), Better bootstrap confidence intervals.
    """
    scores = Scores.of(heads, score)
    low, high = mean_intervals(scores.values, confidence=confidence, resamples=resamples, seed=seed)
    columns = {
        "mean": means(scores.values),
        "spread": spreads(scores.values),
        "low": low,
        "high": high,
        "texts": (~np.isnan(scores.values)).sum(0),
    }
    made = HeadStatistics(pd.DataFrame(columns, index=scores.places))
    made.attrs = table(
        (),
        name=score,
        computed_from=f"{len(scores.texts):,} text" + "s" * (len(scores.texts) != 1),
        notes=[f"mean over texts, with its {confidence * 100:.3g} % interval", *scores.notes],
    ).attrs
    return made


@dataclass(frozen=True, eq=False)
class Scores:
    """One score of many texts and heads.

    Parameters
    ----------
    values : array (texts, heads)
        The score; NaN where there is none.
    texts : Index
        The texts' ``text_id``.
    places : MultiIndex
        The heads, by ``stack``, ``layer`` and ``head``, sorted.
    notes : sequence of str
        What was left out.
    """

    values: NDArray[np.float64]
    texts: pd.Index[Any]
    places: pd.MultiIndex
    notes: Sequence[str]

    @classmethod
    def of(cls, heads: pd.DataFrame, score: str) -> Scores:
        """Spread a table's rows over texts and heads."""
        rows = _columns(heads, score)
        row, texts = pd.factorize(rows[_TEXT], sort=True, use_na_sentinel=False)
        grouped = rows.groupby(PLACE, observed=True, dropna=False)
        known = [(str(stack), int(n), int(m)) for stack, n, m in grouped.size().index]
        found = sorted(known)
        column = np.array([found.index(place) for place in known], int)[grouped.ngroup()]
        shape = (len(texts), len(found))
        _refuse_twice(rows, row * shape[1] + column, shape)
        values = np.full(shape, np.nan)
        values[row, column] = rows[score].to_numpy(dtype=np.float64, na_value=np.nan)
        infinite = np.isinf(values)
        values[infinite] = np.nan
        left = int(infinite.sum())
        notes = [f"infinite scores left out: {left:,}"] if left else []
        places = pd.MultiIndex.from_tuples(found, names=PLACE) if found else _NO_PLACES
        return cls(values, pd.Index(texts), places, notes)


_NO_PLACES = pd.MultiIndex.from_arrays([[], [], []], names=PLACE)


def _columns(heads: pd.DataFrame, score: str) -> pd.DataFrame:
    """Choose the columns that are read, those of the index among them."""
    needed = [_TEXT, *PLACE, score]
    if {_TEXT, *PLACE} & set(heads.index.names):
        heads = heads.reset_index()
    known = [str(name) for name in heads.columns]
    missing = [name for name in needed if name not in known]
    if missing or score in needed[:-1]:
        some = ", ".join(map(repr, known))
        raise SelectionError(
            f"heads needs the columns {_TEXT}, {', '.join(PLACE)} and one of a score, here "
            f"{score!r:.200}; it has {some:.1000}. Give a survey's heads, or tables of "
            "gattn.analysis.head_table with a column text_id each."
        )
    chosen = heads[needed]
    if chosen.shape[1] != len(needed) or not is_numeric_dtype(chosen[score]):
        raise SelectionError(
            f"The score {score!r:.200} is one column of numbers, not "
            f"{', '.join(map(str, chosen.dtypes.tolist()[4:])):.200}; choose another column."
        )
    return chosen


def _refuse_twice(rows: pd.DataFrame, place: NDArray[np.int64], shape: tuple[int, int]) -> None:
    seen = np.zeros(shape[0] * shape[1], dtype=bool)
    seen[place] = True
    if int(seen.sum()) < len(place):
        twice = rows.loc[rows.duplicated([_TEXT, *PLACE]), [_TEXT, *PLACE]].iloc[0].to_dict()
        raise SelectionError(
            f"A text has one row a head; {twice!r:.300} has several. Number each text by a "
            "text_id of its own."
        )
