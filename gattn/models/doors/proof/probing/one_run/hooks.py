"""The user's hooks on a copy of a model: only those that change something are part of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gattn.models.doors.proof.probing.one_run.holding import content
from gattn.models.doors.proof.probing.one_run.state import State
from gattn.models.watch.hooks import Uncopied

KINDS = ("_forward_pre_hooks", "_forward_hooks")
"""The hooks that may change what modules are given, and what they give."""
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class Acting:
    """A hook of the user's on a copy, and whether it changes what it is given, or returns."""

    def __init__(self, hook: Callable[..., Any], where: str) -> None:
        self._hook, self._where = hook, where
        self.is_tried, self.acts = False, False

    def __call__(self, module: nn.Module, *given: Any) -> Any:
        """Call the hook; it is tried on what has gradients, or where that fails, on what has none.

        The user's call may have some: a hook may ask for them, or for arrays of what has none.
        """
        if self.is_tried:
            return self._hook(module, *given)
        try:
            acts = self._changes(module, given, with_gradients=True)
        except Exception as error:
            try:
                acts = self._changes(module, given, with_gradients=False)
            except Exception:
                said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise RuntimeError(
                    f"a hook of yours on {self._where} fails on a copy of the model, {said}: "
                    "remove it while the context is open"
                ) from error
        self.acts |= acts
        return self._hook(module, *given) if acts else None

    def _changes(self, module: nn.Module, given: Any, *, with_gradients: bool) -> bool:
        """Return whether the hook changes copies of what it is given, or returns something new."""
        twins: dict[int, Tensor] = {}

        def twin(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            is_float = x.is_floating_point() and not x.is_inference()
            source = x.detach().requires_grad_(with_gradients) if is_float else x
            return twins.setdefault(id(x), source.clone())

        with torch.set_grad_enabled(with_gradients):
            copies = tree_map(twin, given)
            before = [x._version for x in twins.values()]
            result = self._hook(module, *copies)
        known = {id(x) for x in twins.values()}
        is_new = any(id(x) not in known for x in _tensors(result))
        return is_new or before != [x._version for x in twins.values()]


def keep_acting(
    twin: nn.Module, name: str, run: Callable[[], Any], around: Sequence[Any] = ()
) -> tuple[frozenset[CodeType], bool]:
    """Run a copy of a model, and keep only those of the user's hooks on it that act.

    Returns the code of the others, and whether they, or the model, keep something of a run.

    Parameters
    ----------
    twin : nn.Module
        The copy, with all of the user's hooks.
    name : str
        The module that is called. Its hooks before gattn's own changed what that was shown.
    run : callable
        Runs it.
    around : sequence
        What else its code may change.
    """
    found: list[tuple[dict[int, Any], int, Acting]] = []
    for path, module in twin.named_modules():
        for kind in KINDS:
            hooks = getattr(module, kind)
            has_run = path == name and kind == KINDS[0] and any(map(_is_ours, hooks.values()))
            for number, hook in list(hooks.items()):
                has_run &= not _is_ours(hook)
                if _is_ours(hook) or (has_run and is_users(hook)):
                    del hooks[number]
                elif is_users(hook):
                    hooks[number] = Acting(hook, path or type(module).__name__)
                    found.append((hooks, number, hooks[number]))
    if not found:
        return frozenset(), False
    state = State(twin, [*around, *held_by(one for _, _, one in found)])
    try:
        with _Writes(state):
            run()
        is_kept = state.is_changed
    finally:
        state.restore()
    for hooks, number, hook in found:
        hook.is_tried = True
        if not hook.acts:
            del hooks[number]
    idle, acting = ({_code_of(x._hook) for *_, x in found if x.acts == acts} for acts in (0, 1))
    return frozenset(code for code in idle - acting if code is not None), is_kept


def _code_of(hook: Any) -> CodeType | None:
    """Return the code of a hook, if it is written in Python."""
    if isinstance(hook, partial):
        return _code_of(hook.func)
    function = getattr(hook, "__func__", hook)
    function = function if isinstance(function, FunctionType) else type(hook).__call__
    return getattr(function, "__code__", None)


class _Writes(TorchDispatchMode):
    """Keeps what kernels write to."""

    def __init__(self, state: State) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = state

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        self._state.note(func, args, given)
        return func(*args, **given)


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, Uncopied)


def acting(module: nn.Module) -> list[Acting]:
    """List the hooks on a module of a copy that act."""
    some = [hook for kind in KINDS for hook in getattr(module, kind).values()]
    return [hook for hook in some if isinstance(hook, Acting)]


def held_by(hooks: Iterable[Any]) -> list[Any]:
    """List what hooks hold: the variables around functions, their objects and arguments."""
    return [one for hook in hooks for one in _held(hook)]


def _held(hook: Any) -> Iterator[Any]:
    if isinstance(hook, Acting):
        yield from _held(hook._hook)
    elif isinstance(hook, partial):
        yield from (*hook.args, *hook.keywords.values(), *_held(hook.func))
    elif isinstance(hook, MethodType):
        yield hook.__self__
        yield from _held(hook.__func__)
    elif isinstance(hook, FunctionType):
        yield from hook.__closure__ or ()
        yield from hook.__defaults__ or ()
        yield from (hook.__globals__[n] for n in hook.__code__.co_names if n in hook.__globals__)
    else:
        yield hook


def described(module: nn.Module) -> tuple[object, ...]:
    """Describe the user's hooks on a module: their code, and the plain values that they hold.

    Dictionaries may hold a cache, whose sizes count, too.
    """
    some = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    others = [hook for hook in some if not isinstance(hook, Uncopied)]
    return tuple(_described(hook) for hook in others if is_users(hook)) if others else ()


def _described(hook: Any) -> object:
    code = getattr(getattr(hook, "__func__", hook), "__code__", type(hook))
    values: list[Any] = []
    for one in _held(hook):
        one = content(one)
        own: Mapping[str, Any] = getattr(one, "__dict__", {})
        values += (one, *(own.values() if isinstance(own, dict) and type(one) is not type else ()))
        if isinstance(one, (dict, WeakKeyDictionary)):
            values += (str(tuple(x.shape)) for x in _tensors(list(one.values())))
    return code, tuple(x for x in values if isinstance(x, _PLAIN))


def _tensors(x: Any) -> list[Tensor]:
    return [one for one in tree_leaves(x) if isinstance(one, Tensor)]


def is_users(hook: Any) -> bool:
    """Return whether a hook is the user's; torch's and transformers' own are parts of a model."""
    home = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return not home.startswith(("torch.", "transformers."))
