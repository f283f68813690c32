"""Runs a model for its answer, once or in copies."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from operator import index
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.models.effects.stack_names import StackNames
from gattn.models.run.names.naming import Texts
from gattn.models.run.opening import opened
from gattn.models.run.prompt import Prompt
from gattn.models.watch.contexts import Context
from gattn.models.watch.reading_ahead import AheadOfAnswer
from gattn.names.tokens import described, find_token, grid_of, unclear_pair

# A CPU gains nothing from larger batches.
_MEMORY = 1 << 28


class Runner:
    """Runs a model on one sequence, as often as needed, and gives its logits.

    Parameters
    ----------
    prompt : Prompt
        What the model is run on.
    positions : sequence of int or str, optional
        The tokens whose logits are wanted; by default all.
    are_given : bool
        Whether the user named them.
    """

    def __init__(
        self, prompt: Prompt, positions: Sequence[int | str] | None, *, are_given: bool = True
    ) -> None:
        self.prompt, self.encoding = prompt, prompt.encoding
        self.model, self.tokenizer = prompt.model, prompt.tokenizer
        self._rows: list[int] | None = None
        self._are_given = are_given
        self._is_of_text = False  # as the answer of a classifier is, which has no rows of tokens
        self._is_loss = False
        self._ahead: AheadOfAnswer | None = None if are_given else AheadOfAnswer()
        self._stack_names: StackNames | None = None
        self._num_texts: int | None = None  # among which positions were found by a text
        self._positions = self._found(positions)
        takes = inspect.signature(self.model.forward).parameters
        if self._positions is not None and self.encoding is not None and "logits_to_keep" in takes:
            self._rows = [row_of(n, len(self.encoding)) for n in self._positions]

    def _found(self, positions: Sequence[int | str] | None) -> list[int] | None:
        """Find the positions of tokens, which may be named by their texts."""
        return None if positions is None else [self._find(one) for one in positions]

    def check_pair(self, position: object) -> None:
        """Refuse a pair of positions that may be meant as a patch."""
        said = unclear_pair("position", position)
        if said and grid_of(self._texts):
            raise SelectionError(said)

    def _find(self, position: int | str) -> int:
        if not isinstance(position, str):
            return position
        if not (tokens := self._texts):
            raise SelectionError(
                f"The tokens of these inputs are not known by their texts: give position= as a "
                f"number, not {position!r:.80}."
            )
        given, has_one_stack = self._given, self.encoding and not self.encoding.decoder_tokens
        if has_one_stack and given and len(given) != len(tokens):
            raise CaptureError(
                f"tokens= gives {len(given)} texts, but there are {len(tokens)} tokens: give one "
                "text per token."
            )
        self._num_texts = len(tokens)
        return find_token(position, range(len(tokens)), tokens, "position")

    @property
    def _texts(self) -> Sequence[str]:
        """The texts of the tokens that have an answer: the user's, or the encoding's."""
        encoding, given = self.encoding, self._given
        known = () if encoding is None else encoding.decoder_tokens or encoding.tokens
        return given if given and (not known or len(given) == len(known)) else known

    @property
    def _given(self) -> Sequence[str]:
        """The texts that the user gives the tokens that have an answer."""
        naming, stacks = self.prompt.naming, self.prompt.naming.stacks
        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            stacks = {"decoder"}
        return naming.of(stacks.pop() if len(stacks) == 1 else "").get("query", ())

    def following(self) -> list[int]:
        """Read the loss's positions, by default all, and return the token after each."""
        kind = type(self.model).__name__
        if self.encoding is None or not getattr(self.model, "can_generate", bool)():
            raise SelectionError(
                f"metric='loss' is that of the next tokens of a text, which a {kind} on these "
                "inputs does not predict: pass metric=, a function of the logits, or run a "
                "function that returns the loss."
            )
        tensors = self.encoding.tensors
        ids: list[int] = tensors.get("decoder_input_ids", tensors["input_ids"]).tolist()
        every = range(len(ids) - 1)
        rows = every if self._positions is None else [row_of(n, len(ids)) for n in self._positions]
        if not rows or max(rows) not in every:
            raise SelectionError(
                f"metric='loss' measures how a position predicts the next token, but the last of "
                f"{len(ids)} has none: choose earlier positions, or add the next token to the text."
            )
        self._positions, self._is_loss, self._ahead = list(rows), True, AheadOfAnswer()
        return [ids[row + 1] for row in rows]

    def run(self, context: Context, count: int = 1) -> list[Any]:
        """Run copies of the sequence, and give the logits of each."""
        fewer = (
            {} if self._rows is None else {"logits_to_keep": torch.tensor(self._rows, device="cpu")}
        )
        # The first run tells whether its tokens read later ones.
        with nullcontext() if self._ahead is None else opened(self.model, self._ahead):
            result, tracker = self.prompt.run(context, count, **fewer)
        logits = getattr(result, "logits", None)
        if not isinstance(logits, Tensor):
            raise ModelError(
                f"{type(self.model).__name__} gives no logits to measure: load the model with its "
                "head, such as AutoModelForCausalLM or AutoModelForMaskedLM."
            )
        if len(logits) != count:
            raise CaptureError(f"Expected one sequence, got a batch of {len(logits)}.")
        return [self._chosen(tracker.tokens.real_rows(x, n)) for n, x in enumerate(logits)]

    def _chosen(self, logits: Tensor) -> Tensor:
        ahead, self._ahead = self._ahead, None
        if self._positions is None:
            return logits
        if logits.dim() < 2:
            self._is_of_text = self._rows is None
            return logits[None]
        if ahead is not None and self._is_loss:
            self._check_unread(ahead)
        self._check_named(logits, ahead)
        if self._rows is not None:
            return logits
        return self._picked(logits)

    def _picked(self, logits: Tensor) -> Tensor:
        """Pick the rows at the positions, which may be known as those of so many tokens."""
        assert self._positions is not None
        if self._num_texts not in (None, len(logits)):
            raise SelectionError(
                f"position= names one of {self._num_texts} tokens by its text, but there are "
                f"{len(logits)} rows of logits: give the row as a number, or one text per row."
            )
        rows: Tensor = logits[[row_of(n, len(logits)) for n in self._positions]]
        return rows

    def _check_unread(self, ahead: AheadOfAnswer) -> None:
        """Refuse the loss of next tokens that were read by those that are to predict them."""
        read = sorted(ahead.past.intersection(self._positions or ()))
        if not read:
            return
        config = getattr(self.model, "config", None)
        is_other = getattr(config, "is_decoder", None) is False
        decoder = "load the model with is_decoder=True, " if is_other else ""
        raise SelectionError(
            "metric='loss' measures how a position predicts the next token, but in "
            f"{type(self.model).__name__} tokens up to position {read[0]} read later ones: "
            f"{decoder}choose other positions, or pass metric=, a function of the logits."
        )

    def _check_named(self, logits: Tensor, ahead: AheadOfAnswer | None = None) -> None:
        """Refuse the last row of logits in place of a token, if the last is none to be predicted.

        A model that does not generate, as of masked words, has an answer for each token; so has
        one whose tokens read later ones.
        """
        if self._are_given or self._is_loss:
            return
        count = len(logits) if self._rows is None else len(self.encoding or ())
        generates: Any = getattr(self.model, "can_generate", None)
        reads_last = ahead is not None and ahead.reads_last
        if count == 1 or (not reads_last and (generates is None or generates())):
            return
        known = f": {described(self._texts)}" if self._texts else ""
        why = ", and the last one is read by others" if reads_last else ""
        raise SelectionError(
            f"{type(self.model).__name__} gives logits for each of {count} tokens{why}: pass "
            f"position=, the token whose answer is measured, or several{known}."
        )

    def plain(self) -> Any:
        """Run the model without further edits."""
        return self._run_for_names()

    def _run_for_names(self) -> Any:
        """Run the model without further edits, and note the tokens of its stacks."""
        names = StackNames(self.tokenizer, self.prompt.naming)
        (found,) = self.run(names)
        names.check()
        self._stack_names = names
        return found

    @property
    def texts(self) -> Texts | dict[str, Texts]:
        """The tokens of the plain run's only stack, or of each; no texts where sequences differ."""
        return [] if self._stack_names is None else self._stack_names.texts

    @property
    def read_at(self) -> list[int] | None:
        """The positions of the tokens whose logits are wanted, counted from 0, if known."""
        if self._positions is None or self.encoding is None or self._is_of_text:
            return None
        tokens = self.encoding.decoder_tokens or self.encoding.tokens
        return [row_of(n, len(tokens)) for n in self._positions] if tokens else None

    @property
    def batch_size(self) -> int:
        """Estimate how many copies fit in memory at once."""
        if self.encoding is None:
            return 1
        tokens = len(self.encoding) + len(self.encoding.decoder_tokens)
        return self.prompt.most_copies(tokens, len(self._rows or range(tokens)), _MEMORY)


def row_of(position: int, rows: int) -> int:
    """Count a position from 0, among so many rows."""
    number = index(position)
    if not -rows <= number < rows:
        raise SelectionError(f"No position {position}: there are {rows}, 0 .. {rows - 1}.")
    return number % rows
