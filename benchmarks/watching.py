"""What a context costs a model of no library: a ViT-S at 224, run alone, captured, and edited.

The weights are random, the batch is 1. The model is proved on the first run, which is not timed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gattn
from benchmarks.row import Row, Side

_SIZE = 224
_PATCH, _WIDTH, _HEADS, _LAYERS = 16, 384, 6, 12
_EDIT = gattn.Cut(layer=_LAYERS - 1, head=0, query=0, key=1)

Opened = Callable[[nn.Module], AbstractContextManager[Any]]
CONTEXTS: dict[str, tuple[str, Opened, float | None]] = {
    "edited": ("gattn.edited, one edge cut", lambda model: gattn.edited(model, _EDIT), 1.1),
    "one-head": (
        "gattn.capturing, one head, TopK(8)",
        lambda model: gattn.capturing(model, keep=gattn.TopK(8), layers=0, heads=0),
        1.1,
    ),
    "topk": (
        "gattn.capturing, all heads, TopK(8)",
        lambda model: gattn.capturing(model, keep=gattn.TopK(8)),
        None,
    ),
}


class Block(nn.Module):
    """Attention by torch's kernel, and two linear layers, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class ViT(nn.Module):
    """The shape of ViT-S/16, with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.first = nn.Parameter(torch.randn(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (_SIZE // _PATCH) ** 2 + 1, _WIDTH))
        self.blocks = nn.Sequential(*(Block(_WIDTH) for _ in range(_LAYERS)))
        self.head = nn.Linear(_WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1)
        return self.head(self.blocks(x + self.positions[:, : x.shape[1]])[:, 0])


def rows() -> list[Row]:
    """List the rows: each context beside the model alone."""
    return [
        Row(
            f"watching-{name}/{_SIZE}/forward",
            f"a model of ViT-S's shape, {work}",
            "the model alone",
            _SIZE,
            partial(sides, opened=opened),
            time_bar=bar,
            small=_SIZE,
            check=_same_output if name != "edited" else _other_output,
        )
        for name, (work, opened, bar) in CONTEXTS.items()
    ]


def sides(side: str, size: int, device: str, *, opened: Opened) -> Side:
    """Run the model alone, or in a context."""
    torch.manual_seed(0)
    model, image = ViT().eval().to(device), torch.randn(1, 3, size, size).to(device)
    if side == "peer":
        return Side(lambda: model(image))

    def watched() -> Tensor:
        with opened(model):
            return model(image)

    return Side(watched)


def _same_output(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    if not torch.equal(theirs, ours):
        raise AssertionError("the output while capturing is not bit for bit the model's own")
    return {}


def _other_output(peer: Side, theirs: Tensor, gattn: Side, ours: Tensor) -> dict[str, float]:
    if torch.equal(theirs, ours):
        raise AssertionError("the cut does not change the output")
    return {}
