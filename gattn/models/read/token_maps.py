"""Says which token of which sequence each slot of a call's tensors is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

NO_TOKEN = -1
"""A slot that stands for no token of the model's input, such as the padding of a window."""


@dataclass(frozen=True)
class Joined:
    """The part that a call has in a layer of several calls, as in a loop over heads.

    Parameters
    ----------
    first : int
        The number of the first of these calls within a run of the module.
    start : int
        How many queries of each sequence came in the calls before.
    continues : bool
        Whether it is another call than the first one.
    head, heads : int
        Where each call has one head, its number, and how many the layer has; else 0.
    """

    first: int
    start: int = 0
    continues: bool = False
    head: int = 0
    heads: int = 0


@dataclass(frozen=True, eq=False)
class TokenMap:
    """The tokens of a call's elements, as they were proved.

    Parameters
    ----------
    sequences : tuple of int
        For each element of the call, its sequence in the model's batch.
    queries, keys : Tensor (elements, slots), optional
        The position in its sequence of each slot, or `NO_TOKEN`; None where slots are tokens in
        order.
    num_queries, num_keys : int
        How many tokens a sequence has on each side.
    is_cross : bool
        Whether the keys are other tokens than the queries.
    grid : tuple of int
        The sizes of the grid that the tokens form, where they do.
    cells : Tensor (tokens,), optional
        The cell of each token, or `NO_TOKEN`; None where the grid's come row by row.
    num_given : int, optional
        How many of the keys' tokens the input has: any after these are slots that stand for none of
        it, such as class tokens or padding.
    joined : Joined, optional
        Its part in a layer of several calls.
    fed : Tensor (elements, slots), optional
        Which token of the call's input each key is, or `NO_TOKEN`, where it is self-attention whose
        keys are not just these tokens in order, as those of a cache.
    has_own_rows : bool
        Whether its queries are no tokens of any input, as learned ones.
    is_by_rows : bool
        Whether its queries are known by the tokens that their rows of the output are added to.
    has_mask_of_values : bool
        Whether values decide what its mask takes away, so that a key that no query reads may be a
        token all the same.
    inputs : tuple
        What told the tokens of queries and of keys: a run of a module and the number of its input;
        None where nothing did.
    """

    sequences: tuple[int, ...]
    queries: Tensor | None
    keys: Tensor | None
    num_queries: int
    num_keys: int
    is_cross: bool = False
    grid: tuple[int, ...] = ()
    cells: Tensor | None = None
    num_given: int | None = None
    joined: Joined | None = None
    fed: Tensor | None = None
    has_own_rows: bool = False
    is_by_rows: bool = False
    has_mask_of_values: bool = False
    inputs: tuple[object, ...] = ()

    @property
    def is_told(self) -> bool:
        """Whether some slots are other tokens than the order of slots says."""
        return self.queries is not None or self.keys is not None

    @property
    def are_whole_texts(self) -> bool:
        """Whether each element is a text of the batch, and its slots its tokens, in order."""
        is_plain = not self.is_cross and self.joined is None and self.fed is None
        are_in_order = self.queries is None and self.keys is None
        return is_plain and are_in_order and self.sequences == tuple(range(len(self.sequences)))

    def sizes(self, is_read: Callable[[], Tensor]) -> tuple[int, int]:
        """Return how many tokens each side has, without padding.

        That are slots that stand for no token of the input, if no query reads them by `is_read`,
        booleans (elements, keys).
        """
        given, whole = self.num_given, (self.num_queries, self.num_keys)
        if given is None or given >= self.num_keys or self.keys is None:
            return whole
        other = self.keys >= given
        if bool((other & is_read()).any()):
            return whole
        if self.is_cross:
            return self.num_queries, given
        is_same = self.queries is not None and bool(
            ((self.queries >= given).sum(1) <= other.sum(1)).all()
        )
        return (given, given) if is_same else whole

    @property
    def query_positions(self) -> Iterable[Tensor]:
        """The positions of each element's queries."""
        return self._positions(self.queries, self.num_queries)

    @property
    def key_positions(self) -> Iterable[Tensor]:
        """The positions of each element's keys."""
        return self._positions(self.keys, self.num_keys)

    def are_those_of(self, other: TokenMap) -> bool:
        """Return whether slots are the same tokens of the same sequences as in another map."""
        sides = (
            (self.query_positions, other.query_positions),
            (self.key_positions, other.key_positions),
        )
        return self.sequences == other.sequences and all(
            torch.equal(torch.stack(list(one)), torch.stack(list(two))) for one, two in sides
        )

    def cells_of(self, count: int) -> Tensor:
        """Return the cell of each of a graph's tokens; padding of windows comes after the grid."""
        if self.cells is not None:
            return self.cells[:count] if count == self.num_given else self.cells
        cells = torch.arange(count, device="cpu")
        cells[prod(self.grid) :] = NO_TOKEN
        return cells

    def _positions(self, told: Tensor | None, count: int) -> Iterable[Tensor]:
        return [torch.arange(count, device="cpu")] * len(self.sequences) if told is None else told
