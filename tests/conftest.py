import os

# Before any import of transformers: tests never touch the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def randn():
    """Draw normal numbers; the same ones each time a test runs."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, dtype=torch.float64):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


@pytest.fixture
def loops():
    """Attention in plain loops over (B, H, Q, D), (B, H, K, D) and (B, H, K, V).

    ``score(h, i, j, q, k)`` scores one pair; ``share(scores)`` normalises one neighbourhood.
    """

    def softmax(scores):
        return scores.exp() / scores.exp().sum()

    def attend(query, key, value, mask, score, share=softmax):
        batch, heads, queries, _ = query.shape
        output = torch.zeros(batch, heads, queries, value.shape[-1], dtype=query.dtype)
        attention = torch.zeros(batch, heads, queries, key.shape[2], dtype=query.dtype)
        for b in range(batch):
            for h in range(heads):
                for i in range(queries):
                    near = [j for j in range(key.shape[2]) if mask[i, j]]
                    if not near:
                        continue
                    scores = [score(h, i, j, query[b, h, i], key[b, h, j]) for j in near]
                    shares = share(torch.stack([torch.as_tensor(s) for s in scores]))
                    for j, one in zip(near, shares, strict=True):
                        attention[b, h, i, j] = one
                        output[b, h, i] = output[b, h, i] + one * value[b, h, j]
        return output, attention

    return attend
