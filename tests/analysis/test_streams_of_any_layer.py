"""Layers with norms, MLPs and scales in any order, held to their streams written out."""

from itertools import product

import pytest
import torch
from made_layers import HEADS, WIDTH, Kind, held, made, written

import gattn
from gattn.analysis import alti, residual_shares
from gattn.analysis.vectors.importances import route_importances

MLPS = [
    *(
        f"{where}{kind}".strip()
        for where in ("", "inline ", "raw ")
        for kind in ("module", "gated", "product")
    ),
    None,
]
KINDS = [
    Kind(norms, norm, mlp, has_last=has_last)
    for norms, norm, mlp, has_last in product(
        ("none", "pre", "post", "sandwich", "inner"), ("layer", "rms"), MLPS, (False, True)
    )
    if norms != "none" or norm == "layer" or has_last
]
BESIDE = [
    Kind(norms, norm, mlp, True, has_last)
    for norms, norm, mlp, has_last in product(
        ("none", "pre", "sandwich", "inner"), ("layer", "rms"), MLPS[:-1], (False, True)
    )
]
SCALED = [
    Kind(norms, "layer", mlp, is_parallel, has_last, scale)
    for norms, mlp, is_parallel, has_last, scale in product(
        ("none", "pre", "post", "sandwich", "inner"),
        ("module", "inline gated"),
        (False, True),
        (False, True),
        ("module", "vector", "number"),
    )
]
ENDS = [
    Kind(norms, "layer", mlp, end=0.7)
    for norms, mlp in product(("pre", "post", "inner"), ("module", "inline gated"))
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


@pytest.mark.parametrize("kind", [*KINDS, *BESIDE, *SCALED, *ENDS], ids=name)
def test_vectors_are_those_of_the_stream(kind):
    check(kind)


@pytest.mark.parametrize("kind", [*KINDS, *BESIDE, *SCALED, *ENDS], ids=name)
def test_what_heads_wrote_comes_to_the_next_layer(kind):
    check_why(kind)
