"""Finds which elements of a model's batch the inputs of its modules belong to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.answers import Answers
from gattn.models.doors.proof.layouts.sameness import is_given_twice, redrawn
from gattn.models.doors.proof.layouts.slots import Owner
from gattn.models.doors.proof.probing.codes import NONE, decoded, words
from gattn.models.doors.proof.probing.failing import Stop, failing
from gattn.models.doors.proof.probing.integers import Lookups
from gattn.models.doors.proof.probing.one_run.reading import Reads
from gattn.models.doors.proof.probing.one_run.walking import Entered, Given, Run, Walk
from gattn.models.doors.proof.probing.rerunning import kept
from gattn.models.doors.proof.probing.taints import (
    CLEAR,
    ROUNDED,
    along,
    along_dim,
    change,
    changed,
    has_parts,
    may_be_mask,
    replaced,
    sources,
)
from gattn.models.watch.inside import inside

Places = Mapping[tuple[str, int], Given]


class Batches:
    """The model's batch, if it is one dimension of what the model is given.

    Parameters
    ----------
    model : nn.Module
        The copy of the module that the user calls.
    walk : Walk
        Its runs.
    given : tuple
        What the user gives it.
    ids : sequence of Tensor
        The integers among these that may be exchanged for one another.
    places : mapping
        What some runs of its modules were given.
    dim : int, optional
        The dimension that may be the batch; None if there may be none.
    reads : Reads
        What code reads of numbers as the model runs.
    by_ids : bool
        Whether only the integers have it, as beside a cache that is one tensor for all layers.
    """

    def __init__(
        self,
        model: nn.Module,
        walk: Walk,
        given: Given,
        ids: Sequence[Tensor],
        places: Places,
        dim: int | None,
        reads: Reads,
        *,
        by_ids: bool = False,
    ) -> None:
        self._model, self._walk, self._given, self._places = model, walk, given, places
        self.dim, self._reads = dim or 0, reads
        others = [] if by_ids else sources(given)
        some = [x for x in (*others, *ids) if x.dim() > self.dim]
        some.sort(key=may_be_mask)
        self.size = 1 if dim is None or not some else some[0].shape[self.dim]
        self._own = [x for x in some if x.shape[self.dim] == self.size]
        # The heads of a cache that is given look like a batch, but ids have none.
        self._is_wrong = dim == 1 and any(x.dim() > 1 and x.shape[1] != self.size for x in ids)
        self._code = words(self.size)
        self._answers = Answers(self._answered, places, self.size)
        self._marks: dict[tuple[str, int], list[Tensor]] | None = None
        self._owners: dict[tuple[tuple[str, int], int], Owner | None] = {}
        self._answering: dict[tuple[tuple[str, int], int], Owner | None] = {}
        self._all = [*sources(given), *ids]
        self._vectors: list[dict[tuple[str, int], list[bytes]]] = []
        self._changed: dict[tuple[str, int], list[Tensor]] | None = None

    @property
    def is_of_one(self) -> bool:
        """Whether the first dimension of all that the model is given has one element alone."""
        return (
            self.dim == 0 and self.size == 1 and all(len(x) == 1 for x in self._all if x.dim() > 1)
        )

    def owner(self, run: Run, source: int) -> Owner | None:
        """Return the dimension of an input of a run that is the batch; None if there is none."""
        if self._is_wrong:
            return None
        if self.size == 1:
            return Owner(None, torch.zeros(1, dtype=torch.long, device="cpu"))
        name = run.place, source
        if name not in self._owners:
            self._owners[name] = self._found(*name)
        return self._owners[name]

    def is_constant(self, run: Run, source: int) -> bool:
        """Return whether an input of a run is the same for all inputs, as learned tokens are."""
        if self.size == 1 or self.owner(run, source) is not None or self._marks is None:
            return False
        if run.place not in self._marks or bool(self._marks[run.place][source].any()):
            return False
        # Some inputs have no such dimension, and may make it.
        return len(self._own) == len(self._all) or self.varies(run, source) is False

    def are_same(self, run: Run, source: int, other: int) -> bool:
        """Return whether two inputs of a run always hold the same numbers, as two tensors may.

        They may also do so by chance, as where both halves of a text are the same words.
        """
        if source == other:
            return True
        if run.around is None or run.place not in self._places or self._has_others:
            return False
        before = sources(self._places[run.place])
        if not is_given_twice(before[source], before[other]):
            return False
        is_changed = self.varies(run, source) is False  # Others may be behind gates that are zero.
        for given in redrawn(self._given, self._all):
            now = self._entering_at(run.place, given)
            is_known = len(now) == len(before)
            if not is_known or not is_given_twice(now[source], now[other]):
                return False
            is_changed |= not torch.equal(now[source], before[source])
        return is_changed

    def _entering_at(self, place: tuple[str, int], given: Given) -> list[Tensor]:
        """Return what a run is given where the model is given other inputs; nothing if it fails."""
        found: list[Tensor] = []

        def entered(run: Run, module: nn.Module, now: Given) -> None:
            if run.place == place:
                found.extend(sources(now))
                raise Stop

        self._run(given, inside(), entered)
        return found

    @property
    def _has_others(self) -> bool:
        """Whether the model is given numbers that cannot be exchanged for others, as ids."""
        numbers = [x for x in tree_leaves(self._given) if isinstance(x, Tensor) and _is_number(x)]
        return any(all(x is not one for one in self._all) for x in numbers)

    def varies(self, run: Run, source: int) -> bool | None:
        """Return whether an input of a run changes with the model's; None if that is not known."""
        if self._changed is None:
            given = self._given
            for x in self._all:
                given = replaced(
                    given, x, changed(x, torch.ones((), dtype=torch.bool, device="cpu"))
                )
            self._changed = self._levels(given, set(self._places))
        found = self._changed.get(run.place)
        return bool(found[source].any()) if found is not None else None

    def owner_by_answer(self, run: Run, source: int) -> Owner | None:
        """Return the batch of learned tokens that attend to each other: the answer tells.

        NaN in one element of these must reach what NaN in one of the model's inputs reaches.
        """
        name = run.place, source
        if name not in self._answering:
            is_constant = self.is_constant(run, source)
            self._answering[name] = self._answers.owner(*name) if is_constant else None
        return self._answering[name]

    def _answered(self, row: Tensor | None = None, entered: Entered | None = None) -> list[Tensor]:
        """Run the model, and list the numbers of its answer."""
        given = self._given if row is None else self._with_marked(row)
        answer = self._run(given, inside(), entered)
        return [x.detach().cpu() for x in sources(((answer,), {}))]

    def _run(
        self, given: Given, how: AbstractContextManager[Any], entered: Entered | None = None
    ) -> Any:
        """Run the model; None if it fails."""
        args, kwargs = kept(given)
        seed()
        running, again = self._walk.following(entered), self._reads.repeated({})
        with failing(), FunctionMode(), running, again, how:
            return self._model(*args, **kwargs)
        return None

    def has_constant_keys(self, place: tuple[str, int]) -> bool:
        """Return whether the keys and values of calls, if known, are the same for all inputs.

        So are those that come from parameters alone, as the prompts of adapters.
        """
        if self._has_others:
            return False
        if not self._vectors:
            other = self._given
            for x in self._all:
                other = replaced(
                    other, x, changed(x, torch.ones((), dtype=torch.bool, device="cpu"))
                )
            self._vectors = [self._hashed(given) for given in (self._given, other)]
        before, after = (some.get(place) for some in self._vectors)
        return before is not None and before == after

    def _hashed(self, given: Given) -> dict[tuple[str, int], list[bytes]]:
        """Run the model, and hash the values of its calls, and the keys of kernels' calls."""
        found: dict[tuple[str, int], list[bytes]] = {}

        def see(call: RawCall) -> None:
            name = self._walk.chain(call.module)[0].name
            known = [x for x in (call.key, call.value) if x is not None]
            numbers = [x.detach().cpu().double().numpy() for x in known]
            whole = b"".join(sha256(x.tobytes()).digest() for x in numbers)
            found.setdefault((name, call.ordinal), []).append(whole)

        self._run(given, observed(see))
        return found

    def is_whole(self, run: Run, source: int) -> bool:
        """Return whether an input of a run has the batch as one dimension, each element once."""
        owner = self.owner(run, source)
        return owner is not None and len(owner.elements) == self.size

    def _found(self, place: tuple[str, int], source: int) -> Owner | None:
        if self._marks is None:
            self._marks = self._all_marked()
        if place not in self._marks:
            return None
        levels = self._marks[place][source]
        for least in (ROUNDED, CLEAR):
            marks = levels >= least
            for dim in range(marks.dim() - 1):
                if marks.shape[dim + 1] < self.size:
                    continue
                own = along_dim(marks, dim + 1)
                elements = decoded(own, torch.ones_like(own), self._code)
                if bool((elements == NONE).any()):
                    filled = self._answers.filled(place, source, dim, elements)
                    elements = elements if filled is None else filled
                if bool((elements >= 0).all()) and len(elements.unique()) == self.size:
                    return Owner(dim, elements)
        return None

    def _all_marked(self) -> dict[tuple[str, int], list[Tensor]]:
        """Change elements of the batch by a code; say what changes in each run of it.

        Inputs that an element changes as a whole have no such dimension: if all of a place are so,
        the next runs leave it out.
        """
        places = set(self._places)
        found: dict[tuple[str, int], list[list[Tensor]]] = {place: [] for place in places}
        for row in self._code:
            run = self._marked(row, places)
            places = {place for place in places & set(run) if has_parts(run[place])}
            for place in places:
                found[place].append(run[place])
        return {
            place: [torch.stack(some) for some in zip(*found[place], strict=True)]
            for place in places
        }

    def _marked(
        self, row: Tensor, places: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], list[Tensor]]:
        """Change some elements of the batch, and say how much each number changes."""
        return self._levels(self._with_marked(row), places)

    def _with_marked(self, row: Tensor) -> Given:
        given = self._given
        for x in self._own:
            given = replaced(given, x, changed(x, along(x, self.dim, row)))
        return given

    def _levels(
        self, given: Given, places: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], list[Tensor]]:
        """Say how much each number of each input of some runs changes with the model's inputs."""
        found: dict[tuple[str, int], list[Tensor]] = {}

        def entered(run: Run, module: nn.Module, now: Given) -> None:
            if run.place in places:
                before = sources(self._places[run.place])
                after = sources(now)
                if [x.shape for x in after] == [x.shape for x in before]:
                    pairs = zip(after, before, strict=True)
                    found[run.place] = [change(x, y) for x, y in pairs]
                if len(found) == len(places):
                    raise Stop

        args, kwargs = given
        if places:
            seed()
            running, again = self._walk.following(entered), self._reads.repeated({})
            with FunctionMode(), running, inside(), again, Lookups(), suppress(Stop):
                self._model(*args, **kwargs)
        return found


def _is_number(x: Tensor) -> bool:
    return x.dtype != torch.bool and x.numel() > 0
