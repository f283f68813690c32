"""Attention as diffusion models write it: text beside images as keys, softmax in float32."""

from __future__ import annotations

import copy

import torch
from torch import nn

import gattn

HEADS, DIM, SIDE, TEXT = 2, 8, 3, 4


class Attention(nn.Module):
    """Attends over an image, whose heads are folded into the batch, and a text before it."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.text_key, self.text_value = (nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, image, text):
        x = image.flatten(2).transpose(1, 2)
        q, k, v = (self._folded(one(x)) for one in (self.query, self.key, self.value))
        extra = [self._folded(one(text)) for one in (self.text_key, self.text_value)]
        k, v = (torch.cat([one, other], 1) for one, other in zip(extra, (k, v), strict=True))
        nothing = torch.empty(len(q), q.shape[1], k.shape[1], dtype=q.dtype)
        scores = torch.baddbmm(nothing, q, k.mT, beta=0, alpha=(DIM // HEADS) ** -0.5)
        self.shown = scores.float().softmax(-1).to(q.dtype)
        y = torch.bmm(self.shown, v).unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)
        return image + y.mT.reshape(image.shape)

    def _folded(self, x):
        return x.unflatten(2, (HEADS, -1)).transpose(1, 2).flatten(0, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, image, text):
        for layer in self.layers:
            image = layer(image, text)
        return image


def made(dtype):
    torch.manual_seed(0)
    model = Model().eval().to(dtype)
    image = torch.randn(2, DIM, SIDE, SIDE, dtype=dtype)
    return model, image, torch.randn(2, TEXT, DIM, dtype=dtype)


@torch.no_grad()
def test_texts_keys_stand_after_those_of_the_image():
    model, image, text = made(torch.float32)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(image, text)
    pixels = SIDE * SIDE
    for element, trace in enumerate(run.traces):
        for layer, module in enumerate(model.layers):
            shown = module.shown.unflatten(0, (-1, HEADS))[element]
            expected = torch.cat([shown[..., TEXT:], shown[..., :TEXT]], -1)
            for head in range(HEADS):
                dense = torch.from_numpy(trace[layer, head].to_dense())
                torch.testing.assert_close(dense, expected[head])
                assert dense.shape == (pixels, pixels + TEXT)


@torch.no_grad()
def test_a_softmax_in_less_precision_than_the_model():
    model, image, text = made(torch.float64)
    plain = model(image, text)
    with gattn.capturing(model, keep=gattn.All()) as run:
        assert torch.equal(model(image, text), plain)
    dense = torch.from_numpy(run.traces[0][1, 0].to_dense())
    shown = model.layers[1].shown[0]
    torch.testing.assert_close(
        dense[:, SIDE * SIDE :], shown[:, :TEXT].to(dense), rtol=0, atol=1e-6
    )

    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        output = model(image, text)
    without = copy.deepcopy(model)
    for values in (without.layers[1].value, without.layers[1].text_value):
        values.weight[DIM // HEADS :] = 0
        values.bias[DIM // HEADS :] = 0
    torch.testing.assert_close(output, without(image, text), rtol=0, atol=1e-6)
