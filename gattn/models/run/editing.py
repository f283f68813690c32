"""Runs a live model with edits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeGuard

from torch import nn

from gattn.edit_records import EditRecord
from gattn.errors import EditError
from gattn.models.edit.base import Edit
from gattn.models.load.loading import check_module, check_tokenizer
from gattn.models.run.edit_context import Editing
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.run.opening import opened
from gattn.models.run.patching import Sources
from gattn.models.watch.contexts import present
from gattn.names.choices import is_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def open_edits(model: nn.Module, sequence: int = 0) -> tuple[Edit, ...]:
    """List the open edits of a sequence on a model, or on a part of it."""
    return tuple(
        edit
        for calls, context in present()
        if isinstance(context, Editing) and (calls.owns(model) or _holds(model, calls.model))
        for edit in context.of(sequence)
    )


def _holds(model: nn.Module, part: nn.Module) -> bool:
    return any(module is part for module in model.modules())


def check_edits(edits: Iterable[object]) -> None:
    """Refuse what is not an edit."""
    wrong = [edit for edit in edits if not isinstance(edit, Edit)]
    if wrong and isinstance(wrong[0], EditRecord):
        raise EditError(
            f"{wrong[0]} was read from a file, which only describes the edit: create it again, as "
            "in gattn.Cut(...)."
        )
    if wrong:
        raise EditError(
            "An edit is one of Cut, Scale, Restrict, Use, Swap, Only, Patch, Ablate or "
            f"Without, not {wrong[0]!r:.60}{_instead(wrong[0])}."
        )


def is_place(given: object) -> TypeGuard[Sequence[int]]:
    """Return whether two numbers are given, as of a layer and a head."""
    return isinstance(given, (list, tuple)) and len(given) == 2 and all(map(is_number, given))


def _instead(given: object) -> str:
    """Say how to pass what was taken for an edit."""
    if isinstance(given, str):
        return ": write an edit of these heads, such as gattn.Cut('2.1')"
    if is_place(given):
        return f": write an edit of this head, such as gattn.Cut({tuple(map(int, given))})"
    if is_number(given):
        return f": write an edit of this layer, such as gattn.Cut(layer={given})"
    if isinstance(given, (list, tuple)):
        return ": pass edits one by one, as in gattn.edited(model, *edits)"
    if hasattr(given, "convert_ids_to_tokens"):
        return ": pass the tokenizer by name, tokenizer=tokenizer"
    if isinstance(given, nn.Module):
        return ": the model comes before its edits, as in gattn.edited(model, *edits)"
    return ""


def edited(
    model: nn.Module,
    *edits: Edit,
    tokenizer: PreTrainedTokenizerBase | None = None,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> AbstractContextManager[None]:
    """Run a live model with edits, within this context and thread.

    Rows that an edit does not change stay bit for bit the same. Contexts nest: edits of the outer
    ones come first, and `gattn.capture` within them sees the edited attention. With gradient
    checkpointing the backward pass must run inside the context too.

    Parameters
    ----------
    model : nn.Module
        A transformers model, or any other PyTorch model, as in `gattn.capturing`.
    *edits : Edit
        `Cut`, `Scale`, `Restrict`, `Use`, `Swap`, `Only`, `Patch`, `Ablate`, `Without`; those of a
        head apply in this order, except that all that change what heads read, who may attend to
        whom, or the scores, come before those that change attention, and these before those that
        change outputs.
    tokenizer : PreTrainedTokenizerBase, optional
        Names the tokens, for edits that name them; by default found by the model's name.
    tokens : sequence of str, mapping of str to sequence of str, or list of these, optional
        The tokens' texts, for edits that name them: for all stacks that have as many tokens, by
        stack, or a list for each sequence of a batch, as in `gattn.capturing`. Nodes of several
        types have the names that graphs show, such as "paper 3".
    grid : (int, int), optional
        How many rows and columns of patches an image has, for edits that name patches as traces do,
        such as "2,4" or "class", as in `gattn.capturing`.

    Returns
    -------
    context manager
        For a ``with`` block, within which the model runs with the edits.

    Raises
    ------
    EditError
        If an edit cannot be applied, or if it never applied when the context closes.
    CaptureError
        If the model's attention cannot be read.
    ModelError
        If `model` cannot be edited.

    Examples
    --------
    >>> with gattn.edited(model, gattn.Cut(layer=5, head=1, query=9, key=4)):
    ...     logits = model(**inputs).logits
    """
    if isinstance(model, Edit):
        raise EditError("edited takes the model before its edits, as in gattn.edited(model, edit).")
    check_module("edited", model)
    check_tokenizer(tokenizer)
    check_edits(edits)
    if not edits:
        raise EditError("edited takes at least one edit, such as gattn.Cut(layer=0, head=1).")
    return _editing(model, edits, tokenizer, Naming(tokens, grid))


@contextmanager
def _editing(
    model: nn.Module,
    edits: Sequence[Edit],
    tokenizer: PreTrainedTokenizerBase | None,
    naming: Naming,
) -> Iterator[None]:
    context = Editing([tuple(Sources(model, tokenizer).run(edits))], tokenizer, naming)
    try:
        with opened(model, context):
            yield
    finally:
        context.backward.is_late = True
    context.check()
