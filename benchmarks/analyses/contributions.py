"""Contributions and ALTI in BERT-base, and the papers' way: all vectors of all pairs at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.row import Row, Side
from gattn.analysis import alti, contributions


def rows(quick: bool) -> list[Row]:
    """List both rows."""
    size = 32 if quick else 128
    model = f"BERT-base, 12 layers, 12 heads, {size} tokens, the model's run included"
    peer = "the vectors of all pairs and heads, summed over heads, then {}"
    return [
        Row(
            "analysis-contributions",
            f"lengths of what tokens add to each other, {model}",
            peer.format("their norms"),
            size,
            partial(_build, of="attention"),
            time_bar=1 / 4,
            memory_bar=1 / 4,
            growth=(128, 256, 512),
            small=8,
        ),
        Row(
            "analysis-alti",
            f"ALTI, {model}",
            peer.format("their distances"),
            size,
            partial(_build, of="alti"),
            time_bar=1 / 4,
            memory_bar=1 / 4,
            growth=(128, 256, 512),
            small=8,
        ),
    ]


def _build(side: str, size: int, device: str, of: str) -> Side:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    how = "eager" if side == "peer" else "sdpa"
    model: Any = BertModel(BertConfig(attn_implementation=how)).eval().to(device)
    ids = torch.randint(0, 30000, (size,))
    if side == "gattn":
        measure: Callable[..., Any] = alti if of == "alti" else contributions
        return Side(lambda: torch.from_numpy(measure(ids, model, progress=False).to_numpy()))
    return Side(lambda: _dense(model, ids.to(device), of).cpu())


def _dense(model: Any, ids: Tensor, of: str) -> Tensor:
    run = model(ids[None], output_hidden_states=True, output_attentions=True)
    layers = zip(model.encoder.layer, run.hidden_states, run.attentions, strict=False)
    measure = _interactions if of == "alti" else _lengths
    return torch.stack([measure(layer.attention, x[0], a[0]) for layer, x, a in layers])


def _vectors(attention: Any, residual: Tensor, weights: Tensor) -> Tensor:
    """Make what each key adds to each query: (queries, keys, dim)."""
    heads = len(weights)
    value = attention.self.value(residual).unflatten(-1, (heads, -1))
    projection = attention.output.dense.weight.unflatten(1, (heads, -1))
    moved = torch.einsum("jhv,dhv->hjd", value, projection)
    return torch.einsum("hij,hjd->hijd", weights, moved).sum(0)


def _lengths(attention: Any, residual: Tensor, weights: Tensor) -> Tensor:
    return _vectors(attention, residual, weights).norm(dim=-1)


def _interactions(attention: Any, residual: Tensor, weights: Tensor) -> Tensor:
    vectors, output = _vectors(attention, residual, weights), attention.output
    places = torch.arange(len(residual))
    vectors[places, places] += residual
    after = vectors.sum(1) + output.dense.bias
    deviation = (after.var(-1, unbiased=False) + output.LayerNorm.eps).sqrt()
    centred = vectors - vectors.mean(-1, keepdim=True)
    vectors = centred * output.LayerNorm.weight / deviation[:, None, None]
    whole = output.LayerNorm(after)
    nearer = whole.abs().sum(-1, keepdim=True) - (whole[:, None] - vectors).abs().sum(-1)
    nearer = nearer.clamp_min(0)
    return nearer / nearer.sum(-1, keepdim=True)
