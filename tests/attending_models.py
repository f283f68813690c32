"""Small models whose attention calls have the layouts that libraries use."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WIDTH, HEADS = 8, 2


def _attend(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


class Attention(nn.Module):
    """Self-attention of (elements, tokens, width), by a kernel or a softmax."""

    def __init__(self, kernel=True):
        super().__init__()
        self.qkv, self.out, self.kernel = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            kernel,
        )

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Causal(Attention):
    def forward(self, x):
        return super().forward(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


class FoldedHeads(nn.Module):
    """Heads folded into the batch: elements by heads, or heads by elements."""

    def __init__(self, heads_first):
        super().__init__()
        self.qkv, self.out, self.heads_first = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            heads_first,
        )

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, HEADS, -1))
        order = (2, 3, 0, 1, 4) if self.heads_first else (2, 0, 3, 1, 4)
        q, k, v = qkv.permute(order).flatten(1, 2)
        y = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
        sizes = (HEADS, -1) if self.heads_first else (-1, HEADS)
        y = y.unflatten(0, sizes)
        y = y.permute(1, 2, 0, 3) if self.heads_first else y.transpose(1, 2)
        return self.out(y.flatten(2))


class OneHead(Attention):
    """One head without a dimension of heads."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


class TokensFirst(Attention):
    """Attention of (tokens, batch, width)."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Channels(nn.Module):
    """Attention between channels, as in XCiT and DaViT."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 4, 1)
        return F.scaled_dot_product_attention(q, k, v).permute(0, 3, 1, 2).flatten(2)


class Windows(nn.Module):
    """A block that attends within windows of a grid, perhaps shifted and padded, as in Swin."""

    def __init__(self, size, shift=0, kernel=True):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention(kernel)
        self.size, self.shift = size, shift

    def split(self, x):
        size = self.size
        x = F.pad(x, (0, 0, 0, -x.shape[2] % size, 0, -x.shape[1] % size), value=self.empty)
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)
        return x

    empty = 0.0

    def join(self, y, whole, shape):
        y = y.reshape(whole).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return y[:, : shape[1], : shape[2]]

    def forward(self, x):
        parts = self.split(self.norm(x))
        y = self.attn(parts.flatten(0, 2).flatten(1, 2))
        return x + self.join(y, parts.shape, x.shape)

    def positions(self, height, width):
        """The position of each slot of each window, by the same partition of numbers."""
        numbers = torch.arange(height * width).reshape(1, height, width, 1)
        self.empty = -1
        parts = self.split(numbers)
        self.empty = 0.0
        return parts.flatten(0, 2).flatten(1, 2)[..., 0]


class Grid(Windows):
    """Windows of tokens that are far apart, as in MaxViT."""

    def split(self, x):
        size = self.size
        x = x.unflatten(2, (size, -1)).unflatten(1, (size, -1))
        return x.permute(0, 2, 4, 1, 3, 5)

    def join(self, y, whole, shape):
        return y.reshape(whole).permute(0, 3, 1, 4, 2, 5).reshape(shape)


class Pooled(nn.Module):
    """Keys pooled by a strided convolution, as in PVT."""

    def __init__(self, kernel=True):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.pool, self.kernel = nn.Conv2d(WIDTH, WIDTH, 2, 2), kernel

    def forward(self, x):
        side = int(x.shape[1] ** 0.5)
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        pooled = self.pool(x.mT.unflatten(2, (side, side))).flatten(2).mT
        k, v = self.kv(pooled).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attend = F.scaled_dot_product_attention if self.kernel else _attend
        return attend(q, k, v).transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """Blocks around attention, with a residual stream."""

    def __init__(self, *parts):
        super().__init__()
        self.blocks = nn.ModuleList(parts)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in parts)

    def forward(self, x):
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return x


class Stack(nn.Sequential):
    """Blocks one after another."""


class OverTime(nn.Module):
    """Attention of (batch, frames x tokens, width) over frames, each place by itself."""

    def __init__(self, frames):
        super().__init__()
        self.attn, self.frames = Attention(), frames

    def forward(self, x):
        y = x.unflatten(1, (self.frames, -1)).transpose(1, 2)
        y = self.attn(y.flatten(0, 1)).reshape(y.shape)
        return x + y.transpose(1, 2).flatten(1, 2)


class Crossing(nn.Module):
    """Queries of one input attend to keys of another, or learned queries do."""

    def __init__(self, learned=0):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.latents = nn.Parameter(torch.randn(learned, WIDTH)) if learned else None

    def forward(self, context, x=None):
        x = self.latents.expand(len(context), -1, -1) if x is None else x
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(context).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Image(nn.Module):
    """Self-attention over a picture (batch, channels, height, width) after a group norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.GroupNorm(2, WIDTH), Attention()

    def forward(self, x):
        tokens = self.norm(x).flatten(2).mT
        return x + self.attn(tokens).mT.reshape(x.shape)


class Text(nn.Module):
    """Self-attention of token ids."""

    def __init__(self):
        super().__init__()
        self.embed, self.attn = nn.Embedding(20, WIDTH), FoldedHeads(True)

    def forward(self, ids):
        return self.attn(self.embed(ids))
