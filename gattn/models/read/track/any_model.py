"""Follows the calls of any PyTorch model: stacks by module path, layers by order, no library."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gattn.models.hugging_face.given import Given, arguments
from gattn.models.hugging_face.media import Belonging, ranked
from gattn.models.read.layouts import Layout
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.following import Progress
from gattn.models.read.track.modules import Modules
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tracking import Tracker

_LAYER = re.compile(r"(.*[^\W\d_])_?(\d+)")
_LISTS = nn.Sequential, nn.ModuleDict


class Proved(Protocol):
    """What was proved of a model with some kind of inputs."""

    def layout(self, name: str, ordinal: int, lead: tuple[int, ...]) -> Layout | None:
        """Return the layout of a call of attention, or refuse it with the reason."""

    def check(self) -> None:
        """Refuse a model of which nothing can be trusted."""

    @property
    def has_failed(self) -> bool:
        """Whether the model raised an exception of its own when it was to be proved."""

    @property
    def gates(self) -> Collection[tuple[str, int]]:
        """The calls that only weigh what a token has several of, by module and number."""

    @property
    def altered(self) -> Mapping[tuple[str, int], str]:
        """How softmaxes are altered before they meet the values, by module and number."""

    @property
    def left_out(self) -> Collection[tuple[str, int]]:
        """The calls that attend over something else than tokens, by module and number."""


class AnyModules(Modules):
    """The modules of a model of any library."""

    def name_stack(self, call: SeenCall) -> str:
        """Name a call's stack: the path of its list of layers, and within a layer.

        The stack of a module is split where it attends several times in a run, or the heads or the
        kind of keys change.
        """
        name = self.name(call.module)
        if name not in self._paths:
            self._paths[name] = self._path(name) or type(call.module).__name__
        path = self._paths[name]
        sizes = call.query.shape[1], self._crosses(call), call.part
        number = call.part + 1
        while self._sizes.setdefault(stack := _numbered(path, number), sizes) != sizes:
            # Each step with a cache is apart from those before it.
            number = len(self._sizes) + 1 if self._crosses(call) else number + 1
        return self.note_stack(call, stack)

    def note_stack(self, call: SeenCall, stack: str) -> str:
        """Note the stack of a call's module, and what its tokens are."""
        self.stacks[self.name(call.module)] = stack
        if self._crosses(call):
            self.crossing.add(stack)
        if call.is_foreign:
            self.foreign.add(stack)
        return stack

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._sizes: dict[str, object] = {}
        self._paths: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {}
        self._numbers: dict[object, list[set[str]]] = {}
        for name, module in model.named_modules():
            parts = self._parts[name] = _parts(name, model)
            numbers = [part for part in parts if part.isdigit()]
            known = self._numbers.setdefault(_kind(module, parts), [set() for _ in numbers])
            for values, number in zip(known, numbers, strict=True):
                values.add(number)

    def _path(self, name: str) -> str:
        """Return a module's path without the number of its layer.

        That is the last number in which modules of its type differ, else the first.
        """
        parts = self._parts[name]
        places = [n for n, part in enumerate(parts) if part.isdigit()]
        known = self._numbers[_kind(self.model.get_submodule(name), parts)]
        varying = [n for n, some in zip(places, known, strict=True) if len(some) > 1]
        layer = [*places[:1], *varying][-1:]
        return ".".join(part for n, part in enumerate(parts) if n not in layer)

    @staticmethod
    def _crosses(call: SeenCall) -> bool:
        if call.is_cross is not None:
            return call.is_cross
        return call.query.shape[2] != call.key.shape[2]

    def check_layers(self, seen: Collection[str], calls: Mapping[str, int]) -> None:
        """Layers are numbered by the calls alone."""


def _numbered(path: str, number: int) -> str:
    return path if number == 1 else f"{path} {number}"


def _parts(name: str, model: nn.Module) -> list[str]:
    """Split a module's path, and the numbers from the names of layers, as in layers.layer_3."""
    found: list[str] = []
    module = model
    for part in name.split(".") if name else ():
        layer = _LAYER.fullmatch(part) if isinstance(module, _LISTS) else None
        found += [part] if layer is None else layer.groups()
        module = module.get_submodule(part)
    return [part for part in found if part != "_orig_mod"]


def _kind(module: nn.Module, parts: Sequence[str]) -> tuple[type[nn.Module], tuple[str, ...]]:
    """Return what modules have in common that differ only in numbers of their paths."""
    return type(module), tuple("" if part.isdigit() else part for part in parts)


