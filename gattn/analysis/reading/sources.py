"""What attention was read from: fields, which titles and tables show as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gattn.edit_records import Edits, in_words
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.nouns import counted


@dataclass(frozen=True)
class Source:
    """What attention was read from.

    Parameters
    ----------
    model, stack : str
        Whose it is, if that is known.
    layers, heads : tuple of int
        Their numbers.
    size : str
        How many tokens, or queries and keys.
    kept_by : tuple of Keep and Step
        How the edges of the first head were kept.
    edits : tuple of Edit
        The edits that the model ran with.
    is_array : bool
        Whether it was an array, which knows no model.
    text : str
        What an array says of itself, in place of all else.
    """

    model: str = ""
    stack: str = ""
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    size: str = ""
    kept_by: steps.Kept = steps.ALL
    edits: Edits = ()
    is_array: bool = False
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return self.text
        parts = [
            self.model,
            f"{self.stack} stack" if self.stack else "",
            in_numbers("layer", self.layers),
            in_numbers("head", self.heads),
            self.size,
            steps.in_words(self.kept_by),
            in_words(self.edits),
        ]
        said = ", ".join(filter(None, parts))
        return f"an array of {said}" if self.is_array else said


def size_of(queries: int, keys: int, *, is_square: bool, noun: str = "token") -> str:
    """Write "3 tokens", or "2 queries, 3 keys"."""
    return counted(keys, noun) if is_square else f"{queries} queries, {keys} keys"


def is_square(graph: TokenGraph) -> bool:
    """Return whether queries and keys are the same tokens."""
    return not graph.is_bipartite and graph.num_queries == graph.num_keys


def in_numbers(word: str, numbers: Sequence[int]) -> str:
    """Write "head 2", "heads 0-3" or "heads 0, 2"; nothing for none."""
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}s " + ", ".join(map(str, numbers))
