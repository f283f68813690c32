"""Composition scores in GPT-2's shape, and the usual way: the factored products of all pairs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import gattn
from benchmarks.row import Row, Side

HEADS, DIM = 12, 64


def rows(quick: bool) -> list[Row]:
    """List the one row; a size is a number of layers."""
    size = 2 if quick else 6
    return [
        Row(
            "analysis-composition",
            f"Q-, K- and V-composition of all pairs of heads, {size} layers of GPT-2's shape",
            "factored matrices of all pairs, broadcast, as in TransformerLens",
            size,
            _build,
            growth=() if quick else (3, 6, 12),
            small=2,
            peer_bytes=3 * (size * HEADS) ** 2 * DIM * HEADS * DIM * 4,
        )
    ]


def _build(side: str, size: int, device: str) -> Side:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(n_layer=size)).eval().to(device)
    if side == "gattn":
        compose = partial(gattn.compose, model, progress=False)
        return Side(lambda: torch.tensor(compose().to_numpy()))
    return Side(lambda: _all_pairs(model).cpu())


def _all_pairs(model: Any) -> Tensor:
    """Score all pairs, in the order of the table: (pairs, 3)."""
    layers = [_folded(block) for block in model.transformer.h]
    query, key, value, output = (torch.stack(some) for some in zip(*layers, strict=True))
    writes = _reduced(value) @ output
    sides = query @ _reduced(key).mT, key @ _reduced(query).mT, value @ _reduced(output.mT).mT
    found = []
    for side in sides:
        products = writes[:, :, None, None] @ side[None, None]
        size = torch.linalg.matrix_norm(writes)[:, :, None, None] * torch.linalg.matrix_norm(side)
        found.append((torch.linalg.matrix_norm(products) / size).permute(2, 3, 0, 1))
    layer = torch.arange(len(layers), device=output.device)
    earlier = layer[:, None, None, None] > layer[None, None, :, None]
    return torch.stack([one[earlier.expand_as(one)] for one in found], dim=1)


def _folded(block: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    fused = block.ln_1.weight[:, None] * block.attn.c_attn.weight
    fused = fused - fused.mean(0)
    query, key, value = (x.unflatten(1, (HEADS, DIM)).transpose(0, 1) for x in fused.chunk(3, 1))
    output = block.attn.c_proj.weight
    output = (output - output.mean(1, keepdim=True)).unflatten(0, (HEADS, DIM))
    return query, key, value, output


def _reduced(matrix: Tensor) -> Tensor:
    reduced: Tensor = torch.linalg.qr(matrix, mode="r").R
    return reduced
