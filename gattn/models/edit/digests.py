"""Tells apart graphs, parameters and functions that look the same as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from gattn.graph.rules.edges import Edges

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LENGTH = 8


def digest_of(values: Iterable[Any]) -> str:
    """Compute a digest of what graphs, modules, functions and tensors hold."""
    digest = sha256()
    for value in values:
        _feed(value, digest)
    return digest.hexdigest()[:_LENGTH]


def _feed(value: Any, digest: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, torch.nn.Module):
        _feed(str(value), digest)
        for name, part in value.named_modules():
            _feed([name, _plain(vars(part))], digest)
        _feed(sorted(value.state_dict().items()), digest)
    elif isinstance(value, partial):
        _feed([value.func, value.args, sorted(value.keywords.items())], digest)
    elif isinstance(value, Edges) and value.key.dtype != torch.long:
        _feed(replace(value, key=value.key.long()), digest)
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(type(value).__name__, digest)
        _feed([getattr(value, one.name) for one in fields(value)], digest)
    elif isinstance(value, Mapping):
        _feed(list(value.items()), digest)
    elif isinstance(value, FunctionType):
        _feed(about_function(value), digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} values".encode())
        for part in value:
            _feed(part, digest)
    else:
        digest.update(ADDRESS.sub("", repr(value)).encode("utf-8", "backslashreplace"))


def _plain(attributes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a module's own numbers, strings and functions."""
    kinds = (bool, int, float, str, FunctionType, partial)
    return sorted((name, x) for name, x in attributes.items() if isinstance(x, kinds))


def about_function(function: FunctionType) -> list[Any]:
    """List what distinguishes a function from others with its name."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*_code(function.__code__), function.__defaults__, function.__kwdefaults__, held]


def _code(code: CodeType) -> list[Any]:
    """List what a function does, without where it is written."""
    constants = [_code(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_code, code.co_names, constants]
