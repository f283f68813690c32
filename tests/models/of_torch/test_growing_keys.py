"""Loops over queries that read the keys before them, and over packed texts, are one layer."""

from itertools import pairwise

import pytest
import torch
from hand_written import CAUSAL, ROOT, TOKENS, check
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gattn

WIDTH, HEADS, DIM = 8, 2, 4
SOFTMAXES = {
    "softmax": lambda s: s.softmax(-1),
    "written out": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
}


def query_by_query(q, k, v, softmax):
    output = torch.empty_like(v)
    for n in range(TOKENS):
        seen = slice(n + 1)
        scores = q[:, :, n : n + 1] @ k[:, :, seen].mT / ROOT
        output[:, :, n : n + 1] = softmax(scores) @ v[:, :, seen]
    return output


def chunk_by_chunk(q, k, v):
    parts = []
    for start in range(0, TOKENS, 2):
        own, seen = slice(start, start + 2), slice(start + 2)
        some = q[:, :, own], k[:, :, seen], v[:, :, seen]
        parts.append(F.scaled_dot_product_attention(*some, attn_mask=CAUSAL[own, seen]))
    return torch.cat(parts, 2)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("softmax", SOFTMAXES.values(), ids=SOFTMAXES)
def test_each_query_reads_the_keys_before_it(softmax, batch):
    check(lambda q, k, v: query_by_query(q, k, v, softmax), is_causal=True, batch=batch)


@pytest.mark.parametrize("batch", [1, 2])
def test_each_chunk_of_queries_reads_the_keys_before_it(batch):
    check(chunk_by_chunk, is_causal=True, batch=batch)


def written(q, k, v, softmax):
    attention = softmax(torch.einsum("ihd,jhd->hij", q, k) / 2)
    return torch.einsum("hij,jhd->ihd", attention, v)


def kernel(q, k, v):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(0, 1)


PACKED = {"kernel": kernel} | {
    name: lambda q, k, v, one=one: written(q, k, v, one) for name, one in SOFTMAXES.items()
}


class Packed(nn.Module):
    """Texts one after another in one sequence, each of which reads itself."""

    def __init__(self, attend):
        super().__init__()
        self.qkv, self.attend = nn.Linear(WIDTH, 3 * WIDTH), attend

    def forward(self, x, ends):
        sides = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).unbind(1)
        texts = pairwise(ends.tolist())
        return torch.cat([self.attend(*(y[i:j] for y in sides)) for i, j in texts]).flatten(1)


@pytest.mark.parametrize("ends", [(0, 3, 7), (0, 4, 4, 7), (0, 0, 7), (0, 5, 7, 7)])
@pytest.mark.parametrize("way", PACKED)
@torch.no_grad()
def test_texts_without_tokens_are_no_attention(way, ends):
    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList(Packed(PACKED[way]) for _ in range(2))})
    model.forward = lambda x, ends: model.layers[1](model.layers[0](x, ends), ends)
    model, x = model.double().eval(), torch.randn(7, WIDTH).double()
    plain = model(x, torch.tensor(ends))
    with gattn.capturing(model) as run:
        assert torch.equal(model(x, torch.tensor(ends)), plain)
    q, k, _ = model.layers[0].qkv(x).unflatten(-1, (3, HEADS, DIM)).unbind(1)
    for head in range(HEADS):
        wanted = torch.block_diag(
            *((q[i:j, head] @ k[i:j, head].T / 2).softmax(-1) for i, j in pairwise(ends))
        )
        found = torch.tensor(run.trace.only_stack[0, head].to_dense())
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
