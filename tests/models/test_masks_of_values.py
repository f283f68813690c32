"""Where values decide which keys each query may read, a key that none reads is no padding."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import All, Cut, capturing, edited

WIDTH, HEADS = 8, 2


def compared(scores):
    mask = scores < 0
    return mask & ~mask.all(-1, keepdim=True)


def put_back(scores):
    mask = scores < 0
    mask[torch.where(mask.all(-1))] = False
    return mask


def of_largest(scores):
    mask = torch.ones_like(scores, dtype=torch.bool)
    return mask.scatter(-1, scores.topk(2).indices, False)


class Masked(nn.Module):
    """Learned queries read the patches of an image that their own masks keep, as in Mask2Former."""

    def __init__(self, chosen, in_numbers):
        super().__init__()
        self.patches, self.chosen = nn.Conv2d(3, WIDTH, 2, 2), chosen
        self.queries, self.in_numbers = nn.Parameter(torch.randn(2, WIDTH)), in_numbers
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2)
        )
        self.masks = []

    def forward(self, image):
        x = self.patches(image).flatten(2).mT
        z = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            mask = self.chosen(z @ x.mT).repeat_interleave(HEADS, 0)
            if self.in_numbers:
                mask = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(mask, -torch.inf)
            self.masks.append(mask)
            z = z + layer(z, x, x, attn_mask=mask, need_weights=False)[0]
        return z


@torch.no_grad()
@pytest.mark.parametrize("chosen", [compared, put_back, of_largest])
@pytest.mark.parametrize("in_numbers", [False, True])
def test_a_key_that_no_query_reads_keeps_its_place(chosen, in_numbers):
    torch.manual_seed(0)
    model, image = Masked(chosen, in_numbers).double().eval(), torch.randn(2, 3, 6, 6).double()
    with capturing(model, keep=All()) as run:
        model.masks.clear()
        model(image)
    masks = [x.isneginf() if in_numbers else x for x in model.masks[-2:]]
    unread = [mask.unflatten(0, (2, HEADS)).all(2).all(1) for mask in masks]
    assert all(bool(x.any()) for x in unread)
    for element, trace in enumerate(run.traces):
        for layer, mask in enumerate(masks):
            graph = trace["layers"][layer, 0]
            assert graph.labels()[3:5] == ["1,0", "1,1"]
            kept = ~mask.unflatten(0, (2, HEADS))[element, 0].numpy()
            assert np.array_equal(graph.to_dense() > 0, kept)


@torch.no_grad()
def test_a_cut_names_the_patch_after_one_that_no_query_reads():
    torch.manual_seed(3)
    model, image = Masked(compared, False).double().eval(), torch.randn(1, 3, 6, 6).double()
    model(image)
    first = model.masks[0][0]
    after = int(first.all(0).nonzero()[0])
    query, key = next(n for n in (~first).nonzero().tolist() if n[1] > after)
    with edited(model, Cut(layer=0, query=query, key=key)):
        found = model(image)

    def cut(scores):
        mask = compared(scores)
        if len(model.masks) == 0:
            mask[:, query, key] = True
        return mask

    model.masks.clear()
    model.chosen = cut
    torch.testing.assert_close(found, model(image), rtol=0, atol=1e-12)


LATER = {
    "of booleans": lambda x, n: torch.ones(n, n, dtype=torch.bool).triu(1),
    "of numbers": lambda x, n: torch.ones(n, n).triu(1) == 1,
    "like others": lambda x, n: torch.ones_like(x @ x.mT).tril() == 0,
    "new": lambda x, n: x.new_ones(n, n).triu(1).bool(),
}


class Padded(nn.Module):
    """Reads a text causally, whose padding are zeros."""

    def __init__(self, later):
        super().__init__()
        self.layer, self.later = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), later

    def forward(self, x):
        padding = x.abs().sum(-1) == 0
        mask = (self.later(x, x.shape[1]) | padding[:, None]).repeat_interleave(HEADS, 0)
        return self.layer(x, x, x, attn_mask=mask, need_weights=False)[0]


@torch.no_grad()
@pytest.mark.parametrize("later", LATER)
def test_zeros_are_padding(later):
    torch.manual_seed(0)
    model, x = Padded(LATER[later]).double().eval(), torch.randn(2, 5, WIDTH).double()
    x[1, 3:] = 0
    with capturing(model) as run:
        model(x)
    assert [len(trace["layer"][0, 0].labels()) for trace in run.traces] == [5, 3]


class PairsOfNumbers(nn.Module):
    """Compares numbers of pairs of tokens; none of those that are zeros holds anything."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        real = (x.abs().sum(-1) > 0).to(x)
        is_none = torch.einsum("bi,bj->bij", real, real) == 0
        mask = torch.zeros(is_none.shape, dtype=x.dtype).masked_fill(is_none, -1e9)
        return self.layer(x, x, x, attn_mask=mask.repeat_interleave(HEADS, 0))[0]


@torch.no_grad()
def test_tokens_that_read_nothing_and_that_none_reads_are_padding():
    torch.manual_seed(0)
    model, x = PairsOfNumbers().double().eval(), torch.randn(2, 5, WIDTH).double()
    x[1, 3:] = 0
    with capturing(model) as run:
        model(x)
    assert [len(trace["layer"][0, 0].labels()) for trace in run.traces] == [5, 3]
