"""Capturing every head of a model of GPT-2's shape, the model alone, and other captures.

The weights are random, the batch is 1. TransformerLens is a peer only if it is installed.
"""

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import gattn
from benchmarks.row import TOLERANCE, Row, Side

BAR_AT = 2048
AGAIN, AGAIN_AT = 16, 1024
"""How often a process captures the same text, and how long that is."""
PEERS = {
    "sdpa": "the model with sdpa, nothing captured",
    "eager": "transformers' output_attentions, eager",
    "lens": "TransformerLens's run_with_cache, all attention patterns",
}
KEPT = {
    "all": (gattn.All(), "sdpa"),
    "all-eager": (gattn.All(), "eager"),
    "all-lens": (gattn.All(), "lens"),
    "topk": (gattn.TopK(8), "sdpa"),
    "threshold": (gattn.Threshold(0.02), "sdpa"),
}


def rows(sizes: list[int], kept: Iterable[str] = tuple(KEPT)) -> list[Row]:
    """List the rows: each way to keep edges, and the model alone; for all edges, also eager.

    The rows `capture-again` run many times in one process: memory that is not given back adds up.
    """
    ways = tuple(kept)
    again = [
        Row(
            f"capture-again/{name}/forward",
            f"{AGAIN} times gattn.capture, {KEPT[name][0]}, {AGAIN_AT} tokens, 144 heads of a "
            "model of GPT-2's shape",
            f"the model with sdpa, {AGAIN} times, nothing captured",
            AGAIN_AT,
            partial(sides, keep=KEPT[name][0], attention="sdpa", times=AGAIN),
            memory_bar=1.15 if name == "topk" else None,
            check=all_heads,
        )
        for name in ("topk", "all")
        if name in ways and AGAIN_AT in sizes
    ]
    return again + [
        Row(
            f"capture-{name}/{size}/forward",
            f"gattn.capture, {keep}, 144 heads of a model of GPT-2's shape",
            PEERS[peer],
            size,
            partial(sides, keep=keep, attention=peer),
            time_bar=1.25 if size == BAR_AT and peer == "sdpa" else None,
            memory_bar=1.15 if size == BAR_AT and keep != gattn.All() else None,
            check=all_heads if peer == "sdpa" else same_attention,
        )
        for name, (keep, peer) in ((name, KEPT[name]) for name in ways)
        for size in sizes
        if peer != "lens" or find_spec("transformer_lens")
    ]


def sides(side: str, size: int, device: str, *, keep: Any, attention: str, times: int = 1) -> Side:
    """Run the model, perhaps several times: alone or with the peer's capture, or with gattn's."""
    ids = torch.randint(0, 50257, (1, size), generator=torch.Generator().manual_seed(0))
    peer = attention if side == "peer" else "sdpa"
    model = _model(size, "eager" if peer == "eager" else "sdpa", attention == "lens").to(device)
    ids = ids.to(device)
    if side == "gattn":
        return Side(_repeated(lambda: gattn.capture(ids, model, keep=keep), times))
    if attention == "lens":
        return Side(_lens(model, ids))
    is_eager = attention == "eager"
    run = partial(model, ids, use_cache=False, output_attentions=is_eager)
    return Side(_repeated(run, times))


def _repeated(run: Callable[[], Any], times: int) -> Callable[[], Any]:
    """Run several times, as long as each result is there until the next; give the last."""

    def repeated() -> Any:
        found = None
        for _ in range(times):
            found = run()
        return found

    return repeated


def _model(size: int, attention: str, with_logits: bool = False) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(attn_implementation=attention, n_positions=max(size, 1024))
    return (GPT2LMHeadModel if with_logits else GPT2Model)(config).eval()


def _lens(model: nn.Module, ids: torch.Tensor) -> Callable[[], Any]:
    from transformer_lens import TransformerBridge

    with TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model, device=ids.device)

    def is_pattern(name: str) -> bool:
        return name.endswith("hook_pattern")

    return lambda: bridge.run_with_cache(ids, names_filter=is_pattern)[1]


def all_heads(peer: Side, theirs: Any, gattn: Side, trace: Any) -> dict[str, float]:
    """Count the heads and the kept edges."""
    heads = list(trace.heads())
    if len(heads) != 144:
        raise AssertionError(f"{len(heads)} heads were captured, not 144")
    kept = sum(head.graph.num_edges for head in heads)
    return {"edges kept per query": kept / sum(head.graph.num_queries for head in heads)}


def same_attention(peer: Side, theirs: Any, gattn: Side, trace: Any) -> dict[str, float]:
    """Compare every head with the peer's attention."""
    layers = getattr(theirs, "attentions", None) or list(theirs.values())
    for layer, attention in enumerate(layers):
        for head, expected in enumerate(attention[0].cpu()):
            found = torch.from_numpy(trace[layer, head].to_dense())
            if not torch.allclose(found, expected, rtol=TOLERANCE):
                raise AssertionError(f"layer {layer}, head {head}: attention differs")
    return all_heads(peer, theirs, gattn, trace)
