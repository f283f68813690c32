"""Layers that join several inputs, in whatever order, number the same tokens alike."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

IMAGE, TEXT, WIDTH = 6, 4, 8


class Head(nn.Module):
    """One head; `cut` is a slot of a query and one of a key."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        if self.cut is not None:
            scores[:, self.cut[0], self.cut[1]] = -torch.inf
        self.shown = scores.softmax(-1)
        return self.shown @ v


class Double(nn.Module):
    """Is given two inputs, and attends to the second one, then the first."""

    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, first, second):
        q, k, v = self.head.qkv(torch.cat((second, first), 1)).chunk(3, -1)
        self.shown = (q @ k.mT / WIDTH**0.5).softmax(-1)
        found = self.shown @ v
        size = second.shape[1]
        return first + found[:, size:], second + found[:, :size]


class Streams(nn.Module):
    """Image and text in one layer, given apart, and in the next one, given as one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.apart, self.joined = Double(), Head()

    def forward(self, image, text):
        image, text = self.apart(image, text)
        joined = torch.cat((text, image), 1)
        return joined + self.joined(joined)


class Turned(nn.Module):
    """Gives its second layer the two inputs in the other order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Double(), Double()

    def forward(self, image, text):
        image, text = self.first(image, text)
        return torch.cat(self.second(text, image), 1)


class Prompted(nn.Module):
    """Each layer has prompts of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Double() for _ in range(3))
        self.prompts = nn.ParameterList(torch.randn(1, TEXT, WIDTH) for _ in range(3))

    def forward(self, image):
        for layer, prompts in zip(self.layers, self.prompts, strict=True):
            image = layer(image, prompts.expand(len(image), -1, -1))[0]
        return image


def dense(trace, stack):
    return torch.as_tensor(trace[stack][next(iter(trace[stack]))].to_dense())


def inputs(text=TEXT, batch=2):
    generator = torch.Generator().manual_seed(1)
    sizes = (batch, IMAGE, WIDTH), (batch, text, WIDTH)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def slots_of(text):
    """Which token of image and text each slot of text and image is."""
    return [*range(IMAGE, IMAGE + text), *range(IMAGE)]


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("text", [TEXT, IMAGE, 14])
def test_what_one_layer_is_given_apart_and_another_joined(text, batch):
    model = Streams().double().eval()
    names = [
        f"{kind} {n}" for kind, size in (("image", IMAGE), ("text", text)) for n in range(size)
    ]
    with capturing(model, tokens=names) as run:
        model(*inputs(text, batch))
    slots = slots_of(text)
    for row, trace in enumerate(run.traces):
        for stack, layer in (("apart", model.apart), ("joined", model.joined)):
            found = dense(trace, stack)[slots][:, slots]
            torch.testing.assert_close(found, layer.shown[row], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("text", [TEXT, IMAGE, 14])
def test_layers_that_are_given_two_inputs_in_turn(text):
    model = Turned().double().eval()
    with capturing(model) as run:
        model(*inputs(text))
    slots = slots_of(text)
    for row, trace in enumerate(run.traces):
        found = dense(trace, "first")[slots][:, slots]
        torch.testing.assert_close(found, model.first.shown[row], rtol=0, atol=1e-12)
        found = dense(trace, "second")
        torch.testing.assert_close(found, model.second.shown[row], rtol=0, atol=1e-12)


@torch.no_grad()
def test_an_edit_means_the_same_tokens_in_all_layers():
    model, given = Streams().double().eval(), inputs()
    query, key = 2, IMAGE + 1
    with edited(model, Cut("joined:0.0", query=query, key=key)):
        found = model(*given)
    slots = slots_of(TEXT)
    model.joined.cut = slots.index(query), slots.index(key)
    torch.testing.assert_close(found, model(*given), rtol=0, atol=1e-12)


@torch.no_grad()
def test_prompts_of_each_layer_keep_their_numbers():
    model, (image, _) = Prompted().double().eval(), inputs()
    with capturing(model) as run:
        model(image)
    slots = slots_of(TEXT)
    for (layer, _), head in run.traces[1]["layers"].items():
        found = torch.as_tensor(head.to_dense())[slots][:, slots]
        torch.testing.assert_close(found, model.layers[layer].shown[1], rtol=0, atol=1e-12)


class Reader(nn.Module):
    """`cut` is an element, a slot of a query and one of a key."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), None

    def forward(self, x, y):
        q, k, v = (part(one) for part, one in zip(self.qkv, (x, y, y), strict=True))
        scores = q @ k.mT
        if self.cut is not None:
            scores[self.cut] = -torch.inf
        self.seen = torch.softmax(scores, -1)
        return x + self.seen @ v


