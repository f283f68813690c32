"""Layers with norms, MLPs and scales in any order, held to their streams written out."""

import pytest
import torch
from made_layers import HEADS, WIDTH, Kind, Layer, held, made, written

import gattn
from gattn.analysis import alti, residual_shares
from gattn.analysis.vectors.importances import route_importances
from gattn.errors import CaptureError

NORMS = ["none", "pre", "post", "sandwich", "inner"]
MLPS = [
    ("module", True),
    ("product", False),
    ("inline gated", False),
    ("raw product", True),
    ("raw gated", False),
    (None, False),
]
KINDS = [Kind(norms, "layer", mlp, has_last=last) for norms in NORMS for mlp, last in MLPS]
KINDS += [Kind(norms, "rms", "product", has_last=x) for norms in NORMS[1:] for x in (False, True)]
KINDS += [
    Kind(norms, "layer", mlp, True, last)
    for norms in ("none", "pre", "inner")
    for mlp, last in (MLPS[0], MLPS[2], MLPS[3])
]
SCALES = ["module", "vector", "number"]
KINDS += [Kind(norms, mlp="inline gated", scale=x) for norms in ("pre", "post") for x in SCALES]
KINDS += [Kind("pre", "layer", "inline gated", True, scale=scale) for scale in SCALES]
KINDS += [Kind(norms, mlp=mlp, end=0.7) for norms in ("pre", "post") for mlp, _ in MLPS[:2]]
KINDS += [
    Kind("post", "function", "product"),
    Kind("post", "function", "module", has_last=True),
    Kind("post", "written", "inline gated"),
    Kind("inner", "function", "product"),
    Kind("inner", "function", "module", True),
    Kind("inner", "written", "inline gated"),
]
KINDS += [Kind("pre", norm, mlp) for norm in ("function", "written") for mlp, _ in MLPS[:4]]
KINDS += [Kind("pre", "function", "product", has_last=True)]
REFUSED = [
    Kind("pre", "written", "product", has_last=True),
    Kind("post", "written", "product", has_last=True),
    Kind("sandwich", "written", "module"),
    Kind("inner", "written", "module", True),
]


def name(kind):
    words = [kind.norms, kind.norm, str(kind.mlp).replace(" ", "-"), "parallel" * kind.is_parallel]
    words += ["last" * kind.has_last, kind.scale or "", "scaled" * (kind.end != 1)]
    return "_".join(filter(None, words))


def check(kind, tokens=5):
    """Hold what is decomposed to what is written out."""
    model, x, run = made(kind, tokens)
    layers = written(model, x)
    options = {"model": model, "progress": False}
    found = residual_shares(run, **options).to_numpy()
    for own, layer in zip(torch.from_numpy(found), layers, strict=True):
        torch.testing.assert_close(own, layer.share(), rtol=0, atol=1e-6)
    found = alti(run, **options).to_numpy()
    for own, layer in zip(torch.from_numpy(found), layers, strict=True):
        torch.testing.assert_close(own, layer.alti(), rtol=0, atol=1e-6)
    found = route_importances(run, by_head=True, **options).to_numpy()
    for own, layer in zip(torch.from_numpy(found), layers, strict=True):
        torch.testing.assert_close(own, layer.importances(), rtol=0, atol=1e-6)


def check_why(kind, tokens=5):
    model, x, run = made(kind, tokens)
    first = written(model, x)[0]
    second = model.layers[1]
    found = gattn.why(run, model, layer=1, head=1)
    names = [str(one) for one in found.writers]
    parts = {f"0.{head}": one for head, one in enumerate(first.vectors.sum(2))}
    read = dict(second.norms.items()).get("1")
    for writer, part in parts.items():
        part = held(read, first.end, first.passed(part))
        scale = (WIDTH / HEADS) ** -0.5
        for side, start, size in ("queries", 0, scale), ("keys", WIDTH, 1):
            weight = size * second.qkv.weight[start + WIDTH // HEADS : start + WIDTH]
            mine = getattr(found, side)[names.index(writer)]
            torch.testing.assert_close(torch.as_tensor(mine), part @ weight.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_vectors_are_those_of_the_stream(kind):
    check(kind)


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_what_heads_wrote_comes_to_the_next_layer(kind):
    check_why(kind)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("scale", [None, "vector"])
@pytest.mark.parametrize("is_parallel", [False, True])
def test_one_token(norms, scale, is_parallel):
    check(Kind(norms, "layer", "product", is_parallel, scale=scale), tokens=1)


@pytest.mark.parametrize("kind", REFUSED, ids=name)
def test_what_is_not_proved_is_refused(kind):
    model, _, run = made(kind)
    with pytest.raises(CaptureError, match=r"code of the layer's own|adds in another way"):
        alti(run, model=model, progress=False)


@pytest.mark.parametrize("norms", ["pre", "post"])
def test_hooks_of_layers_count(norms):
    """The layer's own code multiplies its end by a number in one model, a hook in the other."""
    shares, queries = [], []
    for end in (0.7, 1):
        model, _, run = made(Kind(norms, mlp="product", end=end))
        for layer in model.layers if end == 1 else []:
            layer.register_forward_hook(lambda module, args, result: 0.7 * result)
        shares.append(residual_shares(run, model=model, progress=False).to_numpy())
        queries.append(torch.as_tensor(gattn.why(run, model, layer=1, head=0).queries))
    torch.testing.assert_close(*map(torch.from_numpy, shares))
    torch.testing.assert_close(*queries)


class Dropping(Layer):
    """What it adds, and the sums, go through modules that change nothing."""

    def forward(self, x):
        drop = self.drop
        x = self.norm("p", drop(x + drop(self.attend(x))))
        return drop(drop(x) + drop(self.feed(x)))


@pytest.mark.parametrize("norms", ["pre", "post"])
@pytest.mark.parametrize("mlp", ["module", "product", "raw gated"])
def test_a_stream_through_modules_that_change_nothing(norms, mlp):
    model, x, run = made(Kind(norms, mlp=mlp))
    for layer in model.layers:
        layer.drop, layer.__class__ = torch.nn.Dropout(0.1).eval(), Dropping
    found = residual_shares(run, model=model, progress=False).to_numpy()
    for own, layer in zip(torch.from_numpy(found), written(model, x), strict=True):
        torch.testing.assert_close(own, layer.share(), rtol=0, atol=1e-6)


def test_what_is_multiplied_by_zero_is_refused_for_that():
    model, _, run = made(Kind("pre", mlp="product", scale="number"))
    model.layers[0].gain.zero_()
    with pytest.raises(CaptureError, match="adds nothing that rounding to float64 leaves"):
        alti(run, model=model, progress=False)
