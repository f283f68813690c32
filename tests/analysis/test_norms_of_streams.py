"""Which norm gives the residual stream: after attention, at the end of a layer, or none."""

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

WIDTH, HEADS, TOKENS = 8, 2, 5


class Transposed(nn.Module):
    """A batch norm of features between transposes, as time series models have it."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Bent(Transposed):
    """No norm: it bends what it gives."""

    def forward(self, x):
        return super().forward(x).tanh()


class Adding(Transposed):
    """No norm, and none that is held: what it is given goes around its norm, too."""

    def forward(self, x):
        return x + super().forward(x).tanh()


class Layer(nn.Module):
    """Norms before attention and MLP, after attention, and at the end, where they are given."""

    def __init__(self, before=nn.Identity, after=nn.Identity, last=nn.Identity, mlp=True):
        super().__init__()
        self.norm1, self.norm2 = before(WIDTH), before(WIDTH)
        self.after, self.last = after(WIDTH), last(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        hidden = nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)
        self.mlp = nn.Sequential(*hidden) if mlp else None

    def split(self, x):
        return self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(*self.split(x))
        x = self.after(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.last(x if self.mlp is None else x + self.mlp(self.norm2(x)))


class Model(nn.Module):
    def __init__(self, **norms):
        super().__init__()
        self.layers = nn.ModuleList(Layer(**norms) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def made(**norms):
    torch.manual_seed(0)
    model, x = Model(**norms).double().eval(), torch.randn(1, TOKENS, WIDTH).double()
    for one in model.modules():
        if isinstance(one, nn.LayerNorm):
            nn.init.normal_(one.weight, 1, 0.3)
    return model, x, lambda: model(x)


def vectors(layer, x):
    """What each token adds to each other by each head, (heads, queries, keys, width)."""
    q, k, v = layer.split(x)[:, 0]
    attention = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1)
    weights = layer.out.weight.unflatten(1, (HEADS, -1))
    return torch.einsum("hij,hjd,ehd->hije", attention, v, weights).detach()


def held(norm, at, vectors):
    """Apply a norm with the statistics that it has of some tokens, without its shift."""
    if isinstance(norm, Adding):
        return vectors
    if isinstance(norm, Transposed):
        one = norm.norm
        return vectors * one.weight / (one.running_var + one.eps).sqrt()
    deviation = (at.var(-1, correction=0) + norm.eps).sqrt()[:, None]
    return (vectors - vectors.mean(-1, keepdim=True)) / deviation * norm.weight


PRE = {"before": nn.LayerNorm, "last": nn.LayerNorm}
POST = {"after": nn.LayerNorm, "last": nn.LayerNorm}
ALONE = {"after": nn.LayerNorm, "mlp": False}
BATCH = {"after": Transposed, "last": Transposed}
BATCH_LAST = {"before": nn.LayerNorm, "last": Transposed}
ADDING = {"before": nn.LayerNorm, "last": Adding}
NORMS = [PRE, POST, ALONE, BATCH, BATCH_LAST, ADDING]


@pytest.mark.parametrize("norms", NORMS)
def test_shares_are_of_the_stream_after_attention(norms):
    model, x, run = made(**norms)
    found = gattn.analysis.residual_shares(run, model, progress=False)
    for number, layer in enumerate(model.layers):
        parts = vectors(layer, x).sum(0)
        summed = x[0] + parts.sum(1) + layer.out.bias
        own = x[0] + parts[range(TOKENS), range(TOKENS)]
        mixed = parts.sum(1) + x[0] - own
        if "after" in norms:
            own, mixed = (held(layer.after, summed, one) for one in (own, mixed))
        share = own.norm(dim=-1) / (own.norm(dim=-1) + mixed.norm(dim=-1))
        torch.testing.assert_close(torch.from_numpy(found[number].to_numpy()), share.detach())
        x = layer(x)


@pytest.mark.parametrize("norms", NORMS)
def test_what_heads_wrote_goes_through_the_norms_of_the_stream(norms):
    model, x, run = made(**norms)
    found = gattn.why(run, model, layer=1, head=1)
    first, second = model.layers
    parts = vectors(first, x).sum(2)
    summed = x[0] + parts.sum(0) + first.out.bias
    end = first(x)[0]
    if "after" in norms:
        parts, summed = held(first.after, summed, parts), first.after(summed[None])[0]
    if "last" in norms:
        mlp = first.mlp(first.norm2(summed))
        parts = held(first.last, summed + mlp, parts)
    if "before" in norms:
        parts = held(second.norm1, end, parts)
    names = [str(one) for one in found.writers]
    for head in range(HEADS):
        for side, start in ("queries", 0), ("keys", WIDTH):
            weight = second.qkv.weight[start + WIDTH // HEADS : start + WIDTH]
            mine = getattr(found, side)[names.index(f"0.{head}")]
            scale = (mine / (parts[head] @ weight.T)).detach()
            torch.testing.assert_close(scale, scale.mean().expand_as(scale))


def test_a_stream_through_other_modules_is_refused():
    model, _, run = made(after=Bent, last=nn.LayerNorm)
    known = {"model": model, "progress": False}
    for analysis in (gattn.analysis.alti, gattn.analysis.residual_shares):
        with pytest.raises(CaptureError, match="through a module that is not found to be"):
            analysis(run, **known)
    with pytest.raises(CaptureError, match="through a module that is not found to be"):
        gattn.analysis.routes(run, position=0, **known)
    with pytest.raises(CaptureError, match="through a module that is not found to be"):
        gattn.why(run, model, layer=1, head=0)
    gattn.analysis.contributions(run, of="residual", **known)
    model, _, run = made(before=nn.LayerNorm, last=Bent)
    with pytest.raises(CaptureError, match="ends in a module of the residual stream"):
        gattn.why(run, model, layer=1, head=0)
    gattn.analysis.alti(run, model=model, progress=False)


class Normed(Model):
    """A model that norms the stream between its layers."""

    def __init__(self, norms, **options):
        super().__init__(**options)
        self.layers.append(Layer(**options))
        self.norms = nn.ModuleList(norms)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        return x


@pytest.mark.parametrize("options", [{"before": nn.LayerNorm}, {"after": nn.LayerNorm}])
def test_a_norm_between_layers_is_as_one_at_a_layers_end(options):
    torch.manual_seed(0)
    norms = [nn.LayerNorm(WIDTH) for _ in range(3)]
    for norm in norms:
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias)
    model, x = Normed(norms, **options).double().eval(), torch.randn(1, TOKENS, WIDTH).double()
    found = gattn.why(lambda: model(x), model, layer=2, head=1)
    for layer, norm in zip(model.layers, norms, strict=True):
        layer.last = norm
    model.norms = nn.ModuleList(nn.Identity() for _ in norms)
    wanted = gattn.why(lambda: model(x), model, layer=2, head=1)
    assert found.writers == wanted.writers
    torch.testing.assert_close(found.queries, wanted.queries)
    torch.testing.assert_close(found.keys, wanted.keys)


class Conditioned(Normed):
    """Norms one vector, too, between layers."""

    def __init__(self, norms, **options):
        super().__init__(norms, **options)
        self.of_one, self.one = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(x)
            self.of_one(self.one)
            x = norm(x)
        return x


def test_a_norm_of_something_else_between_layers_is_none_of_the_streams():
    torch.manual_seed(0)
    norms = [nn.LayerNorm(WIDTH) for _ in range(3)]
    model = Conditioned(norms, before=nn.LayerNorm).double().eval()
    plain, x = Normed(norms, before=nn.LayerNorm).double().eval(), torch.randn(1, TOKENS, WIDTH)
    plain.load_state_dict(model.state_dict(), strict=False)
    found, wanted = (
        gattn.why(lambda one=one: one(x.double()), one, layer=2, head=1) for one in (model, plain)
    )
    torch.testing.assert_close(found.queries, wanted.queries)
    torch.testing.assert_close(found.keys, wanted.keys)
