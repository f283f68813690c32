"""Capturing every head of a model of GPT-2's shape, beside the model alone and its own attentions.

The weights are random, the batch is 1.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

import gattn
from benchmarks.measure import TOLERANCE, Row, Side

PEERS = {
    "sdpa": "the model with sdpa, nothing captured",
    "eager": "transformers' output_attentions, eager",
}
KEPT = {
    "all": (gattn.All(), "sdpa"),
    "all-eager": (gattn.All(), "eager"),
    "topk": (gattn.TopK(8), "sdpa"),
    "threshold": (gattn.Threshold(0.02), "sdpa"),
}


def rows(sizes: list[int], kept: Iterable[str] = tuple(KEPT)) -> list[Row]:
    """List the rows: each way to keep edges, beside the model alone; all edges beside eager too."""
    return [
        Row(
            f"capture-{name}/{size}/forward",
            f"gattn.capture, {keep}, 144 heads of a model of GPT-2's shape",
            PEERS[peer],
            size,
            partial(sides, keep=keep, attention=peer),
            check=same_attention if peer == "eager" else all_heads,
        )
        for name, (keep, peer) in ((name, KEPT[name]) for name in kept)
        for size in sizes
    ]


def sides(side: str, size: int, device: str, *, keep: Any, attention: str) -> Side:
    """Run the model alone, or with its attention captured."""
    ids = torch.randint(0, 50257, (1, size), generator=torch.Generator().manual_seed(0))
    model = _model(size, attention if side == "peer" else "sdpa").to(device)
    ids = ids.to(device)
    if side == "gattn":
        return Side(lambda: gattn.capture(ids, model, keep=keep))
    return Side(lambda: model(ids, use_cache=False, output_attentions=attention == "eager"))


def _model(size: int, attention: str) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(attn_implementation=attention, n_positions=max(size, 1024))
    return GPT2Model(config).eval()


def all_heads(peer: Side, theirs: Any, gattn: Side, trace: Any) -> dict[str, float]:
    """Count the heads and the kept edges."""
    heads = list(trace.heads())
    if len(heads) != 144:
        raise AssertionError(f"{len(heads)} heads were captured, not 144")
    kept = sum(head.graph.num_edges for head in heads)
    return {"edges kept a query": kept / sum(head.graph.num_queries for head in heads)}


def same_attention(peer: Side, theirs: Any, gattn: Side, trace: Any) -> dict[str, float]:
    """Compare every head with transformers' own attention."""
    for layer, attention in enumerate(theirs.attentions):
        for head, expected in enumerate(attention[0].cpu()):
            found = torch.from_numpy(trace[layer, head].to_dense())
            if not torch.allclose(found, expected, rtol=TOLERANCE):
                raise AssertionError(f"layer {layer}, head {head}: another attention")
    return all_heads(peer, theirs, gattn, trace)
