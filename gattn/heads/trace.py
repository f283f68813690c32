"""Traces: all attention graphs of one run of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, overload

from gattn import door
from gattn.checks import whole
from gattn.edit_records import Edits, in_words, union
from gattn.errors import SelectionError, ShapeError
from gattn.heads import arrays, tables
from gattn.heads.drawn.traces import DrawnHeads
from gattn.heads.geometry.located import Located, Make, Side
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import GRAPH, counted
from gattn.heads.stack import Reduction, Stack, how_to_take_a_head
from gattn.names.choices import HeadChoice, named_stack
from gattn.on_page import Shown

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gattn.analysis.propagation.unrolled import Unrolled
    from gattn.models.run.record.predictions import Predictions


@dataclass(frozen=True, eq=False, repr=False)
class AttentionTrace(Located, DrawnHeads, Shown):
    """All attention graphs of one run of a model, in named stacks of layers.

    ``trace[1, 3]`` is head 3 of layer 1, if there is only one stack; ``trace["cross"][1, 3]``
    names the stack.

    Parameters
    ----------
    stacks : mapping of str to Stack
        The stacks, by name.
    model : str
        The model's name.
    generated : int
        How many of the tokens the model generated in this run: the last ones. The very last token
        of a generated text never enters the model, so it is not among them.
    logits : Tensor, optional
        The logits of this run, (tokens, vocabulary) or (labels,); only those of the last tokens if
        the model computed no others, as in ``generate``. Files do not hold them.
    text : str
        The text that the model was given; empty if it was given something else.
    predictions : Predictions, optional
        What the logits say of the tokens: how probable each was, and which tokens were likeliest.
        None where that is not known: without logits, in a model of other labels, or where a token
        reads the next one before it is predicted. Files do not hold them.

    Raises
    ------
    ShapeError
        If `generated` is not a number of tokens, or `logits` has another shape.
    """

    stacks: Mapping[str, Stack]
    model: str = ""
    generated: int = 0
    logits: Tensor | None = None
    text: str = ""
    predictions: Predictions | None = None

    def __post_init__(self) -> None:
        generated = whole("generated", self.generated, 0, ShapeError)
        object.__setattr__(self, "generated", generated)
        if len(self.stacks) > 1 or GRAPH in self.stacks:
            named = {name: _named(stack) for name, stack in self.stacks.items()}
            object.__setattr__(self, "stacks", named)
        if self.logits is not None and self.logits.dim() not in (1, 2):
            raise ShapeError(
                "logits must be (tokens, vocabulary) or (labels,), those of one sequence, not "
                f"{tuple(self.logits.shape)}."
            )

    from_arrays = classmethod(arrays.from_arrays)
    from_pandas = classmethod(tables.from_pandas)

    @overload
    def __getitem__(self, place: str) -> Stack: ...
    @overload
    def __getitem__(self, place: tuple[int, int]) -> AttentionGraph: ...
    def __getitem__(self, place: str | tuple[int, int]) -> Stack | AttentionGraph:
        """Take a stack by name, or a head of the only stack by (layer, head)."""
        if isinstance(place, str):
            if place not in self.stacks:
                hint = how_to_take_a_head(place)
                raise SelectionError(f"No stack {place!r:.80}; there are {[*self.stacks]}.{hint}")
            return self.stacks[place]
        return self.only_stack[place]

    def __len__(self) -> int:
        """Count the heads."""
        return sum(len(stack) for stack in self.stacks.values())

    def __iter__(self) -> NoReturn:
        raise SelectionError(
            "A trace has stacks, layers and heads, so it is unclear what to iterate over: write "
            "`for head in trace.heads()`, or `for name, stack in trace.stacks.items()`."
        )

    def __contains__(self, thing: object) -> NoReturn:
        raise SelectionError(
            "A trace has stacks, layers and heads, so it is unclear what to look for: write "
            "`(1, 3) in trace.only_stack` or `'cross' in trace.stacks`, or search `trace.heads()`."
        )

    @property
    def only_stack(self) -> Stack:
        """The stack, if there is only one."""
        if not self.stacks:
            raise SelectionError(
                "This trace has no attention: all of its sequence was padding, or no layer ran."
            )
        if len(self.stacks) != 1:
            is_cross = {
                name: any(head.graph.is_bipartite for head in stack.values())
                for name, stack in self.stacks.items()
            }
            names = sorted(self.stacks, key=lambda name: is_cross[name])
            raise SelectionError(
                f"This trace has the stacks {names}: name one, as in trace{names[:1]}."
            )
        return next(iter(self.stacks.values()))

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {_size_of(stack)}" for name, stack in self.stacks.items())
        generated = f"; {self.generated} generated" if self.generated else ""
        edits = f"; {in_words(self.edits)}" if self.edits else ""
        return f"AttentionTrace({self.model or 'no model'}; {parts}{generated}{edits})"

    @property
    def edits(self) -> Edits:
        """The edits that the model ran with."""
        return union(head.edits for head in self.heads())

    @property
    def tokens(self) -> list[str]:
        """The tokens' texts, if there is only one stack."""
        return self.only_stack.tokens

    def heads(self) -> Iterator[AttentionGraph]:
        """Iterate over all heads, stack by stack, by layer and head."""
        for stack in self.stacks.values():
            for place in sorted(stack):
                yield stack[place]

    def _located(self, make: Make, side: Side | None, stack: str | None) -> AttentionTrace:
        if stack is not None or len(self.stacks) == 1:
            chosen = self.only_stack if stack is None else self[stack]
            found = {stack or next(iter(self.stacks)): chosen._located(make, side, None)}
        else:
            found = {}
            for name, one in self.stacks.items():
                try:
                    found[name] = one._located(make, side, None)
                except ShapeError as error:
                    why = error
        if not found:
            raise ShapeError(f"No stack of {[*self.stacks]} fits. {why}")
        return replace(self, stacks={**self.stacks, **found})

    def _the_stack(self, stack: str | None) -> str | None:
        if stack is None:
            self.only_stack  # noqa: B018 - says which stacks there are
        return stack

    def unroll(
        self, *, heads: HeadChoice = None, reduce: Reduction = "mean", residual: float = 0.5
    ) -> Unrolled:
        """Unroll the only stack into one DAG; see `Stack.unroll`."""
        return self.only_stack.unroll(heads=heads, reduce=reduce, residual=residual)

    def summary(self) -> pd.DataFrame:
        """Describe each head in a row; see `gattn.analysis.head_table`."""
        return door.head_table(self)

    def _chosen(self, heads: HeadChoice, stack: str | None = None) -> list[AttentionGraph]:
        return list(self.heads()) if heads is stack is None else self._heads_at(heads, stack)

    def _heads_at(self, heads: HeadChoice, stack: str | None = None) -> list[AttentionGraph]:
        stack = named_stack(heads, stack)
        return (self.only_stack if stack is None else self[stack])._chosen(heads)


def _named(stack: Stack) -> Stack:
    """Return a stack whose heads know its name."""
    heads = {
        place: head if head.stack == stack.name else replace(head, stack=stack.name)
        for place, head in stack.items()
    }
    return Stack(stack.name, heads)


def _size_of(stack: Stack) -> str:
    layers, numbers = stack.layers, stack.head_numbers
    if len(stack) == len(layers) * len(numbers):
        return f"{counted(len(layers), 'layer')} x {counted(len(numbers), 'head')}"
    return f"{counted(len(stack), 'head')} in {counted(len(layers), 'layer')}"
