"""Marks inputs by NaN, and reads which slots of an attention call it reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.probing.one_run.inputs import leaves, mapped
from gattn.models.doors.proof.probing.one_run.sites import scores_of
from gattn.models.doors.proof.probing.one_run.walking import Given

_F = nn.functional

ROUNDED, CLEAR = 1, 2
"""How much a number changed: by no more than it may be rounded, or by more."""


class Pointwise(TorchFunctionMode):
    """Leaves out normalization over tokens: its statistics move nothing from token to token.

    Nor does the maximum of scores, which is subtracted from them lest a softmax overflows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: Any = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or return its input if it normalizes over tokens."""
        given = kwargs or {}
        if func in _NORMS and _mixes(func, args, given):
            return (args[0] if args else given["input"]) * 1.0
        if func in _SUBTRACTS and len(args) > 1:
            if self._is_of(args[1], args[0]):
                return args[0] * 1.0
            if self._is_of(args[0], args[1]):
                return -args[1]
        if func is torch.linalg.eigvals:  # On NaN it ends the process, where `eig` only fails.
            return torch.linalg.eig(*args, **given).eigenvalues
        result = func(*args, **given)
        self._note(func, args, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Note of what a maximum is, along the last dimension or more; it may be detached."""
        found = result[0] if isinstance(result, tuple) and func in _MAXIMA else result
        if not args or not isinstance(args[0], Tensor) or not isinstance(found, Tensor):
            return
        if func in _MAXIMA and _is_one_a_row(found, args[0]):
            self._of[found] = ref(args[0])
        elif func in _DETACHES and args[0] in self._of:
            self._of[found] = self._of[args[0]]

    def _is_of(self, maximum: Any, x: Any) -> bool:
        of = self._of.get(maximum) if isinstance(maximum, Tensor) else None
        return of is not None and of() is x


_MAXIMA = frozenset((torch.amax, Tensor.amax, torch.max, Tensor.max))
_DETACHES = frozenset((torch.detach, Tensor.detach, Tensor.expand, Tensor.expand_as))
_SUBTRACTS = frozenset((torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__))
_NORMS = frozenset((_F.group_norm, _F.instance_norm, _F.batch_norm, _F.layer_norm))


def _is_one_a_row(maximum: Tensor, x: Tensor) -> bool:
    """Return whether a maximum, as it is subtracted, is the same for all numbers of a row."""
    if maximum.dim() == 0:
        return x.dim() > 0
    return maximum.dim() == x.dim() and maximum.shape[-1] == 1 < x.shape[-1]


def _mixes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if func is _F.layer_norm:
        return len(kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())) > 1
    if func is _F.batch_norm:
        return bool(kwargs.get("training", args[5] if len(args) > 5 else False))
    return True


def sources(given: Given) -> list[Tensor]:
    """List the different floating-point tensors that a module is given."""
    found: dict[object, Tensor] = {}
    for x in leaves(given):
        is_plain = isinstance(x, Tensor) and x.layout is torch.strided
        if is_plain and x.is_floating_point() and x.numel():
            found.setdefault(_identity(x), x)
    return list(found.values())


def may_be_mask(x: Tensor) -> bool:
    """Return whether a tensor may be a mask (..., tokens, tokens), which may hold no batch."""
    is_image = x.dim() > 3 and x.shape[1] > 1
    return x.dim() > 1 and x.shape[-1] == x.shape[-2] and not is_image


def _identity(x: Tensor) -> object:
    return x.data_ptr(), tuple(x.shape), x.stride()


def replaced(given: Given, old: Tensor, new: Tensor) -> Given:
    """Replace a tensor, wherever it is among the inputs."""
    name = _identity(old)

    def one(x: Any) -> Any:
        is_plain = isinstance(x, Tensor) and x.layout is torch.strided
        return new if is_plain and _identity(x) == name else x

    args, kwargs = mapped(one, given)
    return args, kwargs


def with_nan(x: Tensor, marks: Tensor) -> Tensor:
    """Put NaN where booleans that broadcast to a tensor say so."""
    return torch.where(marks.to(x.device), torch.nan, x.detach())


