"""Ways to write attention: the same formula by many functions of torch."""

from __future__ import annotations

import torch
from hand_written import DIM, HEADS
from torch.nn import functional as F  # noqa: N812


def kernel(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def written(q, k, v):
    scores = (q @ k.transpose(-2, -1)) / DIM**0.5
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ v


def einsums(q, k, v):
    attention = torch.einsum("bhid,bhjd->bhij", q, k).div(DIM**0.5).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attention, v)


def keys_first(q, k, v):
    attention = ((k @ q.transpose(-2, -1)) / DIM**0.5).softmax(-2)
    return (v.mT @ attention).mT


def heads_last(q, k, v):
    attention = F.softmax(torch.einsum("bhid,bhjd->bijh", q, k) / DIM**0.5, 2)
    return torch.einsum("bijh,bhjd->bhid", attention, v)


def heads_in_batch(q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    attention = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0, alpha=DIM**-0.5).softmax(-1)
    return torch.bmm(attention.view(-1, HEADS, *attention.shape[1:]).flatten(0, 1), v).unflatten(
        0, (-1, HEADS)
    )


def softmin(q, k, v):
    return F.softmin(-(q @ k.mT) / DIM**0.5, -1) @ v


def sums(q, k, v):
    attention = F.softmax(q @ k.mT / DIM**0.5, -1)
    return (attention[..., None] * v[:, :, None]).sum(-2)


def sums_of_values_first(q, k, v):
    attention = ((k @ q.mT) / DIM**0.5).softmax(2)
    return torch.sum(v.unsqueeze(3).mul(attention.unsqueeze(-1)), dim=(2,), keepdim=True)[:, :, 0]


def sums_by_view(q, k, v):
    attention = (q @ k.mT / DIM**0.5).softmax(-1)
    *rows, keys = attention.shape
    return torch.sum(v[:, :, None] * attention.view(*rows, keys, 1), dim=3)


def keys_before_queries_folded(q, k, v):
    attention = (k @ q.mT / DIM**0.5).softmax(-2)
    apart = attention.view(-1, *attention.shape[2:]).view(attention.shape)  # Keys, then queries.
    return torch.einsum("bhji,bhjd->bhid", apart, v)


WAYS = [kernel, written, einsums, keys_first, heads_last, sums, sums_of_values_first]
WAYS += [sums_by_view, keys_before_queries_folded]
