"""A function of pairs of tokens, computed a few pairs at a time, and its gradient likewise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from gattn.engines.tensors.memory import Pasted, Recomputed, add_to, gather_into, selected, take
from gattn.engines.tensors.program import Outputs, Program
from gattn.engines.tensors.recorded import record
from gattn.weights.base import Tree, map_tree

FEWEST = 8
"""How many pieces of one size make it worthwhile to record what the function does."""

Known = tuple[Tensor | None, ...]


class Piece(NamedTuple):
    """Some pairs: their tokens on either side, what else is known of them, their scores' place.

    Pieces of one `size` have tensors of the same shapes.
    """

    query: slice | Tensor
    key: slice | Tensor
    known: Callable[[], Known]
    place: tuple[Any, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Piecewise:
    """Scores of pairs, in pieces.

    Parameters
    ----------
    score : callable
        Takes tokens of both sides, and what else is known of the pairs.
    query, key : trees
        The tokens, (B, H, N, .).
    pieces : sequence of Piece
        All pairs.
    smaller : sequence of Piece
        All pairs in smaller pieces, for a gradient, which needs several times the memory.
    """

    score: Callable[[Tree, Tree, Known], Tensor]
    query: Tree
    key: Tree
    pieces: Sequence[Piece]
    smaller: Sequence[Piece]

    def scores(self, whole: Tensor, is_replayed: bool = True) -> Tensor:
        """Write all scores into a tensor.

        What the function does is recorded and replayed, unless there are few pieces or it cannot
        be: then it is called on each piece.
        """
        recorded = self._recorded() if is_replayed and whole.device.type == "cpu" else None
        if recorded is None:
            return self.one_by_one(whole, is_replayed and len(self.pieces) > 1)
        program, captured = recorded
        scores: Tensor = _Scores.apply(self, program, whole, *self._leaves, *captured)  # type: ignore[no-untyped-call]
        return scores

    def one_by_one(self, whole: Tensor, recomputed: bool) -> Tensor:
        """Write all scores into a tensor, calling the function on each piece."""
        query, key = self.query, self.key
        pasted, call = Pasted(whole), Recomputed(many=recomputed)

        def score(query: Tree, key: Tree, piece: Piece) -> tuple[Tensor, Tree, Tree]:
            ends, query = take(query, piece.query)
            others, key = take(key, piece.key)
            return self.score(ends, others, piece.known()), query, key

        for piece in self.pieces:
            scores, query, key = call(score, query, key, piece)
            pasted.add(piece.place, scores)
        return pasted.whole

    def replayed(self, program: Program, whole: Tensor) -> None:
        """Write all scores into a tensor, without a gradient, by what was recorded."""
        for piece, (scores,) in self._each(self._function, program, self.pieces):
            assert scores is not None
            whole[piece.place].copy_(scores)

    def gradients(
        self, gradient: Tensor, captured: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor]:
        """Compute the gradients of those leaves and captured tensors that need one."""
        count = self.count
        places = [place for place in range(count) if needs[place]]
        captured = [x for x, is_needed in zip(captured, needs[count:], strict=True) if is_needed]

        def function(*inputs: Tensor) -> Outputs:
            *given, cotangent = inputs
            for place in range(count):
                given[place] = given[place].detach().requires_grad_(needs[place])
            sources = [*(given[place] for place in places), *captured]
            with torch.enable_grad():
                (scores,) = self._function(*given)
            if scores is None or not scores.requires_grad:
                return (None,) * len(sources)
            return torch.autograd.grad(scores, sources, cotangent, allow_unused=True)

        found = self._record(function, self.smaller, gradient)
        program = None if found is None else found[0]
        totals = [
            torch.zeros_like(x) for x in (*(self._leaves[place] for place in places), *captured)
        ]
        for piece, parts in self._each(function, program, self.smaller, gradient):
            for number, (total, part) in enumerate(zip(totals, parts, strict=True)):
                if part is None:
                    continue
                if number < len(places):
                    add_to(total, self._index(piece, places[number]), part)
                else:
                    total += part
        return totals

    def _each(
        self,
        function: Callable[..., Outputs],
        program: Program | None,
        pieces: Sequence[Piece],
        *more: Tensor,
    ) -> Iterator[tuple[Piece, Outputs]]:
        """Run the program, or else the function, on each piece, and on its part of `more`."""
        last = None
        for piece in pieces:
            if program is not None and piece.size == pieces[0].size:
                self._write(program, piece, last, more)
                last = piece
                yield piece, program()
            else:
                yield piece, function(*self._read(piece, more))

    @cached_property
    def _leaves(self) -> list[Tensor]:
        return [*_leaves_of(self.query), *_leaves_of(self.key)]

    @property
    def count(self) -> int:
        """How many tensors there are on both sides."""
        return len(self._leaves)

    @cached_property
    def _queries(self) -> int:
        return len(_leaves_of(self.query))

    def _recorded(self) -> tuple[Program, list[Tensor]] | None:
        alike = [piece for piece in self.pieces if piece.size == self.pieces[0].size]
        if len(alike) < FEWEST or any(
            x is not None and x.requires_grad for x in self.pieces[0].known()
        ):
            return None
        with torch.no_grad():
            return self._record(self._function, alike)

    def _record(
        self, function: Callable[..., Outputs], pieces: Sequence[Piece], *more: Tensor
    ) -> tuple[Program, list[Tensor]] | None:
        first, *_, last = (piece for piece in pieces if piece.size == pieces[0].size)
        return record(function, self._read(first, more), self._read(last, more))

    def _function(self, *inputs: Tensor) -> Outputs:
        """Score a piece, given its tokens and what is known of it, one tensor after another."""
        given = iter(inputs)
        query = map_tree(lambda _: next(given), self.query)
        key = map_tree(lambda _: next(given), self.key)
        known = tuple(None if x is None else next(given) for x in self.pieces[0].known())
        return (self.score(query, key, known),)

    def _index(self, piece: Piece, leaf: int) -> slice | Tensor:
        return piece.query if leaf < self._queries else piece.key

    def _read(self, piece: Piece, more: Sequence[Tensor]) -> list[Tensor]:
        """Copy what a piece needs."""
        found = [
            selected(leaf.detach(), self._index(piece, place))
            for place, leaf in enumerate(self._leaves)
        ]
        found += [x.detach() for x in piece.known() if x is not None]
        return [x.clone() for x in (*found, *(x[piece.place] for x in more))]

    def _write(
        self, program: Program, piece: Piece, last: Piece | None, more: Sequence[Tensor]
    ) -> None:
        """Copy what a piece needs into a program, except what the last piece left there."""
        count = self.count
        tokens, known = program.inputs[:count], program.inputs[count:]
        for place, (target, leaf) in enumerate(zip(tokens, self._leaves, strict=True)):
            index = self._index(piece, place)
            if target is not None and (last is None or self._index(last, place) is not index):
                gather_into(target, leaf, index)
        given: Iterator[Tensor] = (x[piece.place] for x in more)
        if any(x is not None for x in known[: len(known) - len(more)]):
            given = chain((x for x in piece.known() if x is not None), given)
        else:
            known = known[len(known) - len(more) :]
        for target, x in zip(known, given, strict=True):
            if target is not None:
                target.copy_(x)


class _Scores(Function):
    """Replays what was recorded, and likewise its gradient, piece by piece."""

    @staticmethod
    def forward(
        ctx: Any, work: Piecewise, program: Program, whole: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(*tensors)
        ctx.mark_dirty(whole)
        work.replayed(program, whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # A gradient of this gradient is wanted.
            wanted = [x for x, is_needed in zip(tensors, needs, strict=True) if is_needed]
            scores = ctx.work.one_by_one(torch.empty_like(gradient), recomputed=True)
            found = torch.autograd.grad(
                scores, wanted, gradient, create_graph=True, allow_unused=True
            )
        else:
            captured = tensors[ctx.work.count :]
            with torch.autocast(gradient.device.type, enabled=False):
                found = ctx.work.gradients(gradient, captured, needs)
        each = iter(found)
        return None, None, None, *(next(each) if is_needed else None for is_needed in needs)


def _leaves_of(tree: Tree) -> list[Tensor]:
    if isinstance(tree, tuple):
        return [leaf for branch in tree for leaf in _leaves_of(branch)]
    return [] if tree is None else [tree]
