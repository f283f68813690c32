"""What a model predicts of a text of a survey, which holds no logits: the model is run again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.models.run.capturing import capture

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NEAR = 0.01
"""By how much attention may differ, as of a model in half precision, or in other batches."""


def predicted(
    found: AttentionTrace, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> AttentionTrace:
    """Add what a model predicts to one head of a survey, if it is the model of the survey.

    Raises
    ------
    SelectionError
        If the tokens, the edits or the attention of the head are others, or it is not certain which
        tokens the model predicts.
    """
    stack = found.only_stack
    ((place, head),) = stack.items()
    if not found.text:
        raise SelectionError(
            "model= runs the texts of a survey again, and this one was given as token ids: leave "
            "model= out."
        )
    run = capture(found.text, model, tokenizer, heads=[place])
    again = run.stacks[stack.name].get(place) if stack.name in run.stacks else None
    if other := _other(head, again):
        raise SelectionError(
            f"model= gives other {other} of {found.text!r:.80} than the survey holds: pass the "
            "model and the tokenizer of the survey, within gattn.edited if it had edits."
        )
    if run.predictions is None:
        raise SelectionError(
            "model= is for what it predicts, but it is not certain which tokens the logits of "
            f"{run.model} predict: leave model= out."
        )
    return replace(found, predictions=run.predictions)


def _other(head: AttentionGraph, again: AttentionGraph | None) -> str:
    """Name what differs between a head and the same head of another run; "" if nothing does."""
    if again is None or again.tokens != head.tokens:
        return "tokens"
    if again.edits != head.edits:
        return "edits"
    near = np.allclose(again.to_dense()[head.query, head.key], head.attention, atol=_NEAR)
    return "" if near else "attention"
