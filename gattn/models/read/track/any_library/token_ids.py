"""Finds the ids of tokens among what a model is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gattn.models.hugging_face.caches import odd_numbers


def ids_of(inputs: Mapping[str, Any]) -> Tensor | None:
    """Find the ids of tokens: what is called input_ids, or the only input of integers.

    They are (batch, tokens) or (tokens,), and may be in a dictionary, as a tokenizer gives them.
    """
    found = {name: x[None] if x.dim() == 1 else x for name, x in _integers(inputs).items()}
    is_named = "input_ids" in found and "decoder_input_ids" not in found
    if len(found) != 1 and not is_named:
        return None
    return found["input_ids"] if is_named else next(iter(found.values()))


def texts_of(inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return what tells the tokens of each text, (batch, tokens, codes): ids, and codes of vectors.

    Integers of a model that is given vectors may be positions or masks, which are alike of all
    texts. Numbers of all pairs of tokens may be vectors, too, so that there are codes of both.
    """
    ids = list(_integers(inputs).values())
    most = max((x.dim() for x in ids), default=0)
    found = [(x if most == 2 else x[None])[..., None] for x in ids if x.dim() == most]
    if not found:
        return []
    vectors = [x for x in _all(inputs).values() if _are_vectors(x)]
    batch, count, _ = found[0].shape
    for x in vectors:
        codes = _codes(x[None] if most < 2 == x.dim() else x)
        if x.shape[-2:] == (count, count):
            of_pairs = _codes_of_pairs(x if x.dim() > 2 and len(x) == batch else x[None])
            of_pairs = of_pairs.expand(batch, count)
            codes = torch.stack([codes] * (codes.shape == of_pairs.shape) + [of_pairs], -1)
        else:
            codes = codes[..., None]
        found.append(codes)
    return found


def _integers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Find the inputs that may be ids of tokens, by name."""
    return {
        name: x
        for name, x in _all(inputs).items()
        if isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) and x.dim() in (1, 2)
    }


def _all(inputs: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(inputs)
    for x in inputs.values():
        named |= x if isinstance(x, Mapping) else {}
    return named


def _are_vectors(x: Any) -> bool:
    """Return whether numbers are given of each token, rather than a mask of pairs of them."""
    is_strided = isinstance(x, Tensor) and x.layout is torch.strided and x.is_floating_point()
    if not is_strided or x.dim() < 2 or not x.numel():
        return False
    is_square = x.shape[-1] == x.shape[-2]
    return not (is_square and bool(((x == x.min()) | (x == x.max())).all()))


def _codes(x: Tensor) -> Tensor:
    """Return an integer for each token's vector, (batch, tokens): of equal ones the same."""
    bits = x.detach().double().view(torch.int64)
    if x.dim() == 2:
        return bits
    bits = (bits ^ (bits >> 32)).flatten(2)  # The lowest ones may be zeros, which products keep.
    return (bits * odd_numbers(tuple(bits.shape[2:])).to(x.device)).sum(-1)


def _codes_of_pairs(x: Tensor) -> Tensor:
    """Return an integer for what each token adds to the pairs (batch, ..., tokens, tokens)."""
    bits = x.detach().double().view(torch.int64)
    bits = bits ^ (bits >> 32)
    bits = bits.flatten(1, -3) if x.dim() > 3 else bits[:, None]
    bits = (bits * odd_numbers((bits.shape[1], 1, 1)).to(x.device)).sum(1)
    rows, columns = (odd_numbers(x.shape[-1:], n).to(x.device) for n in (1, 2))  # Begin alike.
    return (bits.tril() * rows).sum(2) + (bits.triu(1) * columns[:, None]).sum(1)
