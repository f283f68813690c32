"""Reads the caches that calls go on with: how long they are, and whose keys they hold.

A sequence is known by its keys. What a cache holds after a call is noted, a number a token; when a
call goes on, each of its sequences is the one with the same keys. So sequences may be reordered,
repeated, dropped, cut and copied, by the cache's own methods or by hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_KINDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Held(NamedTuple):
    """What a cache holds: a number for each key, (sequences, tokens); the last is before `stop`."""

    codes: Tensor
    stop: int

    @property
    def first(self) -> int:
        """The slot of the first token; a sliding cache has dropped those before."""
        return self.stop - self.codes.shape[1]

    def rows_of(self, known: Held) -> list[int] | None:
        """Find the sequence of `known` that each of these goes on with, or None for any."""
        start = max(self.first, known.first)
        if not start < self.stop <= known.stop:
            return None
        mine = self.codes[:, start - self.first :]
        its = known.codes[:, start - known.first : self.stop - known.first]
        same = (mine[:, None] == its).all(2)
        if not bool(same.any(1).all()):
            return None
        repeats = max(len(mine) // len(its), 1)
        return [_nearest(some, row // repeats) for row, some in enumerate(same.tolist())]


def _nearest(same: list[bool], row: int) -> int:
    """Of those that are alike, take the one in the same place if it is among them."""
    return row if row < len(same) and same[row] else same.index(True)


def length(cache: Any) -> int:
    """Count the tokens of a cache, in its longest layer: those without attention hold none."""
    layers = [layer for layer in _layers(cache) if hasattr(layer, "get_seq_length")]
    if layers:
        return max(int(layer.get_seq_length()) for layer in layers)
    count = getattr(cache, "get_seq_length", None)
    return int(count()) if count is not None and not hasattr(cache, "layers") else 0


def held(cache: Any, stop: int) -> Held | None:
    """Note what a cache of so many tokens holds, or give None where its keys are not to be seen.

    The last layer's keys depend on all that came before, and one head is enough. Those of
    cross-attention say which text a decoder reads.
    """
    for layer in reversed(_layers(cache)):
        keys = _keys(layer)
        if keys is not None and int(layer.get_seq_length()) == stop:
            codes = _codes(keys[:, 0, : min(stop, keys.shape[2])])
            return Held(codes + _text(cache, len(codes)), stop)
    return None


def _text(cache: Any, count: int) -> Tensor:
    """Give each sequence a number for the keys of its cross-attention: (sequences, 1)."""
    crossing = getattr(cache, "cross_attention_cache", None)
    for layer in reversed(getattr(crossing, "layers", ())):
        keys = _keys(layer)
        if keys is not None and len(keys) == count:
            places = torch.arange(1, 2 * keys.shape[2], 2)
            return (_codes(keys[:, 0]) * places).sum(1, keepdim=True)
    return torch.zeros(count, 1, dtype=torch.long)


def _keys(layer: Any) -> Tensor | None:
    """Find a layer's keys (sequences, heads, tokens, dim), compressed ones as they are."""
    given = [getattr(layer, "keys", None)]
    compressed = getattr(layer, "_quantized_keys", None)
    given += compressed if isinstance(compressed, (tuple, list)) else [compressed]
    for keys in given:
        if type(keys) is Tensor and keys.dim() == 4 and keys.numel():
            return keys
    return None


def _layers(cache: Any) -> list[Any]:
    return list(getattr(getattr(cache, "self_attention_cache", cache), "layers", ()))


def _codes(keys: Tensor) -> Tensor:
    """Give each of (sequences, tokens, dim) a number that depends on every bit."""
    with torch.inference_mode(False), torch.no_grad():
        bits = keys.detach().contiguous().view(_KINDS[keys.element_size()]).long()
        return (bits * _weights(bits.shape[-1]).to(bits.device)).sum(-1).cpu()


def _weights(size: int) -> Tensor:
    """Give odd numbers, so that a change of any one bit changes the sum."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**62), 2**62, (size,), generator=generator) | 1
