"""Layers with norms, MLPs and scales wherever models have them, and their streams written out."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS, HIDDEN = 8, 2, 5, 12
EPS = 1e-6


class Norm(nn.Module):
    """A layer norm or RMS norm, as a module; or its parameters, for a layer that norms inline."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(WIDTH))
        self.bias = nn.Parameter(0.3 * torch.randn(WIDTH)) if kind != "rms" else None

    def forward(self, x):
        if self.kind == "rms":
            return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weight
        return functional.layer_norm(x, (WIDTH,), self.weight, self.bias, EPS)


class Inline(Norm):
    """A norm that is no module of its own: a layer asks for its numbers alone."""

    def __call__(self, x):
        if self.kind == "written":
            x = x - x.mean(-1, keepdim=True)
            return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weight + self.bias
        return functional.layer_norm(x, (WIDTH,), self.weight, self.bias, EPS)


def held(norm, at, vectors):
    """Apply a norm with the statistics that it has of some tokens (T, D), without its shift."""
    if norm is None:
        return vectors
    if norm.kind == "rms":
        return vectors / (at.square().mean(-1) + EPS).sqrt()[:, None] * norm.weight
    deviation = (at.var(-1, correction=0) + EPS).sqrt()[:, None]
    return (vectors - vectors.mean(-1, keepdim=True)) / deviation * norm.weight


class Mlp(nn.Module):
    """An MLP; `gate` is its gate's weight, if it has one."""

    def __init__(self, is_gated):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN) if is_gated else None

    def forward(self, x):
        up = self.up(x)
        return self.down(
            functional.gelu(up) if self.gate is None else functional.silu(self.gate(x)) * up
        )


class Gated(nn.Module):
    """What two linear maps give is multiplied, and nothing is projected."""

    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return functional.silu(self.gate(x)) * self.up(x)


