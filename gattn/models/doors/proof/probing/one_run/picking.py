"""Finds where a model picks or orders tokens by values, masks or chance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.proof.probing.one_run.constants import Constants
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.watch.inside import is_by_gattn

_ORDERS = frozenset(("sort", "argsort", "topk", "kthvalue", "argmax", "argmin", "msort"))
_RANKS = {"sort": 1, "topk": 2, "kthvalue": 2, "msort": 1}
"""What gives numbers by rank, and which argument is the dimension."""
_VIEWS = frozenset(("slice", "select", "view", "expand", "unsqueeze", "squeeze", "alias", "detach"))
_NOISE = frozenset(("rand", "rand_like", "uniform", "uniform_", "bernoulli", "bernoulli_", "randn"))
_DRAWS = frozenset(("randperm", "multinomial", "randint", "randint_like"))
_WHERE = frozenset(("nonzero", "nonzero_static"))
_READS = frozenset(("_local_scalar_dense",))
_TAKES = frozenset(("index", "gather", "index_select", "take", "masked_select"))
_PUTS = frozenset(("index_put", "index_put_", "scatter", "scatter_", "index_copy", "index_copy_"))
_PUTS |= {"_index_put_impl_", "_unsafe_index", "index_add", "index_add_", "masked_scatter"}
_FILLS = frozenset(("masked_fill", "masked_fill_", "where"))
_KEEP_FILLED = frozenset(("add", "add_", "mul", "baddbmm", "clone", "_to_copy", "_unsafe_view"))
_KEEP_FILLED |= {"expand", "cat", "repeat", "contiguous", *_FILLS}
"""What goes on with numbers some of which were filled by a mask."""
MAKES = frozenset(f"{name}_like" for name in ("ones", "zeros", "full", "empty"))
MAKES |= {f"new_{name}" for name in ("ones", "zeros", "full", "empty")}
"""What makes numbers in the form of a tensor, but not of its own ones."""
_PLACES = frozenset(("index_put", "index_put_", "_index_put_impl_", "index_copy", "index_copy_"))


class By(IntEnum):
    """What decides which token comes into which slot."""

    INPUTS = 0
    """Numbers and masks that the model is given: the same for the same inputs."""
    VALUES = 1
    """The values of tokens, which a proof changes."""
    CHANCE = 2
    """Random numbers."""


@dataclass(frozen=True, eq=False)
class Pick:
    """A place where numbers are moved to slots that are not always the same.

    `running` are the modules' runs around it, the outermost first, `memory` is where they are now.
    """

    by: By
    kernel: str
    running: Sequence[Run]
    memory: Memory | None = None


class Picks:
    """Follows the indices that a model computes to where they move numbers.

    Parameters
    ----------
    running : callable
        Returns the runs of modules that are under way.
    constants : collection of int
        Where the memory of the model's parameters and buffers begins, which hold no tokens.
    own : Constants
        The model's own numbers.
    """

    def __init__(
        self, running: Callable[[], Sequence[Run]], constants: Collection[int], own: Constants
    ) -> None:
        self.found: list[Pick] = []
        self.own = own
        self._running, self.constants = running, constants
        self._indices: Any = WeakTensorKeyDictionary()
        self._noise: Any = WeakTensorKeyDictionary()
        self._ranked: Any = WeakTensorKeyDictionary()
        """Numbers that are ranked over another dimension than the last, which may be tokens."""
        self._compared: Any = WeakTensorKeyDictionary()
        """Masks and integers by which code may branch, which `Reads` follows."""
        self._reached: dict[Memory | None, frozenset[Pick]] = {}
        """The picks that memory depends on; at None those that Python may know of, as by sizes."""
        self._sizes: Any = WeakTensorKeyDictionary()
        """How many numbers were compared, or put in place, for masks and integers of values."""
        self._masked: dict[Memory | None, int] = {}
        """Numbers that such a mask was written into, and how many it was made of."""
        self._plain: set[Memory | None] = set()
        """Memory that holds what code made of nothing that the model holds or is given."""
        self._is_told = False
        """Whether values decided sizes."""
        self._before = 0
        self.looks_up = False
        """Whether values made integers, and these looked numbers up that the model holds."""
        self.is_ignoring = False
        """Whether what runs decides nothing."""
        self.count_read = 0
        """How many kernels told code of numbers, or a function that the model's code calls."""
        self.count_told = 0
        """How many of the model's kernels told Python of numbers, or of sizes that these decide."""

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Let what runs decide nothing."""
        self.is_ignoring = True
        try:
            yield
        finally:
            self.is_ignoring = False

    def begin(self, given: Any) -> None:
        """Follow the integers and masks that the model is given."""
        for x in leaves(given):
            if isinstance(x, Tensor) and _is_index(x):
                self._indices[x] = By.INPUTS

    def note(
        self,
        kernel: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        is_random: bool = False,
        is_sized: bool = False,
        is_own: bool = False,
        compares: bool = False,
        samples: By | None = None,
    ) -> None:
        """Look at a kernel: by sizes, or if it is none of torch's, Python may learn of values.

        So it may where it `compares` what the model is given. If it `samples` between numbers, what
        decides the places is told.
        """
        if self.is_ignoring:
            return
        count, given = len(self.found), tensors_in((args, kwargs))
        is_told = is_sized or is_own
        self._note(kernel, args, kwargs, given, result, is_random=is_random)
        if samples is not None and self._moves(kernel, given):
            self.found.append(Pick(samples, kernel, tuple(self._running()), memory_of(result)))
        is_plain = not is_random and self._is_plain(kernel, given, result)
        self._fill(kernel, given, result, is_plain=is_plain)
        new = self.found[count:]
        self._is_told |= is_told
        is_read = kernel in _READS
        if not is_by_gattn():
            self.count_read += is_read or is_sized or compares
            self.count_told += is_read or is_told
        made = tensors_in((result,))
        if self.found and not (made and all(x.is_meta for x in made)):  # These hold no numbers.
            is_told |= self._is_told and bool(new)  # Its size may be that of such indices.
            self._carry(given, made, new, is_told=is_told)

    def _is_plain(self, kernel: str, given: Sequence[Tensor], result: Any) -> bool:
        """Follow what is made of no tensors, as causal masks are; return whether a result is so."""
        is_plain = kernel in MAKES or all(memory_of(x) in self._plain for x in given)
        made = set(map(memory_of, tensors_in((result,)))) - {None}
        if is_plain:
            self._plain |= made
        else:
            self._plain -= made
        return is_plain

    def _fill(self, kernel: str, given: Sequence[Tensor], result: Any, *, is_plain: bool) -> None:
        """Follow masks that values made to the numbers that they are written into."""
        by_values = [x for x in given if self._indices.get(x) is By.VALUES]
        size = max((self._sizes.get(x, 0) for x in by_values), default=0)
        is_new = kernel in _PUTS or any(x.is_floating_point() and x.numel() > 1 for x in given)
        if kernel in _KEEP_FILLED:
            filled = size if kernel in _FILLS else 0
            filled = max((filled, *(self._masked.get(memory_of(x), 0) for x in given)))
            self._masked |= dict.fromkeys(map(memory_of, tensors_in((result,))), filled)
        for x in tensors_in((result,)):
            if self._indices.get(x) is By.VALUES:
                self._sizes[x] = max(size, x.numel()) if is_new and not is_plain else size

    def masked_by(self, x: Tensor | None) -> int:
        """Return of how many numbers a mask was made, or one that was written into scores."""
        return 0 if x is None else self._sizes.get(x, 0) or self._masked.get(memory_of(x), 0)

    def _carry(
        self, given: Sequence[Tensor], results: Sequence[Tensor], new: list[Pick], *, is_told: bool
    ) -> None:
        """Follow what was picked to what a kernel makes of it."""
        picks, made = self._of(given).union(new), set(map(memory_of, results or given))
        for memory in made if results and not is_told else made | {None}:
            self._reached[memory] = self._reached.get(memory, frozenset()) | picks

    def _of(self, tensors: Iterable[Tensor]) -> frozenset[Pick]:
        memory = {None, *map(memory_of, tensors)}
        return frozenset[Pick]().union(*(self._reached.get(one, ()) for one in memory))

    def tell(self, given: Sequence[Tensor]) -> None:
        """Note that code was given the numbers of some tensors, by which it may do anything."""
        self._carry(given, (), [], is_told=True)

    @property
    def are_told(self) -> bool:
        """Whether code may know of numbers, or of any that were picked, and decide by them."""
        return self.count_told > 0 or bool(self._reached.get(None))

    def reaching(self, tensors: Iterable[Tensor]) -> list[Pick]:
        """List the picks that some tensors may depend on, by numbers or by what code did."""
        reached = self._of(tensors)
        return [one for one in self.found if one.memory is None or one in reached]

    def _note(
        self,
        kernel: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[Tensor],
        result: Any,
        *,
        is_random: bool,
    ) -> None:
        if not is_random and self.own.note(kernel, given, result):
            return
        for pick in [self._ranked[x] for x in given if x in self._ranked]:
            self._use_ranked(pick, kernel, result)
        by = max((self._indices[x] for x in given if x in self._indices), default=None)
        is_lookup = kernel == "embedding" or kernel in _TAKES
        self.looks_up |= is_lookup and by is By.VALUES and not self._moves(kernel, given)
        if kernel in _TAKES or kernel in _PUTS:
            if by is None and any(x.dtype.itemsize == 1 and _is_index(x) for x in given[1:]):
                by = By.INPUTS  # A mask picks the tokens.
            if by is None and kernel in _PLACES:
                by = By.INPUTS  # Perhaps of a cache.
            if by is not None and self._moves(kernel, given):
                self.found.append(Pick(by, kernel, tuple(self._running()), memory_of(result)))
            self._label(result, by)
            return
        if kernel in _READS and by is not None:  # A number decides what the code does.
            if by is not By.VALUES or not self._are_compared(given):
                self.found.append(Pick(by, kernel, tuple(self._running())))
            return
        if kernel in _NOISE:
            for x in (result, *given[:1]):
                self._noise[x] = True
        elif kernel in _ORDERS:
            own = By.VALUES if given and given[0].is_floating_point() else By.INPUTS
            by = own if by is None else max(by, own)
            if own is By.VALUES and _ranks_rows(kernel, given[0], args, kwargs):
                pick = Pick(By.VALUES, kernel, tuple(self._running()))
                self._ranked[tensors_in((result,))[0]] = pick
        elif kernel in _DRAWS or any(x in self._noise for x in given):
            by = By.CHANCE
        elif self._compares(given, result):
            by = By.VALUES
            for x in tensors_in((result,)):
                self._compared[x] = True
        elif kernel in _WHERE and by is None:
            by = By.INPUTS
        self._label(result, by)

    def begin_function(self) -> None:
        """Note that the model's code calls a function."""
        self._before = len(self.found)

    def repeat(self) -> bool:
        """Return whether the function read a number that values decide, which other runs repeat.

        In these, code does with it what it did; so it moves no token elsewhere.
        """
        new = self.found[self._before :]
        read = [one for one in new if one.by is By.VALUES and one.kernel in _READS]
        self.found = [one for one in self.found if one not in read]
        return bool(read)

    def forgive(self, memory: Memory | None) -> None:
        """Forget what put the largest scores, or the largest attention, back where they were."""
        if memory is None:
            return
        own = [n for n, one in enumerate(self.found) if one.memory and one.memory == memory]
        for n in own[-1:]:
            del self.found[n]

    def _use_ranked(self, pick: Pick, kernel: str, result: Any) -> None:
        """Note where tokens are continued with that were ranked; to compare them moves none."""
        found = [x for x in tensors_in((result,)) if x.is_floating_point()]
        for x in found if kernel in _VIEWS else ():
            self._ranked[x] = pick
        if found and kernel not in _VIEWS:
            self.found.append(pick)

    def _compares(self, given: Sequence[Tensor], result: Any) -> bool:
        """Return whether a kernel makes masks or integers of numbers, or of what one made so."""
        if not all(map(_is_index, tensors_in((result,)))):
            return False
        floats = [x for x in given if x.is_floating_point()]
        if any(place_of(x) not in self.constants and x.numel() > 1 for x in floats):
            return True
        return self._are_compared(given)

    def _are_compared(self, given: Sequence[Tensor]) -> bool:
        """Return whether what values decide among some tensors are masks and integers made so."""
        by_values = [x for x in given if self._indices.get(x) is By.VALUES]
        return bool(by_values) and all(x in self._compared for x in by_values)

    def _label(self, result: Any, by: By | None) -> None:
        for x in tensors_in((result,)) if by is not None else ():
            if _is_index(x):
                self._indices[x] = by

    def is_index(self, x: Tensor) -> bool:
        """Return whether a tensor holds integers or masks that the model is given, or computes."""
        return x in self._indices

    def saw(self, function: str, by: By, running: Sequence[Run]) -> None:
        """Note that code was given numbers by which it may pick or order tokens."""
        self.found.append(Pick(by, function, running))

    def looks_up_weights(self, kernel: str, given: Sequence[Tensor]) -> bool:
        """Return whether an index takes rows of the model's own weights, as an embedding does."""
        return kernel in ("index", "index_select") and self.own.are_weights(given[0])

    def _moves(self, kernel: str, given: Sequence[Tensor]) -> bool:
        """Return whether a kernel moves numbers of tokens; constants hold none."""
        if not given or not given[0].is_floating_point():
            return False
        if kernel in _TAKES or kernel in ("_unsafe_index", "embedding") or is_sampling(kernel):
            is_constant = place_of(given[0]) in self.constants or self.own.are_weights(given[0])
            return not is_constant
        return any(x.is_floating_point() and x.numel() > 1 for x in given[1:])


def is_sampling(kernel: str) -> bool:
    """Return whether a kernel takes numbers at places between others, which a grid tells."""
    return "grid_sampler" in kernel and not kernel.endswith("backward")


def _ranks_rows(kernel: str, x: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a kernel gives numbers by their rank over another dimension than the last."""
    if kernel not in _RANKS or x.dim() < 2:
        return False
    number, default = _RANKS[kernel], 0 if kernel == "msort" else -1
    dim = kwargs.get("dim", args[number] if len(args) > number else default)
    return bool(dim % x.dim() != x.dim() - 1 and x.shape[dim] > 1)


def tensors_in(given: Iterable[Any]) -> list[Tensor]:
    """List the tensors among what a kernel takes or gives; `tree_leaves` would take far longer."""
    found: list[Tensor] = []
    for x in given:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple, dict)):
            found += tensors_in(x.values() if isinstance(x, dict) else x)
    return found


def _is_index(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()
