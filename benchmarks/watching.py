"""What a context costs a live model: a ViT-S at 224, GPT-2 and a GAT, run alone and watched.

The weights are random. A model is proved on its first run, which is not timed; opening and closing
the context is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gattn
from benchmarks.row import TOLERANCE, Row, Side
from gattn.models.run.opening import opened
from gattn.models.watch.contexts import Context

_SIZE = 224
_PATCH, _WIDTH, _HEADS, _LAYERS = 16, 384, 6, 12
_KEPT = gattn.TopK(8)

Opened = Callable[[nn.Module, int], AbstractContextManager[Any]]
CONTEXTS: dict[str, tuple[str, Opened, float | None]] = {
    "open": ("an open context that wants nothing", lambda model, _: opened(model, Context()), 1.1),
    "edited": (
        "gattn.edited, one edge cut",
        lambda model, layer: gattn.edited(model, gattn.Cut(layer=layer, head=0, query=0, key=0)),
        1.1,
    ),
    "one-head": (
        "gattn.capturing, one head, TopK(8)",
        lambda model, layer: gattn.capturing(model, keep=_KEPT, layers=layer, heads=0),
        1.1,
    ),
    "topk": (
        "gattn.capturing, all heads, TopK(8)",
        lambda model, _: gattn.capturing(model, keep=_KEPT),
        None,
    ),
    "all": (
        "gattn.capturing, all heads, all edges",
        lambda model, _: gattn.capturing(model, keep=gattn.All()),
        None,
    ),
}


class Block(nn.Module):
    """Attention, by torch's kernel or written out, and two linear layers, each after a norm."""

    def __init__(self, width: int, *, is_fused: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attn_drop, self.is_fused = nn.Dropout(0.0), is_fused

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(*parts).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.is_fused:
            return F.scaled_dot_product_attention(query, key, value)
        scores = (query * query.shape[-1] ** -0.5) @ key.mT
        return self.attn_drop(scores.softmax(-1)) @ value


class ViT(nn.Module):
    """The shape of ViT-S/16, with a class token."""

    def __init__(self, *, is_fused: bool = True) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.first = nn.Parameter(torch.randn(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (_SIZE // _PATCH) ** 2 + 1, _WIDTH))
        self.blocks = nn.Sequential(*(Block(_WIDTH, is_fused=is_fused) for _ in range(_LAYERS)))
        self.head = nn.Linear(_WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1)
        return self.head(self.blocks(x + self.positions[:, : x.shape[1]])[:, 0])


def _vit(batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ViT(), (torch.randn(batch, 3, _SIZE, _SIZE),)


def _gpt2(batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(attn_implementation="sdpa", use_cache=False, return_dict=False)
    return GPT2Model(config), (torch.randint(0, 50257, (batch, 128)),)


class _GAT(nn.Module):
    def __init__(self) -> None:
        from torch_geometric.nn import GATConv

        super().__init__()
        self.first, self.second = (GATConv(128, 16, heads=8) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def _gat(batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    nodes = 1000 * batch
    return _GAT(), (torch.randn(nodes, 128), torch.randint(0, nodes, (2, 8 * nodes)))


MODELS: dict[str, tuple[str, Callable[[int], Any], int, int]] = {
    "vit": ("a model of ViT-S's shape at 224", _vit, _LAYERS, 1),
    "vit-8": ("a model of ViT-S's shape at 224, batch 8", _vit, _LAYERS, 8),
    "gpt2": ("GPT-2's shape, 128 tokens", _gpt2, 12, 1),
    "gat": ("two GATConv, 1,000 nodes, 8,000 edges", _gat, 2, 1),
}

_QUICK = ("vit", "gat")


def rows(quick: bool) -> list[Row]:
    """List the rows: each context beside the model alone, and all attention beside hooks."""
    models = {name: MODELS[name] for name in (_QUICK if quick else MODELS)}
    alone = [
        Row(
            f"watching-{model}/{name}/forward",
            f"{shape}, {work}",
            "the model alone",
            batch,
            partial(sides, of=model, context=name),
            time_bar=bar if model.startswith("vit") else None,
            small=batch,
            check=_other_output if name == "edited" else _same_output,
        )
        for model, (shape, _, _, batch) in models.items()
        for name, (work, _, bar) in CONTEXTS.items()
    ]
    hooked = [
        Row(
            f"watching-{model}/hooks/forward",
            f"{MODELS[model][0]}, gattn.capturing, all heads, all edges",
            "its attention written out, and a forward hook that keeps it",
            MODELS[model][3],
            beside_hooks,
            small=MODELS[model][3],
            check=_same_attention,
        )
        for model in ("vit", "vit-8")
        if model in models
    ]
    return alone + hooked


def sides(side: str, batch: int, device: str, *, of: str, context: str) -> Side:
    """Run the model alone, or in a context."""
    torch.manual_seed(0)
    _, built, layers, _ = MODELS[of]
    _, opened_on, _ = CONTEXTS[context]
    model, given = built(batch)
    model, given = model.eval().to(device), [x.to(device) for x in given]
    if side == "peer":
        return Side(lambda: _first(model(*given)))

    def watched() -> Tensor:
        with opened_on(model, layers - 1):
            return _first(model(*given))

    return Side(watched)


def beside_hooks(side: str, batch: int, device: str) -> Side:
    """Keep all attention: by hooks on a model that writes it out, or by gattn of one that does not.

    Both sides give the attention by layer: (batch, heads, tokens, tokens).
    """
    torch.manual_seed(0)
    model = ViT(is_fused=side == "gattn").eval().to(device)
    image = torch.randn(batch, 3, _SIZE, _SIZE).to(device)

    def captured() -> Any:
        with gattn.capturing(model, keep=gattn.All()) as run:
            model(image)
        return run

    def hooked() -> list[Tensor]:
        kept: list[Tensor] = []
        handles = [
            block.attn_drop.register_forward_hook(lambda _, given, found: kept.append(found))
            for block in model.blocks
        ]
        model(image)
        for handle in handles:
            handle.remove()
        return kept

    return Side(captured if side == "gattn" else hooked)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _same_output(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    if not torch.equal(theirs, ours):
        raise AssertionError("the output while capturing is not bit for bit the model's own")
    return {}


def _other_output(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    if torch.equal(theirs, ours):
        raise AssertionError("the cut does not change the output")
    return {}


def _same_attention(peer: Side, theirs: list[Tensor], gattn: Side, run: Any) -> dict[str, float]:
    for element, trace in enumerate(run.traces):
        for layer, whole in enumerate(theirs):
            for head, expected in enumerate(whole[element].cpu()):
                found = torch.from_numpy(trace[layer, head].to_dense())
                if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
                    raise AssertionError(f"layer {layer}, head {head}: attention differs")
    return {}
