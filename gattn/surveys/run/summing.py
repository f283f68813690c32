"""Scores the heads of a batch of texts from all their edges, while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gattn.analysis.heads.head_table import drop_empty, labelled, scored
from gattn.analysis.heads.summed.nodes import Nodes
from gattn.analysis.heads.summed.of_blocks import BlockSums, Marks, bring_to_host
from gattn.analysis.heads.summed.sums import Sums, joined
from gattn.analysis.reading.heads import Place as HeadPlace
from gattn.analysis.reading.heads import by_place
from gattn.graph.token_graph import TokenGraph
from gattn.models.load.encoding import Encoding

if TYPE_CHECKING:
    from gattn.engines.tiles import RowBlock
    from gattn.heads.trace import AttentionTrace
    from gattn.models.edit.part import Part
    from gattn.models.read.places import Place


class _Part(NamedTuple):
    """Heads that were summed up together, and which of the texts in their sums it is."""

    places: list[HeadPlace]
    sums: BlockSums
    number: int


class SummedTexts:
    """The sums of the heads of a batch of texts; it looks on while they are recorded.

    What it cannot sum up, it does not hold: heads that attend along listed edges, in windows that
    are put together later, or in several calls.
    """

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        self._encodings, self._known = encodings, Marks()
        self._of_text: dict[int, list[_Part]] = {}
        self._are_here = False

    def begin(self, place: Place, part: Part) -> Callable[[RowBlock], None] | None:
        """Take what comes of some heads of a layer."""
        reading, device = part.reading, part.attention.query.device
        is_plain = place.sizes is None and not reading.keys.first and not reading.lists_edges
        if not is_plain or device.type == "mps":  # which has no float64
            return None
        graph = part.graph.to("cpu").sorted()
        places = [(place.stack, place.layer, head + place.head) for head in part.heads]
        nodes = [self._nodes(text, place.stack, graph) for text in reading.sequences]
        sums = BlockSums(graph, nodes, len(places), device, self._known)
        for number, text in enumerate(reading.sequences):
            self._of_text.setdefault(text, []).append(_Part(places, sums, number))
        return sums.add

    def _nodes(self, text: int, stack: str, graph: TokenGraph) -> Nodes:
        names = self._encodings[text].names(stack)
        known = (tuple(names.get(name, ())) for name in ("tokens", "words"))
        return Nodes.on(graph, *(some if len(some) == graph.num_tokens else () for some in known))

    def holds(self, text: int, trace: AttentionTrace) -> bool:
        """Return whether all heads of a text's trace were summed up, once, with their tokens."""
        heads = by_place(trace)
        parts = self._of_text.get(text, [])
        found = sorted(place for part in parts for place in part.places)
        return found == sorted(heads) and all(
            part.sums.is_of(part.number, heads[place]) for part in parts for place in part.places
        )

    def scores(self, text: int, trace: AttentionTrace) -> dict[HeadPlace, dict[str, Any]]:
        """Score the heads of a text's trace, all of their edges, as `head_table` does."""
        if not self._are_here:
            every = (one.sums for parts in self._of_text.values() for one in parts)
            bring_to_host(list(dict.fromkeys(every)))
            self._are_here = True
        heads = by_place(trace)
        alike: dict[object, list[tuple[list[HeadPlace], Sums]]] = {}
        for places, sums, number in self._of_text[text]:
            found = sums.of(number, [heads[place] for place in places])
            alike.setdefault(found.kind, []).append((places, found))
        rows: dict[HeadPlace, dict[str, Any]] = {}
        for parts in alike.values():
            numbers = scored(joined([found for _, found in parts]))
            rows |= zip([place for places, _ in parts for place in places], numbers, strict=True)
        ordered = {
            place: {"key_value_head": head.key_value_head} | labelled(rows[place], head)
            for place, head in heads.items()
        }
        drop_empty(list(ordered.values()))
        return ordered
