"""What the logits of a run say of its tokens: how probable each was, and which were likeliest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.load.token_texts import entries_of

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

    from gattn.heads.stack import Stack

_ROWS = 64
"""How many rows of logits are in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Predictions:
    r"""What a language model predicted in a run: ``trace.predictions``.

    Position i predicts token :math:`i + s` of its stack: the next one, :math:`s = 1`, in a model
    that generates, or the token in its own place, :math:`s = 0`, in a masked language model. So

    .. math:: p_t = \operatorname{softmax}(\text{logits}_{t - s})_{\text{id}_t}

    is the probability of token t. Nothing is computed before it is asked for.

    Parameters
    ----------
    logits : Tensor (positions, vocabulary)
        The logits of the last positions, those that the model computed.
    ids : tuple of int
        The ids of all tokens.
    shift : int
        Which token a position predicts: 1, the next one, or 0, its own.
    stack : str
        The stack whose tokens these are.
    """

    logits: Tensor = field(repr=False)
    ids: tuple[int, ...]
    shift: int
    stack: str
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, repr=False)

    @property
    def first(self) -> int:
        """The first position that the model gave logits for."""
        return len(self.ids) - len(self.logits)

    @cached_property
    def probability(self) -> NDArray[np.float64]:
        """The probability of each token, (tokens,); NaN if no position predicts it."""
        found = np.full(len(self.ids), np.nan)
        for positions, logarithms in self._logarithms():
            told = positions + self.shift
            is_there = told < len(self.ids)
            ids = np.array(self.ids)[told[is_there]]
            rows = torch.from_numpy(np.flatnonzero(is_there))
            found[told[is_there]] = logarithms[rows, torch.from_numpy(ids)].exp().numpy()
        return found

    def likeliest(self, most: int = 5) -> list[list[tuple[str, float]]]:
        """List what each position predicts: the likeliest tokens, and how probable each is.

        Parameters
        ----------
        most : int
            How many tokens.

        Returns
        -------
        list of list of (str, float)
            Of each position, the likeliest first; none where the model gave no logits.
        """
        most = min(whole("most", most, 1, SelectionError), self.logits.shape[-1])
        found: list[list[tuple[str, float]]] = [[] for _ in range(self.first)]
        for _, logarithms in self._logarithms():
            top = logarithms.topk(most)
            for ids, some in zip(top.indices.tolist(), top.values.exp().tolist(), strict=True):
                found.append(list(zip(entries_of(ids, self.tokenizer), some, strict=True)))
        return found

    def table(self, most: int = 5) -> pd.DataFrame:
        """List the tokens: ``token``, its ``probability``, and the ``likeliest`` in its place.

        `likeliest` has (token, probability) for each of the `most` likeliest tokens, as predicted
        by the same position as the token itself; it is empty where no position predicts the token.
        """
        import pandas as pd

        before: list[list[tuple[str, float]]] = [[] for _ in range(self.shift)]
        likeliest = [*before, *self.likeliest(most)][: len(self.ids)]
        return pd.DataFrame(
            {
                "token": entries_of(self.ids, self.tokenizer),
                "probability": self.probability,
                "likeliest": likeliest,
            }
        ).rename_axis("position")

    def _logarithms(self) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Give positions and the logarithms of what each predicts, a few at a time."""
        for start in range(0, len(self.logits), _ROWS):
            rows = self.logits[start : start + _ROWS].double().cpu().log_softmax(-1)
            yield self.first + start + np.arange(len(rows)), rows


def shift_of(model: nn.Module) -> int | None:
    """Say which token a model's logits predict: 1, the next, 0, that in their place, or None."""
    if type(model).__name__.endswith("ForMaskedLM"):
        return 0
    generates: Any = getattr(model, "can_generate", None)
    return 1 if callable(generates) and generates() else None


def predictions_of(
    logits: Sequence[tuple[Tensor, int]],
    ids: dict[tuple[str, bool], list[int] | None],
    stacks: dict[str, Stack],
    shift: int | None,
    tokenizer: PreTrainedTokenizerBase | None,
    ahead: Mapping[str, Collection[int]],
) -> Predictions | None:
    """Take the predictions of a run, where it is certain which tokens its logits predict.

    `logits` come with the number of tokens after which they end. Without a gap between them, a
    token must be predicted by tokens before it alone, unless in its own place: `ahead` are the
    positions of each stack up to which some token read a later one.
    """
    if shift is None or not logits or any(some.dim() != 2 for some, _ in logits):
        return None
    starts, ends = [end - len(some) for some, end in logits], [end for _, end in logits]
    if starts[1:] != ends[:-1] or starts[0] < 0:
        return None
    for stack in ("decoder", *(name for name in stacks if name != "decoder")):
        known = ids.get((stack, False))
        if stack not in stacks or known is None or not 0 < len(known) == ends[-1]:
            continue
        reads_next = bool(shift and ahead.get(stack))
        if reads_next or max(known) >= logits[0][0].shape[-1]:
            continue
        if _fits(stacks[stack], len(known)):
            whole = logits[0][0] if len(logits) == 1 else torch.cat([some for some, _ in logits])
            return Predictions(whole, tuple(known), shift, stack, tokenizer)
    return None


def _fits(stack: Stack, tokens: int) -> bool:
    """Return whether the tokens of a stack that read each other are so many."""
    return all(
        not head.graph.is_bipartite and head.graph.num_tokens == tokens for head in stack.values()
    )
