"""Tells which modules are alike: what is proved of one holds for the others."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gattn.models.doors.proof.probing.describing import Description
from gattn.models.doors.proof.probing.one_run.hooks import acting, described
from gattn.models.doors.proof.probing.one_run.inputs import flattened
from gattn.models.load.scripts import described_script, is_script, is_training
from gattn.models.load.walking import modules_of

_FIRST = list(vars(nn.Module()))
_IGNORED = frozenset(_FIRST)


class Alike:
    """Numbers modules, the same where types, shapes and attributes are, recursively."""

    def __init__(self) -> None:
        self._known: dict[nn.Module, int] = {}
        self._numbers: dict[object, int] = {}
        self._description = Description()

    def __getitem__(self, module: nn.Module) -> int:
        if module not in self._known:
            self._known[module] = self._described(module)
        return self._known[module]

    def _described(self, module: nn.Module) -> int:
        if not is_training(module) and "drop" in type(module).__name__.lower():
            return self._numbers.setdefault(type(module), len(self._numbers))
        attributes = tuple(
            (name, self._description(value))
            for name, value in sorted(vars(module).items())
            if name not in _IGNORED
        )
        tensors = tuple(
            (name, None if x is None else self._description(x))
            for of in (module._parameters, module._buffers)
            for name, x in of.items()
        )
        inner = tuple((name, None if x is None else self[x]) for name, x in module._modules.items())
        hooks = tuple(map(id, acting(module)))
        described = type(module), attributes, tensors, inner, is_training(module), hooks
        return self._numbers.setdefault(described, len(self._numbers))


def shapes(given: Any, *, with_integers: bool = False) -> object:
    """Describe what a module is given: the shapes and types of tensors, and all else.

    A tensor that is given twice, as to self-attention, is another input than two tensors are.
    `with_integers` describes integers and masks by their numbers.
    """
    leaves, form = flattened(given)
    description = Description()
    first = {id(x): n for n, x in reversed([*enumerate(leaves)]) if isinstance(x, Tensor)}
    same = tuple(first.get(id(x)) for x in leaves)
    return (form, same), tuple(
        (tuple(x.shape), x.dtype) if isinstance(x, Tensor) and not with_integers else description(x)
        for x in leaves
    )


def state_of(model: nn.Module) -> object:
    """Describe what may decide how a model's modules attend, and may change between calls.

    That is their code, their attributes, the integers that they hold, the user's hooks on them, and
    whether they train; torch's own modules that have no parts have only the last two.
    """
    modules = modules_of(model)
    types = [*map(type, modules)]
    torchs = {kind for kind in {*types} if kind.__module__.startswith("torch.nn.modules")}
    found: list[object] = [*types, *map(is_training, modules)]
    description, kinds = Description(), dict[type[nn.Module], None]()
    for number, (module, kind) in enumerate(zip(modules, types, strict=True)):
        if is_script(module):
            found.append((number, described_script(module)))
            continue
        if (module._forward_pre_hooks or module._forward_hooks) and (hooks := described(module)):
            found += (number, hooks)
        if kind in torchs and not module._modules:
            continue
        kinds[kind], own = None, vars(module)
        names = [*own]  # Those that every module has usually come first.
        usual = names[: len(_IGNORED)] == _FIRST
        of_its = names[len(_IGNORED) :] if usual else [x for x in names if x not in _IGNORED]
        # Names tell whose each description is: a class may have defaults of what is not here.
        found.append((number, *of_its, *module._buffers))
        found += [description(own[name]) for name in of_its]
        if module._buffers:
            found += map(description, module._buffers.values())
    return tuple(found), tuple(map(description.code, kinds))
