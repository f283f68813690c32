"""Importance of all edges and value zeroing in GPT-2, compared with the papers' way."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.row import Row, Side
from gattn.analysis import route_importances, value_zeroing

LAYERS, HEADS, WIDTH = 12, 12, 64


def rows(quick: bool) -> list[Row]:
    """List both rows."""
    size, fewer = (24, 24) if quick else (96, 48)
    model = f"GPT-2, {LAYERS} layers, {HEADS} heads, the model's run included"
    return [
        Row(
            "analysis-routes",
            f"importance of every edge in every head, L1 norm, {size} tokens, {model}",
            "the vectors of all pairs and heads, then their distances",
            size,
            partial(_build, of="routes"),
            time_bar=1 / 4,
            memory_bar=1 / 8,
            growth=(128, 256, 512),
            small=8,
        ),
        Row(
            "analysis-value-zeroing",
            f"value zeroing, all layers, all of {fewer} tokens, {model}",
            "each layer alone, once per token, with a hook on its values",
            fewer,
            partial(_build, of="zeroing"),
            time_bar=1 / 2,
            small=8,
        ),
    ]


def _build(side: str, size: int, device: str, of: str) -> Side:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    how = "eager" if side == "peer" and of == "routes" else "sdpa"
    model: Any = GPT2Model(GPT2Config(attn_implementation=how)).eval().to(device)
    ids = torch.randint(0, 50000, (size,))
    if side == "peer":
        work = _importances if of == "routes" else _zeroed
        return Side(lambda: work(model, ids.to(device)[None]).cpu())

    def ours() -> Tensor:
        if of == "routes":
            found = route_importances(ids, model, by_head=True, progress=False)
        else:
            found = value_zeroing(ids, model, progress=False)
        return torch.from_numpy(found.to_numpy()).float()

    return Side(ours)


def _importances(model: Any, ids: Tensor) -> Tensor:
    run = model(ids, output_hidden_states=True, output_attentions=True)
    allowed = torch.ones(ids.shape[1], ids.shape[1], device=ids.device).tril()
    found = []
    for layer, x, attention in zip(model.h, run.hidden_states, run.attentions, strict=False):
        attend = layer.attn
        value = attend.c_attn(layer.ln_1(x[0]))[:, -HEADS * WIDTH :].unflatten(1, (HEADS, WIDTH))
        moved = torch.einsum("jhv,hvd->hjd", value, attend.c_proj.weight.unflatten(0, (HEADS, -1)))
        vectors = torch.einsum("hij,hjd->hijd", attention[0], moved)
        after = x[0] + vectors.sum((0, 2)) + attend.c_proj.bias
        near = after.abs().sum(-1, keepdim=True) - (after[:, None] - vectors).abs().sum(-1)
        near = near.clamp_min(1e-5) * allowed
        residual = (after.abs().sum(-1) - (after - x[0]).abs().sum(-1)).clamp_min(1e-5)
        found.append(near / (near.sum((0, 2)) + residual)[:, None])
    return torch.stack(found)


def _zeroed(model: Any, ids: Tensor) -> Tensor:
    run = model(ids, output_hidden_states=True)
    count = ids.shape[1]
    found = []
    for layer, x in zip(model.h, run.hidden_states, strict=False):
        plain = torch.nn.functional.normalize(layer(x)[0].double(), dim=-1)
        columns = []
        for token in range(count):

            def zero(module: Any, args: Any, result: Tensor, token: int = token) -> Tensor:
                result[:, token, -HEADS * WIDTH :] = 0
                return result

            handle = layer.attn.c_attn.register_forward_hook(zero)
            other = torch.nn.functional.normalize(layer(x)[0].double(), dim=-1)
            handle.remove()
            columns.append((plain - other).square().sum(-1) / 2)
        scores = torch.stack(columns, 1)
        found.append(scores / scores.sum(-1, keepdim=True))
    return torch.stack(found).float()
