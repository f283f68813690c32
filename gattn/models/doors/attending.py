"""Finds the modules of a model that attend, and those that ask transformers' interface how."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

from torch import nn

from gattn.models.load.loading import is_transformers
from gattn.models.load.walking import modules_of

_TOLD = frozenset(("output_attentions", "past_key_values"))
"""What a model of transformers takes that tells its attention, or continues a cache of theirs."""
_QUERIES = ("query", "q_proj", "q_lin", "q", "to_q", "qkv", "query_key_value", "c_attn", "q_attn")


def routes(model: nn.Module) -> bool:
    """Return whether a model's code routes its attention through transformers' interface."""
    homes = {type(module).__module__ for module in modules_of(model)}
    return any(hasattr(sys.modules.get(home), "ALL_ATTENTION_FUNCTIONS") for home in homes)


def is_as_any(model: nn.Module) -> bool:
    """Return whether a model's attention is proved as that of a model of any library.

    Of transformers' classes those are that are the user's own code throughout, neither route their
    attention nor return it, and take no cache.
    """
    if not is_transformers(model):
        return True
    homes = {type(module).__module__ for module in modules_of(model)}
    is_own = not any(home.startswith("transformers.models.") for home in homes)
    takes = inspect.signature(model.forward).parameters
    return is_own and not routes(model) and _TOLD.isdisjoint(takes)


def unseen(model: nn.Module) -> list[str]:
    """Name the modules of a routed model that may attend without asking the interface how.

    Of these only torch's own multi-head attention is read.
    """
    if not routes(model):
        return []
    asking = [f"{name}." for name in attending(model)]
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        or (_attends(module) and not _is_near(f"{name}.", asking))
    ]


def attending(model: nn.Module) -> frozenset[str]:
    """Name the modules of a model that ask the interface how to attend."""
    kinds = {kind for kind in {type(module) for module in modules_of(model)} if _asks(kind)}
    return frozenset(name for name, module in model.named_modules() if type(module) in kinds)


def _attends(module: nn.Module) -> bool:
    """Return whether a module looks as if it attends."""
    is_named = "Attention" in type(module).__name__
    return is_named and any(hasattr(module, query) for query in _QUERIES)


def _is_near(path: str, others: Sequence[str]) -> bool:
    """Return whether a module is inside another, or the other way round."""
    return any(path.startswith(one) or one.startswith(path) for one in others)


def _asks(kind: type[nn.Module]) -> bool:
    """Return whether a class asks the interface which function to call."""
    functions = [
        inspect.unwrap(function)
        for base in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for function in vars(base).values()
        if inspect.isfunction(function)
    ]
    return any("get_interface" in function.__code__.co_names for function in functions)