class Gain(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(gain)

    def forward(self, x):
        return x * self.gain


@dataclass(frozen=True)
class Kind:
    """What a layer is.

    `norms` are "none", "pre", "post", "sandwich" (before and after each branch) or "inner" (after
    each branch). `mlp` is None, or "module", "gated", "product" (of two maps), or with "inline"
    before it if the layer's own code runs its modules, "raw" if it has no modules.
    """

    norms: str = "pre"
    norm: str = "layer"
    mlp: str | None = "module"
    is_parallel: bool = False
    has_last: bool = False
    scale: str | None = None
    end: float = 1.0


def _norm(kind):
    return (Norm if kind in ("layer", "rms") else Inline)(kind)


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        has = {"pre": "12", "post": "p", "sandwich": "12ab", "inner": "ab", "none": ""}[kind.norms]
        if kind.is_parallel or kind.mlp is None:
            has = has.replace("p", "")
        has += "l" * kind.has_last
        self.norms = nn.ModuleDict({name: _norm(kind.norm) for name in has})
        word = (kind.mlp or "").split()
        self.mlp = None if not word else Gated() if "product" in word else Mlp("gated" in word)
        self.gain = None
        if kind.scale is not None:
            numbers = 0.3 + torch.rand(1 if kind.scale == "number" else WIDTH)
            self.gain = Gain(numbers) if kind.scale == "module" else nn.Parameter(numbers)

    def norm(self, name, x):
        return self.norms[name](x) if name in self.norms else x

    def scaled(self, x):
        if self.gain is None:
            return x
        return self.gain(x) if isinstance(self.gain, Gain) else x * self.gain

    def split(self, x):
        return self.qkv(self.norm("1", x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def attend(self, x):
        y = functional.scaled_dot_product_attention(*self.split(x))
        return self.scaled(self.norm("a", self.out(y.transpose(1, 2).flatten(2))))

    def feed(self, x):
        x = self.norm("1" if self.kind.is_parallel else "2", x)
        return self.norm("b", self.fed(x))

    def fed(self, x):
        words, mlp = self.kind.mlp.split(), self.mlp
        linear = _raw if "raw" in words else _called
        if not {"inline", "raw"} & {*words}:
            return mlp(x)
        if isinstance(mlp, Gated):
            return functional.silu(linear(mlp.gate, x)) * linear(mlp.up, x)
        up = linear(mlp.up, x)
        if mlp.gate is not None:
            return linear(mlp.down, functional.silu(linear(mlp.gate, x)) * up)
        return linear(mlp.down, functional.gelu(up))

    def forward(self, x):
        if self.kind.is_parallel:
            x = x + self.attend(x) + self.feed(x)
        else:
            x = self.norm("p", x + self.attend(x))
            x = x if self.mlp is None else x + self.feed(x)
        x = self.norm("l", x)
        return x if self.kind.end == 1 else x * self.kind.end


def _called(module, x):
    return module(x)


def _raw(module, x):
    return x @ module.weight.T + module.bias


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(Layer(kind) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def made(kind, tokens=TOKENS):
    """Make a model, its input, and what runs it."""
    torch.manual_seed(0)
    model = Model(kind).double().eval().requires_grad_(False)
    x = torch.randn(1, tokens, WIDTH).double()
    return model, x, lambda: model(x)


class Written:
    """A layer on one text, (tokens, width), written out.

    `vectors` (heads, queries, keys, width) are added to `residual`, and `bias`; `after` is the
    sum. `post` and `last` are the norms that the stream goes through, of the tokens in `summed` and
    `before`.
    """

    def __init__(self, layer, x):
        kind, norms = layer.kind, layer.norms
        get = {name: norms[name] for name in norms}
        q, k, v = layer.split(x[None])[:, 0]
        attention = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1)
        weights = layer.out.weight.unflatten(1, (HEADS, -1))
        vectors = torch.einsum("hij,hjd,ehd->hije", attention, v, weights)
        plain = vectors.sum((0, 2)) + layer.out.bias
        inner = get.get("a")
        gain = 1 if layer.gain is None else getattr(layer.gain, "gain", layer.gain)
        self.residual, self.end = x, layer(x[None])[0]
        moved = vectors.movedim(1, -2)
        self.vectors = (held(inner, plain, moved) * gain).movedim(-2, 1)
        self.bias = held(inner, plain, layer.out.bias.expand_as(x))
        self.bias = (self.bias + (0 if inner is None or inner.bias is None else inner.bias)) * gain
        self.after = x + self.vectors.sum((0, 2)) + self.bias
        self.is_parallel = kind.is_parallel
        self.whole = self.after if not kind.is_parallel else self.after + layer.feed(x[None])[0]
        # A norm after attention alone, or after both, is what the stream goes through.
        is_single = kind.is_parallel or layer.mlp is None
        self.post = get.get("l") if is_single else get.get("p")
        self.last, self.scale = None if is_single else get.get("l"), kind.end
        posted = self.normed(self.after, shift=True)
        fed = 0 if kind.is_parallel or layer.mlp is None else layer.feed(posted[None])[0]
        self.before = posted + fed

    def normed(self, vectors, shift=False):
        """Take vectors (..., tokens, width) through the norm after attention, if there is one."""
        found = held(self.post, self.whole, vectors)
        has_shift = shift and self.post is not None and self.post.bias is not None
        return found + self.post.bias if has_shift else found

    def passed(self, vectors):
        """Take vectors through all norms of the stream, to the layer's end."""
        return held(self.last, self.before, self.normed(vectors)) * self.scale

    @property
    def each(self):
        """What each token adds to each other: (queries, keys, width), normed."""
        found = self.vectors.sum(0)
        diagonal = range(len(found))
        found[diagonal, diagonal] += self.residual
        return self.normed(found.movedim(1, 0)).movedim(0, 1)

    def share(self):
        each, diagonal = self.each, range(len(self.each))
        own = each[diagonal, diagonal]
        mixed = each.sum(1) - own
        return own.norm(dim=-1) / (own.norm(dim=-1) + mixed.norm(dim=-1))

    def alti(self):
        output = self.normed(self.after, shift=True)
        near = output.abs().sum(-1)[:, None] - (output[:, None] - self.each).abs().sum(-1)
        near = near.clamp_min(0)
        return near / near.sum(-1, keepdim=True).clamp_min(1e-300)

    def importances(self):
        """How near each head's vectors come to the sum, as shares: (heads, queries, keys)."""
        posted = self.normed(self.after, shift=True)
        whole = self.end if self.is_parallel else posted

        def near(parts):
            size = whole.abs().sum(-1) - (whole - parts).abs().sum(-1)
            return size.clamp_min(1e-5)

        heads = near(self.normed(self.vectors.movedim(1, -2))).movedim(-1, 1)
        total = heads.sum((0, 2)) + near(self.normed(self.residual))
        total = total + (near(self.end - posted) if self.is_parallel else 0)
        return heads / total[:, None]


def written(model, x):
    """Write out all layers."""
    found, x = [], x[0]
    for layer in model.layers:
        found.append(Written(layer, x))
        x = found[-1].end
    return found
