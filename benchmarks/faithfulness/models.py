"""The models of the study, trained and random, and what is measured of their answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gattn

NAMES = ("embedded", "embedded, random", "minilm", "minilm, random")


@dataclass(frozen=True, eq=False)
class Case:
    """One text, read by one model, and the metric of its answer.

    Parameters
    ----------
    run : str or callable
        What gattn runs: the text itself, or a function that returns the metric.
    answer : dict
        The metric's options.
    distance : tuple
        What gattn runs to see how far the answer is from the plain one, and that metric's options.
    is_causal : bool
        Whether the answer is read at the last token; else all tokens are pooled.
    """

    run: str | Callable[[], Tensor]
    model: Any
    tokenizer: Any
    answer: dict[str, Any]
    distance: tuple[str | Callable[[], Tensor], dict[str, Any]]
    is_causal: bool

    @property
    def given(self) -> tuple[Any, Any, Any]:
        """The first arguments of gattn's functions."""
        return self.run, self.model, self.tokenizer


def loaded(name: str) -> tuple[Any, Any] | None:
    """Load a model in double precision, where small effects are no rounding; None if not here."""
    folder = os.environ.get("GATTN_MINILM", "")
    if name.startswith("minilm") and not folder:
        return None
    model, tokenizer = gattn.load_model(folder if name.startswith("minilm") else None)
    if name.endswith("random"):
        torch.manual_seed(0)
        model = type(model)(model.config).eval()
    return model.double(), tokenizer


def cases(model: Any, tokenizer: Any, texts: list[str]) -> list[Case]:
    """Make a case of each text.

    A language model is asked for the logit of its prediction minus that of the second one; an
    encoder for the cosine of the text's mean vector and that of the next text. The distance is the
    KL divergence of the prediction, and one minus the cosine with the plain vector.
    """
    if hasattr(model, "lm_head"):
        return [_predicting(model, tokenizer, text) for text in texts]
    pooled = [_pooled(model, tokenizer, text) for text in texts]
    others = [pooled[(n + 1) % len(texts)]().detach() for n in range(len(texts))]
    return [
        Case(_similarity(own, other), model, tokenizer, {}, (_distance(own), {}), is_causal=False)
        for own, other in zip(pooled, others, strict=True)
    ]


def _predicting(model: Any, tokenizer: Any, text: str) -> Case:
    ids = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        target, other = model(**ids).logits[0, -1].topk(2).indices.tolist()
    answer = {"metric": "logit_difference", "target": target, "other": other}
    return Case(text, model, tokenizer, answer, (text, {"metric": "kl"}), is_causal=True)


def _pooled(model: Any, tokenizer: Any, text: str) -> Callable[[], Tensor]:
    ids = tokenizer(text, return_tensors="pt")

    def run() -> Tensor:
        states: Tensor = model(**ids).last_hidden_state[0].mean(0)
        return states / states.norm()

    return run


def _similarity(own: Callable[[], Tensor], other: Tensor) -> Callable[[], Tensor]:
    return lambda: own() @ other


def _distance(own: Callable[[], Tensor]) -> Callable[[], Tensor]:
    plain = own().detach()
    return lambda: 1 - own() @ plain
