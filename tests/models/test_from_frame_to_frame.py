"""Tokens of one input that read those of another index of it, such as a frame those of the next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited

WIDTH, TOKENS, FRAMES = 16, 4, 3
Frames = Callable[[Tensor], Tensor]


class _Reads(nn.Module):
    def __init__(self, queries: Frames, keys: Frames, *, is_fused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.queries, self.keys, self.is_fused = queries, keys, is_fused
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = self.queries(x), self.keys(x)
        q, k, v = self.q(queries), self.k(keys), self.v(keys)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


WAYS: dict[str, tuple[Frames, Frames, int, int]] = {
    "first reads second": (lambda x: x[:, 0], lambda x: x[:, 1], 0, TOKENS),
    "second reads first": (lambda x: x[:, 1], lambda x: x[:, 0], TOKENS, 0),
    "second reads later": (lambda x: x[:, 1], lambda x: x[:, 1:].flatten(1, 2), TOKENS, TOKENS),
    "second reads all": (lambda x: x[:, 1], lambda x: x.flatten(1, 2), TOKENS, 0),
    "all read second": (lambda x: x.flatten(1, 2), lambda x: x[:, 1], 0, TOKENS),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_tokens_of_frames_are_numbered_in_all_frames(way: str, batch: int, is_fused: bool) -> None:
    queries, keys, query, key = WAYS[way]
    model, x = (
        _Reads(queries, keys, is_fused=is_fused),
        torch.randn(batch, FRAMES, TOKENS, WIDTH).double(),
    )
    with torch.no_grad(), capturing(model) as run:
        plain = model(x)
    with torch.no_grad():
        scores = model.q(model.queries(x)) @ model.k(model.keys(x)).mT / WIDTH**0.5
    shown = scores.softmax(-1)
    for n, trace in enumerate(run.traces):
        rows, columns = shown[n].shape
        wanted = np.zeros((FRAMES * TOKENS, FRAMES * TOKENS))
        wanted[query : query + rows, key : key + columns] = shown[n]
        assert not trace[0, 0].graph.is_bipartite
        np.testing.assert_allclose(trace[0, 0].to_dense(), wanted, atol=1e-12)
    with torch.no_grad(), edited(model, Cut(query=query + 1, key=key + 2)):
        found = model(x)
    kept = shown.clone()
    kept[:, 1, 2] = 0
    kept /= kept.sum(-1, keepdim=True)
    torch.testing.assert_close(found, kept @ model.v(model.keys(x)), rtol=0, atol=1e-12)
    assert not torch.equal(found, plain)
