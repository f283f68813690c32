"""How far to trust a picture: whether cutting what it ranks high changes the model's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.stats import rankdata, spearmanr

from gattn.analysis.faithfulness.rankings import EdgeSet, Ranking, check_edits, named, order, read
from gattn.analysis.faithfulness.token_rankings import Scores, TokenSet
from gattn.analysis.reading.results import Table, told
from gattn.checks import whole
from gattn.edit_records import identities, in_words
from gattn.errors import SelectionError
from gattn.heads.head import Ints
from gattn.keep import All
from gattn.models.edit.base import Edit
from gattn.models.effects.effect import Runner, measured
from gattn.models.effects.metrics import Measure, Metric, Token
from gattn.models.load.encoding import Inputs
from gattn.models.load.loading import resolved
from gattn.models.run.capturing import capture
from gattn.models.run.editing import open_edits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_RESAMPLES = 1000
_BASELINE = "random"


class Curves(Table):
    """What a metric becomes as more and more is cut, or given back: a column a ranking.

    ``attrs["area"]`` has the area under each curve.
    """


class Agreement(Table):
    """How rankings correlate with effects: a row a ranking."""


def deletion_curve(
    rankings: Ranking | Mapping[str, Ranking],
    text: Inputs,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric = "kl",
    position: int | str = -1,
    target: Token = None,
    other: Token = None,
    steps: int | Sequence[float] = 20,
    random: int = 5,
    renormalize: bool = True,
    stack: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Curves:
    """Cut edges or tokens from the top of a ranking, more and more, and run the model each time.

    What at least one of the rankings ranks may be cut: edges of single heads, or tokens, which lose
    all of their edges to queries, their own among them, in all layers and heads. What a ranking
    leaves out comes last in it; ties come in random order.

    Parameters
    ----------
    rankings : ranking, or mapping of str to ranking
        One ranking, or several by name. Edges are ranked by a trace, a stack or a head, by their
        attention; by an array with the axes (layer, head, query, key), of which layer and head may
        be missing: an edge then ranks alike in all of them, or, where one was selected, is that
        one's; by a table of `gattn.estimate` or `gattn.effect`, by how far the metric falls where
        the edge is cut; by `gattn.analysis.routes`, by the strength of the paths over it. Tokens
        are ranked by one number each, such as ``rollout(trace).sel(layer=3, query=7)``; those of
        a Series are by its index, the tokens' positions. Tokens that a ranking carries must be the
        text's.
    text, model, tokenizer
        As in `gattn.capture`.
    metric, position, target, other
        As in `gattn.effect`.
    steps : int or sequence of float
        How many steps to take, or after which shares of what may be cut, from 0 to 1.
    random : int
        How many random orders to try for comparison.
    renormalize : bool
        Which cut, as in `gattn.Cut`.
    stack : str, optional
        Which stack, where the model has several.
    seed : int
        Draws random orders.
    batch_size, progress
        As in `gattn.effect`. What the runs will take is printed first.

    Returns
    -------
    Table
        By ``share`` of what was cut: ``count``; the metric under each ranking; and under random
        orders its mean ``random``, lowest ``random_low`` and highest ``random_high``.
        ``attrs["area"]`` is the area under each curve. A ranking is faithful where its curve leaves
        the plain model's fast.

    Raises
    ------
    SelectionError
        Where rankings do not fit the text, are of another text, or rank nothing; where some rank
        edges and others tokens; or where `steps`, `random` or `seed` are none.
    ShapeError
        Where an array ranks neither.
    CaptureError, ModelError, ContractError
        As `gattn.effect` does.

    References
    ----------
    Samek et al. (2017), Evaluating the visualization of what a deep neural network has learned.
    Petsiuk et al. (2018), RISE: deletion and insertion.
    """
    answer = _Answer(metric, position, target, other)
    study = _Study(text, model, tokenizer, answer, renormalize, stack, seed, batch_size, progress)
    return study.curves(rankings, steps, random, insert=False)


def insertion_curve(
    rankings: Ranking | Mapping[str, Ranking],
    text: Inputs,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric = "kl",
    position: int | str = -1,
    target: Token = None,
    other: Token = None,
    steps: int | Sequence[float] = 20,
    random: int = 5,
    renormalize: bool = True,
    stack: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Curves:
    """Cut all that is ranked, and give it back from the top; see `deletion_curve`.

    Returns
    -------
    Table
        As `deletion_curve`, by ``share`` of what was given back. A ranking is faithful where its
        curve reaches the plain model's fast.
    """
    answer = _Answer(metric, position, target, other)
    study = _Study(text, model, tokenizer, answer, renormalize, stack, seed, batch_size, progress)
    return study.curves(rankings, steps, random, insert=True)


def rank_agreement(
    rankings: Ranking | Mapping[str, Ranking],
    text: Inputs,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric = "kl",
    position: int | str = -1,
    target: Token = None,
    other: Token = None,
    sample: int = 200,
    effects: pd.DataFrame | None = None,
    renormalize: bool = True,
    stack: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Agreement:
    r"""Correlate rankings with the exact effects of single cuts.

    Spearman's correlation is Pearson's of the ranks. It is taken of sizes,
    :math:`\rho(|r|, |e|)`: does the ranking say what matters? And with signs,
    :math:`\rho(r, -e)`: does it say what the metric needs, and what speaks against it?

    Parameters
    ----------
    rankings, text, model, tokenizer, metric, position, target, other, renormalize, stack
        As in `deletion_curve`.
    sample : int
        Of how many edges or tokens the effect is computed, drawn evenly; of all where there are no
        more.
    effects : DataFrame, optional
        Effects that are known: a table of `gattn.effect`, or of `gattn.estimate` with its sample.
        No more are computed, and the metric is theirs.
    seed : int
        Draws the sample.
    batch_size, progress
        As in `deletion_curve`.

    Returns
    -------
    Table
        By ``ranking``: ``correlation`` of sizes, ``low`` and ``high``, its bootstrapped 95 %
        interval; ``p_value`` of no correlation; ``signed_correlation``, NaN where no cut lowers the
        metric, as with a divergence; and ``number`` of effects. NaN where all are equal.

    Raises
    ------
    SelectionError
        As `deletion_curve` does; also where `effects` holds fewer than three of what is ranked, or
        one twice.
    ShapeError, CaptureError, ModelError, ContractError
        As `deletion_curve` does.

    References
    ----------
    Abnar and Zuidema (2020), Quantifying attention flow in transformers, correlates rollout and
    flow with ablations so. Jain and Wallace (2019), Attention is not explanation.
    """
    answer = _Answer(metric, position, target, other) if effects is None else _Answer()
    study = _Study(text, model, tokenizer, answer, renormalize, stack, seed, batch_size, progress)
    return study.agreement(rankings, sample, effects)


class _Answer(NamedTuple):
    """What is measured of a model's answer."""

    metric: Metric = "kl"
    position: int | str = -1
    target: Token = None
    other: Token = None


