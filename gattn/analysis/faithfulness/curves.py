"""Deletion and insertion curves: the answer as what a ranking puts first is cut, or restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from gattn.analysis.faithfulness.edge_rankings import Ranking
from gattn.analysis.faithfulness.edge_sets import EdgeSet
from gattn.analysis.faithfulness.experiment import CutOptions, Experiment
from gattn.analysis.faithfulness.rankings import order
from gattn.analysis.faithfulness.token_rankings import TokenSet
from gattn.analysis.reading.results import Table
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.heads.head import Ints
from gattn.models.edit.base import Edit
from gattn.models.run.functions import Runnable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_BASELINE = "random"
_OTHER_COLUMNS = {"share", "count", _BASELINE, "random_low", "random_high"}


class Curves(Table):
    """A metric as more and more is cut or restored: one column per ranking.

    ``attrs["area"]`` has the area under each curve.
    """


def deletion_curve(
    rankings: Ranking | Mapping[str, Ranking],
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    steps: int | Sequence[float] = 20,
    random: int = 5,
    **options: Unpack[CutOptions],
) -> Curves:
    """Cut more and more edges or tokens from the top of a ranking, running the model each time.

    Whatever at least one of the rankings ranks may be cut: edges of single heads; or tokens, which
    lose all their edges to queries, including their own, in all layers and heads. What a ranking
    leaves out comes last in it; ties come in random order.

    Parameters
    ----------
    rankings : ranking, or mapping of str to ranking
        One ranking, or several by name. Edges are ranked by a trace, a stack or a head, by their
        attention; by an array with the axes (layer, head, query, key), where without a layer or
        head axis an edge ranks the same in all of them, or only in the one that was selected; by a
        table of `gattn.estimate` or `gattn.effect`, by how far the metric falls when the edge is
        cut, or a divergence or a loss rises; by `gattn.analysis.routes`, by the strength of the
        paths over it. Tokens are ranked by one number each, such as ``rollout(trace).sel(layer=3,
        query=7)``; a Series is read by its index, the tokens' positions. If a ranking names its
        tokens, they must be the text's.
    text, model, tokenizer
        As in `gattn.capture`.
    steps : int or sequence of float
        The number of steps, or the shares of what may be cut after which to run, from 0 to 1.
    random : int
        How many random orders to try for comparison.
    **options
        What is measured: ``metric="kl"``, ``position=``, ``target=``, ``other=``,
        ``batch_size=`` and ``progress=True``, as in `gattn.effect`; which cut,
        ``renormalize=True``, as in `gattn.Cut`; ``stack=``, if the model has several;
        ``tokens=`` and ``grid=``, as in `gattn.capturing`; and ``seed=0``, which seeds what is
        random. The estimated time is printed first.

    Returns
    -------
    Table
        By ``share`` of what was cut: ``count``; the metric under each ranking; and, under random
        orders, its mean ``random``, minimum ``random_low`` and maximum ``random_high``.
        ``attrs["area"]`` is the area under each curve. The curve of a faithful ranking leaves the
        plain model's value quickly.

    Raises
    ------
    SelectionError
        If rankings do not fit the text, are of another text, or rank nothing; if some rank edges
        and others tokens; or if `steps`, `random` or `seed` is not such a number.
    ShapeError
        If an array ranks neither edges nor tokens.
    CaptureError, ModelError, ContractError
        As `gattn.effect` does.

    References
    ----------
    Samek et al. (2017), Evaluating the visualization of what a deep neural network has learned.
    Petsiuk et al. (2018), RISE: deletion and insertion.
    """
    test = Experiment(rankings, text, model, tokenizer, **options)
    return _curves(test, steps, random, inserts=False)


def insertion_curve(
    rankings: Ranking | Mapping[str, Ranking],
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    steps: int | Sequence[float] = 20,
    random: int = 5,
    **options: Unpack[CutOptions],
) -> Curves:
    """Cut everything that is ranked, and restore it from the top; see `deletion_curve`.

    Parameters
    ----------
    rankings, text, model, tokenizer, steps, random, **options
        As in `deletion_curve`.

    Returns
    -------
    Table
        As `deletion_curve`, by ``share`` of what was restored. The curve of a faithful ranking
        returns to the plain model's value quickly.

    Raises
    ------
    SelectionError, ShapeError
        As `deletion_curve` does.
    """
    test = Experiment(rankings, text, model, tokenizer, **options)
    return _curves(test, steps, random, inserts=True)


def _curves(
    test: Experiment, steps: int | Sequence[float], random: int, *, inserts: bool
) -> Curves:
    """Run the model along each ranking, and along random orders."""
    shares = _shares(steps)
    whole("random", random, 0, SelectionError)
    ranked, names = test.ranked, list(test.ranked.scores)
    if taken := _OTHER_COLUMNS.intersection(names):
        raise SelectionError(f"Give the ranking {min(taken)!r} another name.")
    counts = np.rint(shares * len(ranked)).astype(np.int64)
    orders = [order(scores, ranked.units, test.generator) for scores in ranked.scores.values()]
    orders += [test.generator.permutation(len(ranked)) for _ in range(random)]
    runs = _Runs(ranked, orders, counts, inserts, test.renormalize)
    values = runs.values(*test.measured(runs, "fewer: steps=, random="))
    columns: dict[str, Any] = {"share": shares, "count": counts}
    columns |= dict(zip(names, values, strict=False))
    if random:
        baseline = values[len(names) :]
        columns[_BASELINE] = baseline.mean(0)
        columns |= {"random_low": baseline.min(0), "random_high": baseline.max(0)}
        names.append(_BASELINE)
    notes = [f"{len(ranked):,} {ranked.unit}s {'restored' if inserts else 'cut'}"]
    notes += [] if test.renormalize else ["cut after normalizing"]
    name = f"{'insertion' if inserts else 'deletion'} curve"
    made = Curves(columns).set_index("share")
    made.attrs = test.facts(name, test.metric, notes) | {
        "area": {name: float(trapezoid(made[name], shares)) for name in names},
        "unit": ranked.unit,
        "inserted": inserts,
        "metric": test.metric,
    }
    return made


@dataclass(frozen=True, eq=False)
class _Runs(Sequence[Sequence[Edit]]):
    """The edits of each run, made on demand: together they would fill the memory.

    There is one run per order and count, without those that cut nothing or everything. The last
    run cuts everything.
    """

    ranked: EdgeSet | TokenSet
    orders: Sequence[Ints]
    counts: Ints
    inserts: bool
    renormalize: bool

    @property
    def between(self) -> Ints:
        """The counts that cut something and leave something."""
        size = len(self.ranked)
        return np.unique(self.counts[(self.counts > 0) & (self.counts < size)])

    def __len__(self) -> int:
        return len(self.orders) * len(self.between) + 1

    @overload
    def __getitem__(self, place: int) -> Sequence[Edit]: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sequence[Edit]]: ...
    def __getitem__(self, place: int | slice) -> Sequence[Edit] | list[Sequence[Edit]]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        first = np.zeros(len(self.ranked), dtype=bool)
        if place == len(self) - 1:
            return self.ranked.without(~first, self.renormalize)
        number, step = divmod(place, len(self.between))
        first[self.orders[number][: self.between[step]]] = True
        return self.ranked.without(~first if self.inserts else first, self.renormalize)

    def values(self, plain: float, edited: NDArray[np.float64]) -> NDArray[np.float64]:
        """Arrange what was measured as (orders, counts)."""
        ends = (edited[-1], plain) if self.inserts else (plain, edited[-1])
        between = edited[:-1].reshape(len(self.orders), len(self.between))
        start, stop = (np.full((len(self.orders), 1), end) for end in ends)
        rows = np.concatenate([start, between, stop], axis=1)
        known = np.array([0, *self.between.tolist(), len(self.ranked)])
        return rows[:, np.searchsorted(known, self.counts)]


def _shares(steps: int | Sequence[float]) -> NDArray[np.float64]:
    if isinstance(steps, (int, np.integer)):
        whole("steps", steps, 1, SelectionError)
        return np.linspace(0, 1, int(steps) + 1)
    wrong = f"steps is a number of steps, or shares from 0 to 1, not {steps!r}."
    try:
        shares = np.unique(np.array(steps, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SelectionError(wrong) from error
    if not len(shares) or not 0 <= shares[0] <= shares[-1] <= 1:
        raise SelectionError(wrong)
    return shares
