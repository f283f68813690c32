"""Metrics: one number that sums up a model's answer."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from gattn.errors import ContractError, ModelError, SelectionError
from gattn.names.choices import is_number
from gattn.names.tokens import from_shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Named: TypeAlias = Literal["kl", "logit_difference", "probability"]
Metric: TypeAlias = Named | Callable[[Tensor], Tensor | float]
Token: TypeAlias = int | str | None

_TOKENS_OF = {"kl": (), "probability": ("target",), "logit_difference": ("target", "other")}


class Measure:
    """A metric, ready to measure the logits of a model; its arguments are those of `effect`."""

    def __init__(
        self,
        metric: Metric,
        target: Token,
        other: Token,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self._metric, self._model, self._tokenizer = metric, model, tokenizer
        self._tokens = {"target": target, "other": other}
        if not callable(metric) and metric not in get_args(Named):
            raise SelectionError(
                f"metric is one of {get_args(Named)} or a function of the answer, not {metric!r}."
            )
        wanted = () if callable(metric) else _TOKENS_OF[metric]
        for name, token in self._tokens.items():
            if name in wanted and token is None:
                raise SelectionError(
                    f"metric={metric!r} takes {' and '.join(wanted)}: pass {name}=, a token's id "
                    "or its text, such as ' cat'."
                )
            if name not in wanted and token is not None:
                raise SelectionError(
                    f"metric={metric!r} does not take {name}, but got {name}={token!r}; "
                    "metric='probability' takes target, metric='logit_difference' target and other."
                )

        if wanted == ("target", "other") and target == other:
            raise SelectionError(f"target and other must be two tokens, but both are {target!r}.")

    @property
    def name(self) -> str:
        """The metric's name, or that of a function."""
        metric = self._metric
        return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))

    def __str__(self) -> str:
        target, other = (repr(token).replace(" ", "␣") for token in self._tokens.values())
        if callable(self._metric):
            return str(getattr(self._metric, "__name__", "a function"))
        return {
            "kl": "KL divergence in nats",
            "probability": f"probability of {target}",
            "logit_difference": f"logit difference ({target} − {other})",
        }[self._metric]

    def position(self, given: int | str) -> int | str | None:
        """Return the position whose logits it reads, or None if it `reads_all`."""
        if self.reads_all:
            return None
        if not isinstance(given, str) and not is_number(given):
            raise SelectionError(
                f"position must be a whole number or a token's text, not {given!r}."
            )
        return given

    @property
    def reads_all(self) -> bool:
        """Whether it reads the logits of all positions, rather than those of one."""
        return callable(self._metric)

    def __call__(self, logits: Tensor, plain: Tensor) -> Tensor:
        """Measure logits: (vocabulary,), or all if it `reads_all`; `plain` are those unedited."""
        if callable(self._metric):
            return _one_number(self._metric(logits))
        row = logits.cpu().double()
        if self._metric == "kl":
            return _divergence(plain.cpu().double(), row)
        target = self._number("target", len(row))
        if self._metric == "probability":
            return row.softmax(-1)[target]
        return row[target] - row[self._number("other", len(row))]

    def _number(self, name: str, size: int) -> int:
        """Find the index of a token's or label's logit."""
        token = self._tokens[name]
        if isinstance(token, str):
            labels: dict[str, int] = (
                getattr(getattr(self._model, "config", None), "label2id", None) or {}
            )
            is_label = size == len(labels) and token in labels
            return labels[token] if is_label else self._id(name, token)
        is_bool = isinstance(token, (bool, np.bool_))
        number = None if is_bool or not hasattr(token, "__index__") else token
        if number is None or not 0 <= index(number) < size:
            raise SelectionError(
                f"{name} is a token's id from 0 to {size - 1}, or its text; not {token!r}."
            )
        return index(number)

    def _id(self, name: str, text: str) -> int:
        if self._tokenizer is None:
            raise ModelError(f"{name}={text!r} needs a tokenizer: pass tokenizer=, or a token id.")
        for written in (text, from_shown(text)):
            ids: list[int] = self._tokenizer(written, add_special_tokens=False)["input_ids"]
            if len(ids) == 1 and (ids[0] != self._unknown or text == self._tokenizer.unk_token):
                return ids[0]
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids == [self._unknown]:
            raise SelectionError(
                f"{name}={text!r} is not in the vocabulary: the tokenizer turns it into "
                f"{self._tokenizer.unk_token!r}. Choose another token, or pass a token id."
            )
        pieces = self._tokenizer.convert_ids_to_tokens(ids)
        raise SelectionError(
            f"{name}={text!r} must be one token, but the tokenizer splits it into {len(ids)}: "
            f"{pieces}. Words usually include the space before them, as in ' cat'; or pass a "
            "token id."
        )

    @property
    def _unknown(self) -> int | None:
        """The token that stands for whatever the tokenizer does not know."""
        number: int | None = getattr(self._tokenizer, "unk_token_id", None)
        return number


def _divergence(plain: Tensor, edited: Tensor) -> Tensor:
    """Return KL(plain || edited) in nats."""
    log_plain, log_edited = plain.log_softmax(-1), edited.log_softmax(-1)
    share = log_plain.exp()
    terms = share * (log_plain - log_edited)
    return torch.where(share == 0, 0.0, terms).sum()


def _one_number(found: Tensor | float) -> Tensor:
    try:
        number = (
            found if isinstance(found, Tensor) else torch.tensor(float(found), dtype=torch.float64)
        )
        return number.double().reshape(())
    except (TypeError, ValueError, RuntimeError) as error:
        shown = tuple(found.shape) if isinstance(found, Tensor) else repr(found)[:60]
        raise ContractError(
            f"metric must return one number for the answer that it is given, not {shown}."
        ) from error
