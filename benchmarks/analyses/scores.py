"""The scores of a head of GPT-2 taken apart, and the same by hooks written for GPT-2 alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gattn
from benchmarks.row import Row, Side

LAYER, HEAD = 11, 3


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 32 if quick else 512
    return [
        Row(
            "analysis-why",
            f"queries and keys of a head of GPT-2's last layer by 157 parts, {size} tokens, the "
            "model's runs and checks included",
            "hooks on the attention and MLPs of one run, and GPT-2's own matrices",
            size,
            _build,
            time_bar=3,
            growth=(128, 256, 512),
            small=8,
        )
    ]


def _build(side: str, size: int, device: str) -> Side:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config()).eval().to(device)
    ids = torch.randint(0, 50000, (size,), device=device)
    if side == "gattn":
        return Side(lambda: _found(ids, model))
    return Side(lambda: _by_hooks(model, ids))


def _found(ids: Tensor, model: Any) -> Tensor:
    found = gattn.why(ids, model, layer=LAYER, head=HEAD)
    return torch.cat([found.queries, found.keys])


def _by_hooks(model: Any, ids: Tensor) -> Tensor:
    """Take the stream apart in one run, and give each part to the head's matrices."""
    gpt2, given = model.transformer, {}

    def note(module: Any, args: tuple[Any, ...], result: Any) -> None:
        given[module] = args[0][0], result[0]

    blocks = gpt2.h[:LAYER]
    noted = [x for block in blocks for x in (block.attn.c_proj, block.mlp)]
    target = gpt2.h[LAYER]
    hooks = [x.register_forward_hook(note) for x in (*noted, target.ln_1)]
    model(ids[None])
    for hook in hooks:
        hook.remove()
    heads, width = gpt2.config.n_head, gpt2.config.n_embd
    parts = [gpt2.wte.weight[ids][None], gpt2.wpe.weight[: len(ids)][None]]
    for block in blocks:
        projection = block.attn.c_proj
        values = given[projection][0].unflatten(-1, (heads, -1))
        parts.append(
            torch.einsum("ihv,hvd->hid", values, projection.weight.unflatten(0, (heads, -1)))
        )
        parts.append(projection.bias.expand(1, len(ids), width))
        parts.append(given[block.mlp][1][None])
    stream = given[target.ln_1][0]
    deviation = (stream.var(-1, unbiased=False) + target.ln_1.eps).sqrt()[:, None]
    whole = torch.cat(parts)
    normed = (whole - whole.mean(-1, keepdim=True)) / deviation * target.ln_1.weight
    sides = []
    for start, scale in ((0, (width // heads) ** -0.5), (width, 1.0)):
        at = slice(start + HEAD * width // heads, start + (HEAD + 1) * width // heads)
        weight, bias = target.attn.c_attn.weight[:, at], target.attn.c_attn.bias[at]
        bias = (target.ln_1.bias @ weight + bias).expand(1, len(ids), -1)
        sides.append(scale * torch.cat([normed @ weight, bias]))
    return torch.cat(sides).double()
