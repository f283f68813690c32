"""A call whose tokens are known, and what a few runs with changed tokens show of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.assembling import check_apart, without_token
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL, decoded
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.taints import reached
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import TokenMap

_MOVED = (
    "the model moves its tokens before it attends, after {origin}, and mixes them, so that which "
    "token a slot stands for cannot be told"
)
Pair = tuple[Tensor, Tensor]
"""Which slots (elements, slots) are NaN in a run, and where that is known."""


@dataclass(eq=False)
class Told:
    """A call whose tokens are known, and which slots NaN reached in `runs`: queries, keys, values.

    In some of these it `is_told`: NaN reached more than scores, to which masks are added, too.
    """

    site: Site
    layout: Layout
    runs: list[tuple[Pair, Pair, Pair]] = field(default_factory=list)
    is_told: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the last run shows of some slot whether NaN reached it; not if the run failed."""
        return any(bool(known.any()) for _, known in self.runs[-1][:2])

    @property
    def tokens(self) -> TokenMap:
        """The tokens of its slots."""
        assert self.layout.tokens is not None
        return self.layout.tokens

    def sides(self, count: int) -> Iterator[tuple[int, Tensor]]:
        """List the sides that have as many tokens, with the tokens of each element's slots.

        Queries of others may be no tokens of an input, but learned ones, or mixed in windows; those
        known by their rows need not depend on their own tokens. Keys of a cache are counted as they
        lie.
        """
        tokens = self.tokens
        if tokens.is_cross and tokens.fed is not None:
            return
        for n, of in enumerate((tokens.query_positions, tokens.key_positions)):
            are_own = not tokens.is_cross and not (n == 0 and tokens.is_by_rows)
            if are_own or (n == 1 and tokens.num_keys == count):
                yield n, torch.stack(list(of))

    def look(self, call: RawCall, row: Tensor) -> Tensor:
        """Read which slots are NaN in a run; return those of queries, as its output has them.

        A query all of whose keys are marked, such as a node with no neighbour but itself, is NaN if
        its token was marked.
        """
        site, lead = self.site, self.site.lead
        found = reached(call, site.live, is_ranked=site.is_ranked)
        queries = self._pair(found.queries, found.queries_known)
        keys = self._pair(found.keys, found.keys_known)
        values = self._pair(found.values, torch.ones_like(found.values))
        self.runs.append((queries, keys, values))
        is_reached = bool(queries[0].any()) and bool(keys[0].any())
        self.is_told |= bool(found.values.any()) or (is_reached and call.scores is None)
        if self.tokens.is_by_rows:
            return self.marked(row)
        seen, known = (x.reshape(*lead, -1, 1) for x in (found.queries, found.queries_known))
        return seen | (~known & self.marked(row))

    def marked(self, row: Tensor) -> Tensor:
        """Mark the rows of its output that belong to marked tokens, of each text or of all."""
        positions = torch.stack(list(self.tokens.query_positions))
        count = row.shape[-1]
        is_token = (positions >= 0) & (positions < count)
        texts = torch.tensor(self.tokens.sequences, device="cpu")
        of_text = row[texts] if row.dim() > 1 else row.expand(len(positions), -1)
        marks = of_text.gather(1, positions.clamp(0, count - 1)) & is_token
        heads = self.layout.fold(
            torch.ones(*self.site.lead, 1, 1, device="cpu"), self.site.lead
        ).shape[1]
        spread = marks[:, None, :, None].expand(-1, heads, -1, -1)
        return self.layout.unfold(spread, self.site.lead)

    def _pair(self, *marks: Tensor) -> Pair:
        """Bring (lead, slots) to (elements, slots): what reaches any head, known of all."""
        lead = self.site.lead
        seen, known = (self.layout.fold(x.reshape(*lead, -1, 1), lead)[..., 0] for x in marks)
        return (seen & known).any(1), known.all(1)

    def is_blind(self, code: Tensor, *, everywhere: bool = False) -> bool:
        """Return whether NaN does not tell most slots apart, of some side or of both.

        It reached them in all runs, or it is known in none which it reached.
        """
        return (all if everywhere else any)(
            self._are_alike(code, n, positions) for n, positions in self.sides(code.shape[1])
        )

    def _are_alike(self, code: Tensor, n: int, positions: Tensor) -> bool:
        is_token = (positions >= 0) & (positions < code.shape[1])
        own = code[:, positions.clamp(0, code.shape[1] - 1)].all(0)
        seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
        alike = (seen | ~known).all(0)
        told = is_token & ~own
        return 2 * int((alike & told).sum()) > int(told.sum())

    def mixes(self, code: Tensor) -> bool:
        """Return whether some slot depends on several tokens, or may do so in runs that hide it."""
        for n, positions in self.sides(code.shape[1]):
            is_token = (positions >= 0) & (positions < code.shape[1])
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            may_be = torch.where(known, seen, known.any(0))
            are_several = may_be.sum(0) > int(code[:, 0].sum())
            if bool((are_several & is_token).any()):
                return True
        return False

    @property
    def is_told_in_part(self) -> bool:
        """Whether NaN came to some slots in a run, and not to others."""
        sides = (side for run in self.runs for side in run[:2])
        return any(
            bool((seen & known).any()) and bool((~seen & known).any()) for seen, known in sides
        )

    def is_out_of_reach(self, count: int) -> bool:
        """Return whether no NaN came to a side in any run."""
        for n, positions in self.sides(count):
            is_token = (positions >= 0) & (positions < count)
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            if bool((known & is_token).any()) and not bool((seen & known & is_token).any()):
                return True
        return False

    def has_moved(
        self, code: Tensor, *, are_joined: bool = False, without_padding: bool = False
    ) -> bool:
        """Return whether some slot depends on other tokens than its own.

        If tokens `are_joined` from several inputs, some may be new in each layer, as prompts are:
        what depends on none has not moved. Slots of padding are left out, as masks tell them.
        """
        for n, positions in self.sides(code.shape[1]):
            is_token = (positions >= 0) & (positions < code.shape[1])
            if without_padding:
                is_token &= ~self._padding(n)
            own = code[:, positions.clamp(0, code.shape[1] - 1)]
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            is_missing = own & known & ~seen & is_token
            if are_joined:
                is_missing &= (seen & known).any(0)
            if bool(is_missing.any()) and bool((seen & known & is_token).any()):
                return True
        return False

    def _padding(self, n: int) -> Tensor:
        """Say which slots of queries, 0, or of keys, 1, are padding (elements, slots).

        Masks take it from all queries; of cross-attention, they tell nothing of queries.
        """
        site, slots = self.site, (self.site.queries, self.site.keys)
        tells_queries = not self.tokens.is_cross and slots[0] == slots[1]
        if site.live is None or not (n or tells_queries):
            return torch.zeros(1, slots[n], dtype=torch.bool, device="cpu")
        unread = ~site.live.any(1).expand(prod(site.lead), -1)
        return self.layout.fold(unread.reshape(*site.lead, -1, 1), site.lead)[..., 0].all(1)

    def lost(self, code: Tensor) -> Tensor:
        """Find the tokens on which not even their own slots depend, booleans (elements, tokens).

        None if some slot depends on others alone.
        """
        found = torch.zeros(
            len(self.tokens.sequences), code.shape[1], dtype=torch.bool, device="cpu"
        )
        for n, positions in self.sides(code.shape[1]):
            is_token = (positions >= 0) & (positions < code.shape[1])
            places = positions.clamp(0, code.shape[1] - 1)
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            is_missing = (code[:, places] & known & ~seen).any(0) & is_token
            is_none = is_missing & ~(seen & known).any(0)
            if bool((is_missing & ~is_none).any()):
                return torch.zeros_like(found)
            found |= torch.zeros_like(found).scatter(1, places, is_none)
        return found

    def has_lost(self, lost: Tensor, code: Tensor) -> bool:
        """Return whether no slot of an element depends on the tokens that are `lost` there.

        Other slots of the runs of a `code`, one of which marks just these, may mix tokens, but were
        not moved, as by a recurrent network that packed texts leave without their padding.
        """
        for n, positions in self.sides(code.shape[1]):
            is_token = (positions >= 0) & (positions < code.shape[1])
            for element, own in enumerate(lost):
                run = self.runs[int((code == own).all(1).nonzero()[0])][n]
                seen, known = (x[element] for x in run)
                if bool(own.any()) and bool((seen | ~known)[is_token[element]].any()):
                    return False
        return bool(lost.any())

    def renumbered(self, code: Tensor, origin: str, *, are_joined: bool = False) -> Layout:
        """Give its slots the tokens that they depend on, or none; new ones keep their numbers."""
        tokens, count = self.tokens, code.shape[1]
        found = []
        for n, positions in self.sides(count):
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            own = decoded(seen, known, code)
            is_token = (positions >= 0) & (positions < count)
            if bool((own == SEVERAL)[is_token].any()):
                raise UnprovedError(_MOVED.format(origin=origin))
            if are_joined:
                own = torch.where(own == NONE, positions, own)
            found.append(own.where(is_token, torch.tensor(NONE, device="cpu")))
        sequences = torch.tensor(tokens.sequences, device="cpu")
        for positions in found:
            check_apart(positions, sequences)
        size = without_token(tuple(found), sequences, count)
        if tokens.is_cross:
            moved = replace(tokens, keys=found[0], num_keys=size)
        else:
            queries, keys = found[0], found[-1]
            moved = replace(
                tokens, queries=queries, keys=keys, num_queries=size, num_keys=size, grid=()
            )
        return replace(self.layout, tokens=replace(moved, cells=None, num_given=count))