@dataclass(frozen=True, eq=False)
class Reached:
    """Which slots of a call NaN reached, and where that is known.

    All are booleans: (lead, queries) and (lead, keys), the leading dimensions flattened. `values`
    are the keys whose values it reached, `parts` the numbers of the values of a sum (lead, keys,
    value dim), `masked` the queries from which a mask takes all keys, `unread` the keys that it
    takes from all queries.
    """

    queries: Tensor
    keys: Tensor
    queries_known: Tensor
    keys_known: Tensor
    values: Tensor
    parts: Tensor | None = None
    masked: Tensor | None = None
    unread: Tensor | None = None


def has_value_per_key(call: RawCall) -> bool:
    """Return whether there are as many values as columns of scores, of which slices may be left."""
    return call.scores is None or scores_of(call).shape[-1] == call.value.shape[-2]


def reached(call: RawCall, live: Tensor | None, *, is_ranked: bool = False) -> Reached:
    """Read which slots are NaN; `live` are the scores that no mask replaces (lead, rows, keys)."""
    lead = call.lead
    told = flat(_nan(call.value), lead)
    if call.scores is None:
        assert call.query is not None
        assert call.key is not None
        rows, columns = (flat(_nan(x), lead) for x in (call.query, call.key))
        return Reached(rows, columns, torch.ones_like(rows), torch.ones_like(columns), told)
    assert live is not None
    nan = scores_of(call, is_ranked=is_ranked).isnan().cpu()
    clean = ~nan & live
    columns = (nan & live & clean.any(2, keepdim=True)).any(1)
    known = columns | clean.any(1) | told | ~live.any(1)  # Nobody reads masked keys.
    if nan.shape[1] == 1 and bool(told.any()):  # It hides keys; their values tell them.
        known = torch.ones_like(known)
    columns |= told & ~clean.any(1)
    usable = live & (known & ~columns)[:, None]
    # Queries that mix all tokens leave no score: values tell the keys, and nothing the queries.
    known = known | (~clean.any((1, 2)) & told.any(1))[:, None]
    parts = None
    if call.kind == "sum":
        sizes = call.value.shape[-2:]
        parts = call.value.isnan().expand(*lead, *sizes).reshape(-1, *sizes).cpu()
    hidden = ~live.any(2), ~live.any(1)
    return Reached((nan & usable).any(2), columns, usable.any(2), known, told, parts, *hidden)


def _nan(x: Tensor) -> Tensor:
    return x.detach().isnan().any(-1).cpu()


def flat(marks: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Flatten the leading dimensions of marks (..., slots); keys may have fewer heads."""
    own = marks.shape[:-1]
    if lead and own and own[-1] not in (1, lead[-1]) and lead[-1] % own[-1] == 0:
        marks = marks.repeat_interleave(lead[-1] // own[-1], dim=-2)
    return marks.expand(*lead, marks.shape[-1]).reshape(-1, marks.shape[-1])


def change(x: Tensor, before: Tensor) -> Tensor:
    """Say how much numbers changed: not at all, not more than by rounding, or clearly.

    Experts that other tokens are routed to round differently, since they multiply other matrices.
    """
    finite = before.where(before.isfinite(), 0)
    most = float(finite.abs().amax()) * float(torch.finfo(before.dtype).eps) ** 0.5
    is_same = x == before
    is_near = is_same | ((x - before).abs() <= most)
    levels: Tensor = (~is_same).to(torch.int8) + (~is_near).to(torch.int8)
    return levels


def along_dim(marks: Tensor, dim: int) -> Tensor:
    """Say of each run's marks which indices of a dimension they reach, (runs, indices)."""
    others = [n for n in range(1, marks.dim()) if n != dim]
    return marks.any(others) if others else marks


def changed(x: Tensor, marks: Tensor) -> Tensor:
    """Change marked numbers: to NaN, or to other integers that the tensor holds."""
    if x.is_floating_point():
        return with_nan(x, marks)
    values, place = x.unique(return_inverse=True)
    other = values[(place + 1) % len(values)] if len(values) > 1 else (x == 0).to(x.dtype)
    return torch.where(marks.to(x.device), other, x)


def along(x: Tensor, dim: int, marked: Tensor) -> Tensor:
    """Spread marks of a dimension's indices over a tensor's other dimensions."""
    return marked.reshape([-1 if n == dim else 1 for n in range(x.dim())])


def has_parts(some: Sequence[Tensor]) -> bool:
    """Return whether changes leave some indices of some dimension of some input as they are."""
    return any(
        not bool(along_dim((x >= CLEAR)[None], n + 1).all()) for x in some for n in range(x.dim())
    )