class _Study:
    """A text, a model and a metric of its answer, and how to cut."""

    def __init__(
        self,
        text: Inputs,
        model: Model,
        tokenizer: PreTrainedTokenizerBase | None,
        answer: _Answer,
        renormalize: bool,
        stack: str | None,
        seed: int,
        batch_size: int | None,
        progress: bool,
    ) -> None:
        whole("seed", seed, 0, SelectionError)
        model, tokenizer = resolved(model, tokenizer)
        self.measure = Measure(answer.metric, answer.target, answer.other, model, tokenizer)
        reads = None if self.measure.reads_all else answer.position
        self.runner = Runner(text, model, tokenizer, reads)
        self.trace = capture(text, model, tokenizer, keep=All())
        self.renormalize, self.stack, self.seed = renormalize, stack, seed
        self.batch_size, self.progress = batch_size, progress
        self.metric, self.edits = str(self.measure), identities(open_edits(model))
        said = [self.trace.model, in_words(open_edits(model))]
        self.source = ", ".join(filter(None, said))

    def _measured(
        self, edits: Sequence[Sequence[Edit]], fewer: str
    ) -> tuple[float, NDArray[np.float64]]:
        return measured(self.runner, self.measure, edits, self.batch_size, self.progress, fewer)

    def curves(
        self,
        rankings: Ranking | Mapping[str, Ranking],
        steps: int | Sequence[float],
        random: int,
        *,
        insert: bool,
    ) -> Curves:
        """Run the model along each ranking; see `deletion_curve`."""
        whole("random", random, 0, SelectionError)
        found = named(rankings)
        if taken := found.keys() & {_BASELINE, "random_low", "random_high", "count", "share"}:
            raise SelectionError(f"Give the ranking {sorted(taken)[0]!r} another name.")
        check_edits(found, self.edits, "The ranking")
        ranked = read(found, self.trace, self.stack)
        shares = _shares(steps)
        counts = np.rint(shares * len(ranked)).astype(np.int64)
        generator = np.random.default_rng(self.seed)
        orders = [order(scores, ranked.units, generator) for scores in ranked.scores.values()]
        orders += [generator.permutation(len(ranked)) for _ in range(random)]
        runs = _Runs(ranked, orders, counts, insert, self.renormalize)
        values = runs.values(*self._measured(runs, "fewer: steps=, random="))
        columns: dict[str, Any] = {"share": shares, "count": counts}
        columns |= dict(zip(found, values, strict=False))
        if random:
            baseline = values[len(found) :]
            columns[_BASELINE] = baseline.mean(0)
            columns |= {"random_low": baseline.min(0), "random_high": baseline.max(0)}
        made = Curves(columns).set_index("share")
        names = [*found, _BASELINE] if random else list(found)
        made.attrs = {
            "name": "insertion curve" if insert else "deletion curve",
            "computed_from": f"{self.source}: {self.metric}",
            "notes": [
                f"{len(ranked)} {ranked.unit}s " + ("given back" if insert else "cut"),
                *([] if self.renormalize else ["cut after normalizing"]),
            ],
            **told(self.edits),
            "area": {name: float(trapezoid(made[name], shares)) for name in names},
            "unit": ranked.unit,
            "inserted": insert,
            "metric": self.metric,
        }
        return made

    def agreement(
        self,
        rankings: Ranking | Mapping[str, Ranking],
        sample: int,
        effects: pd.DataFrame | None,
    ) -> Agreement:
        """Correlate rankings with effects; see `rank_agreement`."""
        whole("sample", sample, 3, SelectionError)
        found = named(rankings)
        check_edits(found, self.edits, "The ranking")
        if effects is not None:
            check_edits({"effects": effects}, self.edits, "The table")
        ranked = read(found, self.trace, self.stack)
        generator = np.random.default_rng(self.seed)
        if effects is None:
            count = min(sample, len(ranked))
            some = np.sort(generator.choice(len(ranked), count, replace=False))
            cuts = [[ranked.cut(int(n), self.renormalize)] for n in some]
            plain, edited = self._measured(cuts, "fewer: sample=")
            known = edited - plain
        else:
            every = _known(effects, ranked)
            some = np.flatnonzero(~np.isnan(every))
            known = every[some]
        if len(some) < 3:
            raise SelectionError(
                f"There are {len(some)} effects of what is ranked; a correlation takes three."
            )
        rows = [
            {"ranking": name, **_correlations(scores[some], known, generator)}
            for name, scores in ranked.scores.items()
        ]
        made = Agreement(rows).set_index("ranking")
        of = "known effects" if effects is not None else self.metric
        part = "" if len(some) == len(ranked) else f" of {len(ranked)}"
        made.attrs = {
            "name": "rank agreement",
            "computed_from": f"{self.source}: {of}",
            "notes": [f"effects of {len(some)}{part} {ranked.unit}s"],
            **told(self.edits),
        }
        return made


