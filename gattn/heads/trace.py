"""Traces: all attention graphs of one run of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, overload

from gattn import door
from gattn.checks import whole
from gattn.edit_records import Edits, in_words, union
from gattn.errors import SelectionError, ShapeError
from gattn.heads.arrays import heads_from
from gattn.heads.head import AttentionGraph
from gattn.keep import All, Keep
from gattn.names.choices import HeadChoice, heads_among, stack_and_heads
from gattn.names.places import list_places

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from gattn.analysis.propagation.unrolled import Unrolled
    from gattn.graph.token_graph import TokenGraph

Reduction: TypeAlias = Literal["mean", "max", "min"]


@dataclass(frozen=True, eq=False, repr=False)
class Stack(Mapping[tuple[int, int], AttentionGraph]):
    """The heads of one stack of layers, by (layer, head).

    Parameters
    ----------
    name : str
        Such as "encoder", "decoder" or "cross".
    heads : mapping of (layer, head) to AttentionGraph
        A layer is the order of calls in the stack; layers and heads count from 0.
    """

    name: str
    heads: Mapping[tuple[int, int], AttentionGraph]

    def __getitem__(self, place: tuple[int, int]) -> AttentionGraph:
        """Take the head (layer, head)."""
        try:
            return self.heads[place]
        except (KeyError, TypeError):  # such as a list, which cannot be a place
            raise SelectionError(
                f"The {self.name} stack has no layer and head {place!r}; it has layers "
                f"{self.layers} with heads {self.head_numbers}."
            ) from None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __repr__(self) -> str:
        edits = f"; {in_words(self.edits)}" if self.edits else ""
        return f"Stack({self.name}: layers {self.layers}, heads {self.head_numbers}{edits})"

    @property
    def edits(self) -> Edits:
        """The edits that the model ran with, as its heads know them."""
        return union(head.edits for head in self.heads.values())

    @property
    def layers(self) -> list[int]:
        """The layers that are there."""
        return sorted({layer for layer, _ in self.heads})

    @property
    def head_numbers(self) -> list[int]:
        """The heads that are there in some layer."""
        return sorted({head for _, head in self.heads})

    @property
    def tokens(self) -> list[str]:
        """The tokens' texts (of the keys, in cross-attention)."""
        return next(iter(self.heads.values())).labels() if self.heads else []

    def draw(self, *, other: Stack | None = None, **options: Any) -> Figure:
        """Draw its heads at a glance, as `AttentionTrace.draw` does."""
        return door.draw_heads(self, other, **options)

    def unroll(
        self, *, heads: HeadChoice = None, reduce: Reduction = "mean", residual: float = 0.5
    ) -> Unrolled:
        r"""Unroll the stack into one directed acyclic graph on (layer, position).

        Layer 0 is the input; the edge ((l, j), (l + 1, i)) is what flows in layer l. With A
        reduced over heads and r the residual share, its weight is
        :math:`(1 - r) A_{ij} + r \delta_{ij}`, divided by the sum of its whole row, dropped edges
        included: where edges were dropped, weights are lower bounds.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads are read: one or several of every layer, or those at some places, such as
            ``"2.1"``; all by default. Through a layer of which none is read, the residual stream
            passes alone.
        reduce : "mean", "max" or "min"
            How the heads of a layer become one A.
        residual : float
            The share r of the residual stream, 0 to 1.

        Returns
        -------
        Unrolled
            A `networkx.DiGraph` that draws itself. Edges have ``attention``, ``residual`` (the
            residual's share of the weight) and ``weight`` = ``capacity``; ``head_0`` ..., the
            attention of each head, where several were chosen.

        Raises
        ------
        SelectionError
            Where the stack is not self-attention over whole, consecutive layers.
        ShapeError
            Where attention is negative, or `residual` is no share.
        """
        return door.unroll(self, heads=heads, reduce=reduce, residual=residual)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionTrace:
    """All attention graphs of one run of a model, in named stacks of layers.

    ``trace[1, 3]`` is head 3 of layer 1 where there is one stack; ``trace["cross"][1, 3]`` names
    the stack.

    Parameters
    ----------
    stacks : mapping of str to Stack
        The stacks, by name.
    model : str
        The model's name.
    generated : int
        How many of the tokens the model generated in this run: the last ones. The very last token
        of a generated text never enters the model, and so is not among them.
    logits : Tensor, optional
        The model's output scores in this run, (tokens, vocabulary) or (labels,); those of the last
        tokens alone where the model computed no others, as in ``generate``. Files do not hold them.
    text : str
        The text that the model was given; empty where it was given something else.

    Raises
    ------
    ShapeError
        Where `generated` is no number of tokens, or `logits` has another shape.
    """

    stacks: Mapping[str, Stack]
    model: str = ""
    generated: int = 0
    logits: Tensor | None = None
    text: str = ""

    def __post_init__(self) -> None:
        generated = whole("generated", self.generated, 0, ShapeError)
        object.__setattr__(self, "generated", generated)
        if self.logits is not None and self.logits.dim() not in (1, 2):
            raise ShapeError(
                "logits must be (tokens, vocabulary) or (labels,), those of one sequence, not "
                f"{tuple(self.logits.shape)}."
            )

    @staticmethod
    def from_arrays(
        attention: Any,
        tokens: Sequence[str] = (),
        *,
        query_tokens: Sequence[str] = (),
        graph: TokenGraph | None = None,
        keep: Keep = All(),  # noqa: B008
        stack: str = "attention",
        model: str = "",
    ) -> AttentionTrace:
        """Read arrays of attention, such as a model's own ``attentions``.

        An array cannot tell an edge of attention 0 from no edge. Where `graph` is not given, every
        token may attend to all, or, where no head of any layer attends to a later token, to all up
        to itself: a zero among these is an edge of attention 0. Where that is wrong, as of a
        sliding window or padding, give the `graph`. Only what counts edges, or compares with even
        attention, depends on it.

        Parameters
        ----------
        attention : array or Tensor (layers, heads, queries, keys), or list of layers
            ``attention[l, h, i, j]`` is what query i gives to key j. Layers in a list are (heads,
            queries, keys), or (1, heads, queries, keys) as in a model's ``attentions``. Labelled
            arrays (`xarray.DataArray`) keep their numbers of layers and heads, positions, tokens
            (``key_token``, ``query_token``) and edits.
        tokens : sequence of str
            The tokens' texts (of the keys, where `query_tokens` are given).
        query_tokens : sequence of str
            The queries' texts, in cross-attention.
        graph : TokenGraph, optional
            Who may attend to whom. Without it, queries and keys are different tokens where
            their numbers differ or `query_tokens` are given; a decoding step is
            ``TokenGraph.causal(1, num_keys=n, query_offset=n - 1)``.
        keep : Keep
            Which edges to keep; all by default.
        stack : str
            The name of the stack of layers.
        model : str
            The model's name.

        Raises
        ------
        ShapeError
            Where the array is of no such shape, a number is not finite, or labels cannot be kept.
        GraphError
            Where there is attention that `graph` does not allow.

        Examples
        --------
        >>> trace = AttentionTrace.from_arrays([[[[1.0, 0.0], [0.3, 0.7]]]], tokens=["the", "dog"])
        >>> trace[0, 0]
        AttentionGraph(layer 0, head 0, 2 tokens, 3 edges, keep=All(), 100.0% of the attention)
        """
        heads = heads_from(
            attention, tokens, query_tokens=query_tokens, graph=graph, keep=keep, model=model
        )
        return AttentionTrace({stack: Stack(stack, heads)}, model)

    @overload
    def __getitem__(self, place: str) -> Stack: ...
    @overload
    def __getitem__(self, place: tuple[int, int]) -> AttentionGraph: ...
    def __getitem__(self, place: str | tuple[int, int]) -> Stack | AttentionGraph:
        """Take a stack by name, or a head by (layer, head) where there is one stack."""
        if isinstance(place, str):
            if place not in self.stacks:
                raise SelectionError(
                    f"No stack {place!r}; there are {sorted(self.stacks)}.{_hint(place)}"
                )
            return self.stacks[place]
        return self.only_stack[place]

    def __len__(self) -> int:
        """Count the heads."""
        return sum(len(stack) for stack in self.stacks.values())

    def __iter__(self) -> NoReturn:
        raise SelectionError(
            "A trace has stacks, layers and heads, so it is not clear what to walk: say "
            "`for head in trace.heads()`, or `for name, stack in trace.stacks.items()`."
        )

    def __contains__(self, thing: object) -> NoReturn:
        raise SelectionError(
            "A trace has stacks, layers and heads, so it is not clear what to look for: ask "
            "`(1, 3) in trace.only_stack` or `'cross' in trace.stacks`, or walk `trace.heads()`."
        )

    @property
    def only_stack(self) -> Stack:
        """The stack, where there is just one."""
        if len(self.stacks) != 1:
            is_cross = {
                name: any(head.graph.is_bipartite for head in stack.values())
                for name, stack in self.stacks.items()
            }
            names = sorted(self.stacks, key=lambda name: (is_cross[name], name))
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
        """The edits that the model ran with, as its heads know them."""
        return union(head.edits for head in self.heads())

    @property
    def tokens(self) -> list[str]:
        """The tokens' texts, where there is one stack."""
        return self.only_stack.tokens

    def heads(self) -> Iterator[AttentionGraph]:
        """Walk all heads, stack by stack, in order of layer and head."""
        for stack in self.stacks.values():
            for place in sorted(stack):
                yield stack[place]

    def unroll(
        self, *, heads: HeadChoice = None, reduce: Reduction = "mean", residual: float = 0.5
    ) -> Unrolled:
        """Unroll the only stack into one DAG; see `Stack.unroll`."""
        return self.only_stack.unroll(heads=heads, reduce=reduce, residual=residual)

    def summary(self) -> pd.DataFrame:
        """Describe every head in one row; see `gattn.analysis.heads.head_table.head_table`."""
        return door.head_table(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a ``.gattn`` file; see `gattn.files.save`."""
        door.save(self, path)

    def draw(self, *, other: AttentionTrace | None = None, **options: Any) -> Figure:
        """Draw all heads at a glance; see `gattn.drawing.draw_heads`.

        With another trace of the same tokens, before, after and what changed; see
        `gattn.drawing.draw_compare`.
        """
        return door.draw_heads(self, other, **options)

    @overload
    def to_html(self, path: None = None, **options: Any) -> str: ...
    @overload
    def to_html(self, path: str | PathLike[str], **options: Any) -> None: ...
    def to_html(self, path: str | PathLike[str] | None = None, **options: Any) -> str | None:
        """Write a page to look at, one HTML file; see `gattn.drawing.page.to_html`."""
        return door.to_html(self, path, **options)

    def _repr_html_(self) -> str | None:
        return door.notebook_html(self)

    def draw_text(
        self,
        query: int | str | None = None,
        *,
        heads: HeadChoice = None,
        **options: Any,
    ) -> Axes:
        """Write the text, shaded by the mean of all heads or of some, as in `draw`.

        See `gattn.drawing.draw_text`.
        """
        chosen = self.heads() if heads is None else iter(self._heads_at(heads))
        return door.draw_text(chosen, query, **options)

    def _heads_at(self, heads: HeadChoice) -> list[AttentionGraph]:
        stack, _ = stack_and_heads(heads)
        of = self.only_stack if stack is None else self[stack]
        return [of[place] for place in heads_among(heads, of.layers)[1]]


def _hint(place: str) -> str:
    """Say how a head is taken that was named as text."""
    try:
        stack, ((layer, head), *_) = list_places(place)
    except ValueError:
        return ""
    of = f"trace[{stack!r}]" if stack else "trace"
    return f" A head is taken as {of}[{layer}, {head}]."


def _size_of(stack: Stack) -> str:
    layers, numbers = stack.layers, stack.head_numbers
    if len(stack) == len(layers) * len(numbers):
        return f"{len(layers)} layers x {len(numbers)} heads"
    return f"{len(stack)} heads in {len(layers)} layers"
