"""Which heads a picture of many shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from gattn.analysis.reading.attention import Heads
from gattn.analysis.reading.heads import Place
from gattn.drawing.canvas.frame import shown_text
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of, several
from gattn.heads.trace import AttentionTrace
from gattn.names.choices import HeadChoice, heads_among, named_stack, no_head

Graphs: TypeAlias = "Mapping[Place, AttentionGraph]"


@dataclass(frozen=True)
class Chosen:
    """The heads that are drawn.

    Parameters
    ----------
    graphs : mapping of (str, int, int) to AttentionGraph
        By stack, layer and head, in the order to draw them.
    model : str
        The model's name.
    names_stacks : bool
        Whether there are other stacks.
    is_strip : bool
        Whether they were chosen one by one.
    """

    graphs: Graphs
    model: str
    names_stacks: bool
    is_strip: bool

    @classmethod
    def of(
        cls,
        attention: Heads,
        graphs: Graphs,
        heads: HeadChoice,
        stack: str | None,
    ) -> Chosen:
        """Choose from all heads of some attention.

        Raises
        ------
        SelectionError
            If there is no such stack or head, or nothing to draw.
        """
        if not graphs:
            raise SelectionError("There is nothing to draw: this trace holds no heads.")
        names = {place[0] for place in graphs}
        if heads is not None:
            stack = named_stack(heads, stack)
        if stack is not None and stack not in names:
            raise SelectionError(f"No stack {stack!r} with heads; there are {sorted(names)}.")
        graphs = {place: head for place, head in graphs.items() if stack in (None, place[0])}
        if heads is not None:
            graphs = _picked(graphs, heads)
        is_strip = heads is not None or isinstance(attention, AttentionGraph)
        name = attention.model if isinstance(attention, AttentionTrace) else ""
        name = name or next(iter(graphs.values())).model
        return cls(graphs, name, len(names) > 1, is_strip)

    def stacks(self) -> list[Graphs]:
        """Split the heads by stack."""
        listed = groupby(self.graphs.items(), lambda item: item[0][0])
        return [dict(items) for _, items in listed]

    def title(self, graphs: Graphs) -> str:
        """Name the model and, if there are several, the stack; count the tokens."""
        place, head = next(iter(graphs.items()))
        graph = head.graph
        counts = [(one.graph.num_tokens, one.graph.num_queries) for one in graphs.values()]
        keys, queries = zip(*counts, strict=True)
        noun = noun_of(head.geometry, place[0])
        tokens = _count(keys, noun, several(noun))
        if graph.is_bipartite or graph.num_queries != graph.num_keys:
            tokens = f"{_count(queries, 'query', 'queries')}, {_count(keys, 'key', 'keys')}"
        if head.generated:
            tokens += f", {head.generated} generated"
        stack = place[0] if self.names_stacks else ""
        edited = "edited" if any(one.edits for one in graphs.values()) else ""
        parts = [shown_text(self.model), shown_text(stack), tokens, edited]
        return " · ".join(filter(None, parts))


def _count(counts: Sequence[int], one: str, more: str) -> str:
    """Write "1 token", "5 tokens", "5 to 7 tokens"."""
    least, most = min(counts), max(counts)
    number = str(least) if least == most else f"{least} to {most}"
    return f"{number} {one if most == 1 else more}"


def _picked(every: Graphs, heads: HeadChoice) -> Graphs:
    stacks = list(dict.fromkeys(place[0] for place in every))
    if len(stacks) > 1:
        raise SelectionError(f"heads= needs a single stack: pass stack=, one of {stacks}.")
    name = stacks.pop()
    layers = sorted({layer for _, layer, _ in every})
    numbers = sorted({number for *_, number in every})
    found: dict[Place, AttentionGraph] = {}
    for place in heads_among(heads, layers)[1]:
        if (spot := (name, *place)) not in every:
            how = f"heads=[{numbers[0]}] or heads=[({layers[0]}, {numbers[0]})]"
            raise SelectionError(
                f"{no_head(heads, place, layers, numbers)} Name heads as in {how}."
            )
        found[spot] = every[spot]
    return found
