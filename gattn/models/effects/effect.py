"""Measures what edits change in a model's answer, by running it with each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import warning_once, whole
from gattn.edit_records import identities, to_text
from gattn.errors import EditError, ModelError
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.edit.base import Edit
from gattn.models.effects.asking import asked
from gattn.models.effects.effect_tables import Effects
from gattn.models.effects.metrics import Measure, Metric, Position, Token
from gattn.models.effects.runner import Runner
from gattn.models.run.edit_context import Editing
from gattn.models.run.editing import check_edits, is_place, open_edits
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.run.patching import Sources
from gattn.progress import announce, bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_FIRST = 4
"""How many edits run first, to estimate the time."""
_PLACES = ("layer", "head", "query", "key")


def effect(
    text: Runnable,
    edits: Sequence[Edit | Sequence[Edit]],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric | None = None,
    position: Position = None,
    target: Token = None,
    other: Token = None,
    batch_size: int | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Effects:
    r"""Measure what edits change in a model's answer: exactly, by running it with each of them.

    Parameters
    ----------
    text : str, sequence of int, Tensor, mapping, or callable
        One text, or whatever else `capture` takes; or a function without arguments that calls
        `model`, on any inputs and as often as it likes, such as ``lambda: model(x)[0]``. It runs
        without gradients, once for each edit, and each call of the model in it is edited.
    edits : sequence
        What to try, one after another: an `Edit`, or several that are applied together.
    model, tokenizer
        As in `capture`; for a function, the PyTorch module that it calls.
    metric : str or callable, optional
        "kl", the default if no token is named: the divergence
        :math:`\sum_t p_t \ln (p_t / q_t)` in nats of the edited distribution q of the next token
        from the plain one p; "logit_difference", the default if two are: the logit of `target`
        minus the logit of `other`; "probability", the default if `target` alone is: that of
        `target`; "loss": the cross entropy :math:`-\ln p_t` in nats of the text's own next token
        t; or a function of the logits (tokens, vocabulary) that returns a number. What a function
        that runs the model returns may be a number, which is the metric; logits, (classes,) or
        (tokens, classes), or an output that has such ``logits``, for the named metrics, whose
        distributions are the softmax over classes; or anything at all, for a function of it.
    position : int or str, or sequence of these, optional
        The token whose logits the named metrics read: its position, counting real tokens, from the
        end where negative, or its text; of several, the mean of the metric. By default the last of
        a text that the model continues, and for the loss all that have a next token, which no token
        up to the position may read. Models that classify texts have a single row of logits; those
        with an answer for each token, as for masked words, or whose tokens read the last one, need
        a position. Of logits that a function returns, the row; several rows
        need one, too, where tokens read later ones, or are the nodes of a graph.
    target, other : int or str, or sequence of these, optional
        The id of a token or a class; text that is one token, usually with its space, such as
        " cat"; or a label. Of several, the sum of the probabilities, and the mean of the logits.
    batch_size : int, optional
        How many edits run at once; by default as many as fit in half of a GPU's free memory, or
        in 256 MiB on a CPU, which gains nothing from more. It is halved when memory runs out, and
        1 if the text comes with a tensor whose first axis is not the batch, or a function runs
        the model.
    progress : bool
        Whether to print an estimate and a progress bar on stderr, if it takes over a second.
    tokens, grid
        The tokens' texts, or the rows and columns of patches, for edits that name them, as in
        `gattn.edited`; `position` may name a token by these texts, too.

    Returns
    -------
    Effects
        A `pandas.DataFrame` that draws itself, one row per edit: ``edit``; ``kind``, such as
        "Cut"; ``stack``, ``layer``, ``head``, ``query`` and ``key`` if it names a single one;
        ``plain`` and ``edited``, the metric without and with the edit; their difference ``effect``;
        and ``record``, each edit's text, class and fields as JSON, by which pictures name it.

    Raises
    ------
    EditError
        If an edit has nothing to edit, cannot be applied, or makes the metric NaN.
    SelectionError
        If there is no such metric, position, token, layer or head.
    CaptureError, ModelError
        As `capture` does; also where the model gives no logits, or a metric that is not finite;
        where a function does not call the model, or returns something else when it runs again.
    ContractError
        If a metric returns no number, or a whole one, which hardly changes with attention; or a
        function returns nothing that can be measured, such as probabilities in place of logits.

    References
    ----------
    Geva et al. (2023), Dissecting recall of factual associations: attention knockout.

    Examples
    --------
    >>> cuts = [gattn.Cut(layer=n, head=h) for n in range(12) for h in range(12)]
    >>> gattn.effect("The cat sat on the", cuts, "gpt2", metric="probability", target=" mat")
    >>> gattn.effect(lambda: vit(image)[0], [gattn.Cut(layer=3, head=1)], model=vit)
    """
    import pandas as pd

    together = _together(edits)
    naming = Naming(tokens, grid)
    runner, measure = asked(text, model, tokenizer, metric, position, target, other, "kl", naming)
    fewer = "for less time, try fewer edits, or estimate cuts with gattn.estimate"
    sources = Sources(runner.model, runner.tokenizer)
    with_runs = [sources.run(some) for some in together]
    rows: list[dict[str, Any]] = []

    def look(editing: Editing, several: Sequence[Sequence[Edit]]) -> None:
        rows.extend(_places(some, editing) for some in several)

    plain, edited = measured(runner, measure, with_runs, batch_size, progress, fewer, look)
    places = {name: pd.array([row[name] for row in rows], dtype="Int64") for name in _PLACES}
    records = [[edit.record for edit in some] for some in together]
    named = {
        "edit": [", ".join(edit.text for edit in some) for some in records],
        "kind": [
            ", ".join(dict.fromkeys(type(edit).__name__ for edit in some)) for some in together
        ],
        "stack": [row["stack"] for row in rows],
    }
    measures = {"plain": plain, "edited": edited, "effect": edited - plain}
    found = Effects({**named, **places, **measures, "record": list(map(to_text, records))})
    found.attrs = measure.facts | {"tokens": runner.texts} | told_edits(runner.model)
    return found


def told_edits(model: PreTrainedModel) -> dict[Any, Any]:
    """Give what a table says about the open edits: nothing if there are none."""
    edits = identities(open_edits(model))
    return {"edits": edits} if edits else {}


def measured(
    runner: Runner,
    measure: Measure,
    edits: Sequence[Sequence[Edit]],
    batch_size: int | None,
    progress: bool,
    fewer: str = "",
    look: Callable[[Editing, Sequence[Sequence[Edit]]], None] | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """Measure a metric for the plain model, and with each of the edits.

    `fewer` tells users how to ask for less, as in `progress.walk`; if given, a few edits run first
    to estimate the time. `look` sees the context of each run with edits, and these.
    """
    size = runner.batch_size if batch_size is None else batch_size
    size = whole("batch_size", size, 1, EditError)
    size = size if runner.prompt.repeats else 1
    found: list[float] = []
    with (
        torch.no_grad(),
        warning_once(),
        bar(total=len(edits), desc="effects", unit="edit", progress=progress) as shown,
    ):
        plain = runner.plain()
        before = _number(measure, plain, plain)
        while len(found) < len(edits):
            count = min(size, _FIRST) if fewer and progress and not found else size
            some = edits[len(found) : len(found) + count]
            begun = time.perf_counter()
            try:
                rows = _edited(runner, some, look)
            except RuntimeError as error:
                if len(some) == 1 or not is_out_of_memory(error):
                    raise
                size = len(some) // 2
                continue
            found += [
                _number(measure, row, plain, made) for row, made in zip(rows, some, strict=True)
            ]
            shown.update(len(rows))
            if fewer and progress and len(found) == len(rows):
                seconds = (time.perf_counter() - begun) / len(rows)
                announce("effects", "edit", len(edits), seconds, fewer)
    return before, np.array(found)


def _number(measure: Measure, row: Tensor, plain: Tensor, edits: Sequence[Edit] = ()) -> float:
    """Measure a metric; NaN is refused, since it would be a row like any other."""
    number = float(measure(row, plain))
    shape = f" the logits {tuple(row.shape)}" if isinstance(row, Tensor) and row.dim() else " it"
    advice = f"Expected a number: look for NaN or infinity in{shape}."
    if not edits and not np.isfinite(number):
        raise ModelError(f"Without edits, {measure} is {number}. {advice}")
    if np.isnan(number):
        made = ", ".join(map(repr, edits))
        raise EditError(f"With {made} the {measure} is NaN. {advice}")
    return number


def _edited(
    runner: Runner,
    edits: Sequence[Sequence[Edit]],
    look: Callable[[Editing, Sequence[Sequence[Edit]]], None] | None,
) -> list[Tensor]:
    editing = Editing(edits, runner.tokenizer, runner.prompt.naming)
    rows = runner.run(editing, len(edits))
    editing.check()
    if look is not None:
        look(editing, edits)
    return rows


def _together(edits: Sequence[Edit | Sequence[Edit]]) -> list[list[Edit]]:
    """List the edits of each run."""
    if isinstance(edits, Edit):
        raise EditError(f"effect takes a list of edits, one per row: pass [{edits!r}].")
    if not isinstance(edits, Iterable) or isinstance(edits, str):
        raise EditError(
            "effect takes a text or function, then a list of edits, then the model; the edits are "
            f"{type(edits).__name__}."
        )
    together = [
        list(some) if isinstance(some, (list, tuple)) and not is_place(some) else [some]
        for some in edits
    ]
    if not together or not all(together):
        raise EditError("effect takes at least one edit, such as gattn.Cut(layer=0, head=1).")
    check_edits(edit for some in together for edit in some)
    return cast("list[list[Edit]]", together)


def _places(edits: Sequence[Edit], editing: Editing) -> dict[str, Any]:
    """Return the single stack, layer, head, query and key of an edit, as far as it has one."""
    if len(edits) != 1:
        return dict.fromkeys(("stack", *_PLACES))
    (edit,) = edits
    numbers = {name: _single(getattr(edit, name, None)) for name in ("layer", "head")}
    places = {side: editing.position(edit, side) for side in ("query", "key")}
    return {"stack": editing.stack(edit), **numbers, **places}


def _single(numbers: object) -> int | None:
    return int(numbers) if isinstance(numbers, (int, np.integer)) else None
