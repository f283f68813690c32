"""A text and a model that runs with some of its edges or tokens cut: what all curves share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.faithfulness.edge_rankings import Ranking
from gattn.analysis.faithfulness.rankings import check_edits, named, read
from gattn.analysis.reading.results import told
from gattn.checks import whole
from gattn.edit_records import identities, in_words
from gattn.errors import SelectionError
from gattn.keep import All
from gattn.models.edit.base import Edit
from gattn.models.effects.asking import asked
from gattn.models.effects.effect import measured
from gattn.models.effects.metrics import Metric, Position, Token
from gattn.models.run.capturing import capture
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


class CutOptions(TypedDict, total=False):
    """How edges or tokens are cut, and what is measured; `deletion_curve` explains each option."""

    metric: Metric | None
    position: Position
    target: Token
    other: Token
    renormalize: bool
    stack: str | None
    seed: int
    batch_size: int | None
    progress: bool
    tokens: Tokens | None
    grid: tuple[int, int] | None


ANY_ANSWER: CutOptions = {"metric": None, "position": None, "target": None, "other": None}
"""The default answer that is measured."""

_DEFAULTS: CutOptions = ANY_ANSWER | {
    "renormalize": True,
    "stack": None,
    "seed": 0,
    "batch_size": None,
    "progress": True,
    "tokens": None,
    "grid": None,
}


class Experiment:
    """A text, rankings of its edges or tokens, and a model to test them on."""

    def __init__(
        self,
        rankings: Ranking | Mapping[str, Ranking],
        text: Runnable,
        model: Model,
        tokenizer: PreTrainedTokenizerBase | None,
        **options: Unpack[CutOptions],
    ) -> None:
        if unknown := options.keys() - _DEFAULTS.keys():
            raise TypeError(
                f"There is no option {min(unknown)!r}: curves take steps and random, "
                f"rank_agreement sample and effects, and all take {', '.join(_DEFAULTS)}."
            )
        how = self._how = _DEFAULTS | options
        whole("seed", how["seed"], 0, SelectionError)
        self._runner, self._measure = asked(
            text,
            model,
            tokenizer,
            how["metric"],
            how["position"],
            how["target"],
            how["other"],
            "kl",
            Naming(how["tokens"], how["grid"]),
        )
        model = self._runner.model
        trace = capture(
            text,
            model,
            self._runner.tokenizer,
            keep=All(),
            tokens=how["tokens"],
            grid=how["grid"],
        )
        edits = open_edits(model)
        self.edits = identities(edits)
        self._source = ", ".join(filter(None, [trace.model, in_words(edits)]))
        found = named(rankings)
        check_edits(found, self.edits, "The ranking")
        self.ranked = read(found, trace, how["stack"])
        self.renormalize = how["renormalize"]
        self.metric = str(self._measure)
        self.facts_of_metric = self._measure.facts
        self.generator = np.random.default_rng(how["seed"])

    def measured(
        self, edits: Sequence[Sequence[Edit]], fewer: str
    ) -> tuple[float, NDArray[np.float64]]:
        """Measure the plain model, and the model with each of the edits; see `effect.measured`."""
        how = self._how
        return measured(
            self._runner, self._measure, edits, how["batch_size"], how["progress"], fewer
        )

    def facts(self, name: str, metric: str, notes: Sequence[str]) -> dict[Any, Any]:
        """Return what a result was computed from, for its ``attrs``."""
        source = f"{self._source}: {metric}"
        return {"name": name, "computed_from": source, "notes": list(notes), **told(self.edits)}
