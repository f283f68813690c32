"""Metrics: one number that sums up a model's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from gattn.errors import ContractError, ModelError, SelectionError
from gattn.names.choices import is_number
from gattn.names.text import quoted
from gattn.names.tokens import from_shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Named: TypeAlias = Literal["kl", "logit_difference", "probability", "loss"]
Metric: TypeAlias = Named | Callable[[Tensor], Tensor | float]
Token: TypeAlias = int | str | Sequence[int | str] | None
Position: TypeAlias = int | str | Sequence[int | str] | None

_SLOPES = 10
"""How many backward passes estimate a divergence."""
_TOKENS_OF = {
    "kl": (),
    "loss": (),
    "probability": ("target",),
    "logit_difference": ("target", "other"),
}
_LISTED = 20
"""How many labels an error lists."""
COSTS = {"kl": "KL divergence in nats", "loss": "next-token loss in nats"}
"""What metrics are called that errors raise."""


class Measure:
    """A metric, ready to measure the logits of a model; its arguments are those of `effect`."""

    following: Sequence[int] = ()
    """The token after each position that is measured, for the loss."""

    def __init__(
        self,
        metric: Metric,
        target: Token,
        other: Token,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self._metric, self._model, self._tokenizer = metric, model, tokenizer
        given = {"target": target, "other": other}
        self._tokens = {name: _listed(token) for name, token in given.items()}
        if not callable(metric) and metric not in get_args(Named):
            raise SelectionError(
                f"metric is one of {get_args(Named)} or a function of the answer, not {metric!r}."
            )
        wanted = () if callable(metric) else _TOKENS_OF[metric]
        for name, token in given.items():
            if name in wanted and not self._tokens[name]:
                raise SelectionError(
                    f"metric={metric!r} takes {' and '.join(wanted)}: pass {name}=, a token's id "
                    "or its text, such as ' cat', or a list of these."
                )
            if name not in wanted and token is not None:
                raise SelectionError(
                    f"metric={metric!r} does not take {name}, but got {name}={token!r}; "
                    "metric='probability' takes target, metric='logit_difference' target and other."
                )
        if wanted == ("target", "other") and self._tokens["target"] == self._tokens["other"]:
            raise SelectionError(f"target and other must be two tokens, but both are {target!r}.")

    @property
    def name(self) -> str:
        """The metric's name, or that of a function."""
        metric = self._metric
        return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))

    def __str__(self) -> str:
        target, other = (", ".join(map(self._called, tokens)) for tokens in self._tokens.values())
        if callable(self._metric):
            return str(getattr(self._metric, "__name__", "a function"))
        return {
            **COSTS,
            "probability": f"probability of {target}",
            "logit_difference": f"logit difference ({target} − {other})",
        }[self._metric]

    def _called(self, one: Any) -> str:
        """Name a token or a class, by its text or its number."""
        if isinstance(one, str) or not hasattr(one, "__index__"):
            return quoted(str(one), is_entry=True)
        return f"{'token' if self._has_words else 'class'} {index(one)}"

    @property
    def _has_words(self) -> bool:
        """Whether the answer is of tokens, rather than of classes."""
        find = getattr(self._model, "get_output_embeddings", None)
        return self._tokenizer is not None if find is None else find() is not None

    def positions(self, given: Position) -> list[int | str] | None:
        """Return the positions whose logits it reads; None if it reads all that it can."""
        if self.reads_all:
            return None
        if given is None:
            return None if self.is_loss else [-1]
        places = _listed(given)
        if not places or not all(isinstance(one, str) or is_number(one) for one in places):
            raise SelectionError(
                "position must be a whole number or a token's text, or a list of these, not "
                f"{given!r}."
            )
        return places

    @property
    def reads_all(self) -> bool:
        """Whether it reads the logits of all positions, rather than those of some."""
        return callable(self._metric)

    @property
    def facts(self) -> dict[str, Any]:
        """What a table says of it: its name, and whether it is a cost, which errors raise."""
        is_cost = {"is_cost": True} if self._metric in COSTS else {}
        return {"metric": str(self)} | is_cost

    @property
    def is_loss(self) -> bool:
        """Whether it reads the tokens that follow."""
        return self._metric == "loss"

    def __call__(self, logits: Tensor, plain: Tensor) -> Tensor:
        """Measure logits: (positions, vocabulary), or all if it `reads_all`.

        `plain` are those unedited.
        """
        if callable(self._metric):
            return _one_number(self._metric(logits))
        rows = logits.cpu().double()
        return self._each(rows, plain.cpu().double()).mean()

    def _each(self, rows: Tensor, plain: Tensor) -> Tensor:
        """Measure each position."""
        if self._metric == "kl":
            return _divergence(plain, rows)
        if self._metric == "loss":
            return cross_entropy(rows, torch.tensor(self.following, device="cpu"), reduction="none")
        target = self._numbers("target", rows.shape[-1])
        if self._metric == "probability":
            return rows.softmax(-1)[:, target].sum(-1)
        others = self._numbers("other", rows.shape[-1])
        if both := set(target).intersection(others):
            raise SelectionError(f"target and other both name the token {min(both)}.")
        return rows[:, target].mean(-1) - rows[:, others].mean(-1)

    def slopes(self, logits: Tensor, plain: Tensor) -> list[Tensor]:
        r"""Return numbers of whose changes, to first order, `combined` makes the metric's change.

        The divergence is :math:`\frac12 \delta^T F \delta` of a small change of logits, with
        Fisher's information :math:`F = \text{diag}(p) - p p^T`: half the sum of
        :math:`p_t (\delta \ln p_t)^2`. The likeliest tokens are taken one by one, the others
        together.
        """
        if self._metric != "kl":
            return [self(logits, plain)]
        rows = logits.cpu().double().log_softmax(-1)
        return [
            (float(part.detach().exp()) / len(rows)) ** 0.5 * part
            for row in rows
            for part in _grouped(row)
            if part > -torch.inf
        ]

    def combined(self, changes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the metric's changes from those of its `slopes`, (slopes, ...)."""
        found: NDArray[np.float64] = changes[0]
        return np.asarray((changes**2).sum(0) / 2) if self._metric == "kl" else found

    def _numbers(self, name: str, size: int) -> list[int]:
        """Find the indices of the logits of tokens or labels."""
        found = [self._number(name, token, size) for token in self._tokens[name]]
        if len(set(found)) < len(found):
            raise SelectionError(f"{name} names a token twice: {self._tokens[name]!r}.")
        return found

    def _number(self, name: str, token: int | str, size: int) -> int:
        """Find the index of a token's or label's logit."""
        if isinstance(token, str):
            labels: dict[str, int] = (
                getattr(getattr(self._model, "config", None), "label2id", None) or {}
            )
            are_labels = size == len(labels)
            if are_labels and token in labels:
                return labels[token]
            return self._id(name, token, list(labels) if are_labels else ())
        is_bool = isinstance(token, (bool, np.bool_))
        number = None if is_bool or not hasattr(token, "__index__") else token
        if number is None or not 0 <= index(number) < size:
            raise SelectionError(
                f"{name} is a token's or class's id from 0 to {size - 1}, or a text; not {token!r}."
            )
        return index(number)

    def _id(self, name: str, text: str, labels: Sequence[str] = ()) -> int:
        if labels and not self._has_words:
            some = ", ".join(map(repr, labels[:_LISTED])) + ", ..." * (len(labels) > _LISTED)
            raise SelectionError(
                f"No {name} {text!r}: the {len(labels)} labels are {some}; or pass the number of "
                "a class."
            )
        if self._tokenizer is None:
            raise ModelError(
                f"{name}={text!r} needs a tokenizer: pass tokenizer=, or a token's or class's id."
            )
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
    """Return KL(plain || edited) of each row in nats."""
    log_plain, log_edited = plain.log_softmax(-1), edited.log_softmax(-1)
    share = log_plain.exp()
    terms = share * (log_plain - log_edited)
    return torch.where(share == 0, 0.0, terms).sum(-1)


def _grouped(row: Tensor) -> list[Tensor]:
    """Return the logarithms of the largest probabilities, and of the sum of the others."""
    first = row.detach().topk(min(_SLOPES - 1, len(row))).indices
    is_rest = torch.ones(len(row), dtype=torch.bool, device="cpu").index_fill(0, first, False)
    rest = [row[is_rest].logsumexp(0)] if bool(is_rest.any()) else []
    return [*row[first], *rest]


def _listed(given: Token) -> list[Any]:
    """List tokens or positions: none, one or several."""
    if isinstance(given, (Tensor, np.ndarray)):
        listed: list[Any] = given.reshape(-1).tolist()
        return listed
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(given)
    return [] if given is None else [given]


def _check_is_no_whole_number(found: Any) -> None:
    """Refuse whole numbers and truth values, which small changes of attention leave as they are."""
    if isinstance(found, Tensor):
        is_whole = not found.is_floating_point() and not found.is_complex() and found.numel() == 1
    else:
        array = np.asarray(found)
        is_whole = array.ndim == 0 and array.dtype.kind in "iub"
    if is_whole:
        raise ContractError(
            f"The metric is {found.item() if isinstance(found, Tensor) else found!r}, a whole "
            "number or a truth value, such as an argmax or a count. These mostly stay the same "
            "when attention changes: return what they are taken of, such as a logit, a logit "
            "difference or a probability; or a float, as in x.float(), if a count is meant."
        )


def _one_number(found: Tensor | float) -> Tensor:
    _check_is_no_whole_number(found)
    if found.is_complex() if isinstance(found, Tensor) else np.iscomplexobj(found):
        raise ContractError(
            "metric returned a complex number: return a real one, such as its size (x.abs()) or "
            "its real part (x.real)."
        )
    try:
        number = (
            found
            if isinstance(found, Tensor)
            else torch.tensor(float(found), dtype=torch.float64, device="cpu")
        )
        return number.double().reshape(())
    except (TypeError, ValueError, RuntimeError) as error:
        shown = tuple(found.shape) if isinstance(found, Tensor) else repr(found)[:60]
        raise ContractError(
            f"metric must return one number for the answer that it is given, not {shown}."
        ) from error
