"""Ways in which libraries write attention, in small copies of their own."""

from __future__ import annotations

import copy

import pytest
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
def test_a_texts_keys_come_before_those_of_the_image():
    model, image, text = made(torch.float32)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(image, text)
    pixels = SIDE * SIDE
    for element, trace in enumerate(run.traces):
        for layer, module in enumerate(model.layers):
            shown = module.shown.unflatten(0, (-1, HEADS))[element]
            for head in range(HEADS):
                dense = torch.from_numpy(trace[layer, head].to_dense())
                torch.testing.assert_close(dense, shown[head])
                assert dense.shape == (pixels, pixels + TEXT)


@torch.no_grad()
def test_a_softmax_in_less_precision_than_the_model():
    model, image, text = made(torch.float64)
    plain = model(image, text)
    with gattn.capturing(model, keep=gattn.All()) as run:
        assert torch.equal(model(image, text), plain)
    dense = torch.from_numpy(run.traces[0][1, 0].to_dense())
    shown = model.layers[1].shown[0]
    torch.testing.assert_close(dense, shown.to(dense), rtol=0, atol=1e-6)

    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        output = model(image, text)
    without = copy.deepcopy(model)
    for values in (without.layers[1].value, without.layers[1].text_value):
        values.weight[DIM // HEADS :] = 0
        values.bias[DIM // HEADS :] = 0
    torch.testing.assert_close(output, without(image, text), rtol=0, atol=1e-6)


class Filling(nn.Module):
    """Attends causally, and fills something into its attention."""

    def __init__(self, way):
        super().__init__()
        self.parts, self.way = nn.Linear(DIM, 3 * DIM), way

    def forward(self, x, cache=None):
        q, k, v = self.parts(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        if cache is not None:
            k, v = cache.extended(k, v)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 2).masked_fill(later, -torch.inf)
        self.shown = pattern = scores.float().softmax(-1)
        if self.way == "zeros":
            pattern = pattern.masked_fill(later, 0)
        elif self.way == "no numbers":
            pattern = torch.where(torch.isnan(pattern), torch.zeros_like(pattern), pattern)
        elif self.way == "a key":
            pattern = pattern.masked_fill(torch.arange(k.shape[2]) == 1, 0)
        y = (pattern.type_as(v) @ v).transpose(1, 2).flatten(2)
        return x + y, self.shown.view(len(x), HEADS, -1, k.shape[2]).type_as(x).mean(1)


class Cache:
    def __init__(self):
        self.known = None

    def extended(self, *new):
        if self.known is not None:
            new = tuple(torch.cat(pair, 2) for pair in zip(self.known, new, strict=True))
        self.known = new
        return new


class Text(nn.Module):
    """Embeds ids, and may make a cache, which the attending module changes."""

    def __init__(self, way, is_cached):
        super().__init__()
        self.embed, self.inner, self.is_cached = nn.Embedding(9, DIM), Filling(way), is_cached

    def forward(self, ids):
        return self.inner(self.embed(ids), Cache() if self.is_cached else None)


@torch.no_grad()
@pytest.mark.parametrize("way", ["zeros", "no numbers"])
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_fill_that_changes_no_number_is_followed(way, is_cached):
    torch.manual_seed(0)
    model, x = Text(way, is_cached).eval().double(), torch.randint(0, 9, (2, 5))
    layer = model.inner
    plain = model(x)
    with gattn.capturing(model, keep=gattn.All()) as run:
        assert torch.equal(model(x)[0], plain[0])
    for element, trace in enumerate(run.traces):
        for head in range(HEADS):
            dense = torch.from_numpy(trace[0, head].to_dense())
            torch.testing.assert_close(dense, layer.shown[element, head].to(dense))

    with gattn.edited(model, gattn.Cut(layer=0, head=1)):
        output, average = model(x)
    plainly = Filling("")
    plainly.load_state_dict(layer.state_dict())
    plainly.double().parts.weight[-DIM // HEADS :] = 0
    plainly.parts.bias[-DIM // HEADS :] = 0
    torch.testing.assert_close(output, plainly(model.embed(x))[0], rtol=0, atol=1e-6)
    wanted = plainly.shown[:, 0].double() / HEADS  # the other head gives nothing
    torch.testing.assert_close(average, wanted, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_fill_that_takes_a_key_leaves_rows_of_less():
    torch.manual_seed(0)
    model, x = Filling("a key").eval(), torch.randn(2, 5, DIM)
    told = pytest.warns(UserWarning, match="takes tokens between others")
    with told, gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    for element, trace in enumerate(run.traces):
        for head in range(HEADS):
            dense = torch.from_numpy(trace[0, head].to_dense())
            read = torch.tensor([0, 2, 3, 4])  # What nobody reads is padding.
            wanted = model.shown[element, head][read][:, read]
            torch.testing.assert_close(dense, wanted.to(dense))


class Crossing(nn.Module):
    """Each frame of a video attends to a text: the same one, or its own."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, video, text):
        frames = video.shape[1]
        text = text.repeat_interleave(frames, 0) if text.dim() == 3 else text.flatten(0, 1)
        pairs = (self.query, video.flatten(0, 1)), (self.key, text), (self.value, text)
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one, x in pairs)
        self.shown = (q @ k.mT / 2).softmax(-1)
        self.values = v
        return video + (self.shown @ v).transpose(1, 2).flatten(2).view_as(video)


@torch.no_grad()
@pytest.mark.parametrize("is_own", [False, True])
def test_frames_that_attend_to_a_text(is_own):
    torch.manual_seed(0)
    frames, patches = 3, 5
    model, video = Crossing().eval().double(), torch.randn(2, frames, patches, DIM).double()
    text = torch.randn(2, *([frames] if is_own else []), TEXT, DIM, dtype=torch.float64)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(video, text)
    shown = model.shown.view(2, frames, HEADS, patches, TEXT)
    for element, trace in enumerate(run.traces):
        (stack,) = trace.stacks.values()
        for head in range(HEADS):
            wanted = torch.zeros(frames, patches, frames if is_own else 1, TEXT)
            for frame in range(frames):
                wanted[frame, :, frame if is_own else 0] = shown[element, frame, head]
            dense = torch.from_numpy(stack[0, head].to_dense())
            torch.testing.assert_close(dense, wanted.flatten(2).flatten(0, 1).to(dense))

    key = TEXT + 1 if is_own else 1
    with gattn.edited(model, gattn.Cut(layer=0, head=1, query=patches + 2, key=key)):
        output = model(video, text)
    row = shown[:, 1, 1, 2]
    row[:, 1] = 0
    row /= row.sum(-1, keepdim=True)
    read = (shown.flatten(0, 1) @ model.values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, video + read.view_as(video), rtol=0, atol=1e-12)