@dataclass(frozen=True, eq=False)
class _Runs(Sequence[Sequence[Edit]]):
    """Edits of each run, made when they are asked for: all together would fill the memory.

    The runs are of each order and each count, but those in which nothing is cut, or all.
    The last one is that in which all is cut.
    """

    ranked: EdgeSet | TokenSet
    orders: Sequence[Ints]
    counts: Ints
    insert: bool
    renormalize: bool

    @property
    def between(self) -> Ints:
        """The counts that leave some and cut some."""
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
        return self.ranked.without(~first if self.insert else first, self.renormalize)

    def values(self, plain: float, edited: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sort what was measured into (orders, counts)."""
        ends = (edited[-1], plain) if self.insert else (plain, edited[-1])
        between = edited[:-1].reshape(len(self.orders), len(self.between))
        rows = np.concatenate([np.full((len(self.orders), 1), ends[0]), between], axis=1)
        rows = np.concatenate([rows, np.full((len(self.orders), 1), ends[1])], axis=1)
        known = np.array([0, *self.between.tolist(), len(self.ranked)])
        return rows[:, np.searchsorted(known, self.counts)]


def _known(effects: pd.DataFrame, ranked: EdgeSet | TokenSet) -> Scores:
    needed = {"layer", "head", "query", "key", "effect"}
    if not isinstance(effects, pd.DataFrame) or not needed <= set(effects.columns):
        raise SelectionError(
            "effects is a table of gattn.effect or gattn.estimate, with the columns layer, head, "
            f"query, key and effect, not {type(effects).__name__}."
        )
    return ranked.effects(effects)


def _correlations(
    scores: Scores, effects: Scores, generator: np.random.Generator
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
        signed = float(spearmanr(least, -effects).statistic)
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
    drawn = generator.integers(len(one), size=(_RESAMPLES, len(one)))
    ranks = [rankdata(values[drawn], axis=1) for values in (one, other)]
    x, y = (some - some.mean(1, keepdims=True) for some in ranks)
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    found = (x * y).sum(1)[scale > 0] / scale[scale > 0]
    if not len(found):
        return np.nan, np.nan
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


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
