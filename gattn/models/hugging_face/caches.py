"""Reads the caches that calls continue: how long they are, and whose keys they hold.

A sequence is identified by its keys. What a cache holds after a call is noted, one number per
token; when a call continues it, each of its sequences is the one with the same keys. So sequences
may be reordered, repeated, dropped, cropped and copied, by the cache's own methods or by hand.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW = 8
"""So many numbers tell one key from another: what matters is that all keys are compared."""

_KINDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Held(NamedTuple):
    """What a cache holds: a number per key, (sequences, tokens); the last slot is `stop` - 1."""

    codes: Tensor
    stop: int

    @property
    def first(self) -> int:
        """The slot of the first token; a sliding cache has dropped those before it."""
        return self.stop - self.codes.shape[1]

    def rows_of(self, known: Held) -> list[int] | None:
        """Find which sequence of `known` each of these continues; None if any is unknown."""
        start = max(self.first, known.first)
        if not start < self.stop <= known.stop:
            return None
        mine = self.codes[:, start - self.first :]
        its = known.codes[:, start - known.first : self.stop - known.first]
        same = (mine[:, None] == its).all(2)
        if not bool(same.any(1).all()):
            return None
        repeats = max(len(mine) // len(its), 1)
        return [nearest(some, row // repeats) for row, some in enumerate(same.tolist())]


def nearest(same: list[bool], row: int) -> int:
    """Of equal sequences, take the one in the same row if it is among them."""
    return row if row < len(same) and same[row] else same.index(True)


def length(cache: Any) -> int:
    """Count the tokens of a cache, in its longest layer: those without attention hold none."""
    layers = [layer for layer in _layers(cache) if hasattr(layer, "get_seq_length")]
    if layers:
        return max(int(layer.get_seq_length()) for layer in layers)
    count = getattr(cache, "get_seq_length", None)
    return int(count()) if count is not None and not hasattr(cache, "layers") else 0


def held(cache: Any, stop: int) -> Held | None:
    """Note what a cache of so many tokens holds; None if its keys cannot be seen.

    The last layer's keys depend on everything before them; the other layers' keys show whether
    only some layers were reordered, and those of cross-attention which text a decoder reads.
    """
    layers = [x for x in _layers(cache) if _shown(x) and int(x.get_seq_length()) == stop]
    if not layers:
        return None
    last = _shown(layers[-1])[0]
    # Sliding layers hold fewer tokens than others, and how many depends on the last step.
    alike = [x for layer in layers if type(layer) is type(layers[-1]) for x in _shown(layer)]
    shown = [x[:, 0, : min(stop, x.shape[2]), :FEW] for x in alike if len(x) == len(last)]
    each = [codes(x, n) for n, x in enumerate(shown) if x.shape[1] == shown[0].shape[1]]
    return Held((sum(each) + _text(cache, len(last), last.device)).cpu(), stop)


def _text(cache: Any, count: int, device: torch.device) -> Tensor:
    """Give each sequence a number for the keys of its cross-attention: (sequences, 1)."""
    crossing = getattr(cache, "cross_attention_cache", None)
    for layer in reversed(getattr(crossing, "layers", ())):
        for keys in _shown(layer)[:1]:
            places = torch.arange(1, 2 * keys.shape[2], 2, device=device)
            return (codes(keys[:, 0, :, :FEW], 0) * places).sum(1, keepdim=True)
    return torch.zeros(count, 1, dtype=torch.long, device=device)


def _shown(layer: Any) -> list[Tensor]:
    """Find a layer's keys and values (sequences, heads, tokens, dim), compressed ones included."""
    found = [getattr(layer, "keys", None), getattr(layer, "values", None)]
    for name in ("_quantized_keys", "_quantized_values"):
        compressed = getattr(layer, name, None)
        found += compressed if isinstance(compressed, (tuple, list)) else [compressed]
    return [x for x in found if type(x) is Tensor and x.dim() == 4 and x.numel()]


def _layers(cache: Any) -> list[Any]:
    return list(getattr(getattr(cache, "self_attention_cache", cache), "layers", ()))


def codes(tokens: Tensor, number: int) -> Tensor:
    """Hash each vector of (sequences, tokens, dim) to a number that depends on every bit."""
    with torch.inference_mode(False), torch.no_grad():
        bits = tokens.detach().contiguous().view(_KINDS[tokens.element_size()]).long()
        return (bits * odd_numbers((bits.shape[-1],), number).to(bits.device)).sum(-1)


@lru_cache(maxsize=256)
def odd_numbers(shape: tuple[int, ...], number: int = 0) -> Tensor:
    """Draw the numbers that bits are multiplied with in a hash, always the same ones."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(-(2**62), 2**62, shape, generator=generator, device="cpu") | 1