class AnyTracker(Tracker):
    """What is known of the present call of a model of any library."""

    modules: AnyModules

    plan: Proved | None = None
    """What was proved of the calls of attention in the present call."""

    def __init__(
        self,
        model: nn.Module,
        known: Tracker | None = None,
        prove: Callable[..., Proved | None] | None = None,
    ) -> None:
        self._prove = prove
        super().__init__(model, known)
        self.needs_tokenizer = True

    @staticmethod
    def _modules_of(model: nn.Module) -> AnyModules:
        return AnyModules(model)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model begins."""
        self.progress = Progress()
        self._take(Given(self.model, {}))
        self.inputs = arguments(module, args, kwargs)
        if (ids := _ids(self.inputs)) is not None:
            self.progress.note_ids(self.modules.side, ids, 0)
        self._nodes: dict[str, tuple[int, int]] = {}
        self.plan, self._left_unread = None, False
        if self._prove is not None:
            self.plan = self._prove(self.model, module, args, kwargs)
        self.is_calling = True

    def end(self, result: Any) -> None:
        """Note that the call ended."""
        self._masks.clear()
        self.inputs = {}
        runs.clear(self.modules.ids)
        if self.plan is not None and self._left_unread and result is not None:
            self.plan.check()

    def _stack(self, call: SeenCall) -> str:
        """Name the stack of a call; one that its door names is split where the nodes change."""
        if not call.stack:
            return self.modules.name_stack(call)
        sizes = call.query.shape[2], call.key.shape[2]
        stack, number = call.stack, 1
        while self._nodes.setdefault(stack, sizes) != sizes:
            number += 1
            stack = f"{call.stack} {number}"
        return self.modules.note_stack(call, stack)

    def layout(self, module: nn.Module, part: int, lead: Sequence[int]) -> Layout | None:
        """Return the layout that was proved of a call of attention."""
        if self.plan is None:
            return None
        return self.plan.layout(self.modules.name(module), part, tuple(lead))

    def reads(self, module: nn.Module, lead: Sequence[int], *, over_last: bool = True) -> bool:
        """Return whether the model was proved: what does not look like attention is refused then.

        Where it failed, the user's call fails with the same exception, or is refused at its end.
        """
        if self.plan is not None and self.plan.has_failed:
            self._left_unread = True
            return False
        return True

    @property
    def proves(self) -> bool:
        """Whether attention that is seen by torch's functions is proved."""
        return True

    def leaves_out(self, module: nn.Module, part: int) -> bool:
        """Return whether a call was proved to attend over something else than tokens."""
        place = self.modules.name(module), part
        return self.plan is not None and (place in self.plan.left_out or place in self.plan.gates)

    @property
    def left_out(self) -> Sequence[str]:
        """The modules of the last call that attend over something else than tokens."""
        return [] if self.plan is None else sorted({name for name, _ in self.plan.left_out})

    def alteration(self, module: nn.Module, number: int) -> str:
        """Return how a softmax is altered before it meets its values: "scaled", "mixed" or ""."""
        place = self.modules.name(module), number
        return "" if self.plan is None else self.plan.altered.get(place, "")

    def place(self, call: SeenCall) -> Place:
        """Return where a call of the model's attention is."""
        tokens = call.tokens
        if tokens is None or not tokens.is_told:
            return super().place(call)
        stack, layer, _ = self._numbered(call)
        belonging = self._belonging(call, stack, 0)
        length, slots = call.query.shape[2], call.key.shape[2]
        firsts = [n * length for n in belonging.ranks]
        firsts_of_keys = [0] * len(firsts) if tokens.is_cross else firsts
        queries, keys = (
            [Side(torch.arange(size), first, at) for first, at in zip(own_firsts, of, strict=True)]
            for size, own_firsts, of in (
                (length, firsts, tokens.query_positions),
                (slots, firsts_of_keys, tokens.key_positions),
            )
        )
        sizes = tokens.sizes(lambda: self.mask(call).is_read(len(belonging.ranks), slots))
        sequences = belonging.sequences
        return Place(
            stack, layer, tokens.is_cross, queries, keys, sequences, tokens.is_cross, sizes
        )

    def _belonging(self, call: SeenCall, stack: str, start: int) -> Belonging:
        if call.tokens is None:
            count = len(call.query)
            return Belonging(list(range(count)), [0] * count)
        return ranked(list(call.tokens.sequences))

    def generates(self, length: int) -> bool:
        """Return whether a call's tokens were generated: that is not known here."""
        return False


def _ids(inputs: Mapping[str, Any]) -> Tensor | None:
    """Find the ids of tokens: what is called input_ids, or the only input of integers.

    They are (batch, tokens) or (tokens,), and may be in a dictionary, as a tokenizer gives them.
    """
    named = dict(inputs)
    for x in inputs.values():
        named |= x if isinstance(x, Mapping) else {}
    found = {
        name: x
        for name, x in named.items()
        if isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) and x.dim() in (1, 2)
    }
    is_named = "input_ids" in found and "decoder_input_ids" not in found
    if len(found) != 1 and not is_named:
        return None
    ids = found["input_ids"] if is_named else next(iter(found.values()))
    return ids[None] if ids.dim() == 1 else ids
