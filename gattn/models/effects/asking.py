"""What is asked of a model: a metric of its answer, and how to run it for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gattn.errors import SelectionError
from gattn.models.effects.answers import FunctionRunner
from gattn.models.effects.metrics import Measure, Metric, Named, Position, Token
from gattn.models.effects.runner import Runner
from gattn.models.run.functions import RunFunction, Runnable, prepared
from gattn.models.run.names.naming import Naming

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def asked(
    inputs: Runnable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    metric: Metric | None,
    position: Position,
    target: Token,
    other: Token,
    default: Named | None,
    naming: Naming | None = None,
) -> tuple[Runner, Measure]:
    """Prepare a model's runs, and what is measured of their answers, as in `gattn.effect`.

    Without a metric it is that of the tokens that are named, as `named_by` gives it, or the number
    itself that a function returns, or the `default`, if there is one.
    """
    default = named_by(target, other, default)
    prompt = prepared(inputs, model, tokenizer, naming)
    known = prompt.model, prompt.tokenizer
    if isinstance(prompt, RunFunction):
        of_function = FunctionRunner(prompt)
        of_function.check_pair(position)
        metric = of_function.metric(metric, default)
        measure = Measure(_chosen(metric), target, other, *known)
        of_function.read(measure, position)
        return of_function, measure
    measure = Measure(_chosen(default if metric is None else metric), target, other, *known)
    runner = Runner(prompt, measure.positions(position), are_given=position is not None)
    runner.check_pair(position)
    if measure.is_loss:
        measure.following = runner.following()
    return runner, measure


def _chosen(metric: Metric | None) -> Metric:
    if metric is None:
        raise SelectionError(
            "Say what to measure: pass target=, a token's id or its text, such as ' cat', for the "
            "probability of a token, and other= too for a logit difference; or metric='kl' for the "
            "change of all probabilities; or a function that calls the model and returns a number."
        )
    return metric


def named_by(target: Token, other: Token, default: Named | None) -> Named | None:
    """Return the metric of the tokens that are named, or `default` if none is."""
    if target is None:
        return default
    return "probability" if other is None else "logit_difference"