class Pair(nn.Module):
    """Two pictures that are joined along the batch, and read themselves, then each other."""

    def __init__(self):
        super().__init__()
        self.own, self.cross = Reader(), Reader()

    def forward(self, first, second):
        x = torch.cat([first, second])
        x = self.own(x, x)
        return self.cross(x, torch.cat(x.chunk(2)[::-1]))


class PairAlone(Reader):
    def forward(self, first, second):
        x, y = torch.cat([first, second]), torch.cat([second, first])
        return super().forward(x, y)


def test_two_pictures_that_read_each_other_have_no_more_tokens_than_they_are_given():
    torch.manual_seed(0)
    model, pictures = Pair().eval(), torch.randn(2, 2, 5, 8)
    with torch.no_grad(), capturing(model) as run:
        model(*pictures)
    for n, trace in enumerate(run.traces):
        head = trace["cross"][0, 0]
        wanted = torch.zeros(10, 10)
        wanted[:5, 5:], wanted[5:, :5] = model.cross.seen[n], model.cross.seen[n + 2]
        assert head.to_dense().shape == (10, 10)
        torch.testing.assert_close(torch.tensor(head.to_dense()), wanted)
    with torch.no_grad(), edited(model, Cut("cross:0.0", query=7, key=2)):
        found = model(*pictures)
    model.cross.cut = slice(2, None), 2, 2
    torch.testing.assert_close(found, model(*pictures))


def test_pictures_that_no_single_input_tells_are_refused():
    torch.manual_seed(0)
    model, pictures = PairAlone().eval(), torch.randn(2, 2, 5, 8)
    joined = "several inputs are joined along the batch"
    with pytest.raises(CaptureError, match=joined), torch.no_grad(), capturing(model):
        model(*pictures)


class Joined(nn.Module):
    """Attends to its inputs joined in some order for the keys; some are turned round there."""

    def __init__(self, order, turned=()):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in order)
        self.order, self.turned = order, turned

    def forward(self, *given):
        parts = [qkv(x).chunk(3, -1) for qkv, x in zip(self.qkv, given, strict=True)]
        q = torch.cat([part[0] for part in parts], 1)
        k, v = (
            torch.cat(
                [parts[i][n].flip(1) if i in self.turned else parts[i][n] for i in self.order], 1
            )
            for n in (1, 2)
        )
        self.shown = (q @ k.mT / WIDTH**0.5).softmax(-1)
        return self.shown @ v


@pytest.mark.parametrize(("order", "turned"), [((0, 2, 1), ()), ((0, 1), (1,))])
def test_inputs_joined_in_another_order_for_the_keys_are_refused(order, turned):
    torch.manual_seed(0)
    model, given = Joined(order, turned).eval(), torch.randn(len(order), 2, 4, WIDTH)
    with pytest.raises(CaptureError, match="several inputs"), torch.no_grad(), capturing(model):
        model(*given)


def test_three_inputs_joined_in_one_order_are_read():
    torch.manual_seed(0)
    model, given = Joined((0, 1, 2)).eval(), torch.randn(3, 2, 4, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(*given)
    for trace, wanted in zip(run.traces, model.shown, strict=True):
        assert trace[0, 0].to_dense() == pytest.approx(wanted.numpy(), abs=1e-6)
