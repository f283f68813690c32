"""Cosines against torch's own, in float64."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from gattn.weights import Cosine, SwinCosine

LENGTHS = [0.0, 1e-30, 1e-13, 1e-11, 1e-9, 2e-8, 1e-3, 1.0, 1e4]


def vectors(dtype):
    draw = torch.Generator().manual_seed(0)
    unit = normalize(torch.randn(len(LENGTHS), 8, generator=draw, dtype=torch.float64), dim=-1)
    given = unit * torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    return given.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["cosine", "swin"])
def test_short_vectors_follow_torch_and_have_finite_gradients(kind, dtype):
    weight = Cosine() if kind == "cosine" else SwinCosine(1).to(dtype)
    given = vectors(dtype)
    query, key = weight.prepare(given, given, None)
    exact = given.detach().double()
    if kind == "cosine":
        wanted = cosine_similarity(exact[:, None], exact[None], dim=-1, eps=1e-8)
        found = query.double() @ key.double().T
        room = 16 * torch.finfo(dtype).eps
    else:
        wanted, found = normalize(exact, dim=-1, eps=1e-12), key.double()
        room = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, wanted, rtol=room, atol=room)
    key.float().sum().backward()
    assert bool(given.grad.isfinite().all())
